// Owns: gate d, asked of one model and the drive it lies on: could acting on guesses of the routers' choices pay at
// all? Keeps: what is measured is a run that only guesses, so a yes allows trying and a no ends the matter; acted on
// them is only where the caller asks for that, in turns with runs that do not. Judged are guesses that an option acts
// on.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "engine/workload.h"
#include "machine/gate.h"
#include "machine/verdict.h"
#include "route/scores.h"
#include "route/worth.h"
#include "sluice/sluice.h"

namespace sluice::engine {

struct GateD {
    std::string model;
    WorkloadShape shape{.prompt = 32, .decode = 64};
    Config config;
    std::vector<int> shares{25, 50, 75};  // of all experts that the cache holds, in percent
    bool act = false;                     // where guesses could pay, also act on the best ones
    std::function<bool()> stop;           // true: end with Code::cancelled
    std::function<void(double part, const std::string& doing)> progress;
};

Result<machine::GateVerdict> gate_d(const GateD& asked);
// Whether the drive under `path`, by its verdict, lets anything be read early at all.
machine::GateCheck early_reads_check(const std::string& path, const Result<machine::Verdict>& drive);

// The guesses that are worth most among those that an option acts on; nullopt: none was made.
std::optional<route::Predictor> best_guesses(const route::Scores& scores, const route::TokenTimes& times);
// Whether these could pay.
machine::GateCheck guesses_check(const std::string& where, const route::Scores& scores, const route::TokenTimes& times);

// Time and waiting of a token, in nanoseconds, of runs off, on, on, off.
struct ActedRun {
    double token = 0, wait = 0;
};
// Yes: each run that acts is faster than each that does not; no: each is slower. `option`: that acts.
machine::GateCheck acted_check(const std::string& where, const std::string& option,
                               const std::array<ActedRun, 4>& runs);

}  // namespace sluice::engine
