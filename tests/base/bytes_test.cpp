#include "base/bytes.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(Bytes, CheckedArithmeticRefusesOverflow) {
    EXPECT_EQ(checked_add(1, 2), 3U);
    EXPECT_EQ(checked_add(UINT64_MAX, 1), std::nullopt);
    EXPECT_EQ(checked_mul(3, 4), 12U);
    EXPECT_EQ(checked_mul(UINT64_MAX / 2, 3), std::nullopt);
}

TEST(Bytes, AmountsStayWithinWhatThereIs) {
    EXPECT_EQ(add_capped(1, 2), 3U);
    EXPECT_EQ(add_capped(UINT64_MAX, 1), UINT64_MAX);
    EXPECT_EQ(sub_floored(3, 2), 1U);
    EXPECT_EQ(sub_floored(2, 2), 0U);
    EXPECT_EQ(sub_floored(2, 3), 0U);
}

TEST(Bytes, AlignmentRoundsBothWays) {
    EXPECT_EQ(align_down(4097, 4096), 4096U);
    EXPECT_EQ(align_up(4097, 4096), 8192U);
    EXPECT_EQ(align_up(4096, 4096), 4096U);
    EXPECT_EQ(align_up(7, 1), 7U);
}

TEST(Bytes, ParseTakesWhatAUserTypes) {
    EXPECT_EQ(parse_bytes("16", MiB), 16 * MiB);
    EXPECT_EQ(parse_bytes("0.5", MiB), 512 * KiB);
    EXPECT_EQ(parse_bytes("96K", MiB), 96 * KiB);
    EXPECT_EQ(parse_bytes("8GiB", MiB), 8 * GiB);
    EXPECT_EQ(parse_bytes("8gb", MiB), 8 * GiB);
    EXPECT_EQ(parse_bytes("0", MiB), 0U);
}

TEST(Bytes, ParseRefusesTheRest) {
    for (const char* text :
         {"", "-1", "12x", "abc", "1e3", "inf", "nan", "0x10", " 5", "5 ", "G", "1.2.3", "99999999999G"}) {
        EXPECT_EQ(parse_bytes(text, MiB), std::nullopt) << '"' << text << '"';
    }
}

TEST(Bytes, HumanSpelling) {
    EXPECT_EQ(human_bytes(512), "512 B");
    EXPECT_EQ(human_bytes(4 * MiB), "4.0 MiB");
    EXPECT_EQ(human_bytes(18554257408), "17.28 GiB");
}

}  // namespace
}  // namespace sluice
