#include "route/prefetch.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <set>
#include <vector>

#include "route/last_choice.h"

namespace sluice::route {
namespace {

std::vector<uint32_t> experts(const LikelyExperts& guesses) {
    std::vector<uint32_t> out;
    for (const Likely& g : guesses) out.push_back(g.expert);
    return out;
}

const LikelyExperts kGuesses{{7, 0.4F}, {1, 0.3F}, {5, 0.2F}, {3, 0.06F}, {2, 0.04F}};

TEST(Prefetch, ResidentsAreKeptAndMissesReadUpToTheCap) {
    const std::set<uint32_t> there{1, 3};
    const auto resident = [&](uint32_t e) { return there.contains(e); };
    LikelyExperts out;
    choose_prefetch(kGuesses, {}, resident, out);
    EXPECT_EQ(experts(out), (std::vector<uint32_t>{7, 1, 5, 3, 2}));
    choose_prefetch(kGuesses, {.reads = 2}, resident, out);
    EXPECT_EQ(experts(out), (std::vector<uint32_t>{7, 1, 5, 3})) << "those that are there do not count";
    choose_prefetch(kGuesses, {.reads = 0}, resident, out);
    EXPECT_EQ(experts(out), (std::vector<uint32_t>{1, 3})) << "retention only";
    choose_prefetch({}, {}, resident, out);
    EXPECT_TRUE(out.empty());
}

TEST(Prefetch, WhatWouldBeDroppedUnreadIsNotReadEarly) {
    const std::set<uint32_t> there{2};
    const auto resident = [&](uint32_t e) { return there.contains(e); };
    LikelyExperts out;
    choose_prefetch(kGuesses, {.drop_below = 0.1F}, resident, out);
    EXPECT_EQ(experts(out), (std::vector<uint32_t>{7, 1, 5, 2})) << "3 is cold and light; 2 is light but there";
    choose_prefetch(kGuesses, {.drop_below = 2}, resident, out);
    EXPECT_EQ(experts(out), (std::vector<uint32_t>{7, 2})) << "the first is never dropped";
    choose_prefetch(kGuesses, {.reads = 2, .drop_below = 0.1F}, resident, out);
    EXPECT_EQ(experts(out), (std::vector<uint32_t>{7, 1, 2})) << "what is not read takes nobody's place";
}

TEST(Prefetch, LayersAheadGoRoundButNeverMeetTheirOwn) {
    const auto ahead = [](uint32_t from, uint32_t depth, uint32_t n) {
        std::vector<uint32_t> out;
        for_sets_ahead(from, depth, n, [&](uint32_t s) { out.push_back(s); });
        return out;
    };
    EXPECT_EQ(ahead(0, 2, 5), (std::vector<uint32_t>{1, 2}));
    EXPECT_EQ(ahead(4, 2, 5), (std::vector<uint32_t>{0, 1}));
    EXPECT_EQ(ahead(3, 100, 5), (std::vector<uint32_t>{4, 0, 1, 2}));
    EXPECT_TRUE(ahead(0, 3, 1).empty());
    EXPECT_TRUE(ahead(2, 0, 5).empty());
}

TEST(Likely, ARankingBecomesSharesHeaviestFirst) {
    LikelyExperts out{{9, 1}};
    rank_by_share(std::array<int32_t, 4>{8, 3, 5, 1}, std::array<float, 4>{1, 4, 1, 2}, out);
    EXPECT_EQ(experts(out), (std::vector<uint32_t>{3, 1, 8, 5})) << "equal ones stay in the router's order";
    EXPECT_FLOAT_EQ(out[0].weight, 0.5F);
    EXPECT_FLOAT_EQ(out[3].weight, 0.125F);
    rank_by_share({}, {}, out);
    EXPECT_TRUE(out.empty());
}

// Whoever asks gets one answer, and none that is no number.
TEST(Likely, WeightsThatTellNothingAreEqualShares) {
    constexpr std::array<int32_t, 2> kTwo{7, 6};
    const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
    const std::vector<std::vector<float>> bad{{0, 0}, {1, -1}, {2, -1}, {1}, {}, {1, 1, 1}, {inf, 1}, {nan, 1}};
    for (const auto& weights : bad) {
        LikelyExperts out;
        rank_by_share(kTwo, weights, out);
        EXPECT_EQ(experts(out), (std::vector<uint32_t>{7, 6}));
        EXPECT_FLOAT_EQ(out[0].weight, 0.5F);
        EXPECT_FLOAT_EQ(out[1].weight, 0.5F);
    }
}

TEST(LastChoice, GuessesWhatItWasToldLast) {
    LastChoice last(3);
    LikelyExperts out{{9, 1}};
    last.guess(1, out);
    EXPECT_TRUE(out.empty()) << "nothing was chosen yet";
    last.note(1, std::array<uint32_t, 2>{4, 2});
    last.note(1, std::array<uint32_t, 4>{8, 6, 4, 0});
    last.guess(1, out);
    EXPECT_EQ(experts(out), (std::vector<uint32_t>{8, 6, 4, 0}));
    EXPECT_FLOAT_EQ(out[0].weight, 0.25F);
    EXPECT_TRUE(last.of(2).empty());
}

}  // namespace
}  // namespace sluice::route
