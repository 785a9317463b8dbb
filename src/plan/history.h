// Owns: what is remembered of past runs and of this processor's speed: one short line each, in a file of the user's.
// Keeps: no prompt, text, path or name is in it; a line is there whole or not at all, also when several programs write
// at once; the file stays small; a line that is damaged, of another version or beyond all limits is passed over.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace sluice::plan {

// From the least to the most.
struct Range {
    double low = 0;
    double high = 0;
    [[nodiscard]] bool holds(double x) const { return low <= x && x <= high; }
    bool operator==(const Range&) const = default;
};

// The decode of one run.
struct PastRun {
    std::string at;       // "2025-03-01T12:00:00Z"
    std::string model;    // digest over headers and dense weights
    std::string machine;  // processor and cores
    std::string drive;    // as its verdict is called
    unsigned threads = 0;
    uint64_t cache_bytes = 0;
    uint64_t slots = 0;
    std::string policy;
    uint64_t tokens = 0;
    Nanos wall = 0;     // of all of them
    Nanos waited = 0;   // standing still for reads
    Nanos reading = 0;  // with at least one read on its way
    uint64_t lookups = 0;
    uint64_t hits = 0;
    uint64_t read_bytes = 0;
    std::optional<Range> predicted;  // tok/s, by what was known before this run

    [[nodiscard]] double tokens_per_second() const {
        return static_cast<double>(tokens) * 1e9 / static_cast<double>(wall);
    }
    bool operator==(const PastRun&) const = default;
};

// How long this processor takes, as it was measured: nanoseconds per byte of weights by type, and per node of a graph.
struct Speeds {
    std::string at;
    std::string machine;
    unsigned threads = 0;
    std::map<std::string, double> experts;  // MUL_MAT_ID
    std::map<std::string, double> dense;    // MUL_MAT
    double node = 0;
    bool busy = false;  // other programs kept the machine busy: slower than it is
    bool operator==(const Speeds&) const = default;
};

// The oldest first.
struct History {
    std::vector<PastRun> runs;
    std::vector<Speeds> speeds;
};

// Fewer tokens say little about a speed.
inline constexpr uint64_t kLeastTokens = 8;
// A file beyond this is cut down to its newest half before something is added.
inline constexpr uint64_t kMostHistoryBytes = 256 * 1024;
inline constexpr size_t kMostLine = 4096;

// $SLUICE_CACHE_DIR/runs.jsonl, and so on as for verdicts.
Result<std::string> history_path();

// One line without its end. `invalid_argument` for what could not be read back.
Result<std::string> line_of(const PastRun& run);
Result<std::string> line_of(const Speeds& speeds);

History parse_history(std::string_view text);
// No file, or none that can be read: an empty history.
History read_history(const std::string& path);

// Adds a line, and makes the file and its directory if need be. Waits for nobody longer than a moment.
Status append_line(const std::string& path, const std::string& line, uint64_t most_bytes = kMostHistoryBytes);

}  // namespace sluice::plan
