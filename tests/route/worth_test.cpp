#include "route/worth.h"

#include <gtest/gtest.h>

#include <vector>

namespace sluice::route {
namespace {

using enum Predictor;

// Ten tokens of one layer: each chooses two, both absent, and the guess names one of them and one other absent one.
Scores ten(Nanos idle) {
    const std::vector<int32_t> chosen{1, 2}, guess{1, 7};
    const std::vector<uint8_t> both{1, 1};
    Scores s(1);
    for (int i = 0; i < 10; ++i) {
        s.score(stale1, 0, {.experts = guess, .confidence = {}, .absent = both, .idle = idle},
                {.experts = chosen, .missing = both, .read = 100});
        s.spent(stale1, 30);
    }
    return s;
}

TEST(Worth, TheWaitThatGuessesInTimeCouldRemove) {
    const Worth w = worth(ten(100), stale1, {.wait = 200, .idle = 1000, .read = 100, .tokens = 10});
    EXPECT_DOUBLE_EQ(w.removed, 100) << "one of two missing ones comes in time";
    EXPECT_DOUBLE_EQ(w.cost, 30);
    EXPECT_DOUBLE_EQ(w.overflow, 0);
    EXPECT_DOUBLE_EQ(w.overfetch, 0.5);
    EXPECT_DOUBLE_EQ(w.net(), 70);
    EXPECT_TRUE(w.could_pay());
    EXPECT_DOUBLE_EQ(worth(ten(99), stale1, {.wait = 200, .idle = 1000, .read = 100, .tokens = 10}).removed, 0);
}

TEST(Worth, ABusyDriveMakesOthersWaitForWhatIsReadForNothing) {
    // Two reads a token are speculated, one of which replaces one that comes anyway; 20 of the other fit.
    const Worth w = worth(ten(100), stale1, {.wait = 200, .idle = 20, .read = 100, .tokens = 10});
    EXPECT_DOUBLE_EQ(w.overflow, 80);
    EXPECT_DOUBLE_EQ(w.net(), 100 - 30 - 80);
    EXPECT_FALSE(w.could_pay());
}

TEST(Worth, LayersThatWereNotRankedWaitAsBefore) {
    Scores s = ten(100);
    for (int i = 0; i < 10; ++i) s.not_ranked(stale1, 0, Unranked::first_layers);
    EXPECT_DOUBLE_EQ(worth(s, stale1, {.wait = 200, .idle = 1000, .read = 100, .tokens = 10}).removed, 50);
}

TEST(Worth, NothingScoredIsWorthNothing) {
    const Worth w = worth(ten(100), previous, {.wait = 200, .idle = 1000, .read = 100, .tokens = 10});
    EXPECT_EQ(w.removed, 0);
    EXPECT_FALSE(w.could_pay());
    EXPECT_FALSE(worth(ten(100), stale1, {}).could_pay());
}

}  // namespace
}  // namespace sluice::route
