#include "trace/ledger.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/trace/support.h"

namespace sluice::trace {
namespace {

// Counts how often it is read; moves when told to.
class CountingClock final : public Clock {
  public:
    [[nodiscard]] Nanos now() const override {
        ++reads_;
        return now_;
    }
    void pass(Nanos time) { now_ += time; }
    [[nodiscard]] int reads() const { return reads_; }

  private:
    Nanos now_ = 1000;
    mutable int reads_ = 0;
};

Nanos sum_of(const Ledger& ledger) {
    Nanos sum = 0;
    for (size_t p = 0; p < kParts; ++p) sum += ledger.spent(static_cast<Part>(p));
    return sum;
}

constexpr PartMask kAll = (PartMask{1} << kParts) - 1;

TEST(Ledger, TimeGoesToThePartThatRuns) {
    CountingClock clock;
    Ledger ledger(clock, parts_of(Part::dense, Part::routed, Part::wait_read));
    ledger.start();
    clock.pass(3);
    {
        const During dense(ledger, Part::dense);
        clock.pass(10);
        {
            const During routed(ledger, Part::routed);
            clock.pass(20);
            const During wait(ledger, Part::wait_read);
            clock.pass(40);
        }
        clock.pass(5);
    }
    clock.pass(2);
    ledger.mark();
    EXPECT_EQ(ledger.spent(Part::overhead), 5);
    EXPECT_EQ(ledger.spent(Part::dense), 15);
    EXPECT_EQ(ledger.spent(Part::routed), 20);
    EXPECT_EQ(ledger.spent(Part::wait_read), 40);
    EXPECT_EQ(ledger.wall(), 80);
}

TEST(Ledger, AnUnwatchedPartCostsNoReadingOfTheClock) {
    CountingClock clock;
    Ledger ledger(clock, parts_of(Part::dense));
    ledger.start(Part::dense);
    const int before = clock.reads();
    for (int i = 0; i < 100; ++i) {
        const During manage(ledger, Part::manage);
        clock.pass(1);
        const During routed(ledger, Part::routed);
        clock.pass(1);
        const MaybeDuring none(nullptr, Part::dense);
        const During again(ledger, Part::dense);  // runs already
    }
    EXPECT_EQ(clock.reads(), before);
    ledger.mark();
    EXPECT_EQ(ledger.spent(Part::dense), 200);
    EXPECT_EQ(ledger.wall(), 200);
}

TEST(Ledger, WithoutARowNothingIsRead) {
    CountingClock clock;
    Ledger ledger(clock, kAll);
    {
        const During dense(ledger, Part::dense);
        clock.pass(5);
    }
    ledger.mark();
    EXPECT_EQ(clock.reads(), 0);
    EXPECT_EQ(sum_of(ledger), 0);
}

// Whatever happens in whatever order, the parts sum to the wall time.
TEST(Ledger, PartsSumToTheWallExactly) {
    for (uint64_t seed = 1; seed <= 300; ++seed) {
        Random random(seed);
        CountingClock clock;
        std::vector<Span> spans;
        const auto watched = static_cast<PartMask>(random.next()) & kAll;
        Ledger ledger(clock, watched);
        if (random.below(2) == 0) ledger.keep_spans(&spans);
        std::vector<std::unique_ptr<During>> nested;
        Nanos row_begin = 0, now = 0, marked = 0;
        Nanos in_rows = 0;  // over all rows that ended
        for (int step = 0; step < 200; ++step) {
            const Nanos time = static_cast<Nanos>(random.below(1000));
            clock.pass(time);
            now += time;
            switch (random.below(7)) {
                case 0:
                    if (ledger.running()) break;
                    ledger.start(static_cast<Part>(random.below(kParts)));
                    row_begin = marked = now;
                    break;
                case 1:
                    ledger.enter(static_cast<Part>(random.below(kParts)));
                    break;
                case 2:
                    if (nested.size() < 5)
                        nested.push_back(std::make_unique<During>(ledger, static_cast<Part>(random.below(kParts))));
                    break;
                case 3:
                    if (!nested.empty()) nested.pop_back();
                    break;
                case 4:  // a row ends, the next follows
                    ledger.mark();
                    if (ledger.running()) {
                        marked = now;
                        EXPECT_EQ(ledger.wall(), marked - row_begin);
                        in_rows += ledger.wall();
                        row_begin = marked;
                    }
                    EXPECT_EQ(sum_of(ledger), ledger.wall());
                    if (ledger.running()) ledger.next_row();
                    break;
                case 5:  // a row ends
                    if (!ledger.running()) break;
                    ledger.mark();
                    EXPECT_EQ(ledger.wall(), now - row_begin);
                    in_rows += ledger.wall();
                    ledger.stop_at_mark();
                    break;
                default:
                    break;
            }
            ASSERT_EQ(sum_of(ledger), ledger.wall()) << "seed " << seed << " step " << step;
            for (size_t p = 0; p < kParts; ++p) {
                const Part part = static_cast<Part>(p);
                ASSERT_TRUE((ledger.watched() & bit(part)) != 0 || ledger.spent(part) == 0);
            }
        }
        nested.clear();
        // Spans tell the same story: they do not overlap.
        for (size_t i = 1; i < spans.size(); ++i) ASSERT_GE(spans[i].begin, spans[i - 1].end);
        EXPECT_GE(in_rows, 0);
    }
}

TEST(Ledger, SpansCoverTheRow) {
    CountingClock clock;
    std::vector<Span> spans;
    Ledger ledger(clock, kAll);
    ledger.keep_spans(&spans);
    ledger.start();
    clock.pass(10);
    ledger.enter(Part::dense);
    clock.pass(20);
    ledger.enter(Part::routed);  // the layer of what ran is told when it is known
    ledger.at_layer(3);
    clock.pass(30);
    ledger.enter(Part::overhead);
    ledger.mark();
    ASSERT_EQ(spans.size(), 3U);
    Nanos covered = 0;
    for (const Span& s : spans) covered += s.end - s.begin;
    EXPECT_EQ(covered, ledger.wall());
    EXPECT_EQ(spans[2].part, Part::routed);
    EXPECT_EQ(spans[2].layer, 3);
    EXPECT_EQ(spans[0].layer, -1);
}

}  // namespace
}  // namespace sluice::trace
