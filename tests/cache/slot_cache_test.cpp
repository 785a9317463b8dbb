#include "cache/slot_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <vector>

namespace sluice::cache {
namespace {

SlotCache make_cache(uint32_t records, uint32_t slots) {
    return SlotCache(std::vector<uint32_t>(records, 0), std::vector<uint32_t>{slots});
}

void touch(SlotCache& cache, RecordId r) {
    ASSERT_NE(cache.lease(r), kNoSlot);
    cache.release(r);
}

TEST(SlotCache, EvictsTheLeastRecentlyUsed) {
    SlotCache cache = make_cache(5, 3);
    for (const RecordId r : {0U, 1U, 2U, 0U}) touch(cache, r);
    touch(cache, 3);
    EXPECT_EQ(cache.find(1), kNoSlot);
    EXPECT_NE(cache.find(0), kNoSlot);
    EXPECT_NE(cache.find(2), kNoSlot);
    EXPECT_EQ(cache.counters().evictions, 1U);
    EXPECT_EQ(cache.counters().rereads, 0U);
    touch(cache, 1);
    EXPECT_EQ(cache.counters().rereads, 1U);
}

TEST(SlotCache, ALeasedSlotIsNeverAVictim) {
    SlotCache cache = make_cache(4, 2);
    const SlotId a = cache.lease(0);
    const SlotId b = cache.lease(1);
    EXPECT_NE(a, b);
    EXPECT_EQ(cache.lease(2), kNoSlot);
    cache.release(0);
    EXPECT_EQ(cache.lease(2), a);
    EXPECT_EQ(cache.find(0), kNoSlot);
    EXPECT_EQ(cache.total_leases(), 2U);
}

TEST(SlotCache, ANewRecordMeansANewGenerationAndNoReadyBits) {
    SlotCache cache = make_cache(2, 1);
    const SlotId s = cache.lease(0);
    cache.mark_ready(s, 7);
    const uint32_t generation = cache.generation(s);
    cache.release(0);
    EXPECT_EQ(cache.ready(s), 7);
    ASSERT_EQ(cache.lease(1), s);
    EXPECT_EQ(cache.ready(s), 0);
    EXPECT_NE(cache.generation(s), generation);
}

// Homes of a few records lie all over the arena, and with huge pages each of them would cost two megabytes.
TEST(SlotCache, WithoutHomesSlotsAreTakenFromTheFirstOn) {
    SlotCache cache = make_cache(8, 8);
    cache.give_up_homes(0);
    EXPECT_FALSE(cache.has_closed()) << "nothing was ever there";
    for (const RecordId r : {7U, 3U, 5U}) touch(cache, r);
    EXPECT_EQ(cache.find(7), 0U);
    EXPECT_EQ(cache.find(3), 1U);
    EXPECT_EQ(cache.find(5), 2U);
}

TEST(SlotCache, WhatLiesBetweenHomesThatAreGivenUpGoesBack) {
    SlotCache cache = make_cache(4, 4);
    for (const RecordId r : {2U, 0U}) touch(cache, r);
    cache.give_up_homes(0);
    std::set<SlotId> back;
    cache.take_closed([&](SlotId s) { back.insert(s); });
    EXPECT_EQ(back, (std::set<SlotId>{1, 3}));
    EXPECT_EQ(cache.find(2), 2U);
    touch(cache, 3);
    EXPECT_EQ(cache.find(3), 1U);
}

TEST(SlotCache, DiscardEmptiesTheSlotOnceTheLastLeaseEnds) {
    SlotCache cache = make_cache(3, 2);
    const SlotId s = cache.lease(0);
    cache.mark_ready(s, 1);
    cache.discard(0);
    EXPECT_EQ(cache.ready(s), 0);
    EXPECT_EQ(cache.find(0), s);
    cache.release(0);
    EXPECT_EQ(cache.find(0), kNoSlot);
    EXPECT_EQ(cache.n_resident(), 0U);
    touch(cache, 1);
    cache.discard(1);
    EXPECT_EQ(cache.n_resident(), 0U);
}

TEST(SlotCache, ACompleteClassGivesEachRecordItsOwnPlaceInOrder) {
    SlotCache cache(std::vector<uint32_t>{1, 0, 1, 0, 1}, std::vector<uint32_t>{2, 3});
    EXPECT_TRUE(cache.class_is_complete(0));
    EXPECT_TRUE(cache.class_is_complete(1));
    EXPECT_EQ(cache.lease(4), 4U);
    EXPECT_EQ(cache.lease(0), 2U);
    EXPECT_EQ(cache.lease(3), 1U);
    EXPECT_EQ(cache.lease(2), 3U);
    EXPECT_EQ(cache.lease(1), 0U);
}

TEST(SlotCache, ClassesDoNotEvictEachOther) {
    SlotCache cache(std::vector<uint32_t>{0, 0, 1, 1}, std::vector<uint32_t>{1, 1});
    touch(cache, 0);
    touch(cache, 2);
    touch(cache, 1);
    EXPECT_EQ(cache.find(0), kNoSlot);
    EXPECT_NE(cache.find(2), kNoSlot);
}

// However much of a prompt passes through, all but the guests' part of the cache is as it was, the least useful went,
// and who needs a slot for good takes a guest's.
TEST(SlotCache, GuestsPushOutNoMoreThanTheirPart) {
    for (const Policy policy : {Policy::lru, Policy::frequency}) {
        SlotCache cache(std::vector<uint32_t>(100, 0), std::vector<uint32_t>{16}, policy, 2);
        EXPECT_EQ(cache.guest_limit(0), 4U);
        cache.visit(0);
        for (RecordId r = 0; r < 16; ++r) {
            cache.use(r);
            touch(cache, r);
        }
        for (RecordId r = 20; r < 100; ++r) {
            EXPECT_EQ(cache.guest_room(0), 4U);
            cache.use(r);
            ASSERT_NE(cache.lease(r, Seat::guest), kNoSlot);
            cache.release(r);
        }
        EXPECT_EQ(cache.n_guests(0), 4U);
        for (RecordId r = 0; r < 16; ++r) EXPECT_EQ(cache.find(r) != kNoSlot, r >= 4) << r;
        for (RecordId r = 96; r < 100; ++r) EXPECT_NE(cache.find(r), kNoSlot) << "the last of them are still there";

        cache.keep(96);
        EXPECT_EQ(cache.n_guests(0), 3U);
        for (RecordId r = 0; r < 3; ++r) touch(cache, r);
        EXPECT_EQ(cache.n_guests(0), 0U);
        EXPECT_NE(cache.find(96), kNoSlot) << "it is none of them any more";
        for (RecordId r = 4; r < 16; ++r) EXPECT_NE(cache.find(r), kNoSlot) << r;
    }
}

// One layer's block of a prompt, each of `records` used by its last token.
void prompt_visit(SlotCache& cache, uint32_t set, const std::vector<RecordId>& records) {
    cache.visit(set, 4, true);
    for (const RecordId r : records) cache.use_by(r, r % 4);
    for (const RecordId r : records) {
        ASSERT_NE(cache.lease(r, Seat::guest), kNoSlot);
        cache.release(r);
    }
}

// The first prompt finds an empty cache. Its first layer fills it; of the next ones more stay than guests may be, and
// it is those who were used last.
TEST(SlotCache, OfAFirstPromptThoseStayWhoAreWantedMost) {
    std::vector<uint32_t> sets(64);
    for (uint32_t r = 0; r < 64; ++r) sets[r] = r / 16;
    for (const Policy policy : {Policy::lru, Policy::reuse}) {
        SlotCache cache(std::vector<uint32_t>(64, 0), std::vector<uint32_t>{16}, policy, 1, sets);
        for (uint32_t set = 0; set < 4; ++set) {
            std::vector<RecordId> all(16);
            for (uint32_t e = 0; e < 16; ++e) all[e] = set * 16 + e;
            prompt_visit(cache, set, all);
            EXPECT_LE(cache.n_guests(0), cache.guest_limit(0));
        }
        uint32_t of_first = 0, used_last = 0;
        for (RecordId r = 0; r < 64; ++r) {
            if (cache.find(r) == kNoSlot) continue;
            of_first += r < 16 ? 1 : 0;
            used_last += r % 4 == 0 ? 1 : 0;
        }
        // Least recently used knows no difference: guests are what it has always been for it.
        EXPECT_EQ(of_first, policy == Policy::lru ? 12U : 4U);
        EXPECT_EQ(used_last, policy == Policy::lru ? 4U : 13U) << "the last guests came last, whatever they are worth";
    }
}

// What decode has used is not what a prompt may push out, however much more the prompt uses what it brings.
TEST(SlotCache, APromptPushesOutNothingThatDecodeLivesOn) {
    std::vector<uint32_t> sets(64);
    for (uint32_t r = 0; r < 64; ++r) sets[r] = r / 16;
    for (const bool kept : {false, true}) {
        SlotCache cache(std::vector<uint32_t>(64, 0), std::vector<uint32_t>{16}, Policy::reuse, 1, sets);
        cache.visit(0);
        for (RecordId r = 0; r < 16; ++r) {
            cache.use(r);
            if (kept) {
                ASSERT_NE(cache.lease(r, Seat::guest), kNoSlot);  // of a prompt once, and wanted by decode since
                cache.release(r);
                cache.keep(r);
            } else {
                touch(cache, r);
            }
        }
        for (int turn = 0; turn < 3; ++turn) {
            for (uint32_t set = 1; set < 4; ++set) {
                std::vector<RecordId> all(16);
                for (uint32_t e = 0; e < 16; ++e) all[e] = set * 16 + e;
                prompt_visit(cache, set, all);
            }
        }
        uint32_t left = 0;
        for (RecordId r = 0; r < 16; ++r) left += cache.find(r) != kNoSlot ? 1 : 0;
        EXPECT_EQ(left, 12U) << "all but the guests' part";
    }
}

// A guess has no claim to a slot for good, whatever its record's past: only who asked for it has.
TEST(SlotCache, AGuessThatNobodyAskedForDoesNotBecomeAMember) {
    std::vector<uint32_t> sets(32);
    for (uint32_t r = 0; r < 32; ++r) sets[r] = r / 16;
    for (const bool asked : {false, true}) {
        SlotCache cache(std::vector<uint32_t>(32, 0), std::vector<uint32_t>{4}, Policy::reuse, 1, sets);
        cache.visit(0, 1, true);
        for (RecordId r = 0; r < 4; ++r) {  // came with a prompt, and is of little use
            ASSERT_NE(cache.lease(r, Seat::guest), kNoSlot);
            cache.release(r);
        }
        cache.visit(1, 1, true);
        cache.use(16);
        ASSERT_NE(cache.lease(16, Seat::trial), kNoSlot);
        cache.release(16);
        if (asked) {
            ASSERT_NE(cache.lease(16, Seat::guest), kNoSlot);
            cache.release(16);
        }
        EXPECT_EQ(cache.n_guests(0), 1U);
        ASSERT_NE(cache.lease(17, Seat::guest), kNoSlot);
        EXPECT_EQ(cache.find(16) != kNoSlot, asked);
        EXPECT_EQ(cache.n_guests(0), 1U);
    }
}

// Whoever is said to go next does go when a member comes, and nobody else: asked of copies, at every turn of a random
// history of members, guests, leases that stay and records that are retained.
TEST(SlotCache, WhoGoesNextIsWhoLeavesForAMember) {
    constexpr uint32_t kRecords = 24;
    std::mt19937 random(3);
    for (const Policy policy : {Policy::lru, Policy::reuse}) {
        SlotCache cache(std::vector<uint32_t>(kRecords, 0), std::vector<uint32_t>{8}, policy, 2);
        EXPECT_FALSE(cache.goes_next(0)) << "it is not there";
        touch(cache, 0);
        EXPECT_FALSE(cache.goes_next(0)) << "there is room";
        int members = 0, guests = 0;
        std::vector<RecordId> held;
        for (int turn = 0; turn < 400; ++turn) {
            if (turn % 3 == 0) cache.visit(0);
            const auto r = static_cast<RecordId>(random() % kRecords);
            if (const auto h = std::find(held.begin(), held.end(), r); h != held.end()) {
                cache.release(r);
                held.erase(h);
            } else {
                cache.use(r);
                if (cache.lease(r, random() % 3 == 0 ? Seat::guest : Seat::member) == kNoSlot) continue;
                if (random() % 8 == 0 && held.size() < 4) {
                    held.push_back(r);
                } else {
                    cache.release(r);
                }
            }
            if (random() % 5 == 0) cache.order().retain(static_cast<RecordId>(random() % kRecords));

            RecordId comes = 0;
            while (cache.find(comes) != kNoSlot) ++comes;
            SlotCache copy = cache;
            ASSERT_NE(copy.lease(comes), kNoSlot);
            const bool for_a_guest = copy.n_guests(0) < cache.n_guests(0);
            for (RecordId o = 0; o < kRecords; ++o) {
                const bool left = cache.find(o) != kNoSlot && copy.find(o) == kNoSlot;
                ASSERT_EQ(cache.goes_next(o), left && !for_a_guest) << "record " << o << " in turn " << turn;
                members += left && !for_a_guest ? 1 : 0;
                guests += left && for_a_guest ? 1 : 0;
            }
        }
        EXPECT_GT(members, 50);
        EXPECT_GT(guests, 20);
    }
}

// What nobody asked for has no claim to the slot that was empty, either: it goes before all that somebody did.
TEST(SlotCache, APredictionIsAGuestInAnEmptySlotToo) {
    for (const Policy policy : {Policy::lru, Policy::reuse}) {
        SlotCache cache(std::vector<uint32_t>(100, 0), std::vector<uint32_t>{16}, policy, 2);
        cache.visit(0);
        for (RecordId r = 0; r < 10; ++r) {
            cache.use(r);
            touch(cache, r);
        }
        for (RecordId r = 20; r < 26; ++r) {
            ASSERT_NE(cache.lease(r, Seat::trial), kNoSlot);
            cache.release(r);
        }
        EXPECT_EQ(cache.n_guests(0), 6U);
        EXPECT_EQ(cache.counters().evictions, 0U) << "however many: they cost nobody a slot";
        cache.keep(23);  // it came true
        for (RecordId r = 50; r < 55; ++r) {
            cache.use(r);
            touch(cache, r);
        }
        for (RecordId r = 0; r < 10; ++r) EXPECT_NE(cache.find(r), kNoSlot) << r;
        for (RecordId r = 20; r < 26; ++r) EXPECT_EQ(cache.find(r) != kNoSlot, r == 23) << r;
        EXPECT_EQ(cache.n_guests(0), 0U);
    }
    // Where every record has a slot nobody has to go, guest or not.
    SlotCache whole(std::vector<uint32_t>(8, 0), std::vector<uint32_t>{8}, Policy::reuse, 2);
    for (RecordId r = 0; r < 8; ++r) {
        ASSERT_NE(whole.lease(r, r % 2 == 0 ? Seat::trial : Seat::member), kNoSlot);
        whole.release(r);
    }
    EXPECT_EQ(whole.n_guests(0), 4U);
    whole.set_cap(0, 4);
    EXPECT_EQ(whole.touched(0), 4U);
    for (RecordId r = 0; r < 8; ++r) touch(whole, r);
    EXPECT_EQ(whole.n_guests(0), 0U);
}

TEST(SlotCache, PredictionsAreOnTrialAndWhatTheyCostIsCounted) {
    SlotCache cache(std::vector<uint32_t>(100, 0), std::vector<uint32_t>{16}, Policy::reuse, 2);
    cache.visit(0);
    for (RecordId r = 0; r < 16; ++r) {
        cache.use(r);
        touch(cache, r);
    }
    for (RecordId r = 20; r < 60; ++r) {
        ASSERT_NE(cache.lease(r, Seat::trial), kNoSlot);
        cache.release(r);
    }
    EXPECT_EQ(cache.n_guests(0), cache.guest_limit(0));
    EXPECT_EQ(cache.counters().predicted, 40U);
    EXPECT_EQ(cache.counters().evictions, 40U);
    uint32_t members = 0;
    for (RecordId r = 0; r < 16; ++r) members += cache.find(r) != kNoSlot ? 1 : 0;
    EXPECT_EQ(members, 16 - cache.guest_limit(0)) << "however many there were";
    // Who is wanted stays; the others go first.
    cache.use(59);
    ASSERT_NE(cache.lease(59), kNoSlot);
    cache.keep(59);
    cache.release(59);
    for (RecordId r = 60; r < 63; ++r) touch(cache, r);
    EXPECT_NE(cache.find(59), kNoSlot);
    EXPECT_EQ(cache.n_guests(0), 0U);
    EXPECT_EQ(cache.counters().predicted, 40U) << "that was for something wanted";
}

TEST(SlotCache, WhoComesIntoAnEmptyCacheIsNoGuest) {
    SlotCache cache = make_cache(20, 8);
    for (RecordId r = 0; r < 20; ++r) {
        ASSERT_NE(cache.lease(r, Seat::guest), kNoSlot);
        cache.release(r);
    }
    EXPECT_EQ(cache.n_guests(0), 2U);
    for (RecordId r = 2; r < 8; ++r) EXPECT_NE(cache.find(r), kNoSlot);
}

// A second pass over everything in turn finds what the first one left alone; the order of use alone keeps none of it.
TEST(SlotCache, GuestsInTurnLeaveTheRestToBeFoundAgain) {
    for (const Seat seat : {Seat::member, Seat::guest}) {
        SlotCache cache = make_cache(64, 16);
        int hits = 0;
        for (int pass = 0; pass < 3; ++pass) {
            for (RecordId r = 0; r < 64; ++r) {
                hits += cache.find(r) != kNoSlot ? 1 : 0;
                ASSERT_NE(cache.lease(r, seat), kNoSlot);
                cache.release(r);
            }
        }
        EXPECT_EQ(hits, seat == Seat::member ? 0 : 2 * 12);
    }
}

TEST(SlotCache, GuestsThatAreAllLeasedLeaveNoRoom) {
    SlotCache cache = make_cache(40, 8);
    for (RecordId r = 0; r < 8; ++r) touch(cache, r);
    EXPECT_EQ(cache.guest_room(0), 2U);
    ASSERT_NE(cache.lease(10, Seat::guest), kNoSlot);
    ASSERT_NE(cache.lease(11, Seat::guest), kNoSlot);
    EXPECT_EQ(cache.guest_room(0), 0U);
    EXPECT_EQ(cache.lease(12, Seat::guest), kNoSlot);
    EXPECT_NE(cache.lease(12), kNoSlot) << "a member has room";
    cache.discard(10);
    cache.release(10);
    EXPECT_EQ(cache.guest_room(0), 2U) << "an empty slot, and one more guest";
    EXPECT_EQ(cache.n_guests(0), 1U);
}

// Each pass uses one expert always and three others in turn, in a cache of three: the order of use alone would evict
// the favourite just before it is wanted again whenever a pass is longer than the cache.
TEST(SlotCache, FrequencyKeepsWhatIsUsedOften) {
    for (const Policy policy : {Policy::lru, Policy::frequency}) {
        SlotCache cache(std::vector<uint32_t>(40, 0), std::vector<uint32_t>{3}, policy);
        int hits = 0;
        RecordId other = 1;
        for (int pass = 0; pass < 30; ++pass) {
            cache.visit(0);
            for (int i = 0; i < 4; ++i) {
                const RecordId r = i == 0 ? 0 : other;
                if (i > 0) other = other == 39 ? 1 : other + 1;
                hits += i == 0 && cache.find(0) != kNoSlot ? 1 : 0;
                cache.use(r);
                touch(cache, r);
            }
        }
        // Not in the first pass, nor in the second: before it, all had been used once.
        EXPECT_EQ(hits, policy == Policy::lru ? 0 : 28);
    }
}

TEST(SlotCache, OldUsesCountLess) {
    SlotCache cache(std::vector<uint32_t>(4, 0), std::vector<uint32_t>{2}, Policy::frequency);
    const auto pass = [&](RecordId r) {
        cache.visit(0);
        cache.use(r);
        touch(cache, r);
    };
    for (int i = 0; i < 20; ++i) pass(0);
    for (int i = 0; i < 3; ++i) pass(1);
    pass(2);
    EXPECT_EQ(cache.find(1), kNoSlot) << "three uses weigh less than twenty";
    for (int i = 0; i < 200; ++i) cache.visit(0);
    for (int i = 0; i < 2; ++i) pass(1);
    EXPECT_EQ(cache.find(2), kNoSlot);
    pass(2);
    EXPECT_EQ(cache.find(0), kNoSlot) << "its twenty uses are over two hundred passes old";
    EXPECT_NE(cache.find(1), kNoSlot);
}

TEST(SlotCache, APassCountsAUseOnceAndAnEvictedRecordKeepsItsUses) {
    SlotCache cache(std::vector<uint32_t>(4, 0), std::vector<uint32_t>{2}, Policy::frequency);
    cache.visit(0);
    for (int i = 0; i < 10; ++i) cache.use(0);  // a block in several pieces looks its experts up again and again
    touch(cache, 0);
    for (int i = 0; i < 2; ++i) {
        cache.visit(0);
        cache.use(1);
        touch(cache, 1);
    }
    cache.use(2);
    touch(cache, 2);
    EXPECT_EQ(cache.find(0), kNoSlot) << "used in one pass, long ago";
    cache.visit(0);
    cache.use(3);
    touch(cache, 3);
    EXPECT_EQ(cache.find(2), kNoSlot);
    cache.visit(0);
    cache.use(2);  // the third use of what was evicted
    touch(cache, 2);
    EXPECT_EQ(cache.find(3), kNoSlot);
    EXPECT_NE(cache.find(2), kNoSlot);
}

// However often records are used over however many passes, the order is that of the sums themselves.
TEST(SlotCache, TheVictimIsTheOneWithTheLeastWeight) {
    std::mt19937 random(5);
    constexpr uint32_t kRecords = 24, kSlots = 9;
    SlotCache cache(std::vector<uint32_t>(kRecords, 0), std::vector<uint32_t>{kSlots}, Policy::frequency);
    std::vector<double> weight(kRecords, 0);
    for (int pass = 0; pass < 3000; ++pass) {
        cache.visit(0);
        for (double& w : weight) w *= std::exp2(-1 / kHalfLife);
        const auto r = static_cast<RecordId>(std::min(random() % kRecords, random() % kRecords));
        std::vector<RecordId> resident;
        for (RecordId k = 0; k < kRecords; ++k) {
            if (cache.find(k) != kNoSlot) resident.push_back(k);
        }
        const bool evicts = cache.find(r) == kNoSlot && resident.size() == kSlots;
        const RecordId least =
            resident.empty() ? 0 : *std::min_element(resident.begin(), resident.end(), [&](RecordId a, RecordId b) {
                return weight[a] < weight[b];
            });
        weight[r] += 1;
        cache.use(r);
        touch(cache, r);
        if (evicts) {
            ASSERT_EQ(cache.find(least), kNoSlot) << "pass " << pass;
        }
    }
}

// Random operations against a model: the invariants of the header hold after every one.
TEST(SlotCache, InvariantsHoldUnderRandomUse) {
    std::mt19937 random(1);
    for (const uint32_t slots : {1U, 2U, 7U, 20U, 30U}) {
        SlotCache cache = make_cache(20, slots);
        std::vector<RecordId> leased;
        for (int step = 0; step < 5000; ++step) {
            const auto r = static_cast<RecordId>(random() % 20);
            if (random() % 3 != 0) {
                const bool none = cache.total_leases() == 0;
                const SlotId got = cache.lease(r, random() % 2 == 0 ? Seat::guest : Seat::member);
                ASSERT_TRUE(got != kNoSlot || !none);
                if (got != kNoSlot) leased.push_back(r);
                if (random() % 8 == 0) cache.keep(r);
            } else if (!leased.empty()) {
                const size_t i = random() % leased.size();
                if (random() % 8 == 0) cache.discard(leased[i]);
                cache.release(leased[i]);
                leased.erase(leased.begin() + static_cast<std::ptrdiff_t>(i));
            }
            ASSERT_EQ(cache.total_leases(), leased.size());
            ASSERT_LE(cache.n_guests(0), cache.guest_limit(0));
            std::set<SlotId> used;
            uint32_t resident = 0;
            for (RecordId q = 0; q < 20; ++q) {
                const SlotId s = cache.find(q);
                if (s == kNoSlot) continue;
                ++resident;
                ASSERT_TRUE(used.insert(s).second);
                ASSERT_EQ(cache.record(s), q);
            }
            ASSERT_EQ(resident, cache.n_resident());
            for (const RecordId q : leased) ASSERT_NE(cache.find(q), kNoSlot);
        }
    }
}

}  // namespace
}  // namespace sluice::cache
