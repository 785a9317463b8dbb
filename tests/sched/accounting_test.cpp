// On the simulated device nothing is approximate: time moves only while somebody waits for a read, and every byte is
// known. So what the record says must be exactly what happened.
#include <gtest/gtest.h>

#include <random>

#include "tests/sched/support.h"
#include "trace/recorder.h"

namespace sluice::sched {
namespace {

using trace::Part;

class Rows final : public trace::Sink {
  public:
    Status row(const trace::Book&, const trace::Row& row, std::string_view) override {
        rows.push_back(row);
        return {};
    }
    std::vector<trace::Row> rows;
};

constexpr trace::PartMask kParts =
    trace::parts_of(Part::wait_read, Part::wait_join, Part::wait_late, Part::convert, Part::manage, Part::record);

class AccountingTest : public SimulatedModel {
  protected:
    AccountingTest() : recorder_(clock_, kParts, wants()), pass_(clock_, 0) {
        auto rows = std::make_unique<Rows>();
        rows_ = &rows->rows;
        recorder_.add(std::move(rows));
        recorder_.model({{"kind", "model"}}, {kExperts, kExperts});
        recorder_.prepare(pass_);
    }
    static trace::Wants wants() {
        trace::Wants w;
        w.rows = w.reads = true;
        return w;
    }

    // What the executor does for a layer, as far as bytes and time go.
    Status visit(Fetcher& fetcher, std::vector<RecordId> want) {
        const trace::During managing(pass_.ledger, Part::manage);
        pass_.model = 0;
        std::span<RecordId> left(want);
        while (!left.empty()) {
            const size_t n = fetcher.lease(left);
            const SchedCounters before = fetcher.counters();
            const io::EngineTotals engine_before = fetcher.engine_totals();
            const Status s = fetcher.load(left.first(n), kAll, &pass_);
            pass_.reads += static_cast<int64_t>(fetcher.counters().reads - before.reads);
            pass_.exact_physical += static_cast<int64_t>(fetcher.counters().exact_physical - before.exact_physical);
            pass_.read_busy += fetcher.counters().busy - before.busy;
            pass_.engine_bytes += static_cast<int64_t>(fetcher.engine_totals().bytes - engine_before.bytes);
            pass_.retries += static_cast<int64_t>(fetcher.engine_totals().retries - engine_before.retries);
            fetcher.release(left.first(n));
            if (!s.ok()) return s;
            left = left.subspan(n);
        }
        return {};
    }

