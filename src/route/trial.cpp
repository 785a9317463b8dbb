#include "route/trial.h"

#include <algorithm>
#include <cmath>

namespace sluice::route {
namespace {

constexpr double kLately = 1.0 / 16;
// One token that hung says nothing about guesses: beyond so many usual ones its time counts no more.
constexpr double kMostOfOne = 2;
// What the next token may lose before anybody sees it, in usual tokens; more where one has lost more.
constexpr double kUnseen = 0.5;

void follow(double& mean, double x, double part) {
    mean = mean == 0 ? x : mean + part * (x - mean);
}

}  // namespace

bool Trial::may() const {
    return lost_ + std::max(worst_, kUnseen * typical_) <= kMostLoss * time_;
}

// Twice the standard error of the gain.
double Trial::doubt() const {
    return 2 * std::sqrt(with_.cost.of_mean() + without_.cost.of_mean());
}

// Whatever the waits say: whole tokens took longer.
bool Trial::slower() const {
    const double more = with_.time.mean - without_.time.mean;
    return more > 2 * std::sqrt(with_.time.of_mean() + without_.time.of_mean()) && more > kLeastGain * typical_;
}

void Trial::token(const Token& t) {
    const bool was_on = on_;
    ++told_.tokens;
    told_.tokens_on += was_on ? 1 : 0;
    const double cost = typical_ > 0 ? std::min(t.cost, base_ + kMostOfOne * typical_) : t.cost;
    const double time = typical_ > 0 ? std::min(t.time, (1 + kMostOfOne) * typical_) : t.time;
    follow(typical_, time, kLately);
    time_ += time - time_ / kRemembers;
    lost_ -= lost_ / kRemembers;
    if (was_on) {
        lost_ = std::max(0.0, lost_ + cost - base_);
        worst_ = std::max(cost - base_, (1 - kLately) * worst_);
        acted_ = acted_ || t.acted;
    } else {
        follow(base_, cost, kLately);
    }
    // What was read for guesses is still of use to the token after, which therefore counts for neither side.
    const bool after_on = !was_on && last_was_on_;
    if (stage_ != Stage::resting && !after_on) {
        Side& side = was_on ? with_ : without_;
        side.cost.add(cost);
        side.time.add(time);
        if (was_on) follow(recent_, cost, 1.0 / kWindow);
    }
    last_was_on_ = was_on;

    if (stage_ == Stage::resting) {
        if (--rest_ == 0) begin_trial();
    } else if (was_on == window_on_) {
        ++in_window_;
        window_over();
    }
    on_ = stage_ != Stage::resting && window_on_ && may();
}

void Trial::begin_trial() {
    stage_ = Stage::trying;
    ++told_.trials;
    with_ = without_ = {};
    windows_ = 0;
    acted_ = false;
    recent_ = 0;
    begin_window(true);
}

void Trial::begin_window(bool on) {
    window_on_ = on;
    in_window_ = 0;
}

void Trial::window_over() {
    if (stage_ == Stage::trying) {
        if (in_window_ < kWindow) return;
        if (window_on_ && !acted_) {
            told_.nothing_to_do = true;
            lose(kLongestRest);
            return;
        }
        told_.nothing_to_do = false;
        ++windows_;
        if (windows_ % 2 == 0) judge();
        // On, off, off, on: what drifts meanwhile is in both.
        if (stage_ == Stage::trying) begin_window((windows_ + 1) % 4 < 2);
        return;
    }
    if (window_on_) {
        // Something has changed; only a comparison can tell whether it is the guesses.
        const bool odd = in_window_ >= kWindow && recent_ > level_ + std::max(scatter_, 5 * kLeastGain * typical_);
        if (odd) {
            begin_trial();
            windows_ = 1;
            begin_window(false);
        } else if (in_window_ >= hold_) {
            without_ = {};
            begin_window(false);
        }
        return;
    }
    if (in_window_ < kWindow) return;
    if (gain() < kLeastGain / 2 * typical_ || slower()) {
        begin_trial();
        return;
    }
    hold_ = std::min(kMostHold, 2 * hold_);
    level_ = with_.cost.mean;
    scatter_ = std::sqrt(with_.cost.variance());
    with_ = {};
    begin_window(true);
}

void Trial::judge() {
    if (with_.cost.n < kEnough || without_.cost.n < kEnough) return;
    const bool sure = gain() > doubt() && gain() > kLeastGain * typical_ && !slower();
    if (sure) {
        stage_ = Stage::won;
        told_.won += adopted_ ? 0 : 1;
        adopted_ = true;
        next_rest_ = 2 * kFirstRest;
        hold_ = kLeastHold;
        level_ = recent_ = with_.cost.mean;
        scatter_ = std::sqrt(with_.cost.variance());
        with_ = {};
        begin_window(true);
        return;
    }
    const bool hopeless = gain() + doubt() < kLeastGain * typical_ || (windows_ > 2 && slower());
    if (hopeless || windows_ == 2 * kPairs) lose(next_rest_);
}

void Trial::lose(uint32_t tokens) {
    told_.ended += adopted_ ? 1 : 0;
    adopted_ = false;
    next_rest_ = std::min(kLongestRest, 2 * tokens);
    stage_ = Stage::resting;
    window_on_ = false;
    rest_ = tokens;
}

}  // namespace sluice::route
