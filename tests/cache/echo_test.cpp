#include "cache/echo.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <vector>

#include "cache/slot_cache.h"

namespace sluice::cache {
namespace {

constexpr double kSharp = 6, kPrompt = 0.5;

void tell(Echo& echo, uint32_t set, const std::vector<uint32_t>& experts) {
    echo.visit(set, 1, false);
    for (const uint32_t e : experts) echo.use(set, e, 0);
    echo.listen(set);
}

TEST(Echo, NothingIsExpectedOfASilentPast) {
    const std::vector<uint32_t> sizes{4, 4};
    Echo echo(sizes, kSharp, kPrompt);
    std::vector<double> chance(4, -1);
    EXPECT_FALSE(echo.expect(0, chance));
    echo.listen(0);
    echo.use(0, 1, 0);  // of a token that nobody announced
    EXPECT_FALSE(echo.expect(0, chance));
    tell(echo, 0, {1});
    EXPECT_FALSE(echo.expect(0, chance)) << "one token has nothing that came before it";
    EXPECT_EQ(chance, std::vector<double>(4, -1));
    tell(echo, 0, {2});
    ASSERT_TRUE(echo.expect(0, chance));
    EXPECT_GT(chance[2], 0);
    EXPECT_FALSE(echo.expect(1, chance)) << "that layer has said nothing";
}

// A sentence of tokens comes again and again, with other tokens between: what followed is expected, not what was used
// most or last.
TEST(Echo, WhatFollowedLastTimeIsExpectedNow) {
    const std::vector<uint32_t> sizes{32, 32};
    Echo echo(sizes, kSharp, kPrompt);
    for (int round = 0; round < 4; ++round) {
        for (uint32_t token = 0; token < 8; ++token) {
            for (uint32_t set = 0; set < 2; ++set) tell(echo, set, {2 * token, 2 * token + 1});
            if (round < 2) continue;
            std::vector<double> chance(32);
            ASSERT_TRUE(echo.expect(1, chance));
            const uint32_t next = (token + 1) % 8;
            for (uint32_t e = 0; e < 32; ++e) {
                if (e / 2 != next) {
                    EXPECT_LT(chance[e], chance[2 * next]) << "expert " << e << " after token " << token;
                }
            }
        }
    }
}

// The whole past is kept, and every sum is made anew.
TEST(Echo, IsASumOverThePast) {
    constexpr uint32_t kSets = 3, kExperts = 12;
    std::mt19937 engine(5);
    const auto random = [&](uint32_t n) { return static_cast<uint32_t>(engine() % n); };
    const std::vector<uint32_t> sizes(kSets, kExperts);
    Echo echo(sizes, kSharp, kPrompt);
    std::map<std::pair<uint32_t, uint64_t>, std::vector<uint32_t>> past;  // by set and token
    std::map<uint64_t, bool> of_prompt;
    std::vector<double> resembles(Echo::kTokens, 0);
    uint64_t token = 0;
    for (int round = 0; round < 150; ++round) {
        // One token mostly; a few; more than are remembered.
        const uint32_t tokens = random(10) == 0 ? 300 : random(4) == 0 ? 1 + random(5) : 1;
        const bool prompt = tokens > 5;
        for (uint32_t i = 1; i <= tokens; ++i) of_prompt[token + i] = prompt;
        token += tokens;
        const uint64_t oldest = token >= Echo::kTokens ? token - Echo::kTokens + 1 : 1;
        for (uint32_t set = 0; set < kSets; ++set) {
            const uint32_t computed = set == 2 && prompt ? 1 : tokens;  // the last layer of a prompt
            echo.visit(set, computed, prompt);
            for (uint32_t age = 0; age < computed; ++age) {
                for (uint32_t i = 0; i < 3; ++i) {
                    const uint32_t e = std::min(random(kExperts), random(kExperts));
                    echo.use(set, e, age);
                    past[{set, token - age}].push_back(e);
                }
            }
            echo.listen(set);
            const std::vector<uint32_t>& now = past[{set, token}];
            for (uint32_t back = 1; back < Echo::kTokens && back < token; ++back) {
                double same = 0;
                for (const uint32_t e : past[{set, token - back}])
                    same += std::find(now.begin(), now.end(), e) != now.end() ? 1 : 0;
                resembles[back] = 2 * resembles[back] / 3 + std::min(1.0, same / 3) / 3;
            }
            std::vector<double> expected(kExperts, 0), got(kExperts);
            double all = 0;
            for (uint64_t t = token; t > oldest; --t) {
                double worth = 0;
                for (uint64_t from = t; from > oldest; --from) {
                    const double step = std::floor(resembles[token + 1 - from] * 256) / 256;
                    worth += std::exp(kSharp * (step - 1)) * std::exp2(-static_cast<double>(t - from));
                }
                if (of_prompt[t]) worth *= kPrompt;
                if (!past[{set, t}].empty()) all += worth;
                for (const uint32_t e : past[{set, t}]) expected[e] += worth;
            }
            ASSERT_EQ(echo.expect(set, got), all > 0) << "round " << round;
            for (uint32_t e = 0; e < kExperts && all > 0; ++e)
                ASSERT_NEAR(got[e], expected[e] / all, 1e-9) << "round " << round << " set " << set;
        }
    }
}

TEST(Echo, MoreExpertsOfATokenThanItRemembersAreNoHarm) {
    const std::vector<uint32_t> sizes{64};
    Echo echo(sizes, kSharp, kPrompt);
    std::vector<double> chance(64);
    for (int token = 0; token < 3; ++token) {
        std::vector<uint32_t> all(64);
        for (uint32_t e = 0; e < 64; ++e) all[e] = e;
        tell(echo, 0, all);
    }
    ASSERT_TRUE(echo.expect(0, chance));
    EXPECT_NEAR(chance[0], 1, 1e-9);
    EXPECT_NEAR(chance[Echo::kUses - 1], 1, 1e-9);
    EXPECT_EQ(chance[Echo::kUses], 0);
}

// Seven tokens over and over, each with experts of its own: nothing in how often or how lately an expert was used tells
// which comes next.
TEST(Echo, ACacheThatListensKeepsWhatComesNext) {
    constexpr uint32_t kSets = 4, kExperts = 16, kPeriod = 7;
    std::vector<uint32_t> sets;
    for (uint32_t r = 0; r < kSets * kExperts; ++r) sets.push_back(r / kExperts);
    std::vector<uint32_t> hits;
    for (const double share : {0.0, Tuning().echo_share}) {
        Tuning tuning;
        tuning.echo_share = share;
        SlotCache cache(std::vector<uint32_t>(kSets * kExperts, 0), std::vector<uint32_t>{8 * kSets}, Policy::reuse, 1,
                        sets, tuning);
        uint32_t n = 0;
        for (uint32_t token = 0; token < 20 * kPeriod; ++token) {
            for (uint32_t set = 0; set < kSets; ++set) {
                const RecordId r = set * kExperts + 2 * (token % kPeriod);
                cache.visit(set);
                for (const RecordId of : {r, r + 1}) cache.use(of);
                for (const RecordId of : {r, r + 1}) {
                    n += cache.find(of) != kNoSlot ? 1 : 0;
                    ASSERT_NE(cache.lease(of), kNoSlot);
                }
                for (const RecordId of : {r, r + 1}) cache.release(of);
            }
        }
        hits.push_back(n);
    }
    EXPECT_GT(hits[1], hits[0] + 100) << "of " << 20 * kPeriod * kSets * 2;
}

}  // namespace
}  // namespace sluice::cache
