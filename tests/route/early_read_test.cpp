#include "route/early_read.h"

#include <gtest/gtest.h>

#include "route/calibration.h"

namespace sluice::route {
namespace {

constexpr EarlyRead kUsual{.sure = 0.7, .removes = 100, .read = 100, .slack = 900, .delay = 100};

EarlyRead with(double EarlyRead::*field, double value) {
    EarlyRead r = kUsual;
    r.*field = value;
    return r;
}

// R22: sure enough for what it may cost, and in time.
TEST(EarlyRead, TheWaitItRemovesIsWeighedAgainstTheWaitItCauses) {
    EXPECT_TRUE(worth_reading(kUsual));
    // 0.1 x 100 against 0.9 x 100 x a tenth of the time.
    EXPECT_TRUE(worth_reading(with(&EarlyRead::sure, 0.1)));
    EXPECT_FALSE(worth_reading(with(&EarlyRead::sure, 0.09)));
    EXPECT_FALSE(worth_reading(with(&EarlyRead::sure, 0.05)));
    EXPECT_FALSE(worth_reading(with(&EarlyRead::sure, 0)));
    EXPECT_TRUE(worth_reading(with(&EarlyRead::sure, 1)));
    // Where reads are hidden behind computing, there is nothing to remove.
    EXPECT_FALSE(worth_reading(with(&EarlyRead::removes, 0)));
    EXPECT_FALSE(worth_reading(with(&EarlyRead::removes, 4)));
    // The less time is left, the surer it has to be.
    EXPECT_TRUE(worth_reading(with(&EarlyRead::slack, 0)));
    EarlyRead tight = with(&EarlyRead::slack, 0);
    tight.sure = 0.5;
    EXPECT_FALSE(worth_reading(tight));
    tight.slack = 10;
    EXPECT_TRUE(worth_reading(tight));
}

// What of a read comes before the layer does is a gain if it is wanted: the rest is joined.
TEST(EarlyRead, APartInTimeHasToBeSurer) {
    EarlyRead late = with(&EarlyRead::slack, -25);
    late.sure = 1;
    EXPECT_TRUE(worth_reading(late));
    late.sure = 0.58;  // 0.58 x 75 against 0.42 x 100
    EXPECT_TRUE(worth_reading(late));
    late.sure = 0.57;
    EXPECT_FALSE(worth_reading(late));
    late.slack = 0;
    EXPECT_TRUE(worth_reading(late));
    late.slack = -90;
    late.sure = 0.9;
    EXPECT_FALSE(worth_reading(late));
    late.sure = 0.92;
    EXPECT_TRUE(worth_reading(late));
}

TEST(EarlyRead, WhatCannotBeginInTimeIsNotRead) {
    EarlyRead late = with(&EarlyRead::slack, -100);
    late.sure = 1;
    EXPECT_FALSE(worth_reading(late));
    late.slack = -1000;
    EXPECT_FALSE(worth_reading(late));
    EXPECT_FALSE(worth_reading(with(&EarlyRead::read, 0))) << "how long it takes is not known";
}

TEST(Calibration, ARankIsAsSureAsItWasRight) {
    Calibration c;
    EXPECT_FLOAT_EQ(c.sure(0), 0.5F);
    for (int i = 0; i < 98; ++i) {
        c.note(0, true);
        c.note(1, i % 2 == 0);
        c.note(2, false);
    }
    EXPECT_FLOAT_EQ(c.sure(0), 0.99F);
    EXPECT_FLOAT_EQ(c.sure(1), 0.5F);
    EXPECT_FLOAT_EQ(c.sure(2), 0.01F);
    EXPECT_FLOAT_EQ(c.sure(3), 0.5F);
    EXPECT_FLOAT_EQ(c.proven(0), 98.0F / 106);
    EXPECT_EQ(c.proven(2), 0);
    EXPECT_EQ(c.proven(3), 0) << "nothing is done for a guess of which nothing is known";
    c.note(1000, false);
    EXPECT_LT(c.sure(2000), 0.5F) << "those far behind share one place";
}

}  // namespace
}  // namespace sluice::route
