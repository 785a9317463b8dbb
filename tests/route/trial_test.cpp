#include "route/trial.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

namespace sluice::route {
namespace {

// A run of whose tokens everything is known: what each would cost with and without guesses.
struct World {
    double compute = 60, wait = 40;  // of a token without guesses
    double saves = 0;                // of that by guesses
    double guessing = 1;             // what making them takes
    double noise = 0.3;              // of the wait, up or down at most
    bool acts = true;
};

struct Outcome {
    double time = 0, without = 0;  // of all tokens: as it was, and had guesses always been off
    double worst = 0;              // loss so far by time so far, at the worst moment from token 100 on
    Trial trial;
    [[nodiscard]] double loss() const { return time / without - 1; }
};

Outcome run(uint32_t tokens, const std::function<World(uint32_t)>& world, uint32_t seed = 1) {
    Outcome out;
    std::mt19937 random(seed);
    for (uint32_t i = 0; i < tokens; ++i) {
        const World w = world(i);
        const double shake = 1 + w.noise * (static_cast<double>(random()) / 2147483648.0 - 1);
        const double wait = w.wait * shake, helped = (w.wait - w.saves) * shake + w.guessing;
        const double cost = out.trial.on() ? helped : wait;
        out.trial.token({.cost = cost, .time = w.compute + cost, .acted = out.trial.on() && w.acts});
        out.time += w.compute + cost;
        out.without += w.compute + wait;
        if (i >= 100) out.worst = std::max(out.worst, out.loss());
    }
    return out;
}

TEST(Trial, GuessesThatPayAreTurnedOnAndStayOn) {
    for (uint32_t seed = 0; seed < 20; ++seed) {
        const Outcome got = run(
            4000, [](uint32_t) { return World{.saves = 15}; }, seed);
        EXPECT_GE(got.trial.told().tokens_on, 3200U) << seed;
        EXPECT_LT(got.loss(), -0.10) << seed;
        EXPECT_LE(got.worst, 0.02) << seed;
        EXPECT_LT(got.trial.cost_on(), got.trial.cost_off());
    }
}

TEST(Trial, GuessesThatCostAreTurnedOffAndLoseLittle) {
    for (const double saves : {0.0, -10.0, -40.0, -90.0}) {
        for (uint32_t seed = 0; seed < 20; ++seed) {
            const Outcome got = run(
                3000, [&](uint32_t) { return World{.saves = saves, .guessing = 3}; }, seed);
            EXPECT_LT(got.loss(), 0.01) << saves << " " << seed;
            EXPECT_LE(got.worst, 0.02) << saves << " " << seed << ": at no time";
            EXPECT_LE(got.trial.told().tokens_on, 300U) << saves << " " << seed;
            EXPECT_EQ(got.trial.told().won, got.trial.told().ended) << saves << " " << seed;
        }
    }
}

// Back and forth: each time within a few hundred tokens, and what is lost until then stays below the bound.
TEST(Trial, FollowsALoadThatChanges) {
    const auto world = [](uint32_t i) {
        const bool pays = (i / 3000) % 2 == 0;
        return World{.saves = pays ? 15.0 : -15.0};
    };
    for (uint32_t seed = 0; seed < 20; ++seed) {
        const Outcome good = run(3000, world, seed), bad = run(6000, world, seed), again = run(12000, world, seed);
        EXPECT_GE(good.trial.told().tokens_on, 2300U) << seed;
        EXPECT_LE(bad.trial.told().tokens_on - good.trial.told().tokens_on, 600U) << seed;
        EXPECT_GE(bad.trial.told().ended, 1U) << seed;
        EXPECT_GE(again.trial.told().won, 2U) << seed;
        EXPECT_LE(again.worst, 0.02) << seed;
        const double lost = (bad.time - good.time) - (bad.without - good.without);
        EXPECT_LE(lost, 0.02 * bad.without) << seed;
    }
}

// The drive gets fast: there is nothing left to save, only guessing is left to pay, and no token looks worse for it.
TEST(Trial, FindsOutWhenThereIsNothingLeftToSave) {
    const auto world = [](uint32_t i) {
        return i < 1500 ? World{.saves = 15} : World{.wait = 0, .saves = 0, .guessing = 3};
    };
    for (uint32_t seed = 0; seed < 10; ++seed) {
        const Outcome got = run(4500, world, seed);
        EXPECT_GE(got.trial.told().ended, 1U);
        EXPECT_LE(got.worst, 0.02);
        const Outcome before = run(1500, world, seed);
        EXPECT_LE(got.trial.told().tokens_on - before.trial.told().tokens_on, 700U);
    }
}

// With whatever waits and whatever guesses do to them, no run of 100 tokens or more loses over 2 %.
TEST(Trial, NeverLosesMoreThanItsBound) {
    std::mt19937 random(7);
    const auto any = [&](double most) { return most * static_cast<double>(random()) / 4294967296.0; };
    for (int turn = 0; turn < 300; ++turn) {
        std::vector<World> worlds;
        for (int i = 0; i < 8; ++i) {
            const double compute = 20 + any(80), wait = any(100);
            // Guesses make no token take twice as long.
            const double most = 0.5 * (compute + wait);
            worlds.push_back({.compute = compute,
                              .wait = wait,
                              .saves = any(wait + most) - most,
                              .guessing = any(5),
                              .noise = any(0.8),
                              .acts = true});
        }
        const uint32_t each = 100 + static_cast<uint32_t>(any(1000));
        const Outcome got = run(
            8 * each, [&](uint32_t i) { return worlds[i / each]; }, static_cast<uint32_t>(turn));
        EXPECT_LE(got.worst, 0.02) << turn;
    }
}

TEST(Trial, WhereGuessesLeadToNothingItGivesUpAtOnce) {
    const Outcome got = run(4000, [](uint32_t) { return World{.guessing = 2, .acts = false}; });
    EXPECT_TRUE(got.trial.told().nothing_to_do);
    EXPECT_EQ(got.trial.told().trials, 1U);
    EXPECT_LE(got.trial.told().tokens_on, Trial::kWindow);
    EXPECT_LT(got.loss(), 0.001);
}

TEST(Trial, ItIsAFunctionOfWhatItWasTold) {
    const auto world = [](uint32_t i) { return World{.saves = i < 500 ? 10.0 : 0.0}; };
    const Outcome a = run(1500, world, 3), b = run(1500, world, 3);
    EXPECT_EQ(a.trial.told().tokens_on, b.trial.told().tokens_on);
    EXPECT_EQ(a.time, b.time);
    EXPECT_FALSE(Trial().on());
}

// A token that hangs, with or without guesses, says nothing about them.
TEST(Trial, ATokenThatHangsDecidesNothing) {
    Trial trial;
    for (uint32_t i = 0; i < 4000; ++i) {
        const double wait = i % 97 == 0 ? 100'000 : trial.on() ? 25 : 40;
        trial.token({.cost = wait, .time = 60 + wait, .acted = trial.on()});
    }
    EXPECT_GE(trial.told().tokens_on, 2000U);
}

}  // namespace
}  // namespace sluice::route
