#include "exec/prefill_plan.h"

#include <gtest/gtest.h>

namespace sluice::exec {
namespace {

constexpr Nanos kMs = 1'000'000;

// 64 experts of 1.6 MiB of which 44 are not there, a drive of 1 GB/s, and a layer that computes for 40 ms in its block
// and 20 ms between blocks.
Forecast layer(double chosen) {
    return {.missing = 44,
            .room = 44,
            .bytes = 1'600'000,
            .chosen = chosen,
            .bytes_per_ns = 1,
            .block = 40 * kMs,
            .between = 20 * kMs};
}

// R40: the same number of rows, other choices, another mode.
TEST(PrefillPlan, WhatIsChosenDecidesNotHowManyRowsThereAre) {
    EXPECT_EQ(choose_mode(layer(1.0), PrefillMode::automatic), Mode::macro);   // 70 ms against 20 + 70
    EXPECT_EQ(choose_mode(layer(0.95), PrefillMode::automatic), Mode::macro);  // 68 ms against 20 + 67
    EXPECT_EQ(choose_mode(layer(0.5), PrefillMode::automatic), Mode::micro);   // 70 ms against 20 + 40
    EXPECT_EQ(choose_mode(layer(0.1), PrefillMode::automatic), Mode::micro);
}

TEST(PrefillPlan, SoDoDriveAndArithmetic) {
    Forecast f = layer(0.9);
    EXPECT_EQ(choose_mode(f, PrefillMode::automatic), Mode::macro);
    f.between = 1 * kMs;  // nothing to read behind
    EXPECT_EQ(choose_mode(f, PrefillMode::automatic), Mode::micro);
    f = layer(0.9);
    f.bytes_per_ns = 10;  // what is chosen comes while the block computes, either way
    EXPECT_EQ(choose_mode(f, PrefillMode::automatic), Mode::micro);
    f.block = 2 * kMs;
    EXPECT_EQ(choose_mode(f, PrefillMode::automatic), Mode::macro);
}

TEST(PrefillPlan, TheCostsAreThoseOfTheTwoOrders) {
    const Forecast f = layer(0.5);
    EXPECT_EQ(cost_of(Mode::micro, f).bytes, 22U * 1'600'000);
    EXPECT_EQ(cost_of(Mode::micro, f).time, 60 * kMs);
    EXPECT_EQ(cost_of(Mode::macro, f).bytes, 44U * 1'600'000);
    EXPECT_EQ(cost_of(Mode::macro, f).time, 70'400'000);
    Forecast tight = f;
    tight.room = 10;  // the rest waits for the router
    EXPECT_EQ(cost_of(Mode::macro, tight).bytes, (10U + 17U) * 1'600'000);
    EXPECT_EQ(cost_of(Mode::macro, tight).time, 60 * kMs);
}

// A prompt's bytes are at most 1.02 times those of what is chosen: so much less of a layer is read ahead.
TEST(PrefillPlan, LittleIsReadInVain) {
    uint32_t before = UINT32_MAX;
    for (int percent = 100; percent >= 0; --percent) {
        for (const uint32_t room : {1U, 10U, 44U}) {
            Forecast f = layer(percent / 100.0);
            f.room = room;
            const uint32_t ahead = experts_ahead(f, PrefillMode::automatic);
            EXPECT_LE(ahead, room);
            f.room = ahead;
            const auto macro = static_cast<double>(cost_of(Mode::macro, f).bytes);
            const auto micro = static_cast<double>(cost_of(Mode::micro, f).bytes);
            EXPECT_LE(macro, 1.02 * micro + 1) << percent << " % chosen, room for " << room;
            f.room = room;
            EXPECT_EQ(experts_ahead(f, PrefillMode::macro), room) << "unless told";
            if (room != 44) continue;
            EXPECT_LE(ahead, before);
            before = ahead;
        }
    }
    EXPECT_EQ(experts_ahead(layer(1.0), PrefillMode::automatic), 44U);
    EXPECT_EQ(experts_ahead(layer(0.95), PrefillMode::automatic), 16U);
    EXPECT_EQ(experts_ahead(layer(0.9), PrefillMode::automatic), 7U);
    EXPECT_EQ(experts_ahead(layer(0.5), PrefillMode::automatic), 0U);
}

TEST(PrefillPlan, WhatWasNotMeasuredSpeaksForReadingLess) {
    Forecast f = layer(1.0);
    f.bytes_per_ns = 0;
    EXPECT_EQ(choose_mode(f, PrefillMode::automatic), Mode::micro);
    f = layer(1.0);
    f.chosen.reset();
    EXPECT_EQ(choose_mode(f, PrefillMode::automatic), Mode::micro);
    EXPECT_EQ(choose_mode(f, PrefillMode::macro), Mode::macro) << "unless told";
    EXPECT_EQ(choose_mode(layer(1.0), PrefillMode::micro), Mode::micro);
    f.room = 0;
    EXPECT_EQ(choose_mode(f, PrefillMode::macro), Mode::micro) << "there is nowhere to read to";
    f = layer(1.0);
    f.missing = 0;
    EXPECT_EQ(choose_mode(f, PrefillMode::macro), Mode::micro);
}

TEST(PromptBook, ExpectsWhatWasAndWhatTheLayerBeforeJustDid) {
    PromptBook book(4);
    EXPECT_FALSE(book.expected(1, 512).has_value());
    book.chose(0, 512, 0.9);
    EXPECT_NEAR(book.expected(1, 512).value_or(0), 0.9, 1e-6);
    EXPECT_FALSE(book.expected(1, 64).has_value()) << "another number of rows";
    EXPECT_TRUE(book.expected(1, 600).has_value()) << "about the same";
    book.chose(1, 512, 0.8);
    book.chose(2, 512, 0.7);
    EXPECT_FALSE(book.expected(3, 512).has_value()) << "of the last one nobody knows";
    book.chose(3, 512, 0.05);

    book.chose(0, 512, 0.9);  // as before
    EXPECT_NEAR(book.expected(1, 512).value_or(0), 0.8, 1e-6);
    book.chose(0, 512, 0.3);  // another kind of text: a third of the experts
    EXPECT_NEAR(book.expected(1, 512).value_or(0), 0.8 / 3, 1e-6);
    book.chose(2, 512, 0.7);
    EXPECT_NEAR(book.expected(3, 512).value_or(0), 0.05, 1e-6);
    book.chose(0, 512, 0.9);
    EXPECT_LE(book.expected(1, 512).value_or(0), 1.0);
}

TEST(PromptBook, TimesAreByTheRow) {
    PromptBook book(3);
    EXPECT_EQ(book.block(1, 100), 0);
    book.computed(0, 100, 1'000'000);
    EXPECT_NEAR(static_cast<double>(book.block(0, 100)), 1'000'000, 100);
    EXPECT_NEAR(static_cast<double>(book.block(0, 120)), 1'200'000, 100);
    EXPECT_NEAR(static_cast<double>(book.block(1, 100)), 1'000'000, 100) << "as the one before";
    EXPECT_EQ(book.block(2, 100), 0);
    book.computed(0, 100, 2'000'000);
    EXPECT_NEAR(static_cast<double>(book.block(0, 100)), 1'500'000, 100);
    book.reached(1, 100, 500'000);
    EXPECT_NEAR(static_cast<double>(book.between(1, 100)), 500'000, 100);
    EXPECT_EQ(book.between(0, 100), 0);
    EXPECT_EQ(book.block(0, 1 << 30), 0) << "any number of rows has a place";
    EXPECT_STREQ(mode_name(Mode::macro), "macro");
}

}  // namespace
}  // namespace sluice::exec
