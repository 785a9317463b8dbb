// Owns: what `sluice probe` found out about a drive: the verdict, its file, and what may be concluded from it.
// Keeps: what was read from a file is whole, of this version and within limits, or it is an error. Nothing is said
// about sizes, depths and engines that were not measured, and what memory answered says nothing about the drive.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/status.h"
#include "io/engine.h"
#include "machine/drive.h"

namespace sluice::machine {

// Raised whenever a value changes its meaning: older files are measured again, not converted.
inline constexpr unsigned kVerdictVersion = 1;

// What a verdict holds for. Plain ASCII; empty: unknown.
struct DriveIdentity {
    std::string device;  // "nvme0n1"
    std::string model;
    std::string serial;
    std::string file_system;
    std::string scheduler;
    std::string source;  // what is mounted where, if no drive can be seen under it
    uint64_t bytes = 0;
    bool virtual_drive = false;
    bool memory = false;  // the file system lives in memory

    // A name for files: the same after a restart, for another drive another one. Of the scheduler it knows nothing.
    [[nodiscard]] std::string id() const;
    bool operator==(const DriveIdentity&) const = default;
};
DriveIdentity identify(const DriveFacts& facts);

// Of one read, from submission to completion. Where reads were too few, a percentile is absent.
struct Latency {
    Nanos p50 = 0;
    std::optional<Nanos> p95, p99;
    bool operator==(const Latency&) const = default;
};
inline constexpr size_t kReadsForP95 = 20;
inline constexpr size_t kReadsForP99 = 100;
// Of at least one read; sorts them.
Latency latency_of(std::vector<Nanos>& took);

// Who gave the bytes: the drive, the page cache (or whatever else the kernel did not count as a device), or nobody
// knows.
enum class Source : uint8_t { device, memory, unknown };

// Reads of one size, as many at once as the depth.
struct Cell {
    io::EngineKind engine = io::EngineKind::io_uring;
    bool direct = false;
    bool under_load = false;  // all cores were computing
    uint64_t size = 0;
    unsigned depth = 0;
    Source source = Source::unknown;
    uint64_t reads = 0;
    uint64_t bytes = 0;
    Nanos elapsed = 0;
    std::optional<uint64_t> device_bytes = {};  // what the kernel counted meanwhile
    double spread = 1;                          // the fastest round over the slowest
    Latency latency = {};

