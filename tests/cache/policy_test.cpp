#include "cache/policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "cache/slot_cache.h"

namespace sluice::cache {
namespace {

constexpr uint32_t kSets = 4, kExperts = 8;

std::vector<uint32_t> sets_of(uint32_t sets = kSets, uint32_t experts = kExperts) {
    std::vector<uint32_t> out;
    for (uint32_t r = 0; r < sets * experts; ++r) out.push_back(r / experts);
    return out;
}

SlotCache make_cache(Policy policy, uint32_t slots, uint32_t sets = kSets, uint32_t experts = kExperts) {
    return SlotCache(std::vector<uint32_t>(sets * experts, 0), std::vector<uint32_t>{slots}, policy, 1,
                     sets_of(sets, experts));
}

// One layer's visit: `records` are of one set.
uint32_t visit(SlotCache& cache, std::vector<RecordId> records, uint32_t set) {
    cache.visit(set);
    for (const RecordId r : records) cache.use(r);
    std::stable_partition(records.begin(), records.end(), [&](RecordId r) { return cache.find(r) != kNoSlot; });
    uint32_t hits = 0;
    for (const RecordId r : records) {
        hits += cache.find(r) != kNoSlot ? 1 : 0;
        EXPECT_NE(cache.lease(r), kNoSlot);
    }
    for (const RecordId r : records) cache.release(r);
    return hits;
}

TEST(Policy, EveryNameIsOfOnePolicy) {
    for (const std::string_view name : kPolicyNames) {
        const auto policy = policy_named(name);
        ASSERT_TRUE(policy) << name;
        EXPECT_EQ(name_of(*policy), name);
    }
    EXPECT_FALSE(policy_named("LRU"));
    EXPECT_FALSE(policy_named(""));
}

// The whole order of eviction is emptied, again and again, and compared with a model that knows every use.
TEST(Policy, ReuseIsTheOrderOfTheExpectedWait) {
    std::mt19937 engine(11);
    const auto random = [&](uint32_t n) { return static_cast<uint32_t>(engine() % n); };
    const Tuning tuning;
    Order order(sets_of(), std::vector<uint32_t>(kSets * kExperts, 0), 1, Policy::reuse, tuning);
    struct Sums {
        double quick = 0, slow = 0;
    };
    std::vector<Sums> sums(kSets * kExperts);
    Echo echo(std::vector<uint32_t>(kSets, kExperts), tuning.echo_sharpness, tuning.prompt_share);
    std::vector<double> echoes(kSets * kExperts);
    std::vector<double> heard(kSets, 0);
    for (int round = 0; round < 300; ++round) {
        for (uint32_t set = 0; set < kSets; ++set) {
            const bool prompt = random(8) == 0;
            const uint32_t tokens = prompt ? 1 + random(2 * kUnclearRows) : 1 + random(3);
            order.visit(set, tokens, prompt);
            const bool listens = tokens == 1 || (prompt && tokens > kUnclearRows);
            if (listens) echo.visit(set, tokens, prompt);
            for (uint32_t e = 0; e < kExperts; ++e) {
                Sums& s = sums[set * kExperts + e];
                s.quick *= std::exp2(-static_cast<double>(tokens) / tuning.short_half_life);
                s.slow *= std::exp2(-static_cast<double>(tokens) / tuning.long_half_life);
            }
            for (uint32_t i = 0; i < 2 * tokens; ++i) {
                const RecordId r = set * kExperts + std::min(random(kExperts), random(kExperts));
                const uint32_t age = random(tokens);
                order.use(r, age);
                if (listens) echo.use(set, r - set * kExperts, age);
                const double share = prompt ? tuning.prompt_share : 1;
                sums[r].quick += share * std::exp2(-static_cast<double>(age) / tuning.short_half_life);
                sums[r].slow += share * std::exp2(-static_cast<double>(age) / tuning.long_half_life);
            }
            if (listens) {
                echo.listen(set);
                const auto experts = std::span(echoes).subspan(size_t{set} * kExperts, kExperts);
                heard[set] = echo.expect(set, experts) ? tuning.echo_share : 0;
            } else {
                heard[set] *= std::exp2(-static_cast<double>(tokens) / tuning.long_half_life);
            }
            order.settle();
            for (RecordId r = 0; r < kSets * kExperts; ++r) {
                if (random(2) == 0) order.add(r, false);
            }
            const auto wait = [&](RecordId r) {
                double p = tuning.short_share * (1 - std::exp2(-1 / tuning.short_half_life)) * sums[r].quick +
                           (1 - tuning.short_share) * (1 - std::exp2(-1 / tuning.long_half_life)) * sums[r].slow;
                p = (1 - heard[r / kExperts]) * p + heard[r / kExperts] * echoes[r];
                const uint32_t ahead = (r / kExperts + kSets - set - 1) % kSets + 1;
                return 1 / std::min(1.0, p + 1e-6) - 1 + tuning.phase * ahead / kSets;
            };
            double last = INFINITY;
            uint32_t left = order.n(0);
            for (RecordId r = order.first(0); r != kNoRecord; r = order.first(0)) {
                ASSERT_LE(wait(r), last * (1 + 1e-9) + 1e-9) << "round " << round << " set " << set;
                last = wait(r);
                order.remove(r);
                --left;
            }
            ASSERT_EQ(left, 0U);
        }
    }
}

// A few rows may be of several sequences, none of which follows on another. However much they agree among each other,
// what decode used for long goes after what they brought.
TEST(Policy, AFewRowsAreNotListenedTo) {
    for (const uint32_t rows : {2U, 4U, 6U}) {
        const bool prompt = rows != 4;
        SlotCache cache = make_cache(Policy::reuse, 3 * kSets);
        for (int token = 0; token < 20; ++token) {
            for (uint32_t set = 0; set < kSets; ++set) visit(cache, {set * kExperts, set * kExperts + 1}, set);
        }
        for (uint32_t set = 0; set < kSets; ++set) {
            cache.visit(set, rows, prompt);
            for (const RecordId r : {set * kExperts + 2, set * kExperts + 3}) {
                for (uint32_t age = 0; age < rows; ++age) cache.use_by(r, age);
                ASSERT_NE(cache.lease(r), kNoSlot);
                cache.release(r);
            }
        }
        for (uint32_t set = 0; set < kSets; ++set) {
            EXPECT_NE(cache.find(set * kExperts), kNoSlot) << rows << " rows, layer " << set;
            EXPECT_NE(cache.find(set * kExperts + 1), kNoSlot) << rows << " rows, layer " << set;
        }
    }
}

// Two experts per layer and token of which one stays: an order of use alone keeps neither in a cache smaller than a
// token; what looks at how often each was used keeps the ones that stay.
TEST(Policy, OnlyTheControlHitsNothingBelowOneToken) {
    for (const Policy policy : {Policy::lru, Policy::frequency, Policy::reuse, Policy::stall, Policy::hinted,
                                Policy::lfru, Policy::age_count}) {
        SlotCache cache = make_cache(policy, 2 * kSets - 3);
        uint32_t hits = 0;
        for (uint32_t token = 0; token < 50; ++token) {
            for (uint32_t set = 0; set < kSets; ++set) {
                hits += visit(cache, {set * kExperts, set * kExperts + 1 + token % (kExperts - 1)}, set);
            }
        }
        if (policy == Policy::lru) {
            EXPECT_EQ(hits, 0U);
        } else {
            EXPECT_GT(hits, 120U) << name_of(policy);  // of 50 tokens, 4 layers: all of those that stay are 200
        }
    }
}

// A cache of exactly one token: an expert of a layer whose turn is still to come is as fresh as one of a layer that has
// just had it, and is wanted sooner.
TEST(Policy, AnExpertOfTheNextLayerIsNotOlderThanOneOfTheLast) {
    SlotCache cache = make_cache(Policy::reuse, 2 * kSets);
    for (uint32_t token = 0; token < 20; ++token) {
        for (uint32_t set = 0; set < kSets; ++set) {
            const RecordId first = set * kExperts;
            const uint32_t hits = visit(cache, {first, first + 1}, set);
            EXPECT_EQ(hits, token == 0 ? 0U : 2U);
        }
    }
    visit(cache, {0, 2}, 0);
    EXPECT_EQ(cache.find(1), kNoSlot) << "of all that were used in their last turn, its own has just been missed";
    for (uint32_t set = 1; set < kSets; ++set) EXPECT_NE(cache.find(set * kExperts), kNoSlot);
}

TEST(Policy, StallKeepsWhatIsDearToRead) {
    for (const bool dear : {false, true}) {
        SlotCache cache = make_cache(Policy::stall, 6, 2);
        if (dear) cache.order().set_cost(0, 20);
        uint32_t hits = 0;
        for (uint32_t token = 0; token < 40; ++token) {
            hits += visit(cache, {token % 5}, 0);
            visit(cache, {kExperts + token % 4}, 1);
        }
        EXPECT_EQ(hits > 30, dear) << hits;
    }
}

TEST(Policy, AHintHoldsUntilTheUseOrUntilItIsOverdue) {
    SlotCache cache = make_cache(Policy::hinted, 3, 1);
    for (const RecordId r : {0U, 1U, 2U}) visit(cache, {r}, 0);
    cache.order().hint(0, 1);
    cache.order().hint(1, 9);
    cache.order().hint(2, 2);
    visit(cache, {3}, 0);
    EXPECT_EQ(cache.find(1), kNoSlot) << "is to come last";
    EXPECT_NE(cache.find(0), kNoSlot);
    for (int i = 0; i < 6; ++i) visit(cache, {3}, 0);
    visit(cache, {4}, 0);  // all hints are overdue: by their past, 0 is the oldest
    EXPECT_EQ(cache.find(0), kNoSlot);
}

// Knowing only that a record is not used soon: it goes before who may be, and after who surely comes later.
TEST(Policy, WhatIsKnownToStayIdleGoesFirst) {
    SlotCache cache = make_cache(Policy::hinted, 3, 1);
    for (int i = 0; i < 4; ++i) {
        for (const RecordId r : {0U, 1U, 2U}) visit(cache, {r}, 0);
    }
    cache.order().hint_idle(2, 8);  // was used last, and would be kept
    visit(cache, {3}, 0);
    EXPECT_EQ(cache.find(2), kNoSlot);
    cache.order().hint(3, 60);
    visit(cache, {4}, 0);
    EXPECT_EQ(cache.find(3), kNoSlot);
}

// Under every policy: who is retained outlives whoever else would have been kept, until its set's next visit.
TEST(Policy, WhoIsRetainedGoesAfterAllOthersUntilItsTurn) {
    for (size_t p = 0; p < kPolicyNames.size(); ++p) {
        const auto policy = static_cast<Policy>(p);
        SlotCache cache = make_cache(policy, 3, 2);
        for (const RecordId r : {0U, 1U, 2U}) visit(cache, {r}, 0);
        for (const RecordId r : {1U, 2U, 1U, 2U}) visit(cache, {r}, 0);
        cache.retain(0);  // used once, and longest ago
        EXPECT_FALSE(cache.costs_retained(0)) << "it is there";
        EXPECT_FALSE(cache.costs_retained(kExperts)) << name_of(policy);
        visit(cache, {kExperts, kExperts + 1}, 1);
        EXPECT_NE(cache.find(0), kNoSlot) << name_of(policy);
        // Where all are retained, one has to go all the same.
        cache.retain(kExperts);
        cache.retain(kExperts + 1);
        EXPECT_TRUE(cache.costs_retained(kExperts + 2)) << name_of(policy);
        // Its turn comes and passes: from then on it is judged like any other.
        visit(cache, {1}, 0);
        EXPECT_NE(cache.find(1), kNoSlot) << name_of(policy);
        EXPECT_EQ(cache.find(0) != kNoSlot, cache.find(kExperts) == kNoSlot || cache.find(kExperts + 1) == kNoSlot)
            << name_of(policy);
        visit(cache, {2}, 0);
        visit(cache, {3}, 0);
        EXPECT_EQ(cache.find(0), kNoSlot) << name_of(policy);
    }
}

// Of a set whose next choice is known, those that are not chosen wait a round longer, and so go first.
TEST(Policy, WhoIsKnownToHaveNoTurnGoesBeforeWhoMayHaveOne) {
    for (const bool decided : {false, true}) {
        SlotCache cache = make_cache(Policy::reuse, 4, 2);
        for (int i = 0; i < 6; ++i) {
            visit(cache, {kExperts, kExperts + 1}, 1);
            visit(cache, {0, 1}, 0);
        }
        // Set 1 is next; what it has is nearer to its turn than what set 0 has.
        if (decided) {
            cache.retain(kExperts);
            cache.order().decide(1);
        }
        ASSERT_NE(cache.lease(kExperts + 2), kNoSlot);
        EXPECT_EQ(cache.find(kExperts + 1) == kNoSlot, decided);
        EXPECT_NE(cache.find(kExperts), kNoSlot);
        EXPECT_EQ(cache.find(0) == kNoSlot || cache.find(1) == kNoSlot, !decided);
    }
}

TEST(Policy, ARetainedGuestStays) {
    SlotCache cache(std::vector<uint32_t>(8, 0), std::vector<uint32_t>{4}, Policy::reuse, 2);
    cache.visit(0, 1, true);
    for (const RecordId r : {0U, 1U, 2U, 3U}) {
        ASSERT_NE(cache.lease(r, Seat::guest), kNoSlot);
        cache.release(r);
    }
    ASSERT_NE(cache.lease(4, Seat::guest), kNoSlot);  // the first guest that pushed somebody out
    cache.release(4);
    cache.retain(4);
    ASSERT_NE(cache.lease(5), kNoSlot);
    EXPECT_NE(cache.find(4), kNoSlot) << "a guest would have gone first";
}

TEST(Policy, GhostsOfLfruKeepTheirUsesAndThoseOfAgeCountDoNot) {
    for (const Policy policy : {Policy::lfru, Policy::age_count}) {
        SlotCache cache = make_cache(policy, 2, 1);
        for (int i = 0; i < 8; ++i) visit(cache, {0}, 0);
        for (const RecordId r : {1U, 2U}) {
            for (int i = 0; i < 12; ++i) visit(cache, {r}, 0);
        }
        ASSERT_EQ(cache.find(0), kNoSlot);
        visit(cache, {0}, 0);  // comes back for one of the two, with eight uses of its past or none
        visit(cache, {3}, 0);
        visit(cache, {3}, 0);
        visit(cache, {4}, 0);
        EXPECT_EQ(cache.find(0) != kNoSlot, policy == Policy::lfru) << name_of(policy);
    }
}

TEST(Policy, TokensAndTheirUsesAreCountedOneByOne) {
    SlotCache cache = make_cache(Policy::reuse, 4, 1);
    cache.visit(0, 3, true);  // a prompt of three tokens, of which two choose record 1
    cache.use_by(1, 2);
    cache.use_by(1, 0);
    visit(cache, {1, 2}, 0);
    EXPECT_EQ(cache.order().tokens(0), 4U);
    EXPECT_EQ(cache.order().token_uses(1), 3U);
    EXPECT_EQ(cache.order().token_uses(2), 1U);
    EXPECT_EQ(cache.order().token_uses(0), 0U);
    EXPECT_EQ(cache.order().n_sets(), 1U);
    EXPECT_EQ(cache.order().begin(1), cache.n_records());
}

TEST(Policy, ExpectedChancesCountUntilExperienceOutweighsThem) {
    SlotCache cache = make_cache(Policy::reuse, 2, 1);
    cache.order().expect(0, 0.5, 1);
    EXPECT_NEAR(cache.order().chance(0), 0.5 * (1 - Tuning().short_share), 1e-3);
    for (const RecordId r : {0U, 1U, 2U}) visit(cache, {r}, 0);
    EXPECT_NE(cache.find(0), kNoSlot);
    for (int i = 0; i < 80; ++i) visit(cache, {i % 2 == 0 ? 1U : 2U}, 0);
    EXPECT_EQ(cache.find(0), kNoSlot);
}

// Uses of a prompt's tokens are there when its first token is decoded, and count for less than later ones.
TEST(Policy, APromptSeedsTheOrder) {
    SlotCache cache = make_cache(Policy::reuse, 3, 1);
    cache.visit(0, 8, true);
    for (uint32_t t = 0; t < 8; ++t) cache.use_by(5, 7 - t);
    cache.use_by(6, 2);
    cache.use_by(7, 0);
    for (const RecordId r : {5U, 6U, 7U}) ASSERT_NE(cache.lease(r), kNoSlot);
    for (const RecordId r : {5U, 6U, 7U}) cache.release(r);
    visit(cache, {0}, 0);
    EXPECT_EQ(cache.find(6), kNoSlot);
    visit(cache, {1}, 0);
    EXPECT_NE(cache.find(5), kNoSlot) << "used by every token of the prompt";
}

}  // namespace
}  // namespace sluice::cache
