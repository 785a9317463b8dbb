#include "trace/recorder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "base/log.h"
#include "trace/caches.h"

namespace sluice::trace {
namespace {

constexpr PartMask kWatched = parts_of(Part::dense, Part::routed, Part::record);

// Notes what it is called with; fails from the row with this number on.
class Notes final : public Sink {
  public:
    struct Seen {
        std::vector<Row> rows;
        std::vector<std::string> texts, calls;
        int checkpoints = 0;
    };
    explicit Notes(Seen& seen, size_t fail_at = SIZE_MAX) : seen_(seen), fail_at_(fail_at) {}
    Status begin(const Book&) override { return note("begin"); }
    Status model(const Book&, size_t) override { return note("model"); }
    Status cache(const Book&, const Json&) override { return note("cache"); }
    Status load(const Book&) override { return note("load"); }
    Status row(const Book&, const Row& row, std::string_view text) override {
        if (seen_.rows.size() == fail_at_) return error(Code::io_error, "the disk is full");
        seen_.rows.push_back(row);
        seen_.texts.emplace_back(text);
        return {};
    }
    Status checkpoint(const Book&) override {
        ++seen_.checkpoints;
        return {};
    }
    Status end(const Book&) override { return note("end"); }

  private:
    Status note(const char* call) {
        seen_.calls.emplace_back(call);
        return {};
    }
    Seen& seen_;
    size_t fail_at_;
};

Wants rows_wanted() {
    Wants w;
    w.rows = true;
    return w;
}

class RecorderTest : public ::testing::Test {
  protected:
    RecorderTest() {
        recorder_.add(std::make_unique<Notes>(seen_));
        recorder_.set_header({{"kind", "run"}});
        recorder_.prepare(pass_);
    }
    void SetUp() override {
        set_log_sink([](LogLevel, const std::string&) {});
    }
    void TearDown() override { set_log_sink(nullptr); }

    // One graph: some time in each of two parts.
    void graph(int64_t tokens, Nanos dense, Nanos routed) {
        if (!pass_.ledger.running()) pass_.ledger.start();
        {
            const During during(pass_.ledger, Part::dense);
            clock_.advance_to(clock_.now() + dense);
        }
        {
            const During during(pass_.ledger, Part::routed);
            clock_.advance_to(clock_.now() + routed);
        }
        pass_.model = 0;
        pass_.tokens += tokens;
    }
    void commit(Phase phase, Measure output = {}, std::string_view text = "") {
        recorder_.commit(pass_, {.phase = phase, .output_tokens = output, .text = text, .last = false});
    }

