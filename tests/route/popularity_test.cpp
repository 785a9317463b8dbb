#include "route/popularity.h"

#include <gtest/gtest.h>

namespace sluice::route {
namespace {

std::vector<int32_t> best(Popularity& p, size_t n) {
    std::vector<int32_t> out(n, -1);
    p.best(out);
    return out;
}

TEST(Popularity, MostChosenFirstAndOfEqualsTheLower) {
    Popularity p(6, 1e9);
    EXPECT_TRUE(p.empty());
    p.see(std::vector<int32_t>{4, 2});
    p.see(std::vector<int32_t>{4, 5});
    EXPECT_FALSE(p.empty());
    EXPECT_EQ(best(p, 4), (std::vector<int32_t>{4, 5, 2, 0}));  // the later of two counts a little more
    p.see(std::vector<int32_t>{1, 3});
    EXPECT_EQ(best(p, 3), (std::vector<int32_t>{4, 1, 3}));
}

TEST(Popularity, AChoiceCountsHalfAfterItsHalfLife) {
    Popularity p(3, 2);
    p.see(std::vector<int32_t>{0});
    p.see(std::vector<int32_t>{0});  // now 1 + 0.71
    p.see(std::vector<int32_t>{1});
    EXPECT_EQ(best(p, 2), (std::vector<int32_t>{0, 1}));  // 1.21 against 1
    p.see(std::vector<int32_t>{2});
    p.see(std::vector<int32_t>{1});
    EXPECT_EQ(best(p, 2), (std::vector<int32_t>{1, 2}));  // 1.5, 0.71, and 0 has 0.60
}

TEST(Popularity, LongRunsDoNotOverflow) {
    Popularity p(4, 0.5);
    for (int i = 0; i < 100'000; ++i) p.see(std::vector<int32_t>{i % 4});
    EXPECT_EQ(best(p, 4), (std::vector<int32_t>{3, 2, 1, 0}));
}

TEST(Popularity, MoreThanThereAreAndNumbersThatAreNoExperts) {
    Popularity p(2, 8);
    p.see(std::vector<int32_t>{1, 7, -1});
    EXPECT_EQ(best(p, 3), (std::vector<int32_t>{1, 0, -1}));
}

}  // namespace
}  // namespace sluice::route