    trace::Recorder recorder_;
    trace::Pass pass_;
    std::vector<trace::Row>* rows_ = nullptr;
};

TEST_F(AccountingTest, PartsSumToWallAndBytesToTheDevice) {
    for (const bool convert : {false, true}) {
        rows_->clear();
        auto fetcher = make(80 * KiB, {.channels = 3, .jitter = 0.5, .shuffle = true}, convert);
        std::mt19937 random(11);
        const Nanos begin = clock_.now();
        pass_.ledger.start();
        for (int row = 0; row < 50; ++row) {
            for (uint32_t set = 0; set < 2; ++set) {
                std::vector<RecordId> want;
                for (uint32_t e = 0; e < kExperts; ++e) {
                    if (random() % 3 == 0) want.push_back(store_->record(set, e));
                }
                ASSERT_TRUE(visit(*fetcher, want).ok());
            }
            recorder_.commit(pass_, {.phase = trace::Phase::decode, .output_tokens = 1, .text = "", .last = false});
        }
        ASSERT_EQ(rows_->size(), 50U);
        int64_t wall = 0, bytes = 0, reads = 0;
        for (const trace::Row& row : *rows_) {
            int64_t parts = 0;
            for (const trace::Measure& m : row.parts) parts += m.or_zero();
            EXPECT_EQ(parts, row.wall.value());
            // Nothing but waiting takes time here, and no read is on its way at any other time.
            EXPECT_EQ(row.parts[static_cast<size_t>(Part::wait_read)], row.wall);
            EXPECT_EQ(row.read_busy, row.wall);
            EXPECT_EQ(row.exact_physical, row.engine_bytes);
            wall += row.wall.value();
            bytes += row.exact_physical.value();
            reads += row.reads.value();
        }
        EXPECT_EQ(wall, clock_.now() - begin);
        EXPECT_EQ(static_cast<uint64_t>(bytes), engine_->counters().bytes);
        EXPECT_EQ(static_cast<uint64_t>(reads), engine_->counters().reads);
    }
}

// A read that had begun before it was wanted is waited for in parts of its own, and the sum stays exact.
TEST_F(AccountingTest, WaitsForWhatHadBegunEarlyStandApart) {
    constexpr DeviceModel kDevice{.bytes_per_ns = 1, .service = 1000, .chunk = 8192, .window = 1 * MiB, .lanes = 16};
    const auto visit_hinted = [&](Nanos deadline, Nanos before_it_is_wanted, std::vector<RecordId> also) {
        rows_->clear();
        auto fetcher = make(1 * MiB, {}, false, kDevice);
        Scheduler& scheduler = fetcher->scheduler();
        const RecordId r = store_->record(1, 2);
        scheduler.expect_exact(clock_.now() + 10'000'000);
        EXPECT_TRUE(scheduler.hint(
            r, {.cls = Class::near, .owner = {}, .layer = 1, .confidence = 1, .deadline = clock_.now() + deadline}));
        scheduler.pump();
        EXPECT_GT(engine_->outstanding(), 0U);
        clock_.advance_to(clock_.now() + before_it_is_wanted);
        pass_.ledger.start();
        also.push_back(r);
        EXPECT_TRUE(visit(*fetcher, also).ok());
        recorder_.commit(pass_, {.phase = trace::Phase::decode, .output_tokens = 1, .text = "", .last = false});
        return rows_->back();
    };
    const auto part = [](const trace::Row& row, Part p) { return row.parts[static_cast<size_t>(p)].or_zero(); };
    const auto sum = [](const trace::Row& row) {
        int64_t all = 0;
        for (const trace::Measure& m : row.parts) all += m.or_zero();
        return all;
    };
    const trace::Row joined = visit_hinted(5'000'000, 0, {});
    EXPECT_GT(part(joined, Part::wait_join), 0);
    EXPECT_EQ(part(joined, Part::wait_read), 0);
    EXPECT_EQ(part(joined, Part::wait_late), 0);
    EXPECT_EQ(sum(joined), joined.wall.value());

    const trace::Row late = visit_hinted(20'000, 50'000, {});
    EXPECT_GT(part(late, Part::wait_late), 0);
    EXPECT_EQ(part(late, Part::wait_join), 0);
    EXPECT_EQ(part(late, Part::wait_read), 0);
    EXPECT_EQ(sum(late), late.wall.value());

    // While anything is missing that only the router asked for, that is what is waited for.
    const trace::Row both = visit_hinted(5'000'000, 0, {store_->record(1, 0), store_->record(1, 4)});
    EXPECT_GT(part(both, Part::wait_read), 0);
    EXPECT_EQ(sum(both), both.wall.value());
}

TEST_F(AccountingTest, EveryReadIsToldWithItsLatency) {
    auto fetcher = make(80 * KiB, {.channels = 2, .jitter = 0.7});
    pass_.ledger.start();
    ASSERT_TRUE(visit(*fetcher, {store_->record(0, 1), store_->record(0, 3)}).ok());
    const auto& history = engine_->history();
    ASSERT_EQ(pass_.read_events.size(), history.size());
    EXPECT_EQ(pass_.latency.count(), history.size());
    for (const trace::ReadEvent& e : pass_.read_events) {
        const auto it =
            std::find_if(history.begin(), history.end(), [&](const io::SimRead& r) { return r.op.offset == e.offset; });
        ASSERT_NE(it, history.end());
        EXPECT_EQ(e.issued, it->submitted);
        EXPECT_GE(e.ready, it->finished);
        EXPECT_EQ(e.length, it->op.length);
        EXPECT_EQ(e.layer, 0);
    }
}

TEST_F(AccountingTest, RetriesAndFailuresStayInTheAccount) {
    auto fetcher = make(80 * KiB);
    engine_->fault_at(1, io::Fault::interrupted(3));
    engine_->fault_at(2, io::Fault::short_read(512));
    pass_.ledger.start();
    ASSERT_TRUE(visit(*fetcher, {store_->record(0, 1)}).ok());
    EXPECT_EQ(pass_.retries, 4);
    // Three reads, and the second try of the first.
    engine_->fault_at(engine_->counters().reads, io::Fault::error());
    engine_->fault_at(engine_->counters().reads + 3, io::Fault::error());
    EXPECT_FALSE(visit(*fetcher, {store_->record(1, 2)}).ok());
    recorder_.commit(pass_, {.phase = trace::Phase::decode, .output_tokens = {}, .text = "", .last = false});
    ASSERT_EQ(rows_->size(), 1U);
    const trace::Row& row = rows_->front();
    EXPECT_EQ(row.exact_physical, row.engine_bytes);
    EXPECT_EQ(row.parts[static_cast<size_t>(Part::wait_read)], row.wall);
}

// A recorder that nobody listens to costs no reading of the clock.
TEST_F(AccountingTest, APassThatIsNotWatchedReadsNoClock) {
    class CountingClock final : public Clock {
      public:
        [[nodiscard]] Nanos now() const override { return ++calls; }
        mutable Nanos calls = 0;
    };
    const CountingClock counting;
    trace::Pass pass(counting, 0);
    auto fetcher = make(80 * KiB);
    std::vector<RecordId> want{store_->record(0, 1)};
    ASSERT_EQ(fetcher->lease(want), 1U);
    ASSERT_TRUE(fetcher->load(want, kAll, &pass).ok());
    EXPECT_EQ(counting.calls, 0);
    EXPECT_TRUE(pass.read_events.empty());
    EXPECT_EQ(pass.latency.count(), 0U);
    fetcher->release(want);
}

}  // namespace
}  // namespace sluice::sched