    [[nodiscard]] double bytes_per_ns() const { return static_cast<double>(bytes) / static_cast<double>(elapsed); }
    bool operator==(const Cell&) const = default;
};

// Reading on and on.
struct Sustained {
    io::EngineKind engine = io::EngineKind::io_uring;
    bool direct = false;
    uint64_t size = 0;
    unsigned depth = 0;
    Source source = Source::unknown;
    uint64_t bytes = 0;
    Nanos elapsed = 0;
    double burst = 0;        // bytes per nanosecond, the fastest window
    double rate = 0;         // the last third
    bool steady = false;     // the last third was as fast as the one before
    Nanos steady_after = 0;  // when that began; 0 if it did not
    bool operator==(const Sustained&) const = default;
};

// One exact read after the other, beside speculative ones of `chunk` bytes of which `pieces` are always in flight.
struct Interference {
    uint64_t exact = 0;  // bytes of an exact read
    uint64_t chunk = 0;  // 0: nothing beside them
    unsigned pieces = 0;
    bool priorities = false;  // the drive was told which is which
    Source source = Source::unknown;
    uint64_t reads = 0;
    double exact_rate = 0;        // bytes per nanosecond
    double speculative_rate = 0;  // the same
    Latency latency = {};         // of the exact ones
    bool operator==(const Interference&) const = default;
};

// In bytes per nanosecond; absent: not measured.
struct MemorySpeeds {
    std::optional<double> checksum;     // CRC-32C of bytes in memory
    std::optional<double> first_touch;  // of memory fresh from the kernel
    std::optional<double> again;        // of the same memory
    bool operator==(const MemorySpeeds&) const = default;
};

// What a scheduler needs to know.
struct Derived {
    io::EngineKind engine = io::EngineKind::io_uring;
    bool direct = false;
    uint64_t size = 0;        // of a read, which engine and depth were chosen for
    unsigned depth = 0;       // the least with which reading is within 5 % of the fastest
    double best = 0;          // bytes per nanosecond with that
    double sustained = 0;     // for as long as it goes on
    double burst = 0;         // after a rest
    bool steady = false;      // otherwise `sustained` is where the time was over
    uint64_t chunk = 0;       // of a speculative read: larger ones are hardly faster
    Nanos service = 0;        // of one chunk alone, median
    uint64_t window = 0;      // speculative bytes in flight at most; 0: any delays exact reads too much
    unsigned lanes = 1;       // reads in flight
    unsigned reserved = 1;    // of those, for exact reads only
    bool priorities = false;  // the window holds only if the drive is told which reads are speculative
    bool operator==(const Derived&) const = default;
};

// A size that was measured, and what has it in the model.
struct SizeName {
    uint64_t bytes = 0;
    std::string name;
    bool operator==(const SizeName&) const = default;
};

struct Verdict {
    std::string made;    // "2025-03-01T12:00:00Z"
    std::string sluice;  // version of the program
    std::string kernel;
    DriveIdentity drive;
    std::string path;  // what was read
    uint64_t path_bytes = 0;
    std::string model_digest;  // empty: it is no model
    bool full = false;
    Nanos took = 0;
    unsigned load_threads = 0;
    std::vector<SizeName> sizes;
    std::vector<Cell> cells;
    std::vector<Sustained> sustained;  // at the beginning, and again at the end
    std::vector<Interference> interference;
    MemorySpeeds memory;
    std::optional<Derived> derived;  // absent if the drive itself was not measured
    std::vector<std::string> notes;  // what is to be known about it, in sentences

    // Between the sizes and depths that were measured on the drive itself; nullopt outside of these.
    [[nodiscard]] std::optional<Latency> at(io::EngineKind engine, bool direct, uint64_t size, unsigned depth,
                                            bool under_load = false) const;
    [[nodiscard]] const Cell* find(io::EngineKind engine, bool direct, uint64_t size, unsigned depth,
                                   bool under_load = false) const;
    // The time that a checksum of every byte takes, as a part of the time that reading takes at its fastest.
    [[nodiscard]] std::optional<double> checksum_share() const;
    bool operator==(const Verdict&) const = default;
};

// Longer lists are neither written nor read.
inline constexpr size_t kMostCells = 4096;
inline constexpr size_t kMostInterference = 1024;
inline constexpr size_t kMostNotes = 64;
inline constexpr size_t kMostVerdictBytes = 1 * MiB;

// As JSON, with a digest over all of it. An error if it breaks a limit: then it could not be read back.
Result<std::string> verdict_text(const Verdict& verdict);
// `corrupt`: not a verdict, cut off, changed since, or numbers that cannot be. `unsupported`: another version.
Result<Verdict> parse_verdict(std::string_view text);
Result<Verdict> read_verdict(const std::string& path);

// Where verdicts are: $SLUICE_CACHE_DIR/probe, else $XDG_CACHE_HOME/sluice/probe, else ~/.cache/sluice/probe.
Result<std::string> verdict_directory();
std::string verdict_path(const std::string& directory, const DriveIdentity& drive);

// Whether a verdict holds for a drive as it is now; if not, `invalid_argument` says what differs.
Status check_drive(const Verdict& verdict, const DriveIdentity& now);

// The one for the drive that a file lies on; not_found if there is none. `root` as in read_drive.
Result<Verdict> find_verdict(const std::string& path, const std::string& root = "");
// The same where the facts are known already.
Result<Verdict> find_verdict(const DriveFacts& facts);

const char* engine_name(io::EngineKind engine);

}  // namespace sluice::machine
