#include "route/trained_gate.h"

#include <gtest/gtest.h>

#include <limits>

namespace sluice::route {
namespace {

TrainedGate some() {
    TrainedGate g;
    g.model = "0123456789abcdef";
    g.tokens = 77;
    g.sets.resize(3);
    for (auto& s : g.sets) s = {.n_expert = 8, .n_input = 3, .from = 0, .correction = std::nullopt, .held_out = {}};
    Correction c{.rank = 2,
                 .scale = {1, 2, 3},
                 .shift = {0.1F, 0, -0.25F},
                 .down = {1, 0, 0, 0, 0.5F, 0},
                 .up = {0, 0, 2, 1, 1, 1}};
    c.round();
    g.sets[1].correction = c;
    g.sets[1].held_out = {.slots = 10, .stale = 5, .trained = 7, .control = 10};
    g.sets[2] = {.n_expert = 8, .n_input = 3, .from = 1, .correction = Correction{}, .held_out = {}};
    g.sets[2].correction->scale = {1, 1, 1};
    g.sets[2].correction->shift = {0, 0, 0};
    g.sets[2].held_out = {.slots = 10, .stale = 4, .trained = 4, .control = 9};
    return g;
}

FeatureShape shape() {
    FeatureShape s{.model = "0123456789abcdef", .sets = {}};
    s.sets.assign(3, {.layer = 1, .n_expert = 8, .n_used = 2, .n_input = 3});
    return s;
}

TEST(TrainedGate, ACorrectionIsScaleShiftAndDirections) {
    const Correction c = *some().sets[1].correction;
    const std::vector<float> x{1, 2, 4};
    std::vector<float> y(3);
    c.apply(x, y);
    // down: 1 and 1; up: (0, 0, 2) and (1, 1, 1).
    EXPECT_EQ(y, (std::vector<float>{1 + 0.1F + 1, 4 + 0 + 1, 12 - 0.25F + 2 + 1}));
    // Long ones, whose ends do not come out even.
    constexpr size_t n = 37;
    Correction wide{.rank = 1,
                    .scale = std::vector<float>(n, 0.0F),
                    .shift = std::vector<float>(n, 1.0F),
                    .down = std::vector<float>(n, 1.0F),
                    .up = std::vector<float>(n, 2.0F)};
    const std::vector<float> ones(n, 1.0F);
    std::vector<float> out(n);
    wide.apply(ones, out);
    EXPECT_EQ(out, std::vector<float>(n, 1.0F + 2.0F * n));
}

TEST(TrainedGate, TheFileComesBack) {
    const auto bytes = trained_bytes(some());
    ASSERT_TRUE(bytes.ok());
    const auto back = parse_trained(*bytes);
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_EQ(*back, some());
    EXPECT_EQ(back->held_out().slots, 20U);
    EXPECT_EQ(back->held_out().trained, 11U);
    EXPECT_EQ(back->bytes(), (3 * 2 + 6 * 2 + 3 * 2) * sizeof(float));
    EXPECT_EQ(*trained_bytes(*back), *bytes);
}

// Cut off anywhere, or any byte of it changed.
TEST(TrainedGate, AFileThatIsNotWholeIsRefused) {
    const std::string bytes = *trained_bytes(some());
    for (size_t n = 0; n < bytes.size(); ++n) EXPECT_FALSE(parse_trained(bytes.substr(0, n)).ok()) << n;
    for (size_t i = 0; i < bytes.size(); ++i) {
        for (const int flip : {0x01, 0x80}) {
            std::string other = bytes;
            other[i] = static_cast<char>(other[i] ^ flip);
            EXPECT_FALSE(parse_trained(other).ok()) << i;
        }
    }
    EXPECT_FALSE(parse_trained(bytes + "x").ok());
    EXPECT_EQ(parse_trained("GGUF").status().code(), Code::invalid_argument);
    EXPECT_EQ(parse_trained(bytes.substr(0, bytes.size() - 1)).status().code(), Code::corrupt);
    std::string newer = bytes;
    newer[8] = 2;
    EXPECT_EQ(parse_trained(newer).status().code(), Code::unsupported);
}

TEST(TrainedGate, WhatIsNoNumberIsRefused) {
    TrainedGate g = some();
    g.sets[1].correction->scale[1] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(parse_trained(*trained_bytes(g)).status().code(), Code::corrupt);
}

TEST(TrainedGate, AnotherModelIsRefused) {
    EXPECT_TRUE(check_trained(some(), shape()).ok());
    FeatureShape other = shape();
    other.sets[0].n_used = 4;  // as --n-expert-used does
    EXPECT_TRUE(check_trained(some(), other).ok());
    const auto refused = [&](const char* said) {
        const Status s = check_trained(some(), other);
        EXPECT_EQ(s.code(), Code::conflict);
        EXPECT_NE(s.message().find(said), std::string::npos) << s.message();
        other = shape();
    };
    other.model = "fedcba9876543210";
    refused("fedcba9876543210");
    other.sets.pop_back();
    refused("other layers");
    other.sets[2].n_expert = 9;
    refused("other layers");
    other.sets[2].n_input = 4;
    refused("other layers");
}

TEST(TrainedGate, IsAskedForThePairThatItWasTrainedFor) {
    const TrainedGate g = some();
    EXPECT_EQ(g.correction(1, 0), &*g.sets[1].correction);
    EXPECT_EQ(g.correction(2, 1), &*g.sets[2].correction);
    EXPECT_EQ(g.correction(2, 0), nullptr) << "another layer's state";
    EXPECT_EQ(g.correction(0, 0), nullptr);
    EXPECT_EQ(g.correction(3, 0), nullptr);
}

TEST(TrainedGate, WhatNoFileMayBeIsRefused) {
    TrainedGate g = some();
    g.model = "";
    EXPECT_FALSE(trained_bytes(g).ok());
    g = some();
    g.sets.clear();
    EXPECT_FALSE(trained_bytes(g).ok());
}

}  // namespace
}  // namespace sluice::route
