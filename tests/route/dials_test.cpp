#include "route/dials.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

namespace sluice::route {
namespace {

struct Row {
    std::vector<int32_t> experts;
    std::vector<float> weights;
    std::vector<uint8_t> resident;
    std::vector<uint8_t> dropped = std::vector<uint8_t>(weights.size());
    [[nodiscard]] Choice choice() { return {experts, weights, resident}; }
    size_t drop(double share) { return drop_cold(choice(), share, dropped); }
    [[nodiscard]] float sum() const { return std::accumulate(weights.begin(), weights.end(), 0.0F); }
};

TEST(DropCold, DropsWhatIsAbsentAndBelowTheShareOfAnEqualPart) {
    // An equal part is 0.25.
    Row row{{7, 3, 9, 1}, {0.5F, 0.25F, 0.125F, 0.125F}, {0, 0, 0, 1}};
    EXPECT_EQ(row.drop(0.75), 1U);
    EXPECT_EQ(row.dropped, (std::vector<uint8_t>{0, 0, 1, 0}));
    EXPECT_EQ(row.weights[2], 0.0F);
    EXPECT_FLOAT_EQ(row.weights[0], 0.5F / 0.875F);
    EXPECT_FLOAT_EQ(row.weights[3], 0.125F / 0.875F);
    EXPECT_FLOAT_EQ(row.sum(), 1.0F);
}

TEST(DropCold, AWeightThatIsTheThresholdStays) {
    Row row{{0, 1, 2, 3}, {0.5F, 0.25F, 0.125F, 0.125F}, {0, 0, 0, 0}};
    EXPECT_EQ(row.drop(1), 2U);  // 0.25 is not less than 1/4
    EXPECT_EQ(row.dropped, (std::vector<uint8_t>{0, 0, 1, 1}));
    Row half{{0, 1, 2, 3}, {0.5F, 0.25F, 0.125F, 0.125F}, {0, 0, 0, 0}};
    EXPECT_EQ(half.drop(0.5), 0U);
}

TEST(DropCold, TheFirstOfTheLargestStaysWhateverTheShare) {
    Row row{{4, 5, 6}, {0.25F, 0.375F, 0.375F}, {0, 0, 0}};
    EXPECT_EQ(row.drop(1e9), 2U);
    EXPECT_EQ(row.dropped, (std::vector<uint8_t>{1, 0, 1}));
    EXPECT_FLOAT_EQ(row.weights[1], 1.0F);
}

TEST(DropCold, OneRankHasNothingToDrop) {
    Row row{{4}, {1.0F}, {0}};
    EXPECT_EQ(row.drop(1e9), 0U);
    EXPECT_EQ(row.weights[0], 1.0F);
}

TEST(DropCold, OffOrTinyChangesNoBit) {
    for (const double share : {0.0, -1.0, 1e-30}) {
        Row row{{1, 2, 3}, {0.7F, 0.2F, 0.1F}, {0, 0, 0}};
        const std::vector<float> before = row.weights;
        EXPECT_EQ(row.drop(share), 0U);
        EXPECT_EQ(row.weights, before);
    }
}

TEST(DropCold, WeightsThatDoNotSumToOneAreJudgedByTheirShareOfTheSum) {
    Row scaled{{7, 3, 9, 1}, {5.0F, 2.5F, 1.25F, 1.25F}, {0, 0, 0, 1}};
    EXPECT_EQ(scaled.drop(0.75), 1U);
    EXPECT_EQ(scaled.dropped, (std::vector<uint8_t>{0, 0, 1, 0}));
    EXPECT_FLOAT_EQ(scaled.sum(), 10.0F);
    // Sums that rounding has made differ from 1 are 1.
    Row rounded{{0, 1}, {0.75005F, 0.25F}, {0, 0}};
    EXPECT_EQ(rounded.drop(0.5), 0U);
}

TEST(DropCold, WeightsThatAreNoneAreLeftAlone) {
    const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
    for (const std::vector<float>& weights : {std::vector{nan, 0.5F, 0.1F}, std::vector{inf, 0.5F, 0.1F},
                                              std::vector{0.9F, -0.1F, 0.2F}, std::vector{0.0F, 0.0F, 0.0F}}) {
        Row row{{1, 2, 3}, weights, {0, 0, 0}};
        EXPECT_FALSE(weights_tell(row.weights));
        EXPECT_EQ(row.drop(100), 0U);
        EXPECT_EQ(row.dropped, (std::vector<uint8_t>{0, 0, 0}));
        for (size_t i = 0; i < weights.size(); ++i) EXPECT_TRUE(row.weights[i] == weights[i] || std::isnan(weights[i]));
    }
}

TEST(DropCold, TheShareThatIsTooLittleIsOneOfAnEqualPart) {
    EXPECT_FLOAT_EQ((Dials{.drop_cold = 0.5}.drop_below(8)), 0.0625F);
    EXPECT_EQ((Dials{.drop_cold = 0.5}.drop_below(0)), 0);
    EXPECT_EQ(Dials{}.drop_below(8), 0);
}

TEST(Substitute, TakesTheHeaviestThatIsNearEnough) {
    Row row{{7, 3, 9, 1}, {0.5F, 0.2F, 0.2F, 0.1F}, {0, 0, 1, 0}};
    std::vector<Candidate> candidates{{20, 0.09F}, {21, 0.19F}, {22, 0.095F}};
    EXPECT_EQ(substitute(row.choice(), 0.1, candidates), 2U);
    EXPECT_EQ(row.experts, (std::vector<int32_t>{7, 21, 9, 22}));  // nothing is near 0.5
    EXPECT_EQ(row.resident, (std::vector<uint8_t>{0, 1, 1, 1}));
    EXPECT_EQ(row.weights, (std::vector<float>{0.5F, 0.2F, 0.2F, 0.1F})) << "the router's own are the caller's to put";
}

TEST(Substitute, EachCandidateStandsInOnceAndTheFirstRankChooses) {
    Row row{{7, 3}, {0.5F, 0.5F}, {0, 0}};
    std::vector<Candidate> candidates{{20, 0.45F}};
    EXPECT_EQ(substitute(row.choice(), 0.5, candidates), 1U);
    EXPECT_EQ(row.experts, (std::vector<int32_t>{20, 3}));
}

TEST(Substitute, OffOrWithoutNumbersNothingChanges) {
    for (const double share : {0.0, -1.0}) {
        Row row{{7, 3}, {0.5F, 0.5F}, {0, 0}};
        std::vector<Candidate> candidates{{20, 0.5F}};
        EXPECT_EQ(substitute(row.choice(), share, candidates), 0U);
    }
    const float nan = std::numeric_limits<float>::quiet_NaN();
    Row row{{7, 3}, {0.5F, nan}, {0, 0}};
    std::vector<Candidate> candidates{{20, 0.5F}};
    EXPECT_EQ(substitute(row.choice(), 1, candidates), 0U);
    Row sound{{7, 3}, {0.5F, 0.5F}, {0, 0}};
    std::vector<Candidate> none{{20, nan}};
    EXPECT_EQ(substitute(sound.choice(), 1, none), 0U);
    EXPECT_EQ(substitute(sound.choice(), 1, {}), 0U);
}

TEST(MoveDroppedLast, BothPartsKeepTheirOrder) {
    Row row{{10, 11, 12, 13, 14}, {0.4F, 0.0F, 0.3F, 0.0F, 0.3F}, {1, 0, 1, 0, 1}, {0, 1, 0, 1, 0}};
    std::vector<int32_t> order;
    EXPECT_EQ(move_dropped_last(row.choice(), row.dropped, order), 3U);
    EXPECT_EQ(row.experts, (std::vector<int32_t>{10, 12, 14, 11, 13}));
    EXPECT_EQ(row.weights, (std::vector<float>{0.4F, 0.3F, 0.3F, 0.0F, 0.0F}));
    EXPECT_EQ(order, (std::vector<int32_t>{0, 2, 4, 1, 3}));
}

}  // namespace
}  // namespace sluice::route
