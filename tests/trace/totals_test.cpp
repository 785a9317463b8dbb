#include "trace/totals.h"

#include <gtest/gtest.h>

#include <cmath>

namespace sluice::trace {
namespace {

TEST(Measure, NullAndNumbers) {
    Measure m;
    EXPECT_FALSE(m.known());
    m.add(Measure());
    EXPECT_FALSE(m.known());
    m.add(0);
    EXPECT_EQ(m, Measure(0));
    m.add(Measure());
    EXPECT_EQ(m, Measure(0));
    m.add(INT64_MAX);
    m.add(5);
    EXPECT_EQ(m, Measure(INT64_MAX));
    Measure low(-5);
    low.add(INT64_MIN + 1);
    EXPECT_TRUE(low.known());
}

TEST(Totals, NothingMeasuredIsNoFigure) {
    Totals t;
    for (const Figure& f : figures()) EXPECT_FALSE(f.of(t).has_value()) << f.name;
    EXPECT_EQ(what_binds(t), "");
    t.add(Row());
    EXPECT_EQ(t.rows, 1U);
    for (const Column& c : columns()) EXPECT_FALSE(value_of(c, t.sum).known()) << c.name;
    for (const Figure& f : figures()) EXPECT_FALSE(f.of(t).has_value()) << f.name;
}

TEST(Totals, EachColumnIsTotalledAsItSays) {
    Totals t;
    for (const int64_t v : {5, 9, 7}) {
        Row row;
        for (const Column& c : columns()) c.of(row) = v;
        t.add(row);
        t.add(Row());  // what was not measured changes nothing
    }
    for (const Column& c : columns()) {
        const Measure m = value_of(c, t.sum);
        switch (c.total) {
            case Total::sum:
                EXPECT_EQ(m, Measure(21)) << c.name;
                break;
            case Total::last:
                EXPECT_EQ(m, Measure(7)) << c.name;
                break;
            case Total::highest:
                EXPECT_EQ(m, Measure(9)) << c.name;
                break;
            case Total::none:
                EXPECT_FALSE(m.known()) << c.name;
                break;
        }
    }
}

TEST(Totals, HugeNumbersStayAtTheEndOfTheRange) {
    Totals t;
    for (int i = 0; i < 3; ++i) {
        Row row;
        for (const Column& c : columns()) c.of(row) = INT64_MAX;
        row.layers.assign(2, {INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX});
        t.add(row);
    }
    for (const Column& c : columns()) {
        if (c.total == Total::none) continue;
        EXPECT_EQ(value_of(c, t.sum), Measure(INT64_MAX)) << c.name;
    }
    EXPECT_EQ(t.sum.layers[1].hits, INT64_MAX);
    for (const Figure& f : figures()) {
        const auto v = f.of(t);
        EXPECT_TRUE(!v || std::isfinite(*v)) << f.name;
    }
}

TEST(Totals, ZeroTokensAreNoSpeed) {
    Totals t;
    Row row;
    row.tokens = 0;
    row.wall = 1000;
    row.lookups = 0;
    row.hits = 0;
    t.add(row);
    EXPECT_FALSE(figure("ms_per_token", t).has_value());
    EXPECT_FALSE(figure("hit_rate", t).has_value());
    EXPECT_FALSE(figure("no such figure", t).has_value());
}

TEST(Totals, FiguresOfAKnownRun) {
    Totals t;
    for (int i = 0; i < 4; ++i) {
        Row row;
        row.tokens = 1;
        row.output_tokens = 1;
        row.wall = 11'000'000;
        row.parts[static_cast<size_t>(Part::wait_read)] = 4'000'000;
        row.parts[static_cast<size_t>(Part::sample)] = 1'000'000;
        row.parts[static_cast<size_t>(Part::dense)] = 5'000'000;
        row.parts[static_cast<size_t>(Part::routed)] = 1'000'000;
        row.read_busy = 8'000'000;
        row.lookups = 10;
        row.hits = 4;
        row.exact_bytes = 1000;
        row.exact_physical = 1250;
        t.add(row);
    }
    EXPECT_DOUBLE_EQ(*figure("tokens_per_second", t), 1000.0 / 11);
    EXPECT_DOUBLE_EQ(*figure("hit_rate", t), 0.4);
    EXPECT_DOUBLE_EQ(*figure("amplification", t), 1.25);
    EXPECT_DOUBLE_EQ(*figure("hidden_fraction", t), 0.5);
    EXPECT_DOUBLE_EQ(*figure("compute_ms_per_token", t), 6);
    EXPECT_DOUBLE_EQ(*figure("without_waiting_ms_per_token", t), 7)
        << "sampling is no arithmetic, but the token has it";
    EXPECT_DOUBLE_EQ(*figure("roofline_ms_per_token", t), 8);
    EXPECT_DOUBLE_EQ(*figure("residual_fraction", t), 0.375);
    EXPECT_EQ(what_binds(t), "drive");
    EXPECT_DOUBLE_EQ(*share_of_wall(Part::dense, t), 5.0 / 11);
    EXPECT_FALSE(share_of_wall(Part::draft, t).has_value());
    EXPECT_EQ(computing(t.sum), Measure(24'000'000));
    EXPECT_EQ(exposed_wait(t.sum), Measure(16'000'000));
    EXPECT_EQ(outside_graph(t.sum), Measure(4'000'000));
    EXPECT_EQ(asked_of_drive(t.sum), Measure(5000));
    EXPECT_EQ(counted_tokens(t), Measure(4));
}

TEST(Totals, TokensThatWentThroughCountWhereNoneWereSeenComingOut) {
    Totals t;
    Row row;
    row.tokens = 12;
    row.wall = 1'000'000'000;
    t.add(row);
    EXPECT_DOUBLE_EQ(*figure("tokens_per_second", t), 12);
}

TEST(Totals, LayersAddUp) {
    Totals t;
    Row row;
    row.layers = {{1, 2, 3, 4, 5}};
    t.add(row);
    row.layers = {{10, 20, 30, 40, 50}, {1, 1, 1, 1, 1}};
    t.add(row);
    ASSERT_EQ(t.sum.layers.size(), 2U);
    EXPECT_EQ(t.sum.layers[0].wait, 11);
    EXPECT_EQ(t.sum.layers[0].physical, 55);
    EXPECT_EQ(t.sum.layers[1].lookups, 1);
}

TEST(Totals, FewSlowLayersAreToldFromBubblesInAll) {
    Totals t;
    Row row;
    row.layers.resize(4);
    for (Row::Layer& l : row.layers) l.routed = 1000;
    t.add(row);
    EXPECT_DOUBLE_EQ(*figure("layers_waiting_fraction", t), 0);
    row.layers[1].wait = 5000;
    row.layers[2].wait = 10;  // not worth the word
    t.add(row);
    EXPECT_DOUBLE_EQ(*figure("layers_waiting_fraction", t), 0.25);
    for (Row::Layer& l : row.layers) l.wait = 900;
    t.add(row);
    EXPECT_DOUBLE_EQ(*figure("layers_waiting_fraction", t), 1);
    for (Row::Layer& l : row.layers) l.wait = l.routed = INT64_MAX;
    t.add(row);
    EXPECT_DOUBLE_EQ(*figure("layers_waiting_fraction", t), 1);
}

}  // namespace
}  // namespace sluice::trace
