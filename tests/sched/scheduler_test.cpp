#include "sched/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

#include "tests/sched/support.h"

namespace sluice::sched {
namespace {

// A device that has been measured: what the simulated one does with one piece.
DeviceModel measured() {
    return {
        .bytes_per_ns = 1.0, .service = 105'000, .chunk = 4096, .window = 3 * 4096, .reserved_lanes = 2, .lanes = 8};
}
constexpr std::array kHints{Class::near, Class::speculative, Class::warming};
constexpr Nanos kEver = Nanos{1} << 60;

class SchedulerTest : public SimulatedModel {
  protected:
    void start(Scheduler::Options options = {}, uint64_t budget = 1 * MiB, const io::SimOptions& sim = {}) {
        scheduler_.reset();
        slots_.reset();
        engine_ = std::make_unique<io::SimEngine>(clock_, sim);
        engine_->set_contents(file_, contents_);
        const io::File* files[] = {&file_};
        store_ = std::make_unique<store::RecordStore>(store::RecordStore::over(geometry_, files));
        Slots::Options slots;
        slots.budget = budget;
        slots.min_slots = 2;
        auto made = Slots::create(*store_, std::move(slots));
        ASSERT_TRUE(made.ok()) << made.status().message();
        slots_ = std::move(*made);
        scheduler_ = std::make_unique<Scheduler>(*slots_, *engine_, clock_, std::move(options));
        scheduler_->expect_exact(kEver);
    }
    static Scheduler::Options speculating() {
        Scheduler::Options o;
        o.device = measured();
        return o;
    }

    void lease(std::vector<RecordId> records) {
        for (const RecordId r : records) ASSERT_NE(slots_->cache().lease(r), cache::kNoSlot);
    }
    void release(std::vector<RecordId> records) {
        for (const RecordId r : records) slots_->cache().release(r);
    }
    void want(Batch& batch, std::vector<RecordId> records) { scheduler_->want(batch, records, kAll, {}); }
    bool hint(RecordId r, Class cls = Class::near, Nanos deadline = kNoDeadline, Owner owner = {},
              float confidence = 0.5F) {
        return scheduler_->hint(
            r, {.cls = cls, .owner = owner, .layer = 0, .confidence = confidence, .deadline = deadline});
    }
    // Lets everything that was given to the device end, and what follows from it.
    void drain() {
        for (int i = 0; i < 1000 && scheduler_->live() > 0; ++i) {
            scheduler_->pump();
            if (engine_->outstanding() == 0) return;
            Batch any;
            // Waiting for something small is the only way to let time pass.
            std::vector<RecordId> r{store_->record(0, kExperts - 1)};
            if (slots_->cache().lease(r[0]) == cache::kNoSlot) return;
            scheduler_->want(any, r, 1, {});
            (void)scheduler_->wait(any);
            slots_->cache().release(r[0]);
            slots_->cache().discard(r[0]);
        }
    }
    // Records whose bytes went to the device, in order of submission.
    std::vector<RecordId> submitted() {
        std::vector<RecordId> out;
        for (const io::SimRead& read : engine_->history()) {
            for (RecordId r = 0; r < store_->n_records(); ++r) {
                for (uint32_t c = 0; c < 3; ++c) {
                    const auto a = store::RecordStore::aligned(store_->extent(r, c));
                    if (read.op.offset >= a.offset && read.op.offset < a.offset + a.length && read.op.need > 0 &&
                        read.op.dst >= slots_->arena().data() && (out.empty() || out.back() != r) &&
                        read.op.offset == a.offset) {
                        out.push_back(r);
                    }
                }
            }
        }
        out.erase(std::unique(out.begin(), out.end()), out.end());
        return out;
    }
    void expect_bytes(RecordId r) {
        for (uint32_t c = 0; c < 3; ++c) {
            const store::Extent e = store_->extent(r, c);
            ASSERT_TRUE(slots_->ready(r, c));
            ASSERT_EQ(std::memcmp(slots_->data(r, c), contents_.data() + e.offset, e.bytes), 0) << r << " " << c;
        }
    }

    std::unique_ptr<Slots> slots_;
    std::unique_ptr<Scheduler> scheduler_;
};

TEST_F(SchedulerTest, WishesForTheSameBytesShareOneRead) {
    start();
    const RecordId r = store_->record(1, 2);
    lease({r, r});
    Batch a, b;
    want(a, {r});
    want(b, {r});
    EXPECT_EQ(engine_->counters().reads, 3U);
    EXPECT_EQ(scheduler_->counters().joins, 3U);
    {
        const Status ws = scheduler_->wait(b);
        ASSERT_TRUE(ws.ok()) << ws.message();
    }
    EXPECT_TRUE(a.done()) << "the same endings told both";
    expect_bytes(r);
    release({r, r});
    EXPECT_EQ(slots_->cache().total_leases(), 0U);
    EXPECT_EQ(scheduler_->live(), 0U);
}

TEST_F(SchedulerTest, NobodyWaitsForReadsOfOthers) {
    start();
    const RecordId slow = store_->record(1, 0), quick = store_->record(0, 0);
    lease({slow, quick});
    for (uint64_t k = 0; k < 3; ++k) engine_->fault_at(k, io::Fault::stall(5'000'000'000));
    Batch a, b;
    want(a, {slow});
    want(b, {quick});
    {
        const Status ws = scheduler_->wait(b);
        ASSERT_TRUE(ws.ok()) << ws.message();
    }
    EXPECT_LT(clock_.now(), 5'000'000'000);
    EXPECT_FALSE(a.done());
    ASSERT_TRUE(scheduler_->wait(a).ok());
    expect_bytes(slow);
    expect_bytes(quick);
    release({slow, quick});
}

TEST_F(SchedulerTest, AFailureCancelsWhatTheBatchHasNotBegunAndNothingElse) {
    Scheduler::Options options;
    options.attempts = 1;
    start(options);
    const RecordId bad = store_->record(1, 0), good = store_->record(0, 1);
    lease({bad, good});
    engine_->fault_at(1, io::Fault::error());
    Batch a, b;
    want(a, {bad});
    want(b, {good});
    const Status s = scheduler_->wait(a);
    ASSERT_FALSE(s.ok());
    EXPECT_NE(s.message().find("layer 1, expert 0, up"), std::string::npos) << s.message();
    {
        const Status ws = scheduler_->wait(b);
        ASSERT_TRUE(ws.ok()) << ws.message();
    }
    EXPECT_FALSE(slots_->ready(bad, 1));
    expect_bytes(good);
    Batch again;
    want(again, {bad});
    ASSERT_TRUE(scheduler_->wait(again).ok());
    expect_bytes(bad);
    EXPECT_EQ(scheduler_->counters().failures, 1U);
    release({bad, good});
}

TEST_F(SchedulerTest, BytesThatDoNotVerifyAreReadAgainAndThenNeverPublished) {
    for (const uint64_t times : {1, 2}) {
        start();
        store_->set_checksums(right_sums());
        const RecordId r = store_->record(1, 3);
        lease({r});
        engine_->fault_at(1, io::Fault::bit_flip(20'000));
        if (times == 2) engine_->fault_at(3, io::Fault::bit_flip(30'000));
        Batch b;
        want(b, {r});
        const Status s = scheduler_->wait(b);
        EXPECT_EQ(s.ok(), times == 1);
        EXPECT_EQ(scheduler_->counters().retries, 1U);
        EXPECT_EQ(scheduler_->counters().mismatches, times);
        EXPECT_EQ(slots_->ready(r, 1), times == 1);
        if (s.ok()) {
            expect_bytes(r);
        } else {
            EXPECT_EQ(s.code(), Code::corrupt);
            EXPECT_NE(s.message().find("checksum"), std::string::npos) << s.message();
            EXPECT_NE(s.message().find("layer 1, expert 3, up"), std::string::npos) << s.message();
        }
        release({r});
        EXPECT_EQ(slots_->cache().total_leases(), 0U);
    }
}

// What failed for somebody who is gone is not held against who comes next.
TEST_F(SchedulerTest, WhoJoinsAnOrphanHasAttemptsOfHisOwn) {
    start();
    const RecordId r = store_->record(1, 2);
    for (uint64_t k = 0; k < 6; ++k) engine_->fault_at(k, io::Fault::error());
    lease({r});
    {
        Batch first;
        want(first, {r});
        // Until one component has used its first attempt; the second one is on its way.
        while (scheduler_->counters().retries == 0) (void)scheduler_->wait_some(first);
        scheduler_->abandon(first);
    }
    EXPECT_GT(scheduler_->counters().orphans, 0U);
    Batch second;
    want(second, {r});
    const Status s = scheduler_->wait(second);
    ASSERT_TRUE(s.ok()) << s.message();
    expect_bytes(r);
    release({r});
}

// With `once` a component that came well is trusted from then on, unless something went wrong with it since.
TEST_F(SchedulerTest, HowOftenBytesAreVerifiedIsAChoice) {
    const RecordId r = 0;
    const auto verified_of_two_reads = [&](Verify verify) {
        Scheduler::Options options;
        options.verify = verify;
        start(options);
        store_->set_checksums(right_sums());
        for (int i = 0; i < 2; ++i) {
            lease({r});
            Batch b;
            want(b, {r});
            EXPECT_TRUE(scheduler_->wait(b).ok());
            release({r});
            slots_->cache().discard(r);
        }
        return scheduler_->counters().verified_bytes;
    };
    const uint64_t bytes = geometry_.sets[0].tensors[0].bytes_per_expert * 3;
    EXPECT_EQ(verified_of_two_reads(Verify::always), 2 * bytes);
    EXPECT_EQ(verified_of_two_reads(Verify::once), bytes);
    EXPECT_EQ(verified_of_two_reads(Verify::never), 0U);
}

TEST_F(SchedulerTest, SmallReadsGoBeforeExpertsAndFindALaneFree) {
    io::SimOptions sim;
    sim.channels = 4;
    Scheduler::Options options;
    options.device = measured();
    options.device.lanes = 4;
    options.device.reserved_lanes = 1;
    start(options, 1 * MiB, sim);
    const RecordId page = store_->record(0, 0);
    std::vector<RecordId> experts;
    for (uint32_t e = 0; e < kExperts; ++e) experts.push_back(store_->record(1, e));
    lease({page});
    lease(experts);
    Scheduler::Wish small;
    small.cls = Class::page;
    Batch first, many, second;
    scheduler_->want(first, std::vector{page}, 1, small);
    ASSERT_TRUE(scheduler_->wait(first).ok());
    want(many, experts);
    EXPECT_EQ(engine_->outstanding(), 3U) << "one lane is left";
    const uint64_t before = engine_->counters().reads;
    scheduler_->want(second, std::vector{page}, 2, small);
    EXPECT_EQ(engine_->counters().reads, before + 1) << "the small read is given to the device at once";
    ASSERT_TRUE(scheduler_->wait(second).ok());
    EXPECT_FALSE(many.done());
    {
        const Status ws = scheduler_->wait(many);
        ASSERT_TRUE(ws.ok()) << ws.message();
    }
    for (const RecordId r : experts) expect_bytes(r);
    release({page});
    release(experts);
}

TEST_F(SchedulerTest, AnExactReadIsNotOvertakenByWishesThatJoinIt) {
    start();
    const RecordId first = store_->record(1, 0), last = store_->record(1, 5);
    lease({first, last, first});
    std::vector<RecordId> many;
    Batch a, b;
    want(a, {first, last});
    want(b, {first});
    ASSERT_TRUE(scheduler_->wait(a).ok());
    EXPECT_EQ(submitted().front(), first);
    ASSERT_TRUE(scheduler_->wait(b).ok());
    release({first, last, first});
}

TEST_F(SchedulerTest, MoreWishesThanTicketsAreServedAllTheSame) {
    Scheduler::Options options;
    options.max_tickets = 4;
    options.max_hints = 2;
    start(options);
    std::vector<RecordId> all;
    for (uint32_t e = 0; e < kExperts; ++e) all.push_back(store_->record(1, e));
    ASSERT_TRUE(hint(store_->record(0, 0)) || true);
    lease(all);
    Batch b;
    want(b, all);
    {
        const Status ws = scheduler_->wait(b);
        ASSERT_TRUE(ws.ok()) << ws.message();
    }
    for (const RecordId r : all) expect_bytes(r);
    release(all);
}

// ---- predictions

TEST_F(SchedulerTest, WithoutAMeasurementOfTheDeviceNothingIsSpeculated) {
    start();
    ASSERT_TRUE(hint(store_->record(1, 1)));
    for (int i = 0; i < 10; ++i) scheduler_->pump();
    EXPECT_EQ(engine_->counters().reads, 0U);
    EXPECT_GT(scheduler_->counters().refused[static_cast<size_t>(Refusal::not_measured)], 0U);
}

TEST(DeviceModel, IsWhatTheProbeFound) {
    machine::Derived found;
    found.sustained = 1.5;
    found.service = 120'000;
    found.chunk = 65536;
    found.window = 262144;
    found.lanes = 16;
    found.reserved = 2;
    const DeviceModel m = device_model(found);
    EXPECT_TRUE(m.measured());
    EXPECT_EQ(m.worst_delay(), 262144 * 2 / 3 + 120'000);
    EXPECT_EQ(m.chunk, 65536U);
    EXPECT_EQ(m.lanes, 16U);
    EXPECT_EQ(m.reserved_lanes, 2U);
    found.window = 0;
    EXPECT_FALSE(device_model(found).measured()) << "no window, no speculation";
}

TEST_F(SchedulerTest, AConfirmedPredictionIsPromotedWithoutASecondRead) {
    start(speculating());
    const RecordId r = store_->record(1, 4);
    ASSERT_TRUE(hint(r));
    scheduler_->pump();
    const uint64_t at_device = engine_->counters().reads;
    ASSERT_GT(at_device, 0U);
    lease({r});
    Batch b;
    want(b, {r});
    EXPECT_GT(scheduler_->counters().promotions, 0U);
    EXPECT_EQ(scheduler_->speculative_in_flight(), 0U) << "it is exact now";
    {
        const Status ws = scheduler_->wait(b);
        ASSERT_TRUE(ws.ok()) << ws.message();
    }
    expect_bytes(r);
    uint64_t bytes = 0;
    for (uint32_t c = 0; c < 3; ++c) bytes += store::RecordStore::aligned(store_->extent(r, c)).length;
    EXPECT_EQ(engine_->counters().bytes, bytes) << "each byte is read once";
    EXPECT_EQ(scheduler_->counters().exact_physical + scheduler_->counters().predicted_physical, bytes);
    release({r});
    EXPECT_EQ(slots_->cache().total_leases(), 0U);
}

TEST_F(SchedulerTest, APredictionIsAGuestUntilItIsWanted) {
    auto options = speculating();
    options.device.window = 1 * MiB;
    options.device.chunk = 64 * KiB;
    start(options);
    cache::SlotCache& cache = slots_->cache();
    const RecordId r = store_->record(0, 0);
    const uint32_t cls = cache.class_of(r);
    const uint32_t few = cache.n_slots(cls) / 3;
    cache.set_cap(cls, few);
    std::vector<RecordId> lived;
    for (uint32_t e = 1; e <= few; ++e) {
        lived.push_back(store_->record(0, e));
        lease({lived.back()});
        release({lived.back()});
    }
    ASSERT_TRUE(hint(r));
    scheduler_->pump();
    EXPECT_EQ(cache.n_guests(cls), 1U);
    EXPECT_EQ(cache.counters().predicted, 1U);
    while (engine_->outstanding() > 0) scheduler_->wait_for_any();
    EXPECT_NE(cache.find(r), cache::kNoSlot);
    cache.keep(r);
    EXPECT_EQ(cache.n_guests(cls), 0U);
}

// A prediction that the device never saw has brought nothing: what is read is read for who wants it.
TEST_F(SchedulerTest, APredictionThatWasNeverReadCountsForNothing) {
    start();
    const RecordId r = store_->record(1, 4);
    ASSERT_TRUE(hint(r, Class::near, 1));
    lease({r});
    Batch b;
    want(b, {r});
    ASSERT_TRUE(scheduler_->wait(b).ok());
    EXPECT_EQ(scheduler_->counters().promotions, 3U);
    EXPECT_EQ(scheduler_->counters().predicted_bytes, 0U);
    EXPECT_EQ(scheduler_->counters().used_bytes, 0U);
    EXPECT_EQ(scheduler_->counters().late, 0U);
    EXPECT_EQ(scheduler_->counters().exact_bytes, 3U * 5003);
    release({r});
}

// What a layer is sure to choose: read without a measured device, after whatever is waited for, before guesses.
TEST_F(SchedulerTest, WhatIsCommittedIsReadWhenNobodyWaitsAndJoined) {
    start(speculating());
    const RecordId exact = store_->record(0, 0), guess = store_->record(0, 1);
    const RecordId later = store_->record(1, 1), sooner = store_->record(1, 2);
    scheduler_->expect_exact(0);
    ASSERT_TRUE(hint(guess));
    ASSERT_TRUE(scheduler_->commit(later, 2'000'000'000));
    ASSERT_TRUE(scheduler_->commit(sooner, 1'000'000'000));
    lease({exact});
    Batch b;
    want(b, {exact});
    scheduler_->expect_exact(kEver);
    ASSERT_TRUE(scheduler_->wait(b).ok());
    scheduler_->pump();
    EXPECT_TRUE(scheduler_->reading());
    lease({sooner});
    Batch c;
    want(c, {sooner});
    EXPECT_GT(scheduler_->counters().joins, 0U);
    ASSERT_TRUE(scheduler_->wait(c).ok());
    drain();
    expect_bytes(later);
    expect_bytes(sooner);
    const std::vector<RecordId> order = submitted();
    const auto at = [&](RecordId r) { return std::find(order.begin(), order.end(), r) - order.begin(); };
    EXPECT_LT(at(exact), at(sooner));
    EXPECT_LT(at(sooner), at(later));
    EXPECT_LT(at(later), at(guess));
    EXPECT_EQ(std::count(order.begin(), order.end(), sooner), 1);
    EXPECT_EQ(scheduler_->counters().predicted_bytes, 3U * 1000) << "the guess; the others are exact";
    EXPECT_EQ(scheduler_->counters().rejected_bytes, 0U);
    release({exact, sooner});
    // Of a pass that was given up nothing is read that was not begun.
    scheduler_->drop_committed();
    EXPECT_EQ(scheduler_->queued(Class::committed), 0U);
}

TEST_F(SchedulerTest, APredictionThatCameWholeIsCountedAsLatePromotion) {
    auto options = speculating();
    options.device.window = 1 * MiB;
    options.device.chunk = 64 * KiB;
    start(options);
    const RecordId r = store_->record(0, 4);
    ASSERT_TRUE(hint(r));
    scheduler_->pump();
    lease({r});
    Batch b;
    want(b, {r});
    EXPECT_EQ(scheduler_->counters().late_promotions, 3U);
    EXPECT_EQ(engine_->counters().reads, 3U);
    {
        const Status ws = scheduler_->wait(b);
        ASSERT_TRUE(ws.ok()) << ws.message();
    }
    release({r});
}

TEST_F(SchedulerTest, ExactReadsGoFirstThenNearThenSpeculativeThenWarming) {
    auto options = speculating();
    options.device.window = 1 * MiB;
    options.device.chunk = 64 * KiB;
    start(options);
    ASSERT_TRUE(hint(store_->record(0, 0), Class::warming));
    ASSERT_TRUE(hint(store_->record(0, 1), Class::speculative));
    ASSERT_TRUE(hint(store_->record(0, 2), Class::near, 900'000'000));
    ASSERT_TRUE(hint(store_->record(0, 3), Class::near, 800'000'000));
    const RecordId exact = store_->record(1, 5);
    lease({exact});
    Batch b;
    want(b, {exact});
    {
        const Status ws = scheduler_->wait(b);
        ASSERT_TRUE(ws.ok()) << ws.message();
    }
    drain();
    const std::vector<RecordId> order = submitted();
    const auto at = [&](RecordId r) { return std::find(order.begin(), order.end(), r) - order.begin(); };
    EXPECT_EQ(at(exact), 0);
    EXPECT_LT(at(store_->record(0, 3)), at(store_->record(0, 2))) << "the earlier deadline first";
    EXPECT_LT(at(store_->record(0, 2)), at(store_->record(0, 1)));
    EXPECT_LT(at(store_->record(0, 1)), at(store_->record(0, 0)));
    release({exact});
}

TEST_F(SchedulerTest, APredictionThatComesTooLateIsDroppedUnread) {
    start(speculating());
    clock_.advance_to(1'000'000);
    ASSERT_TRUE(hint(store_->record(1, 1), Class::near, 1'050'000));  // the device takes longer than that
    scheduler_->pump();
    EXPECT_EQ(engine_->counters().reads, 0U);
    EXPECT_EQ(scheduler_->counters().dropped_deadline, 3U);
    EXPECT_EQ(scheduler_->live(), 0U);
    // One that is all but certain begins all the same: whoever comes joins it.
    ASSERT_TRUE(hint(store_->record(1, 2), Class::near, 1'050'000, {}, 0.99F));
    scheduler_->pump();
    EXPECT_GT(engine_->counters().reads, 0U);
    EXPECT_EQ(scheduler_->counters().dropped_deadline, 3U);
}

TEST_F(SchedulerTest, SpeculationWaitsForAGap) {
    start(speculating());
    scheduler_->expect_exact(clock_.now() + 50'000);
    ASSERT_TRUE(hint(store_->record(1, 1)));
    scheduler_->pump();
    EXPECT_EQ(engine_->counters().reads, 0U);
    scheduler_->expect_exact(clock_.now() + 500'000);
    scheduler_->pump();
    EXPECT_GT(engine_->counters().reads, 0U);
}

TEST_F(SchedulerTest, HintsAreBoundedAndRefusalsAreCounted) {
    auto options = speculating();
    options.max_hints = 7;
    start(options);
    int taken = 0;
    for (RecordId r = 0; r < store_->n_records(); ++r) taken += hint(r, Class::speculative) ? 1 : 0;
    EXPECT_EQ(taken, 2);
    EXPECT_EQ(scheduler_->counters().dropped_full, 3U * store_->n_records() - 6U) << "a part of a record is of no use";
    EXPECT_EQ(scheduler_->queued(Class::speculative), 6U);
}

TEST_F(SchedulerTest, WhatAnOwnerNoLongerWantsEndsOrBecomesAnOrdinaryEntry) {
    auto options = speculating();
    options.device.window = 1 * MiB;
    options.device.chunk = 64 * KiB;
    start(options);
    const Owner request{7, 1}, other{8, 1};
    const RecordId at_device = store_->record(0, 0), queued = store_->record(1, 0), of_other = store_->record(1, 1);
    ASSERT_TRUE(hint(at_device, Class::near, kNoDeadline, request));
    scheduler_->pump();
    ASSERT_EQ(engine_->counters().reads, 3U);
    scheduler_->expect_exact(0);  // nothing more to the device
    ASSERT_TRUE(hint(queued, Class::near, kNoDeadline, request));
    ASSERT_TRUE(hint(of_other, Class::near, kNoDeadline, other));
    scheduler_->cancel(request);
    EXPECT_EQ(scheduler_->counters().orphans, 3U);
    EXPECT_EQ(scheduler_->live(), 6U) << "the orphans and what the other wants";
    EXPECT_GT(slots_->cache().total_leases(), 0U) << "the device still writes into the slot";
    scheduler_->expect_exact(kEver);
    drain();
    EXPECT_EQ(slots_->cache().total_leases(), 0U);
    expect_bytes(at_device);
    EXPECT_EQ(slots_->cache().find(queued), cache::kNoSlot);
    expect_bytes(of_other);
}

TEST_F(SchedulerTest, ACancelledRequestLeavesNoLeaseBehind) {
    for (int stop_after = 0; stop_after < 6; ++stop_after) {
        start({}, 1 * MiB, {.channels = 2, .jitter = 0.9});
        std::vector<RecordId> wanted;
        for (uint32_t e = 0; e < kExperts; ++e) wanted.push_back(store_->record(1, e));
        lease(wanted);
        {
            Batch b(Owner{1, static_cast<uint32_t>(stop_after)});
            want(b, wanted);
            std::array<io::Completion, 1> one;
            (void)one;
            scheduler_->cancel(Owner{1, static_cast<uint32_t>(stop_after)});
            EXPECT_TRUE(b.done());
        }
        release(wanted);
        // The next request gets right bytes, whatever is still on its way.
        lease(wanted);
        Batch next;
        want(next, wanted);
        ASSERT_TRUE(scheduler_->wait(next).ok());
        for (const RecordId r : wanted) expect_bytes(r);
        release(wanted);
        EXPECT_EQ(slots_->cache().total_leases(), 0U);
        EXPECT_EQ(scheduler_->live(), 0U);
    }
}

// R4, R5, R80, R81: whatever is hinted, speculation at the device stays within its window and lanes, and an exact read
// is late by no more than the declared bound.
TEST_F(SchedulerTest, NoAdversaryDelaysAnExactReadBeyondTheBound) {
    const io::SimOptions sim{.seed = 3, .channels = 8, .latency = 100'000, .nanos_per_byte = 1.0};
    // What the same reads take on an idle device.
    const auto alone = [&](RecordId r) {
        start({}, 1 * MiB, sim);
        lease({r});
        Batch b;
        const Nanos t = clock_.now();
        want(b, {r});
        EXPECT_TRUE(scheduler_->wait(b).ok());
        release({r});
        return clock_.now() - t;
    };
    const Nanos idle = std::max(alone(0), alone(kExperts));
    start(speculating(), 150 * KiB, sim);
    std::mt19937 random(5);
    const DeviceModel device = measured();
    for (int round = 0; round < 3000; ++round) {
        for (int n = 0; n < 4; ++n) {
            (void)hint(static_cast<RecordId>(random() % store_->n_records()), kHints[random() % kHints.size()],
                       random() % 2 == 0 ? kNoDeadline : clock_.now() + static_cast<Nanos>(random() % 1'000'000));
        }
        scheduler_->pump();
        ASSERT_LE(scheduler_->speculative_in_flight(), device.window);
        ASSERT_LE(engine_->outstanding(), device.lanes - device.reserved_lanes);
        clock_.advance_to(clock_.now() + static_cast<Nanos>(random() % 200'000));
        if (random() % 3 != 0) continue;
        const RecordId r = static_cast<RecordId>(random() % store_->n_records());
        if (slots_->cache().lease(r) == cache::kNoSlot) continue;
        Batch b;
        const Nanos t = clock_.now();
        want(b, {r});
        {
            const Status ws = scheduler_->wait(b);
            ASSERT_TRUE(ws.ok()) << ws.message();
        }
        ASSERT_LE(clock_.now() - t, idle + device.worst_delay());
        expect_bytes(r);
        slots_->cache().release(r);
    }
    EXPECT_GT(scheduler_->counters().predicted_physical, 0U);
    EXPECT_GT(scheduler_->counters().promotions, 0U);
    drain();
    EXPECT_EQ(slots_->cache().total_leases(), 0U);
}

// R60, R61, R66: every order of up to five of these events ends with every lease given back and every ticket ended,
// and what is resident is right.
TEST_F(SchedulerTest, EveryInterleavingReleasesExactlyOnce) {
    enum Event { kHint, kWant, kCancel, kComplete, kFail, kPump, kEvents };
    const auto run = [&](const std::vector<int>& events) {
        auto options = speculating();
        options.attempts = 1;
        start(options, 100 * KiB, {.channels = 1});
        const RecordId r = store_->record(0, 1), filler = store_->record(0, 5);
        const Owner owner{1, 1};
        std::vector<std::unique_ptr<Batch>> batches;
        int leases = 0;
        for (const int event : events) {
            switch (event) {
                case kHint:
                    (void)hint(r, Class::near, kNoDeadline, owner);
                    break;
                case kWant:
                    lease({r});
                    ++leases;
                    batches.push_back(std::make_unique<Batch>(owner));
                    want(*batches.back(), {r});
                    break;
                case kCancel:
                    scheduler_->cancel(owner);
                    break;
                case kComplete: {
                    lease({filler});
                    Batch b;
                    want(b, {filler});
                    (void)scheduler_->wait(b);
                    release({filler});
                    slots_->cache().discard(filler);
                    break;
                }
                case kFail:
                    engine_->fault_at(engine_->counters().reads, io::Fault::error());
                    break;
                case kPump:
                    scheduler_->pump();
                    break;
                default:
                    break;
            }
        }
        for (auto& b : batches) (void)scheduler_->wait(*b);
        for (int i = 0; i < leases; ++i) release({r});
        scheduler_->cancel(owner);
        for (uint64_t k = engine_->counters().reads; k < engine_->counters().reads + 4; ++k) engine_->fault_at(k, {});
        drain();
        ASSERT_EQ(scheduler_->live(), 0U);
        ASSERT_EQ(slots_->cache().total_leases(), 0U);
        ASSERT_EQ(scheduler_->speculative_in_flight(), 0U);
        for (uint32_t c = 0; c < 3; ++c) {
            if (!slots_->ready(r, c)) continue;
            const store::Extent e = store_->extent(r, c);
            ASSERT_EQ(std::memcmp(slots_->data(r, c), contents_.data() + e.offset, e.bytes), 0);
        }
    };
    std::vector<int> events;
    const std::function<void(size_t)> all = [&](size_t length) {
        run(events);
        if (events.size() == length || HasFatalFailure()) return;
        for (int e = 0; e < kEvents; ++e) {
            events.push_back(e);
            all(length);
            events.pop_back();
        }
    };
    all(5);
}

// ---- what admission and deadlines are made of

TEST(Admission, SpeculationHasOnlyWhatExactReadsLeave) {
    DeviceModel device = measured();
    Admission admission(device);
    const auto ask = [&](Nanos now) { return admission.ask(4096, now, false, 0, kEver, 0.5); };
    EXPECT_EQ(ask(0), Refusal::none);
    admission.exact(100'000, 0);  // more than the bucket holds
    EXPECT_EQ(ask(0), Refusal::no_bandwidth);
    EXPECT_EQ(ask(50'000), Refusal::no_bandwidth);
    EXPECT_EQ(ask(200'000), Refusal::none);
    admission.submitted(4096);
    admission.submitted(4096);
    admission.submitted(4096);
    EXPECT_EQ(ask(10'000'000), Refusal::window_full);
    admission.completed(4096);
    EXPECT_EQ(admission.ask(4096, 10'000'000, true, 0, kEver, 1), Refusal::exact_waiting);
    EXPECT_EQ(admission.ask(4096, 10'000'000, false, 6, kEver, 1), Refusal::lanes_taken);
    EXPECT_EQ(admission.ask(4096, 10'000'000, false, 0, 10'000'001, 0.9), Refusal::no_gap);
    EXPECT_EQ(admission.ask(4096, 10'000'000, false, 0, Admission::kNoGap, 1), Refusal::no_gap);
}

// A read that is still under way when others are waited for has to be as sure as they are delayed.
TEST(Admission, APartOfTheGapIsForWhoIsSureEnough) {
    DeviceModel device = measured();
    device.service = 100'000;
    const Admission admission(device);
    EXPECT_TRUE(admission.fits(0, 100'000, 0.01)) << "all of it before anybody asks";
    EXPECT_FALSE(admission.fits(0, 99'999, 0.01));
    EXPECT_TRUE(admission.fits(0, 50'000, 0.7));   // 0.7 x 50 against 0.3 x 100
    EXPECT_FALSE(admission.fits(0, 50'000, 0.6));  // 0.6 x 50 against 0.4 x 100
    EXPECT_TRUE(admission.fits(0, 1, 1));
    EXPECT_FALSE(admission.fits(0, 0, 1));
    EXPECT_FALSE(admission.fits(1'000'000, Admission::kNoGap, 1));
}

TEST(Admission, UselessSpeculationIsSwitchedOffAndTriedAgain) {
    Admission admission(measured());
    for (int i = 0; i < 64; ++i) admission.judge(i % 2 == 0);
    EXPECT_FALSE(admission.off());
    for (int i = 0; i < 64; ++i) admission.judge(i % 8 == 0);
    EXPECT_TRUE(admission.off());
    EXPECT_EQ(admission.ask(4096, 0, false, 0, kEver, 1), Refusal::switched_off);
    int layers = 0;
    while (admission.off() && layers < 1'000'000) {
        admission.layer();
        ++layers;
    }
    EXPECT_FALSE(admission.off());
    EXPECT_GT(layers, 1000) << "it does not flap";
    EXPECT_EQ(admission.times_switched_off(), 1U);
}

TEST(LayerClock, KnowsTypicalAndSlowVisitsAndTheWayThere) {
    LayerClock layers(4);
    EXPECT_FALSE(layers.typical(0).has_value());
    EXPECT_FALSE(layers.expected(0, 2, 0).has_value());
    for (int i = 0; i < 100; ++i) {
        for (uint32_t s = 0; s < 4; ++s) layers.note(s, i % 16 == 15 ? 1000 : 100 * (static_cast<Nanos>(s) + 1));
    }
    EXPECT_EQ(layers.p90(0), 100);
    EXPECT_GT(*layers.typical(0), 100);
    EXPECT_LT(*layers.typical(0), 400);
    EXPECT_EQ(*layers.expected(1, 3, 50), 50 + *layers.typical(1) + *layers.typical(2));
    EXPECT_EQ(*layers.expected(3, 1, 0), *layers.typical(3) + *layers.typical(0)) << "the next token";
    EXPECT_EQ(*layers.expected(2, 2, 0),
              *layers.typical(2) + *layers.typical(3) + *layers.typical(0) + *layers.typical(1));
}

// ---- a layer that is next

TEST_F(SchedulerTest, ALayerIsReadAheadInTheOrderOfTheFileAndNeverBesideExactReads) {
    Scheduler::Options options;
    options.max_ahead = 3;
    start(options);
    const RecordId exact = store_->record(0, 5);
    lease({exact});
    Batch batch;
    want(batch, {exact});
    const std::vector<RecordId> next{store_->record(1, 0), store_->record(1, 1), store_->record(1, 2)};
    scheduler_->read_ahead(next);
    EXPECT_EQ(engine_->outstanding(), 3U) << "the exact one's components alone";
    ASSERT_TRUE(scheduler_->wait(batch).ok());
    scheduler_->pump();
    EXPECT_EQ(engine_->outstanding(), 3U) << "as many as may be at the device";
    for (int i = 0; i < 100 && scheduler_->reading(); ++i) {
        clock_.advance_to(clock_.now() + 1'000'000);
        scheduler_->pump();
        EXPECT_LE(engine_->outstanding(), 3U);
    }
    uint64_t last = 0;
    for (const io::SimRead& r : engine_->history()) {
        if (r.op.offset + r.op.length <= store_->extent(next[0], 0).offset) continue;
        EXPECT_GT(r.op.offset + 1, last);
        last = r.op.offset;
    }
    for (const RecordId r : next) expect_bytes(r);
    EXPECT_EQ(
        scheduler_->counters().ahead_bytes,
        3 * (store_->extent(next[0], 0).bytes + store_->extent(next[0], 1).bytes + store_->extent(next[0], 2).bytes));
    EXPECT_EQ(scheduler_->live(), 0U);
    release({exact});
    EXPECT_EQ(slots_->cache().total_leases(), 0U);
}

TEST_F(SchedulerTest, WhatIsReadAheadIsJoinedAndTheRestIsDropped) {
    Scheduler::Options options;
    options.max_ahead = 2;
    start(options);
    const std::vector<RecordId> next{store_->record(1, 0), store_->record(1, 1), store_->record(1, 2)};
    scheduler_->read_ahead(next);
    lease({next[0], next[2]});
    Batch batch;
    want(batch, {next[0], next[2]});
    EXPECT_EQ(scheduler_->counters().joins, 6U);
    scheduler_->drop_ahead();
    ASSERT_TRUE(scheduler_->wait(batch).ok());
    expect_bytes(next[0]);
    expect_bytes(next[2]);
    drain();
    EXPECT_TRUE(slots_->ready(next[1], 0)) << "it was at the device already";
    EXPECT_FALSE(slots_->ready(next[1], 1));
    EXPECT_EQ(scheduler_->counters().promotions, 0U) << "nobody predicted anything";
    release({next[0], next[2]});
    EXPECT_EQ(scheduler_->live(), 0U);
}

TEST_F(SchedulerTest, AReadAheadThatFailsIsReadAnewForWhoWantsIt) {
    start();
    const RecordId r = store_->record(1, 0);
    engine_->fault_at(0, io::Fault::error());
    scheduler_->read_ahead(std::vector{r});
    for (int i = 0; i < 100 && scheduler_->reading(); ++i) {
        clock_.advance_to(clock_.now() + 1'000'000);
        scheduler_->pump();
    }
    EXPECT_FALSE(slots_->ready(r, 0));
    EXPECT_TRUE(slots_->ready(r, 1));
    lease({r});
    Batch batch;
    want(batch, {r});
    EXPECT_TRUE(scheduler_->wait(batch).ok());
    expect_bytes(r);
    release({r});
    EXPECT_EQ(slots_->cache().total_leases(), 0U);
}

}  // namespace
}  // namespace sluice::sched
