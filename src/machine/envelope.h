// Owns: measuring what a drive can do under streaming, and what a scheduler may conclude from that.
// Keeps: all time comes from the rig's clock and every read goes through its engines, so the same device gives the same
// verdict. It begins no read when its time is over or it was told to stop. What memory answered is labelled, and
// concludes nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/status.h"
#include "io/engine.h"
#include "machine/probe.h"
#include "machine/verdict.h"

namespace sluice::machine {

// Reads of one size, all over the files.
struct SizeTargets {
    uint64_t bytes = 0;  // at most kMostProbeRead
    std::string name;    // what has that size
    std::vector<Target> targets;
};

struct EnvelopePlan {
    // The same files twice; `direct` is empty if one of them cannot be read so.
    std::vector<const io::File*> direct, buffered;
    std::vector<SizeTargets> sizes;      // rising; each of the three below is one of them
    uint64_t page = 0;                   // a row of an embedding
    uint64_t part = 0;                   // one component of an expert, what streaming reads most
    uint64_t record = 0;                 // a whole expert
    bool memory = false;                 // the files lie in memory
    Nanos time = 30'000'000'000;         // about; never more than twice that
    bool full = false;                   // every combination, not only those that decide something
    uint64_t most_room = 512 * MiB;      // memory for reads in flight; combinations that need more are left out
    uint64_t most_sustained = 16 * GiB;  // bytes read on and on, each of both times
    unsigned load_threads = 1;
};

// Adds a page and the sizes from 64 KiB to 1 MiB, and `more`, as far as they fit into a file; a size that is there
// already gets another name.
void add_scattered_sizes(EnvelopePlan& plan, const std::vector<uint64_t>& more, uint64_t seed);
void add_size(EnvelopePlan& plan, SizeTargets size);
// Another name for a size, if it is there.
void name_size(EnvelopePlan& plan, uint64_t bytes, const std::string& name);

// What it is done with: the machine, or a simulation of one.
struct Rig {
    const Clock* clock = nullptr;
    std::function<Result<io::MadeEngine>(const io::EngineOptions&)> make_engine;
    std::function<std::optional<uint64_t>()> device_bytes;     // counted by the kernel so far
    std::function<void(const io::File&, const Target&)> drop;  // from the page cache
    std::function<Status(unsigned threads)> load;              // compute with so many; 0: no more
    std::function<bool()> stop;
    std::function<void(double part, const std::string& what)> progress;
};

// Everything of the verdict but where it was measured. `cancelled` if it was told to stop.
Result<Verdict> measure_envelope(const EnvelopePlan& plan, const Rig& rig);

// Takes at most about a second, and 32 MiB.
MemorySpeeds measure_memory(const Clock& clock);

// What follows from the measurements; `notes` gets what does not. The sizes are those of the plan.
std::optional<Derived> derive(const Verdict& verdict, uint64_t page, uint64_t part, uint64_t record,
                              std::vector<std::string>& notes);

// Speculation may make the typical exact read of a record later by this part, or by one chunk if that takes longer.
inline constexpr double kTolerated = 0.10;

}  // namespace sluice::machine
