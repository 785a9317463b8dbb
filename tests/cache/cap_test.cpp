// The cap of a cache's classes: how many slots may cost memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "cache/slot_cache.h"

namespace sluice::cache {
namespace {

SlotCache make_cache(uint32_t records, uint32_t slots, Policy policy = Policy::lru) {
    return SlotCache(std::vector<uint32_t>(records, 0), std::vector<uint32_t>{slots}, policy);
}

void touch(SlotCache& cache, RecordId r) {
    ASSERT_NE(cache.lease(r), kNoSlot);
    cache.release(r);
}

std::vector<SlotId> closed(SlotCache& cache) {
    std::vector<SlotId> slots;
    cache.take_closed([&](SlotId s) { slots.push_back(s); });
    return slots;
}

TEST(Cap, SlotsCountFromTheirFirstUse) {
    SlotCache cache = make_cache(20, 8);
    EXPECT_EQ(cache.touched(0), 0U);
    for (RecordId r = 0; r < 5; ++r) touch(cache, r);
    EXPECT_EQ(cache.touched(0), 5U);
    cache.discard(2);
    EXPECT_EQ(cache.touched(0), 5U) << "an empty slot still costs memory";
    touch(cache, 10);
    EXPECT_EQ(cache.touched(0), 5U) << "and is taken first";
}

TEST(Cap, ALowCapEvictsInsteadOfTouching) {
    SlotCache cache = make_cache(20, 8);
    cache.set_cap(0, 3);
    for (RecordId r = 0; r < 10; ++r) {
        EXPECT_EQ(cache.wants_higher_cap(r), r >= 3) << r;
        touch(cache, r);
    }
    EXPECT_EQ(cache.touched(0), 3U);
    EXPECT_EQ(cache.counters().evictions, 7U);
    cache.set_cap(0, 8);
    for (RecordId r = 10; r < 15; ++r) touch(cache, r);
    EXPECT_EQ(cache.touched(0), 8U);
    EXPECT_EQ(cache.counters().evictions, 7U) << "there was room again";
    EXPECT_FALSE(cache.wants_higher_cap(16)) << "these are all there are";
}

TEST(Cap, ShrinkingClosesTheLastSlots) {
    SlotCache cache = make_cache(20, 8);
    for (RecordId r = 0; r < 8; ++r) touch(cache, r);
    EXPECT_FALSE(cache.has_closed());
    cache.set_cap(0, 3);
    EXPECT_EQ(cache.touched(0), 3U);
    EXPECT_EQ(cache.counters().shrunk, 5U);
    EXPECT_EQ(closed(cache), (std::vector<SlotId>{7, 6, 5, 4, 3}));
    EXPECT_FALSE(cache.has_closed());
    for (RecordId r = 0; r < 8; ++r) EXPECT_EQ(cache.find(r) != kNoSlot, r < 3) << r;
    cache.set_cap(0, 0);
    EXPECT_EQ(cache.cap(0), 1U) << "one always stays";
    EXPECT_EQ(cache.touched(0), 1U);
}

TEST(Cap, AnEmptySlotIsClosedToo) {
    SlotCache cache = make_cache(20, 8);
    for (RecordId r = 0; r < 8; ++r) touch(cache, r);
    cache.discard(7);
    cache.set_cap(0, 7);
    EXPECT_EQ(cache.counters().shrunk, 0U);
    EXPECT_EQ(closed(cache), std::vector<SlotId>{7});
}

// While every record had its slot nobody had to go; who goes first is known all the same when the cap falls.
TEST(Cap, TheOrderOfUseIsKnownWhenTheCapFallsFirst) {
    for (const Policy policy : {Policy::lru, Policy::reuse, Policy::age_count}) {
        SlotCache cache = make_cache(8, 8, policy);
        const auto use = [&](RecordId r) {
            cache.visit(0);
            cache.use(r);
            touch(cache, r);
        };
        for (const RecordId r : {0, 1, 2, 3, 4, 5, 6, 7, 0, 0, 2, 2}) use(r);
        ASSERT_TRUE(cache.class_is_complete(0));
        cache.set_cap(0, 4);
        use(7);
        EXPECT_EQ(cache.find(1), kNoSlot) << name_of(policy) << ": used longest ago, and once";
        use(6);
        EXPECT_EQ(cache.find(3), kNoSlot) << name_of(policy);
        EXPECT_NE(cache.find(0), kNoSlot) << name_of(policy);
        EXPECT_NE(cache.find(2), kNoSlot) << name_of(policy);
    }
}

// In the middle of a layer: what is leased stays, others go for it, and only what leases alone hold is over the cap.
TEST(Cap, LeasedSlotsStayUntilTheirLeasesEnd) {
    SlotCache cache = make_cache(20, 8);
    for (RecordId r = 0; r < 8; ++r) touch(cache, r);
    for (const RecordId r : {4U, 5U, 6U, 7U}) ASSERT_NE(cache.lease(r), kNoSlot);
    cache.set_cap(0, 4);
    EXPECT_EQ(cache.touched(0), 4U) << "the others went";
    cache.set_cap(0, 2);
    EXPECT_EQ(cache.touched(0), 4U);
    EXPECT_EQ(cache.over_cap(0), 2U);
    for (const RecordId r : {4U, 5U, 6U, 7U}) EXPECT_NE(cache.find(r), kNoSlot);
    EXPECT_EQ(cache.lease(10), kNoSlot) << "nothing comes in meanwhile";
    closed(cache);
    ASSERT_NE(cache.lease(6), kNoSlot) << "a second lease of one of them";
    cache.release(6);
    EXPECT_EQ(cache.touched(0), 4U);
    cache.release(7);
    EXPECT_EQ(cache.touched(0), 3U);
    EXPECT_EQ(closed(cache), std::vector<SlotId>{7});
    cache.release(6);
    EXPECT_EQ(cache.touched(0), 2U);
    EXPECT_EQ(cache.over_cap(0), 0U);
    cache.release(4);
    cache.release(5);
    EXPECT_NE(cache.find(4), kNoSlot) << "within the cap";
    EXPECT_NE(cache.find(5), kNoSlot);
}

TEST(Cap, ACapThatRisesAgainKeepsThem) {
    SlotCache cache = make_cache(20, 4);
    for (RecordId r = 0; r < 4; ++r) ASSERT_NE(cache.lease(r), kNoSlot);
    cache.set_cap(0, 1);
    EXPECT_EQ(cache.over_cap(0), 3U);
    cache.set_cap(0, 3);
    EXPECT_EQ(cache.over_cap(0), 1U);
    for (RecordId r = 0; r < 4; ++r) cache.release(r);
    EXPECT_EQ(cache.touched(0), 3U);
}

TEST(Cap, AFailedReadInASlotThatGoesLeavesNothing) {
    SlotCache cache = make_cache(20, 2);
    for (RecordId r = 0; r < 2; ++r) ASSERT_NE(cache.lease(r), kNoSlot);
    cache.set_cap(0, 1);
    cache.discard(0);
    cache.discard(1);
    cache.release(0);
    cache.release(1);
    EXPECT_EQ(cache.touched(0), 1U);
    EXPECT_EQ(cache.counters().shrunk, 0U) << "there was nothing to lose";
    EXPECT_EQ(cache.n_resident(), 0U);
}

// A class with a slot for each record has no order of eviction; it gets one when the cap first forbids a slot.
TEST(Cap, ACompleteClassStaysSoWhileItGrows) {
    SlotCache cache = make_cache(6, 6, Policy::frequency);
    cache.set_cap(0, 2);
    touch(cache, 5);
    touch(cache, 0);
    EXPECT_TRUE(cache.wants_higher_cap(3));
    cache.set_cap(0, 6);
    for (const RecordId r : {3U, 1U, 4U, 2U}) touch(cache, r);
    EXPECT_TRUE(cache.class_is_complete(0));
    for (RecordId r = 0; r < 6; ++r) EXPECT_EQ(cache.find(r), r) << "each in its own slot";

    cache.set_cap(0, 4);
    EXPECT_FALSE(cache.class_is_complete(0));
    EXPECT_EQ(closed(cache), (std::vector<SlotId>{5, 4}));
    touch(cache, 5);
    EXPECT_EQ(cache.counters().evictions, 3U);
    cache.set_cap(0, 6);
    for (RecordId r = 0; r < 6; ++r) touch(cache, r);
    EXPECT_EQ(cache.n_resident(), 6U) << "all fit again, wherever they are";
}

TEST(Cap, ACompleteClassThatMayNotGrowEvicts) {
    SlotCache cache = make_cache(6, 6);
    cache.set_cap(0, 2);
    touch(cache, 5);
    touch(cache, 0);
    touch(cache, 3);
    EXPECT_NE(cache.find(3), kNoSlot);
    EXPECT_EQ(cache.n_resident(), 2U);
    EXPECT_EQ(cache.touched(0), 2U);
    EXPECT_FALSE(cache.class_is_complete(0));
}

TEST(Cap, MemoryOfASlotThatWasTakenAgainIsNotGivenBack) {
    SlotCache cache = make_cache(20, 4);
    for (RecordId r = 0; r < 4; ++r) touch(cache, r);
    cache.set_cap(0, 2);
    cache.set_cap(0, 4);
    touch(cache, 9);  // in a slot that was closed
    const auto slots = closed(cache);
    ASSERT_EQ(slots.size(), 1U);
    EXPECT_NE(slots[0], cache.find(9));
}

// Whatever comes in whatever order, no more slots are touched than the cap or the leases hold, and every record that is
// there is where find() says.
TEST(Cap, HoldsUnderRandomOperations) {
    for (uint32_t seed = 0; seed < 40; ++seed) {
        std::mt19937 engine(seed);
        const auto random = [&] { return static_cast<uint32_t>(engine()); };
        const Policy policy = seed % 2 == 0 ? Policy::lru : Policy::frequency;
        const uint32_t slots = 1 + random() % 12;
        const uint32_t records = seed % 5 == 0 ? slots : slots + random() % 20;
        SlotCache cache = make_cache(records, slots, policy);
        std::vector<RecordId> leased;
        std::set<SlotId> mapped;  // slots that cost memory
        for (int step = 0; step < 2000; ++step) {
            const auto r = static_cast<RecordId>(random() % records);
            switch (random() % 8) {
                case 0:
                    cache.set_cap(0, random() % (slots + 2));
                    break;
                case 1:
                    cache.discard(r);
                    break;
                case 2:
                case 3:
                    if (!leased.empty()) {
                        const size_t at = random() % leased.size();
                        cache.release(leased[at]);
                        leased.erase(leased.begin() + static_cast<std::ptrdiff_t>(at));
                    }
                    break;
                default: {
                    const SlotId s = cache.lease(r, random() % 4 == 0 ? Seat::guest : Seat::member);
                    if (s == kNoSlot) break;
                    ASSERT_LT(s, slots);
                    leased.push_back(r);
                    mapped.insert(s);
                    break;
                }
            }
            if (random() % 3 == 0) cache.take_closed([&](SlotId s) { mapped.erase(s); });
            const std::set<RecordId> distinct(leased.begin(), leased.end());
            ASSERT_LE(cache.touched(0), std::max<size_t>(cache.cap(0), distinct.size())) << seed << " " << step;
            ASSERT_LE(cache.n_resident(), cache.touched(0));
            for (const RecordId l : distinct) {
                const SlotId s = cache.find(l);
                ASSERT_NE(s, kNoSlot);
                ASSERT_TRUE(mapped.contains(s)) << "memory in use was given back";
            }
        }
        cache.take_closed([&](SlotId s) { mapped.erase(s); });
        EXPECT_EQ(mapped.size(), cache.touched(0)) << "all else was given back";
    }
}

}  // namespace
}  // namespace sluice::cache
