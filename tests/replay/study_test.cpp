#include "replay/study.h"

#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

namespace sluice::replay {
namespace {

Routes read(const std::string& text) {
    std::istringstream in("turn,phase,step,layer,slot,expert\n" + text);
    auto routes = read_routes(in, "trace");
    EXPECT_TRUE(routes.ok()) << routes.status().message();
    return std::move(*routes);
}

// Two layers, two experts each per token: the first layer keeps one of them, the second alternates between two pairs.
Routes alternating(uint32_t tokens) {
    std::string text;
    for (uint32_t t = 0; t < tokens; ++t) {
        text += fmt::format("0,1,{0},0,0,0\n0,1,{0},0,1,{1}\n", t, 1 + t % 5);
        text += fmt::format("0,1,{0},1,0,{1}\n0,1,{0},1,1,{2}\n", t, t % 2 * 2, t % 2 * 2 + 1);
    }
    return read(text);
}

TEST(Study, CountsOverlapsUnionsAndSkew) {
    const Routes routes = alternating(20);
    const Pool pool = pool_of_slots(routes, 4);
    constexpr std::array<uint32_t, 3> lags{1, 2, 5};
    constexpr std::array<uint32_t, 2> blocks{2, 5};
    const Study s = study(routes, lags, blocks, pool, rule_of(cache::Policy::lru));
    EXPECT_EQ(s.tokens, 20U);
    EXPECT_DOUBLE_EQ(s.per_token, 2);
    EXPECT_DOUBLE_EQ(s.lags[0].layers.most, 0.5);
    EXPECT_DOUBLE_EQ(s.lags[0].layers.least, 0);
    EXPECT_DOUBLE_EQ(s.lags[0].overlap, 0.25);
    EXPECT_DOUBLE_EQ(s.lags[1].overlap, 0.75);
    EXPECT_DOUBLE_EQ(s.lags[2].layers.most, 1);
    EXPECT_DOUBLE_EQ(s.blocks[0].experts, 3.5);  // three in the first layer, four in the second
    EXPECT_DOUBLE_EQ(s.blocks[0].break_even, 1.75);
    EXPECT_DOUBLE_EQ(s.blocks[1].experts, 5);
    EXPECT_DOUBLE_EQ(s.blocks[1].share, 0.5);
    ASSERT_EQ(s.layers.size(), 2U);
    EXPECT_EQ(s.layers[0].distinct, 6U);
    EXPECT_DOUBLE_EQ(s.layers[0].hottest, 1);
    EXPECT_NEAR(s.layers[1].effective, 4, 1e-9);
}

// The first layer's blocks need three experts for two of one token, the second's four for two: 1.5 and 2 times as many.
TEST(Study, LayersCountByTheirBytes) {
    Routes routes = alternating(20);
    constexpr std::array<uint32_t, 1> lags{1}, blocks{2};
    const auto of = [&](uint64_t first, uint64_t second) {
        routes.sets[0].expert_bytes = first;
        routes.sets[1].expert_bytes = second;
        return study(routes, lags, blocks, pool_of_slots(routes, 1), {});
    };
    EXPECT_FALSE(of(100, 0).weighed) << "one size is not known";
    EXPECT_DOUBLE_EQ(of(100, 0).blocks[0].break_even, 1.75);
    EXPECT_TRUE(of(100, 100).weighed);
    EXPECT_DOUBLE_EQ(of(100, 100).blocks[0].break_even, 1.75);
    EXPECT_DOUBLE_EQ(of(300, 100).blocks[0].break_even, (3 * 1.5 + 2) / 4);
    EXPECT_DOUBLE_EQ(of(300, 100).blocks[0].experts, 3.5) << "that is a number of experts";
}

TEST(Study, BlocksAreTheSameChoicesInFewerPasses) {
    const Routes routes = alternating(7);
    const Routes blocks = in_blocks(routes, 3);
    ASSERT_EQ(blocks.passes.size(), 3U);
    EXPECT_EQ(blocks.passes[0].tokens, 3U);
    EXPECT_EQ(blocks.passes[2].tokens, 1U);
    EXPECT_EQ(blocks.choices.size(), routes.choices.size());
    EXPECT_EQ(blocks.visits.size(), 6U);
    EXPECT_EQ(blocks.visits[0].tokens, 3U);
    const Pool all = pool_of_slots(routes, 1000);
    EXPECT_EQ(replay(blocks, all, {}).decode.bytes, replay(routes, all, {}).decode.bytes);
    EXPECT_EQ(replay(blocks, all, {}).decode.tokens, 7U);
}

TEST(Study, ABlockEndsAtATurnAndPromptsStayWhole) {
    const Routes blocks = in_blocks(
        read("0,0,0,0,0,1\n0,0,1,0,0,2\n0,0,0,1,0,1\n0,1,2,0,0,1\n0,1,2,1,0,1\n1,1,3,0,0,1\n1,1,3,1,0,1\n"), 4);
    ASSERT_EQ(blocks.passes.size(), 3U);
    EXPECT_TRUE(blocks.passes[0].prompt);
    EXPECT_EQ(blocks.passes[0].tokens, 2U);
    EXPECT_EQ(blocks.passes[1].tokens, 1U);
}

TEST(Study, TokensOutOfABlock) {
    EXPECT_DOUBLE_EQ(tokens_out(1, 0.5), 1);
    EXPECT_DOUBLE_EQ(tokens_out(3, 0.5), 1.75);
    EXPECT_DOUBLE_EQ(tokens_out(4, 1), 4);
    EXPECT_DOUBLE_EQ(tokens_out(4, 0), 1);
}

TEST(Study, TheRecordingsGiveTheNumbersThatAreKnownOfThem) {
    const auto routes = read_routes(std::string(SLUICE_SOURCE_DIR) + "/tests/replay/routes/qwen.csv");
    ASSERT_TRUE(routes.ok());
    constexpr std::array<uint32_t, 1> lags{1};
    constexpr std::array<uint32_t, 2> blocks{2, 4};
    const Study s = study(*routes, lags, blocks, pool_of_slots(*routes, 8 * routes->sets.size()), {});
    EXPECT_DOUBLE_EQ(s.per_token, 6);
    EXPECT_NEAR(s.lags[0].overlap, 0.38, 0.03);   // all layers: 38.0 %
    EXPECT_NEAR(s.blocks[0].experts, 9.7, 0.3);   // 9.7
    EXPECT_NEAR(s.blocks[1].experts, 15.6, 0.8);  // 15.6
    EXPECT_GT(s.blocks[1].break_even_cached, 1);
    EXPECT_LT(s.blocks[1].break_even_cached, 4.01);
}

}  // namespace
}  // namespace sluice::replay
