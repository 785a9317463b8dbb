// The arithmetic of scores, each number computed by hand.
#include "route/scores.h"

#include <gtest/gtest.h>

#include <vector>

namespace sluice::route {
namespace {

using enum Predictor;
using Ids = std::vector<int32_t>;
using Flags = std::vector<uint8_t>;

TEST(Scores, OverlapAndWholeRoutings) {
    Scores s(2);
    const Flags there(4, 0);
    const Ids a{1, 2, 3, 4};
    s.score(stale1, 0, {.experts = a, .confidence = {}, .absent = {}}, {.experts = a, .missing = there});
    const Ids turned{4, 3, 2, 1};  // the order does not matter
    s.score(stale1, 0, {.experts = turned, .confidence = {}, .absent = {}}, {.experts = a, .missing = there});
    const Ids half{9, 2, 8, 4};
    s.score(stale1, 1, {.experts = half, .confidence = {}, .absent = {}}, {.experts = a, .missing = there});

    EXPECT_EQ(s.of(stale1, 0).routings, 2U);
    EXPECT_EQ(s.of(stale1, 0).whole, 2U);
    EXPECT_EQ(s.of(stale1, 0).overlap(), 1);
    EXPECT_EQ(s.of(stale1, 1).hits, 2U);
    EXPECT_EQ(s.of(stale1, 1).whole_rate(), 0);
    const Score all = s.total(stale1);
    EXPECT_EQ(all.slots, 12U);
    EXPECT_DOUBLE_EQ(all.overlap(), 10.0 / 12);
    EXPECT_DOUBLE_EQ(all.whole_rate(), 2.0 / 3);
    // Nobody else was asked.
    EXPECT_EQ(s.total(previous).overlap(), -1);
    EXPECT_EQ(s.total(previous).whole_rate(), -1);
}

TEST(Scores, OnlyAsManyAreScoredAsWereChosenAndTooFewAreNotWhole) {
    Scores s(1);
    const Ids chosen{5, 6};
    const Flags there(2, 0);
    const Ids many{7, 5, 6};
    s.score(popular, 0, {.experts = many, .confidence = {}, .absent = {}}, {.experts = chosen, .missing = there});
    EXPECT_EQ(s.total(popular).hits, 1U) << "the third guess is one too many";
    const Ids few{5};
    s.score(popular, 0, {.experts = few, .confidence = {}, .absent = {}}, {.experts = chosen, .missing = there});
    EXPECT_EQ(s.total(popular).hits, 2U);
    EXPECT_EQ(s.total(popular).whole, 0U);
    // Top-k 1: each is whole or nothing.
    const Ids one{5}, there_one{5}, other{6};
    const Flags missing_one{0};
    Scores top1(1);
    top1.score(stale1, 0, {.experts = one, .confidence = {}, .absent = {}},
               {.experts = there_one, .missing = missing_one});
    top1.score(stale1, 0, {.experts = other, .confidence = {}, .absent = {}},
               {.experts = there_one, .missing = missing_one});
    EXPECT_EQ(top1.total(stale1).whole, 1U);
    EXPECT_EQ(top1.total(stale1).overlap(), 0.5);
}

TEST(Scores, WhatCouldNotBeRankedIsCountedAndInNoRate) {
    Scores s(3);
    s.not_ranked(stale1, 0, Unranked::first_layers);
    s.not_ranked(stale1, 0, Unranked::first_layers);
    s.not_ranked(stale1, 1, Unranked::first_token);
    s.not_ranked(stale1, 2, Unranked::no_router);
    const Score t = s.total(stale1);
    EXPECT_EQ(t.not_ranked(), 4U);
    EXPECT_EQ(t.unranked[0], 2U);
    EXPECT_EQ(t.unranked[1], 1U);
    EXPECT_EQ(t.unranked[2], 1U);
    EXPECT_EQ(t.routings, 0U);
    EXPECT_EQ(t.overlap(), -1);
}

// Four chosen, two of which have to be read; the guess names one of these, and two that would be read for nothing.
TEST(Scores, RecallAndPrecisionAreOfReads) {
    Scores s(1);
    const Ids chosen{1, 2, 3, 4}, guess{1, 3, 8, 9};
    const Flags missing{0, 0, 1, 1};  // 3 and 4
    const Flags absent{0, 1, 1, 1};   // 3, 8 and 9
    s.score(stale1, 0, {.experts = guess, .confidence = {}, .absent = absent, .idle = 0},
            {.experts = chosen, .missing = missing, .read = 100});
    const Score t = s.total(stale1);
    EXPECT_EQ(t.missing, 2U);
    EXPECT_EQ(t.missing_named, 1U);
    EXPECT_EQ(t.recall(), 0.5);
    EXPECT_EQ(t.absent, 3U);
    EXPECT_EQ(t.absent_chosen, 1U);
    EXPECT_DOUBLE_EQ(t.precision(), 1.0 / 3);
    EXPECT_EQ(t.timely_recall(), 0) << "the drive was never idle";
    EXPECT_EQ(t.overlap(), 0.5);
}

// The absent ones of a guess are read in its order: 8 first, for nothing, then 3, then 4.
TEST(Scores, InTimeIsWhatFitsIntoTheDrivesIdleTime) {
    const Ids chosen{1, 2, 3, 4}, guess{8, 3, 1, 4};
    const Flags missing{0, 0, 1, 1}, absent{1, 1, 0, 1};
    const auto in_time = [&](Nanos idle, Nanos read) {
        Scores s(1);
        s.score(stale1, 0, {.experts = guess, .confidence = {}, .absent = absent, .idle = idle},
                {.experts = chosen, .missing = missing, .read = read});
        return s.total(stale1).missing_in_time;
    };
    EXPECT_EQ(in_time(199, 100), 0U);
    EXPECT_EQ(in_time(200, 100), 1U);
    EXPECT_EQ(in_time(299, 100), 1U);
    EXPECT_EQ(in_time(300, 100), 2U);
    EXPECT_EQ(in_time(1'000'000, 0), 0U) << "how long a read takes is not known";
}

TEST(Scores, WhatWasThereWhenItWasNamedOnlyHadToBeKept) {
    Scores s(1);
    const Ids chosen{1}, guess{1};
    const Flags missing{1}, absent{0};
    s.score(stale4, 0, {.experts = guess, .confidence = {}, .absent = absent, .idle = 0},
            {.experts = chosen, .missing = missing, .read = 100});
    EXPECT_EQ(s.total(stale4).missing_in_time, 1U);
    EXPECT_EQ(s.total(stale4).absent, 0U);
    EXPECT_EQ(s.total(stale4).precision(), -1);
}

TEST(Scores, CalibrationComparesWhatWasSaidWithWhatCame) {
    Scores s(1);
    const Ids chosen{1, 2, 3, 4}, guess{1, 9, 3, 8};
    const std::vector<float> said{0.95F, 0.91F, 0.3F, 1.7F};  // the last is taken for 1
    const Flags there(4, 0);
    s.score(stale1, 0, {.experts = guess, .confidence = said, .absent = {}}, {.experts = chosen, .missing = there});
    const auto bins = s.calibration(stale1);
    EXPECT_EQ(bins[9].said, 3U);
    EXPECT_EQ(bins[9].came, 1U);
    EXPECT_NEAR(bins[9].confidence, 0.95 + 0.91 + 1, 1e-6);
    EXPECT_EQ(bins[3].said, 1U);
    EXPECT_EQ(bins[3].came, 1U);
    EXPECT_EQ(bins[0].said, 0U);
}

TEST(Scores, ARanksConfidenceIsHowOftenItWasRight) {
    Scores s(1);
    EXPECT_EQ(s.confidence(stale1, 0), 0.5F);
    const Ids chosen{1, 2}, guess{1, 9};
    const Flags there(2, 0);
    for (int i = 0; i < 8; ++i)
        s.score(stale1, 0, {.experts = guess, .confidence = {}, .absent = {}}, {.experts = chosen, .missing = there});
    EXPECT_FLOAT_EQ(s.confidence(stale1, 0), 9.0F / 10);
    EXPECT_FLOAT_EQ(s.confidence(stale1, 1), 1.0F / 10);
    EXPECT_EQ(s.confidence(stale2, 0), 0.5F);
    EXPECT_EQ(s.confidence(stale1, 1000), 0.5F);
}

TEST(Scores, CostIsAMean) {
    Scores s(1);
    EXPECT_EQ(s.cost(control), -1);
    s.spent(control, 10);
    s.spent(control, 30);
    EXPECT_EQ(s.cost(control), 20);
    EXPECT_EQ(s.time(control), 40);
    EXPECT_EQ(s.cost(stale1), -1);
}

TEST(Scores, RoutersInEightBitsAreComparedWithTheSameInFull) {
    Scores s(1);
    EXPECT_EQ(s.exact().guesses, 0U);
    const std::vector<int32_t> named{1, 2, 3}, exact{3, 1, 9};
    s.compared(named, exact, 10);
    s.compared(exact, exact, 30);
    EXPECT_EQ(s.exact().guesses, 2U);
    EXPECT_EQ(s.exact().slots, 6U);
    EXPECT_EQ(s.exact().agreed, 5U);
    EXPECT_EQ(s.exact().time, 40);
}

TEST(Scores, EveryPredictorHasANameAndADepth) {
    for (const Predictor p : kAllPredictors) EXPECT_STRNE(name(p), "");
    EXPECT_EQ(depth(stale1), 1);
    EXPECT_EQ(depth(stale2), 2);
    EXPECT_EQ(depth(stale4), 4);
    EXPECT_EQ(depth(previous), 0);
    EXPECT_EQ(depth(control), 0);
}

}  // namespace
}  // namespace sluice::route
