#include "base/clock.h"

#include <gtest/gtest.h>

#include <regex>

namespace sluice {
namespace {

TEST(Clock, DatesAreSpelledSoThatTheySort) {
    const std::string now = utc_text();
    EXPECT_TRUE(std::regex_match(now, std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)"))) << now;
    EXPECT_LT(utc_text(86'400), now);
    EXPECT_EQ(utc_text(86'400).size(), now.size());
}

}  // namespace
}  // namespace sluice
