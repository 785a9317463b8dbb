#include "sched/fetcher.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "base/bytes.h"
#include "io/sim_engine.h"
#include "tests/sched/support.h"

namespace sluice::sched {
namespace {

using FetcherTest = SimulatedModel;

TEST_F(FetcherTest, BringsTheRightBytesAtEveryBudget) {
    for (const bool convert : {false, true}) {
        const uint64_t least = 3 * align_up(5003, 4096);
        for (uint64_t budget = least; budget < 300 * KiB; budget += 13001) {
            auto fetcher = make(budget, {.shuffle = true}, convert);
            EXPECT_LE(fetcher->layout().arena_bytes, budget);
            std::mt19937 random(3);
            for (int step = 0; step < 60; ++step) {
                const auto set = static_cast<uint32_t>(random() % 2);
                std::vector<RecordId> want;
                for (uint32_t e = 0; e < kExperts; ++e) {
                    if (random() % 2 == 0) want.push_back(store_->record(set, e));
                }
                std::span<RecordId> left(want);
                while (!left.empty()) {
                    const size_t n = fetcher->lease(left);
                    ASSERT_GE(n, 1U);
                    ASSERT_TRUE(fetcher->load(left.first(n), kAll).ok());
                    for (const RecordId r : left.first(n)) expect_right(*fetcher, r);
                    fetcher->release(left.first(n));
                    left = left.subspan(n);
                }
                ASSERT_EQ(fetcher->cache().total_leases(), 0U);
            }
        }
    }
}

TEST_F(FetcherTest, ResidentRecordsAreNotReadAgain) {
    auto fetcher = make(1 * MiB);
    std::vector<RecordId> want{store_->record(0, 1), store_->record(0, 4)};
    ASSERT_EQ(fetcher->lease(want), 2U);
    ASSERT_TRUE(fetcher->load(want, 2).ok());
    EXPECT_EQ(engine_->counters().reads, 2U);
    EXPECT_FALSE(fetcher->resident(want[0]));
    ASSERT_TRUE(fetcher->load(want, kAll).ok());
    EXPECT_EQ(engine_->counters().reads, 6U);
    EXPECT_TRUE(fetcher->resident(want[0]));
    ASSERT_TRUE(fetcher->load(want, kAll).ok());
    EXPECT_EQ(engine_->counters().reads, 6U);
    EXPECT_EQ(fetcher->counters().exact_bytes, 6000U);
    fetcher->release(want);
}

TEST_F(FetcherTest, ResidentsAreLeasedBeforeTheOthersCanEvictThem) {
    // Room for three records of the large layer.
    auto fetcher = make(3 * 3 * align_up(5003, 4096));
    std::vector<RecordId> first{store_->record(1, 3), store_->record(1, 5)};
    const size_t n = fetcher->lease(first);
    ASSERT_TRUE(fetcher->load(std::span(first).first(n), kAll).ok());
    fetcher->release(std::span(first).first(n));
    std::vector<RecordId> second{store_->record(1, 0), store_->record(1, 1), store_->record(1, 3),
                                 store_->record(1, 5)};
    const uint64_t before = engine_->counters().reads;
    std::span<RecordId> left(second);
    while (!left.empty()) {
        const size_t m = fetcher->lease(left);
        ASSERT_GE(m, 1U);
        ASSERT_TRUE(fetcher->load(left.first(m), kAll).ok());
        fetcher->release(left.first(m));
        left = left.subspan(m);
    }
    EXPECT_EQ(engine_->counters().reads - before, 6U) << "only the two absent records are read";
}

// Every read of a run fails in turn, in every way, once or for good: the caller hears of it or gets right bytes, never
// wrong ones, and the next try is right.
TEST_F(FetcherTest, NoFaultAtAnyReadEverBecomesAWeight) {
    const std::vector<io::Fault> faults{
        io::Fault::error(EIO),     io::Fault::error(ESTALE), io::Fault::truncated(10),       io::Fault::short_read(100),
        io::Fault::interrupted(3), io::Fault::again(2),      io::Fault::stall(5'000'000'000)};
    constexpr uint64_t kReads = 18;
    for (const bool convert : {false, true}) {
        for (const io::Fault& fault : faults) {
            for (uint64_t k = 0; k < kReads; ++k) {
                for (const bool again : {false, true}) {
                    auto fetcher = make(1 * MiB, {.shuffle = true}, convert);
                    engine_->fault_at(k, fault);
                    for (uint64_t n = k + 1; again && n < 3 * kReads; ++n) engine_->fault_at(n, fault);
                    std::vector<RecordId> want;
                    for (uint32_t e = 0; e < kExperts; ++e) want.push_back(store_->record(1, e));
                    ASSERT_EQ(fetcher->lease(want), want.size());
                    const Status s = fetcher->load(want, kAll);
                    const bool bad = fault.kind == io::Fault::Kind::error || fault.kind == io::Fault::Kind::truncated;
                    ASSERT_EQ(s.ok(), !(bad && again)) << s.message();
                    ASSERT_EQ(engine_->outstanding(), 0U);
                    ASSERT_EQ(fetcher->scheduler().live(), 0U);
                    if (s.ok()) {
                        for (const RecordId r : want) expect_right(*fetcher, r);
                        EXPECT_EQ(fetcher->counters().retries, bad ? 1U : 0U);
                    } else {
                        EXPECT_NE(s.message().find("layer 1, expert"), std::string::npos) << s.message();
                        EXPECT_NE(s.message().find("offset"), std::string::npos) << s.message();
                    }
                    fetcher->release(want);
                    ASSERT_EQ(fetcher->cache().total_leases(), 0U);
                    for (uint64_t n = 0; n < 3 * kReads; ++n) engine_->fault_at(n, {});
                    ASSERT_EQ(fetcher->lease(want), want.size());
                    ASSERT_TRUE(fetcher->load(want, kAll).ok());
                    for (const RecordId r : want) expect_right(*fetcher, r);
                    fetcher->release(want);
                }
            }
        }
    }
}

// A layer's time is what lies between its block and the next one's, without the waits for reads.
TEST_F(FetcherTest, LearnsHowLongLayersCompute) {
    auto fetcher = make(1 * MiB);
    const LayerClock& layers = fetcher->scheduler().layers();
    const auto visit = [&](uint32_t set, uint32_t expert, Nanos compute) {
        fetcher->enter(set, trace::Phase::decode);
        std::vector<RecordId> want{store_->record(set, expert)};
        ASSERT_EQ(fetcher->lease(want), 1U);
        ASSERT_TRUE(fetcher->load(want, kAll).ok());
        fetcher->release(want);
        clock_.advance_to(clock_.now() + compute);
    };
    for (uint32_t token = 0; token < 3; ++token) {
        visit(0, token, 2'000'000);
        visit(1, token, 7'000'000);
    }
    EXPECT_EQ(layers.typical(0), 2'000'000);
    EXPECT_EQ(layers.typical(1), 7'000'000);
    // A prompt, and what follows it, says nothing about the pace of decode.
    fetcher->enter(0, trace::Phase::prefill);
    clock_.advance_to(clock_.now() + 900'000'000);
    fetcher->enter(1, trace::Phase::decode);
    clock_.advance_to(clock_.now() + 900'000'000);
    fetcher->enter(1, trace::Phase::decode);  // out of order: the graph before was given up
    EXPECT_EQ(layers.typical(0), 2'000'000);
    EXPECT_EQ(layers.typical(1), 7'000'000);
}

// ---- a layer that is next, in a prompt

class AheadTest : public SimulatedModel {
  protected:
    // Until nothing is on its way any more.
    void drive(Fetcher& fetcher) {
        for (int i = 0; i < 100; ++i) {
            clock_.advance_to(clock_.now() + 1'000'000);
            fetcher.look();
        }
        EXPECT_EQ(engine_->outstanding(), 0U);
    }
    std::vector<uint32_t> there(const Fetcher& fetcher, uint32_t set) const {
        std::vector<uint32_t> out;
        for (uint32_t e = 0; e < kExperts; ++e) {
            if (fetcher.resident(store_->record(set, e))) out.push_back(e);
        }
        return out;
    }
    using Experts = std::vector<uint32_t>;
};

TEST_F(AheadTest, AsManyAreReadAsWereAskedForInTheOrderOfTheFile) {
    auto fetcher = make(1 * MiB);
    fetcher->enter(0, trace::Phase::prefill);
    fetcher->read_ahead(1, 2);
    drive(*fetcher);
    EXPECT_EQ(there(*fetcher, 1), (Experts{0, 1}));
    EXPECT_EQ(engine_->counters().reads, 6U);
    EXPECT_EQ(fetcher->missing(1).experts, 4U);
    // What is there is not counted.
    fetcher->read_ahead(1, 3);
    drive(*fetcher);
    EXPECT_EQ(there(*fetcher, 1), (Experts{0, 1, 2, 3, 4}));
    EXPECT_EQ(engine_->counters().reads, 15U);
    fetcher->read_ahead(1, 0);
    drive(*fetcher);
    EXPECT_EQ(engine_->counters().reads, 15U);
    fetcher->read_ahead(1);
    drive(*fetcher);
    EXPECT_EQ(fetcher->missing(1).experts, 0U);
    for (uint32_t e = 0; e < kExperts; ++e) expect_right(*fetcher, store_->record(1, e));
    EXPECT_TRUE(there(*fetcher, 0).empty());
    EXPECT_EQ(fetcher->cache().total_leases(), 0U);
}

TEST_F(AheadTest, DecodeReadsNothingAhead) {
    auto fetcher = make(1 * MiB);
    fetcher->enter(0, trace::Phase::decode);
    fetcher->read_ahead(1, 2);
    drive(*fetcher);
    EXPECT_EQ(engine_->counters().reads, 0U);
}

TEST_F(AheadTest, NoMoreIsReadThanThereIsRoomFor) {
    auto fetcher = make(5 * 3 * align_up(5003, 4096));
    fetcher->enter(0, trace::Phase::prefill);
    const Fetcher::Missing missing = fetcher->missing(1);
    ASSERT_EQ(missing.experts, kExperts);
    ASSERT_LT(missing.room, kExperts);
    ASSERT_GT(missing.room, 0U);
    fetcher->read_ahead(1);
    drive(*fetcher);
    EXPECT_EQ(there(*fetcher, 1).size(), missing.room);
}

// What the device has begun comes; the rest would be in the way of the layer that was entered instead.
TEST_F(AheadTest, AnotherLayerEndsIt) {
    for (const bool said : {false, true}) {
        auto fetcher = make(1 * MiB);
        fetcher->enter(0, trace::Phase::prefill);
        fetcher->read_ahead(1);
        const uint64_t begun = engine_->outstanding();
        ASSERT_GT(begun, 0U);
        ASSERT_LT(begun, 3 * kExperts);
        if (said) {
            fetcher->end_ahead();
        } else {
            fetcher->enter(0, trace::Phase::prefill);
        }
        drive(*fetcher);
        EXPECT_EQ(engine_->counters().reads, begun);
    }
}

// ---- guesses

// A device that has been measured, and a model whose layers' pace is known: 2 ms each.
class ForesightTest : public SimulatedModel {
  protected:
    void start(uint64_t budget = 1 * MiB, uint32_t rounds = 2) {
        fetcher_ = make(budget, {}, false,
                        {.bytes_per_ns = 1, .service = 105'000, .chunk = 8192, .window = 1 * MiB, .lanes = 16});
        for (uint32_t n = 0; n < rounds; ++n) {
            visit(0, {5});
            visit(1, {5});
        }
    }
    // One block: what it does before its experts compute, what they take, and what is done before the next one.
    void visit(uint32_t set, std::vector<uint32_t> experts, const std::vector<Fetcher::Foreseen>& foreseen = {}) {
        fetcher_->settle();
        fetcher_->visit(set, 1, trace::Phase::decode);
        fetcher_->enter(set, trace::Phase::decode);
        std::vector<RecordId> want;
        for (const uint32_t e : experts) want.push_back(store_->record(set, e));
        const size_t n = fetcher_->lease(want);
        ASSERT_EQ(n, want.size());
        Batch batch;
        std::vector<Scheduler::Part> parts;
        for (const RecordId r : want) parts.push_back({r, kAll});
        fetcher_->request(batch, parts);
        hinted_ = fetcher_->foresee(foreseen);
        while (!batch.done()) ASSERT_TRUE(fetcher_->wait_some(batch).ok());
        fetcher_->look();
        clock_.advance_to(clock_.now() + 2'000'000);
        fetcher_->look();
        fetcher_->release(want);
    }
    // How often each record's first byte was asked of the device.
    std::vector<uint32_t> reads() const {
        std::vector<uint32_t> out(store_->n_records(), 0);
        for (const io::SimRead& read : engine_->history()) {
            for (RecordId r = 0; r < store_->n_records(); ++r)
                out[r] += read.op.offset == store::RecordStore::aligned(store_->extent(r, 0)).offset ? 1 : 0;
        }
        return out;
    }

    std::unique_ptr<Fetcher> fetcher_;
    uint32_t hinted_ = 0;
};

TEST_F(ForesightTest, WhatWasForeseenIsThereAndIsReadOnce) {
    start();
    const RecordId right = store_->record(1, 2), wrong = store_->record(1, 3);
    visit(0, {1}, {{right, 0.5F}, {wrong, 0.5F}});
    EXPECT_EQ(hinted_, 2U);
    fetcher_->settle();
    EXPECT_TRUE(fetcher_->resident(right));
    expect_right(*fetcher_, right);
    visit(1, {2, 4});
    const SchedCounters& c = fetcher_->counters();
    EXPECT_EQ(c.predicted_bytes, 2U * 3 * 5003);
    EXPECT_EQ(c.used_bytes, 3U * 5003) << "the other one may still be";
    EXPECT_EQ(c.rejected_bytes, 0U);
    for (const RecordId r : {right, wrong, store_->record(1, 4)}) EXPECT_EQ(reads()[r], 1U) << r;
}

// The set comes before its guesses are all there: what is at the device is joined, the rest is asked for once.
TEST_F(ForesightTest, AGuessThatIsOnItsWayIsJoined) {
    start();
    std::vector<Fetcher::Foreseen> all;
    for (uint32_t e = 0; e < kExperts; ++e) all.push_back({store_->record(1, e), 0.2F});
    fetcher_->enter(0, trace::Phase::decode);
    EXPECT_EQ(fetcher_->foresee(all), kExperts - 1U) << "one is there since the pace was learned";
    fetcher_->look();
    EXPECT_GT(engine_->outstanding(), 0U);
    visit(1, {0, 1, 2, 3});
    EXPECT_GT(fetcher_->counters().joins, 0U);
    for (uint32_t e = 0; e < 4; ++e) EXPECT_EQ(reads()[store_->record(1, e)], 1U);
    EXPECT_EQ(fetcher_->counters().exact_physical + fetcher_->counters().predicted_physical, engine_->counters().bytes);
}

TEST_F(ForesightTest, WithoutAKnownPaceNothingIsReadButWhatIsThereStays) {
    start(3 * align_up(5003 + 511, 512) * 3, 0);
    fetcher_->enter(0, trace::Phase::decode);
    EXPECT_EQ(fetcher_->foresee({{{store_->record(1, 2), 0.5F}}}), 0U);
    fetcher_->look();
    EXPECT_EQ(engine_->counters().reads, 0U);
}

// R22: a guess is read only where it is sure enough for what it may cost, and can be there in time.
TEST_F(ForesightTest, OnlyWhatIsWorthItIsRead) {
    start();
    const RecordId a = store_->record(1, 1), b = store_->record(1, 2);
    visit(0, {1}, {{a, 0.9F}, {b, 0.001F}});
    EXPECT_EQ(hinted_, 1U);
    fetcher_->settle();
    EXPECT_TRUE(fetcher_->resident(a));
    EXPECT_FALSE(fetcher_->resident(b));
}

// Of guesses that come true every second time.
TEST_F(ForesightTest, NoGuessIsReadThatCannotBeThereInTime) {
    start();
    fetcher_->enter(0, trace::Phase::decode);
    const Nanos due = clock_.now() + 2'000'000;
    clock_.advance_to(due - 150'000);
    std::vector<Fetcher::Foreseen> all;
    for (uint32_t e = 0; e < kExperts; ++e) all.push_back({store_->record(1, e), 0.5F});
    const uint32_t hinted = fetcher_->foresee(all);
    EXPECT_GT(hinted, 0U);
    EXPECT_LT(hinted, kExperts - 1U);
    fetcher_->look();
    while (engine_->outstanding() > 0) (void)fetcher_->wait_for_any();
    for (const io::SimRead& read : engine_->history()) {
        const bool guess = read.op.priority == io::Priority::speculative;
        EXPECT_TRUE(!guess || read.finished <= due) << read.finished - due;
    }
    EXPECT_EQ(fetcher_->counters().dropped_deadline, 0U) << "none that was asked for turned out to be too late";
    clock_.advance_to(clock_.now() + 300'000);
    EXPECT_EQ(fetcher_->foresee(all), 0U);
}

// Where layers never stand still for reads there is no wait that a guess could remove.
TEST_F(ForesightTest, WhereNothingWaitsNothingIsReadEarly) {
    start();
    for (int n = 0; n < 2000; ++n) {
        fetcher_->enter(static_cast<uint32_t>(n % 2), trace::Phase::decode);
        std::vector<RecordId> want{store_->record(static_cast<uint32_t>(n % 2), 5)};
        ASSERT_EQ(fetcher_->lease(want), 1U);
        Batch batch;
        fetcher_->request(batch, std::vector<Scheduler::Part>{{want[0], kAll}});
        ASSERT_TRUE(batch.done());
        fetcher_->release(want);
        clock_.advance_to(clock_.now() + 2'000'000);
    }
    // One miss, whose read is over when somebody looks.
    fetcher_->enter(0, trace::Phase::decode);
    std::vector<RecordId> want{store_->record(0, 0)};
    ASSERT_EQ(fetcher_->lease(want), 1U);
    Batch batch;
    fetcher_->request(batch, std::vector<Scheduler::Part>{{want[0], kAll}});
    clock_.advance_to(clock_.now() + 2'000'000);
    fetcher_->look();
    ASSERT_TRUE(batch.done());
    fetcher_->release(want);
    fetcher_->enter(1, trace::Phase::decode);
    EXPECT_EQ(fetcher_->foresee({{{store_->record(0, 3), 0.9F}}}), 0U);
}

// R24: guesses that are always wrong, an idle drive and all the time in the world.
TEST_F(ForesightTest, WhatIsReadInVainIsAShareOfWhatHasToBeRead) {
    const DeviceModel small{.bytes_per_ns = 1, .service = 105'000, .chunk = 8192, .window = 16384, .lanes = 16};
    fetcher_ = make(5 * 3 * align_up(5003 + 4095, 4096), {}, false, small);
    for (uint32_t n = 0; n < 400; ++n) {
        for (const uint32_t set : {0U, 1U}) {
            std::vector<Fetcher::Foreseen> wrong;
            for (uint32_t e = 3; e < kExperts; ++e) wrong.push_back({store_->record(1 - set, e), 0.9F});
            // However few are used, they are tried again at once.
            for (uint32_t i = 0; i < Admission::kRestLayers; ++i) (void)fetcher_->scheduler().admission().layer();
            visit(set, {n % 3}, wrong);
        }
    }
    const auto& history = engine_->history();
    uint64_t in_vain = 0;
    const double most = Admission::kAllowance * static_cast<double>(small.window);
    double owed = 0;  // the largest excess over any stretch of the past, up to here
    for (const io::SimRead& read : history) {
        const bool guess = read.op.priority == io::Priority::speculative;
        in_vain += guess ? read.op.length : 0;
        owed = std::max(0.0, owed + (guess ? 1 : -Admission::kMostInVain) * static_cast<double>(read.op.length));
        ASSERT_LE(owed, most);
    }
    EXPECT_GT(in_vain, 0U);
    EXPECT_EQ(fetcher_->counters().predicted_physical, in_vain);
}

TEST(AdmissionTest, ReadsInVainAreBoundedByExactOnes) {
    Admission admission({.bytes_per_ns = 1, .service = 10, .chunk = 100, .window = 1000, .lanes = 16});
    Nanos now = 0;
    const auto ask = [&] {
        now += 1'000'000;
        return admission.ask(100, now, false, 0, now + 1'000'000, 0.5);
    };
    const auto read = [&] {
        admission.submitted(100);
        admission.completed(100);
    };
    uint32_t n = 0;
    for (; ask() == Refusal::none && n < 1000; ++n) read();
    EXPECT_EQ(n, 160U) << "kAllowance windows at first";
    EXPECT_EQ(ask(), Refusal::too_much_in_vain);
    admission.exact(1000, now);
    n = 0;
    for (; ask() == Refusal::none && n < 1000; ++n) read();
    EXPECT_EQ(n, 5U) << "then kMostInVain of what has to be read";
    admission.used(100);
    EXPECT_EQ(ask(), Refusal::none) << "what was of use was not in vain";
}

// With room for few experts: who is expected outlives who was used since, and a guess pushes out nobody expected.
TEST_F(ForesightTest, WhatIsExpectedKeepsItsSlot) {
    start(1 * MiB, 2);
    const uint32_t slots = 4;
    start(fetcher_->layout().arena_bytes / (2 * kExperts) * slots, 2);
    ASSERT_GE(fetcher_->cache().n_slots(), 3U);
    const RecordId kept = store_->record(1, 1);
    visit(0, {0});
    visit(1, {1});
    for (uint32_t e = 0; e < kExperts; ++e) visit(0, {e}, {{kept, 1}});
    EXPECT_TRUE(fetcher_->resident(kept));
    EXPECT_EQ(reads()[kept], 1U);
}

TEST_F(FetcherTest, ABudgetBelowOneRecordIsRefused) {
    engine_ = std::make_unique<io::SimEngine>(clock_);
    const io::File* files[] = {&file_};
    store_ = std::make_unique<store::RecordStore>(store::RecordStore::over(geometry_, files));
    Fetcher::Options options;
    options.slots.budget = 3 * align_up(5003, 4096) - 1;
    const auto fetcher = Fetcher::create(*store_, *engine_, clock_, std::move(options));
    ASSERT_FALSE(fetcher.ok());
    EXPECT_EQ(fetcher.status().code(), Code::no_memory);
}

}  // namespace
}  // namespace sluice::sched
