#include "route/train.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace sluice::route {
namespace {

// Small and the same everywhere.
class Draws {
  public:
    explicit Draws(uint64_t seed) : state_(seed * 2 + 1) {}
    double uniform() {
        state_ = state_ * 6364136223846793005ULL + 1442695040888963407ULL;
        return static_cast<double>(state_ >> 11U) * 0x1p-53;
    }
    float normal() {
        double sum = -6;
        for (int i = 0; i < 12; ++i) sum += uniform();
        return static_cast<float>(sum);
    }
    std::vector<float> normals(size_t n, float size = 1) {
        std::vector<float> out(n);
        for (float& f : out) f = size * normal();
        return out;
    }

  private:
    uint64_t state_;
};

constexpr size_t kExperts = 16, kInput = 24, kUsed = 4;

RouterRule rule_of(uint64_t seed) {
    Draws draw(seed);
    return {.n_expert = kExperts,
            .n_input = kInput,
            .weight = draw.normals(kExperts * kInput),
            .bias = {},
            .choice_bias = {}};
}

std::vector<float> products_of(const RouterRule& rule, const float* state) {
    std::vector<float> out(rule.n_expert);
    for (size_t e = 0; e < rule.n_expert; ++e) {
        out[e] = std::inner_product(state, state + rule.n_input,
                                    rule.weight.begin() + static_cast<ptrdiff_t>(e * rule.n_input), 0.0F) +
                 (rule.bias.empty() ? 0 : rule.bias[e]);
    }
    return out;
}

// The next state is this one scaled number by number, a map of so many directions added, and noise.
Samples planted(const RouterRule& rule, size_t tokens, size_t rank, float noise, uint64_t seed = 3) {
    Draws draw(seed);
    const auto scale = draw.normals(kInput);
    const auto down = draw.normals(rank * kInput, 0.4F), up = draw.normals(rank * kInput, 0.8F);
    Samples s{.tokens = tokens, .n_input = kInput, .n_used = kUsed, .from = {}, .to = {}, .chosen = {}};
    for (size_t t = 0; t < tokens; ++t) {
        const auto x = draw.normals(kInput);
        std::vector<float> y(kInput);
        for (size_t i = 0; i < kInput; ++i) y[i] = scale[i] * x[i] + 0.5F + noise * draw.normal();
        for (size_t r = 0; r < rank; ++r) {
            const float part =
                std::inner_product(x.begin(), x.end(), down.begin() + static_cast<ptrdiff_t>(r * kInput), 0.0F);
            for (size_t i = 0; i < kInput; ++i) y[i] += part * up[r * kInput + i];
        }
        s.from.insert(s.from.end(), x.begin(), x.end());
        s.to.insert(s.to.end(), y.begin(), y.end());
        std::vector<int32_t> chosen(kUsed);
        rule.choose(products_of(rule, y.data()), chosen);
        s.chosen.insert(s.chosen.end(), chosen.begin(), chosen.end());
    }
    return s;
}

double rate(uint64_t hits, const HeldOut& h) {
    return static_cast<double>(hits) / static_cast<double>(h.slots);
}

TEST(Train, RecoversAPlantedMap) {
    const RouterRule rule = rule_of(1);
    for (const size_t tokens : {1000UL, 100UL}) {  // more tokens than numbers; few
        const Samples s = planted(rule, tokens, 3, 0);
        const Fit f = fit(rule, s, kExperts);
        ASSERT_TRUE(f.correction.has_value());
        EXPECT_EQ(f.held_out.slots, (tokens / 5) * kUsed);
        EXPECT_EQ(f.held_out.control, f.held_out.slots);
        EXPECT_LT(rate(f.held_out.stale, f.held_out), 0.6);
        EXPECT_GT(rate(f.held_out.trained, f.held_out), 0.97) << tokens;
        // The directions that were planted, less what the scales took of them.
        const Fit low = fit(rule, s, 3);
        ASSERT_TRUE(low.correction.has_value());
        EXPECT_EQ(low.correction->rank, 3U);
        EXPECT_GT(rate(low.held_out.trained, low.held_out), 0.8) << tokens;
    }
}

TEST(Train, ARankThatIsTooLowExplainsLess) {
    const RouterRule rule = rule_of(1);
    const Samples s = planted(rule, 1000, 6, 0);
    uint64_t before = 0;
    for (const uint32_t rank : {0U, 2U, 6U}) {
        const Fit f = fit(rule, s, rank);
        ASSERT_TRUE(f.correction.has_value()) << rank;
        EXPECT_LE(f.correction->rank, rank);
        EXPECT_EQ(f.correction->down.size(), f.correction->rank * kInput);
        EXPECT_EQ(f.correction->up.size(), f.correction->rank * kInput);
        EXPECT_GT(f.held_out.trained, before) << rank;
        before = f.held_out.trained;
    }
    // No more directions than the router can tell apart.
    const Fit f = fit(rule, s, kMostRank);
    ASSERT_TRUE(f.correction.has_value());
    EXPECT_LE(f.correction->rank, kExperts);
}

// A state that says nothing of the next one but what it is itself: the correction may not make much of noise.
TEST(Train, NoiseIsNotLearned) {
    const RouterRule rule = rule_of(2);
    Draws draw(5);
    Samples s{.tokens = 400, .n_input = kInput, .n_used = kUsed, .from = {}, .to = {}, .chosen = {}};
    for (size_t t = 0; t < s.tokens; ++t) {
        const auto x = draw.normals(kInput);
        auto y = x;
        for (float& f : y) f += 0.3F * draw.normal();
        s.from.insert(s.from.end(), x.begin(), x.end());
        s.to.insert(s.to.end(), y.begin(), y.end());
        std::vector<int32_t> chosen(kUsed);
        rule.choose(products_of(rule, y.data()), chosen);
        s.chosen.insert(s.chosen.end(), chosen.begin(), chosen.end());
    }
    const HeldOut h = fit(rule, s, 8).held_out;
    EXPECT_GT(rate(h.stale, h), 0.7);
    EXPECT_GT(rate(h.trained, h), rate(h.stale, h) - 0.03);

    // Choices that have nothing to do with any state: nothing to be gained, and the counts say so.
    for (size_t t = 0; t < s.tokens; ++t) {
        for (size_t k = 0; k < kUsed; ++k)
            s.chosen[t * kUsed + k] =
                static_cast<int32_t>((static_cast<size_t>(draw.uniform() * 4) * kUsed + k) % kExperts);
    }
    const HeldOut none = fit(rule, s, 8).held_out;
    EXPECT_LT(rate(none.trained, none), 0.45);
    EXPECT_LT(rate(none.control, none), 0.45);
}

TEST(Train, TheSameSamplesGiveTheSameBits) {
    const RouterRule rule = rule_of(1);
    const Samples s = planted(rule, 300, 4, 0.2F);
    const Fit a = fit(rule, s, 4), b = fit(rule, s, 4);
    ASSERT_TRUE(a.correction && b.correction);
    EXPECT_EQ(*a.correction, *b.correction);
    EXPECT_EQ(a.held_out, b.held_out);
    Correction rounded = *a.correction;
    rounded.round();
    EXPECT_EQ(rounded, *a.correction) << "what was measured is what the file holds";
}

// A state that never changes has no direction to learn from.
TEST(Train, ConstantStatesAreNoTrouble) {
    const RouterRule rule = rule_of(1);
    Samples s = planted(rule, 100, 1, 0);
    std::fill(s.from.begin(), s.from.end(), 1.0F);
    const Fit f = fit(rule, s, 4);
    if (f.correction) {
        for (const auto& v : {f.correction->scale, f.correction->shift, f.correction->down, f.correction->up})
            EXPECT_TRUE(std::all_of(v.begin(), v.end(), [](float x) { return std::isfinite(x); }));
    }
}

TEST(Train, ChoosesAsRoutersDo) {
    RouterRule rule{.n_expert = 4, .n_input = 1, .weight = {}, .bias = {}, .choice_bias = {}};
    std::vector<int32_t> two(2);
    rule.choose(std::vector<float>{1, 5, 5, 2}, two);
    EXPECT_EQ(two, (std::vector<int32_t>{1, 2})) << "the lower number of equals";
    rule.choice_bias = {0, 0, 0, 0.9F};
    for (const auto scoring :
         {RouterRule::Scoring::softmax, RouterRule::Scoring::sigmoid, RouterRule::Scoring::root_softplus}) {
        rule.scoring = scoring;
        rule.choose(std::vector<float>{1, 3, 3.1F, 2.9F}, two);
        EXPECT_EQ(two, (std::vector<int32_t>{3, 2}));
        rule.choose(std::vector<float>{30, 29, -80, -90}, two);
        EXPECT_TRUE(std::find(two.begin(), two.end(), 0) != two.end());
    }
}

TEST(Train, AFifthIsHeldOut) {
    EXPECT_EQ(tokens_trained(100), 80U);
    EXPECT_EQ(tokens_trained(64), 52U);
    EXPECT_EQ(tokens_trained(4), 4U);
}

}  // namespace
}  // namespace sluice::route
