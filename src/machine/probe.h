// Owns: a short measurement of how fast a model's own bytes come off its drive, through the read engines that streaming
// uses.
// Keeps: it begins no read once it has the bytes it was told to read, or its time is over; what was not measured says
// why. Nothing is written. Of the page cache, only what is about to be read buffered is dropped, with its
// neighbours within 2 MiB.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/status.h"
#include "io/engine.h"

namespace sluice::machine {

// A piece of a file that is to be read. It lies inside its file.
struct Target {
    uint32_t file = 0;  // which of the plan's paths
    uint64_t offset = 0;
    uint64_t bytes = 0;
};

// Reads longer than this are made in pieces, so that a probe needs little memory.
inline constexpr uint64_t kMostProbeRead = 8 * MiB;

struct ProbeRun {
    bool direct = false;
    unsigned lanes = 0;  // reads in flight
    uint64_t reads = 0;
    uint64_t bytes = 0;  // as wanted; what alignment adds is not counted
    Nanos elapsed = 0;
    std::optional<Nanos> p50, p95;         // of one read, from submission to completion
    uint64_t beside_bytes = 0;             // of the reads beside it, until its own last one ended
    std::optional<uint64_t> device_bytes;  // what the kernel says came from a device meanwhile
    bool out_of_time = false;
    std::string error;             // of the read that ended the run
    std::optional<Target> failed;  // that read

    // Absent when nothing was read.
    [[nodiscard]] std::optional<double> mib_per_second() const;
    // The kernel counted much less from the device than was read: memory answered in its place.
    [[nodiscard]] bool from_memory() const;
};

struct Probe {
    std::string not_done;     // why there are no runs; empty when there are
    std::string engine;       // "io_uring", "pread"
    std::string note;         // why it is not the engine that was hoped for
    uint64_t read_bytes = 0;  // of the middle one of the targets
    std::vector<ProbeRun> runs;

    // The fastest one of the direct runs, else of all; nullptr when there is none.
    [[nodiscard]] const ProbeRun* best() const;
    [[nodiscard]] const ProbeRun* find(bool direct, unsigned lanes) const;
};

struct ProbePlan {
    std::vector<std::string> paths;
    std::vector<Target> targets;  // read in this order; a run reads none twice, the next one begins where it ended
    uint64_t bytes_per_run = 64 * MiB;
    Nanos time_per_run = 5'000'000'000;
    io::EngineKind engine = io::EngineKind::automatic;
    std::function<void(const ProbeRun& running, double part)> progress;  // part of this run, 0..1
};

// Direct at 1, 4 and 8 reads in flight, then at 8 through the page cache, which was emptied of what is to be read.
// Where a file cannot be read directly, only the last. Nothing is measured on less than kLeastToProbe.
inline constexpr uint64_t kLeastToProbe = 2 * MiB;
Probe measure(const ProbePlan& plan);

// Memory for reads, touched once: first touch can cost more than the reads.
class ReadRoom {
  public:
    // For `reads` reads of `bytes` each, wherever they begin.
    static Result<ReadRoom> allocate(unsigned reads, uint64_t bytes);
    static Result<ReadRoom> allocate(uint64_t cost);
    // What allocate() takes.
    static uint64_t cost(unsigned reads, uint64_t bytes);
    [[nodiscard]] bool holds(unsigned reads, uint64_t bytes) const;
    // `each` as given to holds().
    [[nodiscard]] std::byte* place(unsigned read, uint64_t each) const;

  private:
    Region memory_;
};

// Reads of another stream, kept in flight beside those of a run. They are speculative: nobody waits for them.
struct Beside {
    std::span<const Target> targets;  // around and around
    unsigned reads = 0;               // in flight
    size_t first = 0;
};

// One run on an engine with at least `lanes` lanes (and one for each read beside): reads targets[first],
// targets[first + 1], ... around to the first again.
struct RunPlan {
    std::span<const io::File* const> files;
    std::span<const Target> targets;
    size_t first = 0;
    unsigned lanes = 1;
    uint64_t bytes = 0;
    Nanos time = 0;
    bool again = false;        // goes on with the first target after the last; otherwise none is read twice
    uint64_t least_reads = 0;  // made even when `time` is over, but not after `most_time`
    Nanos most_time = 0;
    Beside beside = {};
    const ReadRoom* room = nullptr;        // allocated for this run if there is none
    std::vector<Nanos>* took = nullptr;    // the time of every read is added
    std::function<bool()> stop = nullptr;  // asked before each read; true ends the run
};
Result<ProbeRun> run_reads(io::Engine& engine, const Clock& clock, const RunPlan& plan,
                           const std::function<void(const ProbeRun&, double)>& progress);

// The `part` of sorted values, at least one of them: 0 gives the smallest, 1 the largest.
Nanos percentile(std::span<const Nanos> sorted, double part);

// So that what is read next comes from the drive: takes a target out of the page cache, with its neighbours.
void drop_from_page_cache(const io::File& file, const Target& target);

// Whole pieces of `read_bytes` all over a file of `file_bytes` (the file itself if it is smaller), `most` of them, in
// random order.
std::vector<Target> scattered(uint64_t file_bytes, uint64_t read_bytes, size_t most, uint64_t seed);

}  // namespace sluice::machine
