// What `sluice quality` computes with: distributions and batteries.
#include "engine/quality.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "engine/divergence.h"

namespace sluice::engine {
namespace {

std::vector<float> log_probabilities(const std::vector<float>& logits) {
    std::vector<float> out(logits.size());
    log_softmax(logits, out);
    return out;
}

TEST(Divergence, OfEqualDistributionsIsExactlyNothing) {
    const std::vector<float> a = log_probabilities({0.3F, -7, 12, 3.1F, 1e-3F});
    EXPECT_EQ(divergence(a, a), 0.0);
}

TEST(Divergence, IsTheTextbookSum) {
    const std::vector<float> a = log_probabilities({std::log(0.5F), std::log(0.25F), std::log(0.25F)});
    const std::vector<float> b = log_probabilities({std::log(0.25F), std::log(0.25F), std::log(0.5F)});
    EXPECT_NEAR(divergence(a, b), 0.5 * std::log(2.0) - 0.25 * std::log(2.0), 1e-6);
    EXPECT_NEAR(std::exp(a[0]), 0.5, 1e-6);
}

TEST(Divergence, LargeLogitsDoNotOverflow) {
    const std::vector<float> a = log_probabilities({10000, 9999, -10000});
    EXPECT_NEAR(std::exp(a[0]) + std::exp(a[1]), 1.0, 1e-6);
    EXPECT_TRUE(std::isfinite(divergence(a, log_probabilities({9999, 10000, -10000}))));
}

TEST(Divergence, WhatIsNotANumberStaysNone) {
    const std::vector<float> a = log_probabilities({1, 2, 3});
    const std::vector<float> b(3, std::numeric_limits<float>::quiet_NaN());
    EXPECT_TRUE(std::isnan(divergence(a, b)));
}

TEST(Divergence, TheFirstOfTheMostLikelyCounts) {
    EXPECT_EQ(most_likely(std::vector<float>{1, 3, 3, 2}), 1U);
}

TEST(Battery, TheBuiltInOneHasAnswersThatItsPromptsDoNotGive) {
    const std::vector<Task> tasks = built_in_battery();
    EXPECT_GE(tasks.size(), 12U);
    for (const Task& t : tasks) {
        EXPECT_FALSE(t.prompt.empty());
        EXPECT_FALSE(t.answers.empty()) << t.prompt;
    }
}

TEST(Battery, LinesBecomeTasks) {
    const auto tasks = parse_battery("# a comment\nTwo and two is\t4|four\n\nA\\nB\\\\\tC\r\n", "b.txt");
    ASSERT_TRUE(tasks.ok()) << tasks.status().message();
    ASSERT_EQ(tasks->size(), 2U);
    EXPECT_EQ((*tasks)[0].answers, (std::vector<std::string>{"4", "four"}));
    EXPECT_EQ((*tasks)[1].prompt, "A\nB\\");
    EXPECT_EQ((*tasks)[1].answers, std::vector<std::string>{"C"});
}

TEST(Battery, WhatIsNoBatteryIsRefusedWithItsLine) {
    for (const auto& [text, words] : std::vector<std::pair<const char*, const char*>>{{"no tab", "line 1"},
                                                                                      {"\n\tanswer", "line 2"},
                                                                                      {"a\tb|", "empty answer"},
                                                                                      {"", "no task"},
                                                                                      {"# x\n", "no task"}}) {
        const auto tasks = parse_battery(text, "b.txt");
        ASSERT_FALSE(tasks.ok()) << text;
        EXPECT_NE(tasks.status().message().find(words), std::string::npos) << tasks.status().message();
    }
}

}  // namespace
}  // namespace sluice::engine
