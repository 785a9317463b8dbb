#include "cache/process_need.h"

#include <gtest/gtest.h>

#include "base/bytes.h"

namespace sluice::cache {
namespace {

ProcessNeed need() {
    return {.dense = 300 * MiB, .context = 64 * MiB, .compute = 100 * MiB, .program = 60 * MiB};
}

TEST(ProcessNeed, IsTheSumOfItsParts) {
    EXPECT_EQ(need().total(), 524 * MiB);
    EXPECT_EQ(need().text(),
              "dense weights 300.0 MiB + context 64.0 MiB + compute buffers 100.0 MiB + program 60.0 MiB");
    const ProcessNeed huge{.dense = UINT64_MAX, .context = 1, .compute = UINT64_MAX, .program = 7};
    EXPECT_EQ(huge.total(), UINT64_MAX);
}

TEST(ProcessNeed, WhatIsNotKnownYetIsNotCalledNothing) {
    ProcessNeed n = need();
    n.context = n.compute = 0;
    n.context_known = false;
    EXPECT_EQ(n.text(), "dense weights 300.0 MiB + program 60.0 MiB, context and compute buffers not known yet");
    const auto room = room_for_experts(n, 100 * MiB, MiB, GiB);
    ASSERT_FALSE(room.ok());
    EXPECT_NE(room.status().message().find("not known yet"), std::string::npos) << room.status().message();
}

TEST(ProcessNeed, TheMarginHasBounds) {
    EXPECT_EQ(process_margin(0), 8 * MiB);
    EXPECT_EQ(process_margin(2 * GiB), 32 * MiB);
    EXPECT_EQ(process_margin(UINT64_MAX), 256 * MiB);
}

TEST(ProcessNeed, ALongHeaderMakesALargeProgram) {
    EXPECT_GT(program_need(10 * MiB, 0), program_need(1 * MiB, 0) + 50 * MiB);
    EXPECT_EQ(program_need(MiB, 16 * MiB), program_need(MiB, 0) + 16 * MiB);
    EXPECT_EQ(program_need(UINT64_MAX / 2, 1), UINT64_MAX);
}

TEST(ProcessNeed, LeavesTheRestForExperts) {
    const auto room = room_for_experts(need(), 2 * GiB, MiB, 100 * GiB);
    ASSERT_TRUE(room.ok());
    EXPECT_EQ(*room, 2 * GiB - 524 * MiB - 32 * MiB);
    EXPECT_EQ(*room_for_experts(need(), 2 * GiB, MiB, 200 * MiB), 200 * MiB);
}

TEST(ProcessNeed, RefusesWithTheSumAndTheNumberThatWouldDo) {
    const auto room = room_for_experts(need(), 530 * MiB, 10 * MiB, GiB);
    ASSERT_FALSE(room.ok());
    EXPECT_EQ(room.status().code(), Code::no_memory);
    const std::string& text = room.status().message();
    EXPECT_NE(text.find("dense weights 300.0 MiB + context 64.0 MiB"), std::string::npos) << text;
    EXPECT_NE(text.find("= 532.3 MiB"), std::string::npos) << text;
    EXPECT_NE(text.find("at least 10.0 MiB"), std::string::npos) << text;
    EXPECT_NE(text.find("--ram at least 543 MiB"), std::string::npos) << text;
}

// What is named as enough is enough, and one byte less is not.
TEST(ProcessNeed, TheLeastNumberIsExact) {
    for (const uint64_t dense : {MiB, 400 * MiB, 511 * MiB, 3 * GiB, 17 * GiB, 100 * GiB}) {
        const ProcessNeed n{.dense = dense, .context = 0, .compute = 12'345, .program = 0};
        const uint64_t ram = least_ram(n, 5 * MiB);
        EXPECT_TRUE(room_for_experts(n, ram, 5 * MiB, GiB).ok()) << dense;
        EXPECT_FALSE(room_for_experts(n, ram - 1, 5 * MiB, GiB).ok()) << dense;
    }
}

}  // namespace
}  // namespace sluice::cache
