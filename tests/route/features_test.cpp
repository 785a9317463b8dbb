#include "route/features.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace sluice::route {
namespace {

FeatureShape shape() {
    return {.model = "0123456789abcdef",
            .sets = {{.layer = 0, .n_expert = 8, .n_used = 2, .n_input = 3},
                     {.layer = 1, .n_expert = 300, .n_used = 1, .n_input = 0},
                     {.layer = 2, .n_expert = 300, .n_used = 3, .n_input = 2}}};
}

TEST(Features, TheHeaderComesBack) {
    const auto head = feature_header(shape());
    ASSERT_TRUE(head.ok());
    EXPECT_EQ(head->size(), feature_header_bytes(shape()));
    const auto back = parse_feature_header(*head + "rows");
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_EQ(*back, shape());
}

TEST(Features, TheHeaderNamesWhatTheRunChanged) {
    FeatureShape s = shape();
    s.lossy = "--route-ahead 2, --drop-cold-experts 0.5";
    const std::string head = *feature_header(s);
    EXPECT_EQ(head.size(), feature_header_bytes(s));
    const auto back = parse_feature_header(head + "rows");
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_EQ(back->lossy, s.lossy);
    EXPECT_NE(*back, shape());
    EXPECT_TRUE(back->same_rows(shape()));
    for (size_t n = 0; n < head.size(); ++n) EXPECT_FALSE(parse_feature_header(head.substr(0, n)).ok()) << n;
    s.lossy.assign(kMostFeatureLossy + 1, 'x');
    const auto cut = parse_feature_header(*feature_header(s));
    ASSERT_TRUE(cut.ok()) << cut.status().message();
    EXPECT_EQ(cut->lossy.size(), kMostFeatureLossy);
}

TEST(Features, AHeaderThatIsCutOffOrChangedIsRefused) {
    const std::string head = *feature_header(shape());
    for (size_t n = 0; n < head.size(); ++n) EXPECT_FALSE(parse_feature_header(head.substr(0, n)).ok()) << n;
    for (size_t i = 0; i < head.size(); ++i) {
        std::string other = head;
        other[i] = static_cast<char>(other[i] ^ 0x10);
        EXPECT_FALSE(parse_feature_header(other).ok()) << i;
    }
    EXPECT_EQ(parse_feature_header("# route_trace v1\n").status().code(), Code::invalid_argument);
}

TEST(Features, AShapeBeyondTheFormIsRefused) {
    FeatureShape s = shape();
    s.model = "short";
    EXPECT_FALSE(feature_header(s).ok());
    s = shape();
    s.sets[0].n_expert = 1U << 20U;
    EXPECT_FALSE(feature_header(s).ok());
    s = shape();
    s.sets.clear();
    EXPECT_FALSE(feature_header(s).ok());
    s = shape();
    s.sets.assign(4096, {.layer = 0, .n_expert = 8, .n_used = 2, .n_input = 1U << 20U});
    EXPECT_FALSE(feature_header(s).ok());
}

TEST(Features, ARowHasWhatWasPut) {
    const FeatureShape s = shape();
    FeatureRow row(s);
    row.begin();
    row.put(2, std::vector<float>{1.5F, -2}, std::vector<int32_t>{299, 0, 256});
    const std::string bytes(row.end());
    ASSERT_EQ(bytes.size(), feature_row_bytes(s));
    EXPECT_TRUE(is_feature_row(bytes));
    std::vector<float> x(2);
    std::vector<int32_t> chosen(3);
    const auto part = [&](uint32_t set) {
        return std::string_view(bytes).substr(feature_offset(s, set), feature_bytes(s.sets[set]));
    };
    ASSERT_TRUE(read_feature(s.sets[2], part(2), x, chosen));
    EXPECT_EQ(x, (std::vector<float>{1.5F, -2}));
    EXPECT_EQ(chosen, (std::vector<int32_t>{299, 0, 256}));
    std::vector<float> three(3);
    std::vector<int32_t> two(2);
    EXPECT_FALSE(read_feature(s.sets[0], part(0), three, two)) << "nothing was put there";
    EXPECT_FALSE(read_feature(s.sets[2], part(2), three, chosen)) << "no such shape";

    row.begin();
    EXPECT_EQ(std::string(row.end()).find_first_not_of('\0'), feature_row_bytes(s) - 4) << "nothing of the row before";
}

TEST(Features, WhatIsNotOfTheShapeIsLeftOut) {
    const FeatureShape s = shape();
    FeatureRow row(s);
    row.begin();
    const std::string empty(row.end());
    row.begin();
    row.put(0, std::vector<float>{1, 2}, std::vector<int32_t>{1, 2});
    row.put(0, std::vector<float>{1, 2, 3}, std::vector<int32_t>{1, 8});
    row.put(0, std::vector<float>{1, 2, 3}, std::vector<int32_t>{-1, 2});
    row.put(1, {}, std::vector<int32_t>{1});
    row.put(3, {}, {});
    EXPECT_EQ(std::string(row.end()), empty);
}

TEST(Features, ARowThatIsCutOffOrChangedIsNone) {
    const FeatureShape s = shape();
    FeatureRow row(s);
    row.begin();
    row.put(0, std::vector<float>{1, 2, 3}, std::vector<int32_t>{1, 2});
    const std::string bytes(row.end());
    for (size_t n = 0; n < bytes.size(); ++n) EXPECT_FALSE(is_feature_row(bytes.substr(0, n))) << n;
    for (size_t i = 0; i < bytes.size(); ++i) {
        std::string other = bytes;
        other[i] = static_cast<char>(other[i] ^ 1);
        EXPECT_FALSE(is_feature_row(other)) << i;
    }
}

TEST(Features, WhatIsNoNumberIsNotRead) {
    const FeatureShape s = shape();
    FeatureRow row(s);
    row.begin();
    row.put(2, std::vector<float>{std::numeric_limits<float>::quiet_NaN(), 1}, std::vector<int32_t>{0, 1, 2});
    const std::string bytes(row.end());
    std::vector<float> x(2);
    std::vector<int32_t> chosen(3);
    EXPECT_FALSE(read_feature(s.sets[2], std::string_view(bytes).substr(feature_offset(s, 2), feature_bytes(s.sets[2])),
                              x, chosen));
}

}  // namespace
}  // namespace sluice::route
