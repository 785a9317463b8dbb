#include "base/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace sluice {
namespace {

// Every number of 16 bits is itself again, and what lies between two goes to the nearer one, halfway to the even one.
TEST(Half, IsTheNearestOne) {
    for (uint32_t h = 0; h < 0x7c00; ++h) {
        const auto half = static_cast<uint16_t>(h);
        const float f = from_half(half);
        ASSERT_EQ(to_half(f), half) << h;
        ASSERT_EQ(to_half(-f), half | 0x8000U) << h;
        if (h + 1 == 0x7c00) break;
        const float next = from_half(static_cast<uint16_t>(h + 1));
        ASSERT_LT(f, next);
        const float middle = f + (next - f) / 2;
        ASSERT_EQ(to_half(middle), (h % 2 == 0) ? h : h + 1) << h;
        ASSERT_EQ(to_half(std::nextafter(middle, f)), h);
        ASSERT_EQ(to_half(std::nextafter(middle, next)), h + 1);
    }
    EXPECT_EQ(from_half(0x3c00), 1.0F);
    EXPECT_EQ(from_half(0x7bff), kLargestHalf);
}

TEST(Half, WhatIsTooLargeIsTheLargest) {
    EXPECT_EQ(from_half(to_half(1e9F)), kLargestHalf);
    EXPECT_EQ(from_half(to_half(-std::numeric_limits<float>::infinity())), -kLargestHalf);
    EXPECT_TRUE(std::isnan(from_half(to_half(std::numeric_limits<float>::quiet_NaN()))));
    EXPECT_TRUE(std::isinf(from_half(0x7c00)));
}

}  // namespace
}  // namespace sluice
