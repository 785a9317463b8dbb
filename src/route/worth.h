// Owns: what acting on a predictor's guesses could gain and would cost, per token, from its scores and a run's times.
// Keeps: the gain is an upper bound and every loss that is known is counted, so a "could not pay" is final and a "could
// pay" is none.
#pragma once

#include "base/clock.h"
#include "route/scores.h"

namespace sluice::route {

// Of decode, per token, in nanoseconds.
struct TokenTimes {
    double wait = 0;  // for reads, with nothing to compute
    double idle = 0;  // of the drive
    double read = 0;  // that one expert takes
    double tokens = 0;
};

struct Worth {
    double removed = 0;    // of the wait, at most
    double cost = 0;       // of guessing, by the thread that computes
    double overflow = 0;   // reads that acting on all guesses adds and that do not fit where the drive is idle
    double overfetch = 0;  // what is read for nothing, by what has to be read
    [[nodiscard]] double net() const { return removed - cost - overflow; }
    [[nodiscard]] bool could_pay() const { return net() > 0; }
};

// All zero where nothing was scored.
Worth worth(const Scores& scores, Predictor p, const TokenTimes& times);

}  // namespace sluice::route