    VirtualClock clock_;
    Notes::Seen seen_;
    Recorder recorder_{clock_, kWatched, rows_wanted()};
    Pass pass_{clock_, 0};
};

TEST_F(RecorderTest, NothingIsWrittenBeforeSomethingHappens) {
    EXPECT_TRUE(seen_.calls.empty());
    recorder_.model({{"kind", "model"}}, {4});
    recorder_.cache(0, 100, 2, 4, "as told");
    recorder_.load(7, 9, {});
    EXPECT_EQ(seen_.calls, (std::vector<std::string>{"begin", "model", "cache", "load"}));
    recorder_.end({});
    recorder_.end({});
    EXPECT_EQ(seen_.calls.back(), "end");
    EXPECT_EQ(seen_.calls.size(), 5U);
}

TEST_F(RecorderTest, ACacheThatChangesIsSaidWhenItDoesAndTheBookStaysSmall) {
    recorder_.model({{"kind", "model"}}, {4});
    recorder_.model({{"kind", "model"}}, {4});
    recorder_.cache(1, 7, 1, 4, "the other's");
    recorder_.cache(0, 100, 2, 4, "at first");
    graph(1, 30, 12);
    commit(Phase::decode, 1, "");
    for (uint64_t i = 0; i < 5000; ++i) recorder_.cache(0, 1000 + i, 2, 4, "changed");
    graph(1, 30, 12);
    commit(Phase::decode, 1, "");
    EXPECT_EQ(seen_.rows[0].cache_bytes, Measure(100));
    EXPECT_EQ(seen_.rows[1].cache_bytes, Measure(5999));
    EXPECT_EQ(std::count(seen_.calls.begin(), seen_.calls.end(), "cache"), 5002) << "outputs get all";
    recorder_.with_book([](const Book& book) {
        EXPECT_LT(book.caches.size(), 300U);
        EXPECT_EQ((*newest_cache(book, 1))["bytes"], 7) << "the other model's is not lost";
        EXPECT_EQ((*first_cache(book, 0))["bytes"], 100);
        EXPECT_EQ((*newest_cache(book, 0))["after_decode"], 1);
    });
}

TEST_F(RecorderTest, ARowHasWhatWasWatchedAndNothingElse) {
    recorder_.model({{"kind", "model"}}, {4});
    recorder_.cache(0, 100, 2, 4, "");
    graph(1, 30, 12);
    commit(Phase::decode, 1, "text");
    ASSERT_EQ(seen_.rows.size(), 1U);
    const Row& row = seen_.rows[0];
    EXPECT_EQ(row.wall, Measure(42));
    EXPECT_EQ(row.parts[static_cast<size_t>(Part::dense)], Measure(30));
    EXPECT_EQ(row.parts[static_cast<size_t>(Part::routed)], Measure(12));
    EXPECT_EQ(row.parts[static_cast<size_t>(Part::overhead)], Measure()) << "it was not asked for";
    EXPECT_EQ(row.parts[static_cast<size_t>(Part::sample)], Measure());
    EXPECT_EQ(row.cache_bytes, Measure(100));
    EXPECT_EQ(row.rss, Measure()) << "nobody samples";
    EXPECT_EQ(row.read_p50, Measure()) << "there was no read";
    EXPECT_EQ(row.predicted_bytes, Measure());
    EXPECT_EQ(seen_.texts[0], "text");
}

TEST_F(RecorderTest, RowsOfARunningLedgerLeaveNoGap) {
    recorder_.model({{"kind", "model"}}, {4});
    Nanos expected = clock_.now();
    for (int i = 0; i < 5; ++i) {
        graph(1, 10 + i, 3);
        commit(Phase::decode, 1);
    }
    for (const Row& row : seen_.rows) {
        EXPECT_EQ(row.start.value(), expected);
        expected += row.wall.value();
    }
    EXPECT_EQ(expected, clock_.now());
}

TEST_F(RecorderTest, AGraphThatEndedKeepsItsEnd) {
    recorder_.model({{"kind", "model"}}, {4});
    graph(1, 10, 3);
    clock_.advance_to(clock_.now() + 1000);  // the host does something else
    pass_.ledger.stop_at_mark();
    commit(Phase::decode);
    EXPECT_EQ(seen_.rows[0].wall, Measure(13));
}

TEST_F(RecorderTest, StepsCountByPhaseAndTurnsByPrompt) {
    recorder_.model({{"kind", "model"}}, {4});
    for (const Phase p :
         {Phase::prefill, Phase::prefill, Phase::decode, Phase::decode, Phase::prefill, Phase::decode}) {
        graph(1, 1, 1);
        commit(p);
    }
    const std::vector<std::pair<int64_t, int64_t>> expected{{0, 0}, {0, 1}, {0, 0}, {0, 1}, {1, 0}, {1, 0}};
    for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(seen_.rows[i].turn.value(), expected[i].first) << i;
        EXPECT_EQ(seen_.rows[i].step.value(), expected[i].second) << i;
    }
}

TEST_F(RecorderTest, WarmUpAndGraphsWithoutExpertsMakeNoRow) {
    recorder_.model({{"kind", "model"}}, {4});
    graph(2, 1, 1);
    pass_.warmup = true;
    commit(Phase::prefill);
    pass_.ledger.start();
    commit(Phase::decode);
    EXPECT_TRUE(seen_.rows.empty());
    graph(1, 1, 1);
    commit(Phase::decode);
    EXPECT_EQ(seen_.rows.size(), 1U);
    EXPECT_EQ(seen_.rows[0].tokens, Measure(1)) << "the warm-up's tokens are forgotten";
}

TEST_F(RecorderTest, AnOutputThatFailsIsDroppedAndTheOthersGoOn) {
    Notes::Seen failing;
    recorder_.add(std::make_unique<Notes>(failing, 1));
    recorder_.model({{"kind", "model"}}, {4});
    for (int i = 0; i < 3; ++i) {
        graph(1, 1, 1);
        commit(Phase::decode);
    }
    recorder_.end({});
    EXPECT_EQ(failing.rows.size(), 1U);
    EXPECT_EQ(failing.calls.back(), "model") << "it is not even told of the end";
    EXPECT_EQ(seen_.rows.size(), 3U);
    EXPECT_EQ(seen_.calls.back(), "end");
    EXPECT_EQ(recorder_.status().message(), "the disk is full");
}

TEST_F(RecorderTest, TheMachineIsAskedAtMostTenTimesASecond) {
    std::vector<bool> asked;
    recorder_.set_sampler([&](Row& row, bool full) {
        asked.push_back(full);
        row.major_faults = 0;
        if (full) row.rss = 1;
    });
    recorder_.model({{"kind", "model"}}, {4});
    for (int i = 0; i < 40; ++i) {
        graph(1, 5'000'000, 5'000'000);
        commit(Phase::decode);
    }
    graph(1, 1, 1);
    recorder_.commit(pass_, {.phase = Phase::decode, .output_tokens = {}, .text = "", .last = true});
    // Once when the record opens, for the first row, every tenth, and for the last.
    EXPECT_EQ(std::count(asked.begin(), asked.end(), true), 1 + 1 + 3 + 1);
    for (const Row& row : seen_.rows) EXPECT_TRUE(row.major_faults.known());
}

TEST_F(RecorderTest, CountsThatAreSampledAddUpToTheLastByte) {
    int64_t read = 1000, before = 0;  // of the process, as the kernel counts
    recorder_.set_sampler([&](Row& row, bool full) {
        row.major_faults = 1;
        if (!full) return;
        row.rss = 7;
        row.kernel_bytes = read - std::exchange(before, read);
    });
    recorder_.model({{"kind", "model"}}, {4});  // opens the record
    for (int i = 0; i < 5; ++i) {
        read += 100;
        graph(1, 1, 1);
        commit(i == 0 ? Phase::prefill : Phase::decode);
    }
    read += 40;
    recorder_.end({});
    recorder_.with_book([&](const Book& book) {
        EXPECT_EQ(book.of(Phase::prefill).sum.kernel_bytes, Measure(100));
        EXPECT_EQ(book.of(Phase::decode).sum.kernel_bytes, Measure(440)) << "no row of decode was sampled";
        EXPECT_EQ(book.of(Phase::decode).rows, 4U);
        EXPECT_EQ(book.of(Phase::decode).sum.major_faults, Measure(4)) << "every row has them: nothing is missing";
        EXPECT_EQ(book.of(Phase::decode).sum.rss, Measure()) << "the model may be gone by now";
        ASSERT_TRUE(book.rest.has_value());
        EXPECT_EQ(book.rest_phase, Phase::decode);
        EXPECT_EQ(book.rest->kernel_bytes, Measure(440));
    });
}

TEST_F(RecorderTest, ExpertsAndChoicesAreSummed) {
    recorder_.model({{"kind", "model"}}, {4, 2});
    for (int i = 0; i < 3; ++i) {
        graph(1, 1, 1);
        pass_.uses = {{.set = 0, .expert = 3, .rows = 2, .miss = i == 0},
                      {.set = 1, .expert = 0, .rows = 1, .miss = true}};
        pass_.routes_digest = 5;
        commit(Phase::decode);
    }
    recorder_.with_book([](const Book& book) {
        EXPECT_EQ(book.experts[0].uses, (std::vector<std::vector<uint32_t>>{{0, 0, 0, 6}, {3, 0}}));
        EXPECT_EQ(book.experts[0].misses, (std::vector<std::vector<uint32_t>>{{0, 0, 0, 1}, {3, 0}}));
        EXPECT_NE(book.routes_digest, 0U);
        EXPECT_EQ(book.of(Phase::decode).rows, 3U);
        EXPECT_EQ(book.of(Phase::prefill).rows, 0U);
    });
}

TEST_F(RecorderTest, WhatIsTooLargeForARowComesNowAndThen) {
    recorder_.model({{"kind", "model"}}, {4});
    for (int i = 0; i < 600; ++i) {
        graph(1, 1, 1);
        commit(i % 2 == 0 ? Phase::decode : Phase::prefill);
    }
    EXPECT_EQ(seen_.checkpoints, 2);
}

TEST_F(RecorderTest, OneRowIsCapturedWhole) {
    Wants wants = rows_wanted();
    wants.capture_row = 1;
    Recorder recorder(clock_, kWatched, wants);
    struct Captured final : EventSink {
        explicit Captured(std::vector<size_t>& s) : spans(s) {}
        Status events(const Row&, const Pass& pass) override {
            spans.push_back(pass.spans.size());
            return {};
        }
        std::vector<size_t>& spans;
    };
    std::vector<size_t> spans;
    recorder.add(std::make_unique<Captured>(spans));
    recorder.model({{"kind", "model"}}, {4});
    recorder.prepare(pass_);
    for (const Phase p : {Phase::prefill, Phase::decode, Phase::decode, Phase::decode}) {
        graph(1, 4, 4);
        recorder.commit(pass_, {.phase = p, .output_tokens = {}, .text = "", .last = false});
    }
    EXPECT_EQ(spans, (std::vector<size_t>{0, 0, 2, 0}));
}

TEST_F(RecorderTest, SeveralContextsAtOnce) {
    recorder_.model({{"kind", "model"}}, {4});
    constexpr int kThreads = 4, kRows = 200;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([this] {
            Pass pass(SystemClock::instance(), kWatched);
            recorder_.prepare(pass);
            for (int i = 0; i < kRows; ++i) {
                pass.ledger.start();
                pass.model = 0;
                pass.tokens = 1;
                pass.ledger.mark();
                pass.ledger.stop_at_mark();
                recorder_.commit(pass, {.phase = Phase::decode, .output_tokens = {}, .text = "", .last = false});
            }
        });
    }
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(seen_.rows.size(), static_cast<size_t>(kThreads) * kRows);
    recorder_.with_book(
        [&](const Book& book) { EXPECT_EQ(book.of(Phase::decode).sum.tokens, Measure(kThreads * kRows)); });
}

TEST_F(RecorderTest, NothingComesAfterTheEnd) {
    recorder_.model({{"kind", "model"}}, {4});
    recorder_.end({.status = "interrupted", .error = {}, .output_digest = {}});
    graph(1, 1, 1);
    commit(Phase::decode);
    EXPECT_TRUE(seen_.rows.empty());
}

}  // namespace
}  // namespace sluice::trace
