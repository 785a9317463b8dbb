// Keeps: a cache allocates when it is made and never again, whatever its policy.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "cache/slot_cache.h"

// Sanitizers bring their own operator new; there the count stays 0 and the test says nothing.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#include "tests/count_allocations.h"

namespace sluice::cache {
namespace {

constexpr uint32_t kSets = 4, kExperts = 8;

TEST(PolicyAllocation, NothingAllocatesOnceTheOrderIsMade) {
    for (const std::string_view name : kPolicyNames) {
        std::vector<uint32_t> sets;
        for (uint32_t r = 0; r < kSets * kExperts; ++r) sets.push_back(r / kExperts);
        SlotCache cache(std::vector<uint32_t>(kSets * kExperts, 0), std::vector<uint32_t>{10}, *policy_named(name), 1,
                        sets);
        std::mt19937 engine(3);
        const auto random = [&](uint32_t n) { return static_cast<uint32_t>(engine() % n); };
        const auto before = allocations.load();
        for (int i = 0; i < 2000; ++i) {
            const uint32_t set = static_cast<uint32_t>(i) % kSets;
            cache.visit(set, 1 + random(4), random(9) == 0);
            for (int k = 0; k < 3; ++k) {
                const RecordId r = set * kExperts + random(kExperts);
                cache.use_by(r, random(4));
                if (cache.lease(r, k == 0 ? Seat::guest : Seat::member) != kNoSlot) cache.release(r);
                cache.order().hint(random(kSets * kExperts), random(5));
            }
        }
        EXPECT_EQ(allocations.load(), before) << name;
    }
}

}  // namespace
}  // namespace sluice::cache

#endif
