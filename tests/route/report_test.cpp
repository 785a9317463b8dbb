#include "route/report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace sluice::route {
namespace {

using enum Predictor;

constexpr int kLayers[] = {3, 4};

// Layer 3 has nothing before it; layer 4 was half right.
Scores some() {
    static const std::vector<int32_t> chosen{1, 2}, half{2, 7};
    static const std::vector<uint8_t> missing{0, 1}, absent{1, 1};
    Scores s(2);
    const Chosen choice{.experts = chosen, .missing = missing, .read = 10};
    s.not_ranked(stale1, 0, Unranked::first_layers);
    s.score(stale1, 1, {.experts = half, .confidence = {}, .absent = absent, .idle = 10}, choice);
    s.score(control, 0, {.experts = chosen, .confidence = {}, .absent = {}}, choice);
    s.score(control, 1, {.experts = chosen, .confidence = {}, .absent = {}}, choice);
    s.spent(stale1, 2500);
    return s;
}

std::string joined(const std::vector<std::string>& lines) {
    std::string all;
    for (const std::string& l : lines) all += l + "\n";
    return all;
}

bool has(const std::vector<std::string>& lines, const std::string& part) {
    return joined(lines).find(part) != std::string::npos;
}

TEST(PredictReport, SaysWhatWasCounted) {
    const auto lines = report_lines(some(), kLayers);
    EXPECT_TRUE(has(lines,
                    "moe-predict: stale gate 50.0 % of routed slots (0.0 % whole routings) | previous token - of "
                    "routed slots (- whole routings) | control 100.0 % of routed slots (100.0 % whole routings)"))
        << joined(lines);
    EXPECT_TRUE(has(lines, "stale gate 1 routings/2 slots")) << joined(lines);
    EXPECT_TRUE(has(lines, "could not rank 1 routings: 1 of the first layer, 0 of the first token")) << joined(lines);
    EXPECT_TRUE(has(lines,
                    "of what had to be read: stale gate names 100.0 % of 1, 100.0 % in time; of 2 reads 50.0 % "
                    "would have been of use"))
        << joined(lines);
    EXPECT_TRUE(has(lines, "stale gate 2.5 us")) << joined(lines);
    EXPECT_FALSE(has(lines, "should be 100 %")) << joined(lines);
}

TEST(PredictReport, TheTableHasADashWhereNothingWasScored) {
    const auto lines = report_lines(some(), kLayers);
    ASSERT_GE(lines.size(), 3U);
    EXPECT_EQ(lines[lines.size() - 3], " layer   stale    prev    ctrl  routings");
    EXPECT_EQ(lines[lines.size() - 2], "     3       -       -   100.0         1");
    EXPECT_EQ(lines[lines.size() - 1], "     4    50.0       -   100.0         1");
}

// The trained guess has its line and its column where there is one, and none where there is not.
TEST(PredictReport, ATrainedGuessStandsBesideTheStaleOne) {
    Scores s = some();
    EXPECT_FALSE(has(report_lines(s, kLayers), "trained"));
    EXPECT_FALSE(report_json(s, kLayers).contains("trained"));
    const std::vector<int32_t> chosen{1, 2};
    const std::vector<uint8_t> there{0, 0};
    s.not_ranked(trained, 0, Unranked::first_layers);
    s.score(trained, 1, {.experts = chosen, .confidence = {}, .absent = {}}, {.experts = chosen, .missing = there});
    s.spent(trained, 4000);
    const auto lines = report_lines(s, kLayers);
    EXPECT_TRUE(has(lines, "moe-predict: trained 100.0 % of routed slots (100.0 % whole routings)")) << joined(lines);
    EXPECT_TRUE(has(lines, "stale gate 2.5 us, trained 4.0 us, ")) << joined(lines);
    EXPECT_TRUE(has(lines, "| trained names ")) << joined(lines);
    EXPECT_EQ(lines[lines.size() - 3], " layer   stale trained    prev    ctrl  routings");
    EXPECT_EQ(lines[lines.size() - 2], "     3       -       -       -   100.0         1");
    EXPECT_EQ(lines[lines.size() - 1], "     4    50.0   100.0       -   100.0         1");
    EXPECT_EQ(report_json(s, kLayers)["trained"]["hits"], 2);
}

TEST(PredictReport, RoutersInEightBitsAreSaidWhereThereAreSome) {
    Scores s = some();
    EXPECT_FALSE(has(report_lines(s, kLayers), "8 bits"));
    EXPECT_FALSE(report_json(s, kLayers)["stale gate"].contains("exact"));
    const std::vector<int32_t> named{1, 2}, exact{2, 7};
    s.compared(named, exact, 4000);
    EXPECT_TRUE(has(report_lines(s, kLayers),
                    "in 8 bits: 50.0 % of the 2 experts that the same in full names for the same states; in full one "
                    "took 4.0 us"))
        << joined(report_lines(s, kLayers));
    EXPECT_EQ(report_json(s, kLayers)["stale gate"]["exact"]["agreed"], 1);
}

TEST(PredictReport, AControlThatIsNotCompleteIsSaidAloud) {
    Scores s = some();
    const std::vector<int32_t> chosen{1, 2}, other{1, 3};
    const std::vector<uint8_t> there{0, 0};
    s.score(control, 1, {.experts = other, .confidence = {}, .absent = {}}, {.experts = chosen, .missing = there});
    const auto lines = report_lines(s, kLayers);
    EXPECT_TRUE(has(lines, "the control should be 100 % and is 83.333 %, in layers 4:")) << joined(lines);
}

TEST(PredictReport, NothingScoredIsNoReport) {
    EXPECT_TRUE(report_lines(Scores(2), kLayers).empty());
}

TEST(PredictReport, JsonHasTheSameNumbersAndNullForNone) {
    const nlohmann::json j = report_json(some(), kLayers);
    EXPECT_EQ(j["stale gate"]["overlap"], 0.5);
    EXPECT_EQ(j["stale gate"]["hits"], 1);
    EXPECT_EQ(j["stale gate"]["cost_ns"], 2500);
    EXPECT_EQ(j["stale gate"]["not_ranked"]["first_layers"], 1);
    EXPECT_TRUE(j["previous token"]["overlap"].is_null());
    ASSERT_EQ(j["control"]["layers"].size(), 2U);
    EXPECT_EQ(j["control"]["layers"][1]["layer"], 4);
    EXPECT_EQ(j["control"]["calibration"].size(), kBins);
}

}  // namespace
}  // namespace sluice::route
