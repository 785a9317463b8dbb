#include "base/little_endian.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(LittleEndian, ComesBackInOrder) {
    std::string bytes;
    put_number(bytes, uint16_t{0xa1b2});
    put_number(bytes, uint32_t{7});
    put_number(bytes, UINT64_MAX - 1);
    ASSERT_EQ(bytes.size(), 14U);
    EXPECT_EQ(bytes.substr(0, 2), "\xb2\xa1");
    NumberReader in{bytes};
    EXPECT_EQ(in.take<uint16_t>(), 0xa1b2);
    EXPECT_EQ(in.take_bytes(4), std::string_view("\x07\0\0\0", 4));
    EXPECT_EQ(in.take<uint64_t>(), UINT64_MAX - 1);
    EXPECT_TRUE(in.ok && in.rest.empty());
}

TEST(LittleEndian, TheEndIsNoticedAndReadNotBeyond) {
    NumberReader in{"abc"};
    EXPECT_EQ(in.take<uint32_t>(), 0U);
    EXPECT_FALSE(in.ok);
    NumberReader some{"abc"};
    EXPECT_TRUE(some.take_bytes(4).empty());
    EXPECT_FALSE(some.ok);
}

}  // namespace
}  // namespace sluice
