#include "base/clock.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace sluice {
namespace {

TEST(Clock, DatesAreSpelledSoThatTheySort) {
    const std::string now = utc_text();
    std::string shape = now;
    std::replace_if(
        shape.begin(), shape.end(), [](char c) { return c >= '0' && c <= '9'; }, '0');
    EXPECT_EQ(shape, "0000-00-00T00:00:00Z");
    EXPECT_LT(utc_text(86'400), now);
    EXPECT_EQ(utc_text(86'400).size(), now.size());
}

}  // namespace
}  // namespace sluice
