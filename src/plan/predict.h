// Owns: from what is known of a model, a machine and its past runs to a range of tokens per second.
// Keeps: pure; a faster drive, a larger cache or faster arithmetic never predicts a slower token; what is not known is
// absent, and nothing is put in its place.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/layout.h"
#include "machine/verdict.h"
#include "plan/history.h"
#include "plan/work.h"

namespace sluice::plan {

// --- the cache

// The hit rate of a cache that holds `share` of all experts. If a router chose evenly, it would be the share. Of the
// recorded routes of three public models none came above `most_hits`. Both grow with the share.
double most_hits(double share);
// Where between the two a hit rate lies: 0 even choice, 1 the most skewed. nullopt where the two do not differ.
std::optional<double> skew_of(double share, double hits);
Range hits_at(double share, const Range& skew);

// --- the drive

// Bytes per nanosecond that reads of `size`, from `fewest` to `most` at once, can be expected to come at: from the
// neighbouring cells of the verdict, while cores compute and idle. nullopt: the verdict has none, or not of the drive.
std::optional<Range> drive_speed(const machine::Verdict& verdict, uint64_t size, unsigned fewest, unsigned most);

// --- a token

// One token, in nanoseconds.
struct Costs {
    Range dense;                              // all that is neither the experts' arithmetic nor waiting
    Range experts;                            // the experts' arithmetic
    Range read_bytes;                         // from the drive
    std::optional<Range> drive = {};          // bytes per nanosecond; absent: not known
    std::optional<Range> wait_per_byte = {};  // standing still per byte read, if runs have told
    std::optional<Range> seen = {};           // tok/s that runs with these settings had
};

struct Token {
    Range time;                  // `high` is infinite where the drive is not known
    Range tokens_per_second;     // its inverse, within what was seen
    std::optional<Range> reads;  // the drive's time
    Range compute;
};
Token token_of(const Costs& costs);

// --- all together

struct Setting {
    unsigned threads = 1;
    unsigned lanes = 8;     // reads in flight at most
    uint64_t tokens = 256;  // of a run; a cache that begins empty is filled in these
    std::string policy;
};

struct Evidence {
    const machine::Verdict* verdict = nullptr;  // of the drive under the model
    const History* history = nullptr;
    const Speeds* speeds = nullptr;
    std::string model, machine, drive;  // as in PastRun: whose runs count
};

enum class Basis : uint8_t { none, assumed, measured, past_runs };
const char* basis_name(Basis basis);
enum class Binds : uint8_t { unknown, drive, compute, both };
const char* binds_name(Binds binds);

struct Estimate {
    double share = 0;  // of all experts that the cache holds
    Range hits;
    Basis hits_basis = Basis::assumed;
    Costs costs;
    Basis compute_basis = Basis::none;
    Basis drive_basis = Basis::none;
    double scatter = 1;          // what past predictions were off by, where past runs tell: the range allows for it
    size_t runs_alike = 0;       // with the same threads and nearly the same cache
    std::optional<Token> token;  // absent: nobody knows how fast this processor is
    Binds binds = Binds::unknown;
};
// The factor by which nine of ten speeds differ from the middle of what past runs had foretold, by the newest errors on
// this machine, of all models; a cautious one while there are few. From 1 to 4.
double scatter(const History& history, std::string_view machine);
Estimate estimate(const Work& work, const cache::Layout& layout, const Setting& setting, const Evidence& evidence);

// The newest speeds of this machine with these threads that have all types of the model, of those that were measured
// while it was not busy if there are any; nullptr if there are none.
const Speeds* find_speeds(const History& history, const Work& work, std::string_view machine, unsigned threads);
// Whether these speeds need not be measured again: they are not older than `since`, and if they were measured on a busy
// machine, it still is. While it is busy, old ones are better than new ones.
bool still_good(const Speeds& speeds, std::string_view since, bool busy);
// Whether a run with these threads tells what computing costs.
bool computed_before(const History& history, std::string_view model, std::string_view machine, unsigned threads);

}  // namespace sluice::plan
