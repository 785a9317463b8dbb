// Owns: a race read back from its file (bench/race/race.py writes it), and the judge: every median, interval, ratio and
// verdict of a race is made here and nowhere else.
// Keeps: the output is compared before any clock; a cell whose control drifted has no ratios; what was not measured is
// absent, never 0; nothing that a file holds aborts or throws.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace sluice::report {

struct Interval {
    double low = 0;
    double high = 0;
};

// In the order in which they are looked for: the first that holds is the verdict.
enum class Verdict {
    not_measured,    // no run of it, or its adapter does not read this number
    failed,          // every run of it failed
    digest_differs,  // it promises the baseline's output and wrote another one
    digest_unknown,  // it promises the baseline's output and that could not be compared
    drift,           // the baseline moved more than the limit between the halves of this cell: all is discarded
    too_few,         // fewer than kFewestRounds valid runs
    baseline,        // it is what the others are compared with
    no_baseline,     // fewer than kFewestRounds rounds in which both it and the baseline are valid
    faster,          // the whole interval of the ratio is above 1
    slower,          // ... below 1
    undecided,       // 1 is inside the interval
};
// In words, as tables show it.
const char* verdict_text(Verdict verdict);

inline constexpr size_t kFewestRounds = 3;
// Of the bootstrap, and the seed that makes it repeat.
inline constexpr size_t kRaceResamples = 10'000;
inline constexpr uint64_t kRaceSeed = 79;

// Tokens per second of one arm in one cell, in decode or in prefill.
struct Measured {
    Verdict verdict = Verdict::not_measured;
    std::vector<double> values;               // of the valid runs, in the order of their rounds
    std::optional<double> median;             // with `values`; also where the verdict discards them
    std::optional<Interval> spread;           // smallest and largest
    std::optional<Interval> median_interval;  // 95 %, percentile bootstrap; from kFewestRounds on
    // Median over the baseline's median, both over the rounds in which both are valid; the interval resamples rounds.
    std::optional<double> ratio;
    std::optional<Interval> ratio_interval;
};

enum class Digest { unknown, same, differs };

// One arm in one cell.
struct RaceEntry {
    size_t arm = 0;        // index into RaceResult::arms
    size_t runs = 0;       // that were made, failed ones included
    size_t failures = 0;   // runs that did not end well, or whose output does not hold what the adapter promises
    std::string error;     // of the first failure
    std::string left_out;  // why it was not to run in this cell; empty if it was
    Digest digest = Digest::unknown;  // of its outputs, against the baseline's
    Measured decode, prefill;
    // Medians over the valid runs; absent where not measured.
    std::optional<double> load_seconds, wall_seconds, read_bytes, peak_bytes;
};

struct RaceCell {
    std::string name;
    std::optional<uint64_t> ram_bytes;  // absent: no limit
    // The baseline's median in the second half of its valid runs over that in the first, less 1. With an odd number the
    // middle run is in neither. Drift in decode discards the cell; drift in prefill alone discards prefill.
    std::optional<double> decode_drift, prefill_drift;
    std::vector<RaceEntry> entries;  // one per arm, in the order of the arms
    size_t disturbed = 0;            // runs before or during which others used the machine
    size_t not_emptied = 0;          // runs before which the page cache still held pages of the model, or may have
};

struct RaceArm {
    std::string name;
    std::string command;  // as one line for a shell, with its environment in front
    std::string version;
    std::string includes;  // what its numbers include, in its adapter's words
    bool baseline = false;
    bool exact = false;
    bool forced = false;  // it writes a given continuation
};

struct RaceResult {
    std::string path;
    std::string time, commit;
    std::string machine;  // one line: processor, cores, memory, drive, file system, kernel, cgroups
    std::string model, model_digest;
    std::optional<uint64_t> model_bytes;
    std::string prompt_sha256;
    std::optional<uint64_t> n_predict, threads, rounds;
    double drift_limit = 0.1;
    std::vector<RaceArm> arms;
    std::vector<RaceCell> cells;
    bool ended = false;      // otherwise it was killed, or is still going on
    bool cut_short = false;  // its last line is broken off
    size_t resumes = 0;      // how often it was interrupted and continued
    // What was not measured and what makes the rest worth less, in sentences. Like all text here it is the file's, raw.
    std::vector<std::string> remarks;
};

// Errors: no race, a newer schema, no or two baselines, a line in the middle that does not parse or names an unknown
// arm or cell, the same run twice (with its line).
// `path` is what it is called, where its bytes are to be read from another place.
Result<RaceResult> read_race(const std::string& file_path, const std::string& path);
inline Result<RaceResult> read_race(const std::string& path) {
    return read_race(path, path);
}

// As Markdown, for terminals and files alike.
std::string race_text(const RaceResult& race);

// The judge's arithmetic, for its tests. `values` are not empty.
double median_of(std::vector<double> values);
Interval bootstrap_median(const std::vector<double>& values);
// Both of the same rounds, pair by pair.
Interval bootstrap_ratio(const std::vector<double>& values, const std::vector<double>& baseline);

}  // namespace sluice::report
