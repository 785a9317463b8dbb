#include "report/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/report/records.h"

namespace sluice::report {
namespace {

using trace::Json;
using trace::Record;
using trace::Row;

Record with_times(const std::vector<double>& ms) {
    Record record;
    for (const double t : ms) {
        Row row;
        row.phase = 1;
        row.tokens = 1;
        row.output_tokens = 1;
        row.wall = static_cast<int64_t>(t * 1e6);
        record.rows.push_back(row);
    }
    return record;
}

std::vector<double> noisy(size_t n, double ms, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<double> out;
    for (size_t i = 0; i < n; ++i) out.push_back(ms * (1 + 0.2 * static_cast<double>(random() % 1000) / 1000));
    return out;
}

TEST(Compare, the_median_is_that_of_the_figures) {
    const Speed odd = speed_of(with_times({5, 1, 3}), 0);
    EXPECT_DOUBLE_EQ(odd.ms_per_token->median, 3);
    EXPECT_DOUBLE_EQ(odd.tokens_per_second->median, 1000.0 / 3);
    const Speed even = speed_of(with_times({4, 1, 2, 10}), 0);
    EXPECT_DOUBLE_EQ(even.ms_per_token->median, 3);
    EXPECT_DOUBLE_EQ(even.tokens_per_second->median, (500.0 + 250.0) / 2);
}

TEST(Compare, few_tokens_have_a_median_and_no_interval) {
    EXPECT_FALSE(speed_of(with_times({}), 0).ms_per_token);
    const Speed few = speed_of(with_times({4, 1, 2, 10}), 0);
    EXPECT_TRUE(few.ms_per_token);
    EXPECT_FALSE(few.ms_per_token->low);
    const Ratio ratio = ratio_of(few, speed_of(with_times({6}), 1));
    EXPECT_DOUBLE_EQ(ratio.ms_per_token->median, 0.5);
    EXPECT_FALSE(ratio.ms_per_token->low);
    EXPECT_FALSE(ratio_of(few, speed_of(with_times({}), 1)).ms_per_token);
}

TEST(Compare, intervals_repeat_and_hold_the_median) {
    const Record record = with_times(noisy(500, 20, 1));
    const Speed a = speed_of(record, 0);
    const Speed b = speed_of(record, 0);
    EXPECT_EQ(a.block, 8U);
    EXPECT_EQ(a.resampled_ms.size(), kResamples);
    EXPECT_EQ(a.resampled_ms, b.resampled_ms);
    EXPECT_EQ(a.ms_per_token->low, b.ms_per_token->low);
    EXPECT_LE(*a.ms_per_token->low, a.ms_per_token->median);
    EXPECT_GE(*a.ms_per_token->high, a.ms_per_token->median);
    EXPECT_GE(*a.ms_per_token->low, 20);
    EXPECT_LE(*a.ms_per_token->high, 24);
    EXPECT_LT(*a.ms_per_token->high - *a.ms_per_token->low, 1);
    EXPECT_NE(speed_of(record, 1).resampled_ms, a.resampled_ms) << "each record has a stream of its own";
}

TEST(Compare, one_slow_stretch_makes_the_interval_wide) {
    // The same times twice: mixed, and sorted into stretches. Only the order differs.
    std::vector<double> mixed;
    std::vector<double> stretches;
    for (int i = 0; i < 400; ++i) mixed.push_back(i % 2 == 0 ? 10 + 0.001 * i : 20 + 0.001 * i);
    for (int i = 0; i < 400; i += 2) stretches.push_back(mixed[static_cast<size_t>(i)]);
    for (int i = 1; i < 400; i += 2) stretches.push_back(mixed[static_cast<size_t>(i)]);
    // A median of two humps is of no use; its spread among resamples still is.
    const auto spread = [](const Speed& s) {
        size_t off = 0;
        double mean = 0;
        for (const double v : s.resampled_ms) mean += v / static_cast<double>(s.resampled_ms.size());
        for (const double v : s.resampled_ms) off += std::fabs(v - mean) > 4 ? 1 : 0;
        return off;
    };
    EXPECT_GT(spread(speed_of(with_times(stretches), 0)), spread(speed_of(with_times(mixed), 0)));
}

TEST(Compare, a_long_run_is_counted_exactly) {
    // More values than buckets: the second pass has to find the same median as sorting does.
    const std::vector<double> times = noisy(9001, 7, 3);
    const Speed speed = speed_of(with_times(times), 0);
    std::vector<double> sorted;
    for (const double t : times) sorted.push_back(static_cast<double>(static_cast<int64_t>(t * 1e6)) * 1e-6);
    std::sort(sorted.begin(), sorted.end());
    EXPECT_NEAR(speed.ms_per_token->median, sorted[4500], 1e-9);
    const double mean = std::accumulate(speed.resampled_ms.begin(), speed.resampled_ms.end(), 0.0) / kResamples;
    EXPECT_NEAR(mean, sorted[4500], 0.05);
    for (const double v : speed.resampled_ms) ASSERT_TRUE(v >= 7 && v <= 8.4);
}

TEST(Compare, a_ratio_of_equals_holds_one_and_of_others_does_not) {
    const Speed a = speed_of(with_times(noisy(300, 20, 1)), 0);
    const Speed same = speed_of(with_times(noisy(300, 20, 2)), 1);
    const Speed faster = speed_of(with_times(noisy(300, 15, 3)), 2);
    const Ratio equal = ratio_of(a, same);
    EXPECT_LE(*equal.ms_per_token->low, 1);
    EXPECT_GE(*equal.ms_per_token->high, 1);
    const Ratio other = ratio_of(a, faster);
    EXPECT_GT(*other.ms_per_token->low, 1.2);
    EXPECT_LT(*other.tokens_per_second->high, 0.85);
}

TEST(Compare, outputs_are_compared_where_both_records_have_them) {
    trace::Record a, b;
    EXPECT_EQ(compare_outputs(a, b).text, Agreement::unknown);
    EXPECT_EQ(compare_outputs(a, b).routes, Agreement::unknown);
    a.book.ending.output_digest = b.book.ending.output_digest = "0123";
    a.book.routes_digest = b.book.routes_digest = 7;
    EXPECT_EQ(compare_outputs(a, b).text, Agreement::same);
    EXPECT_EQ(compare_outputs(a, b).routes, Agreement::same);
    b.book.ending.output_digest = "0124";
    b.book.routes_digest = 8;
    EXPECT_EQ(compare_outputs(a, b).text, Agreement::differs);
    EXPECT_EQ(compare_outputs(a, b).routes, Agreement::differs);
    b.book.ending.output_digest.clear();
    EXPECT_EQ(compare_outputs(a, b).text, Agreement::unknown) << "a server's record has no text";
}

TEST(Compare, differences_are_grouped_and_leave_out_what_always_differs) {
    Record a;
    Record b;
    a.book.header = Json{{"kind", "run"},
                         {"sluice_record", 1},
                         {"time", "then"},
                         {"pid", 1},
                         {"program", "run"},
                         {"options", {{"cache_mb", {{"value", 6}, {"set", true}}}, {"io_threads", 4}}},
                         {"machine", {{"cores", 8}, {"time", "then"}}}};
    b.book.header = a.book.header;
    b.book.header["time"] = "now";
    b.book.header["pid"] = 2;
    b.book.header["machine"]["time"] = "now";
    const std::vector<Record> same{a, b};
    EXPECT_TRUE(differences(same).empty());

    b.book.header["options"]["cache_mb"] = {{"value", 12}, {"set", true}};
    b.book.header["options"]["new"] = true;
    b.book.models = {Json{{"kind", "model"}, {"name", "m"}, {"digest", "1"}}};
    const std::vector<Record> two{a, b};
    const auto groups = differences(two);
    ASSERT_EQ(groups.size(), 2U);
    EXPECT_EQ(groups[0].name, "options");
    ASSERT_EQ(groups[0].differences.size(), 2U);
    EXPECT_EQ(groups[0].differences[0].key, "cache_mb");
    EXPECT_EQ(groups[0].differences[0].values[0], "6");
    EXPECT_EQ(groups[0].differences[0].values[1], "12");
    EXPECT_EQ(groups[0].differences[1].values[0], std::nullopt);
    EXPECT_EQ(groups[0].differences[1].values[1], "yes");
    EXPECT_EQ(groups[1].name, "model");
}

TEST(Compare, facts_say_what_was_set_and_do_not_drown) {
    Record r;
    Json deep = 1;
    for (int i = 0; i < 200; ++i) deep = Json::array({deep, Json::object({{"x", 1}})});
    r.book.header = Json{
        {"kind", "run"},
        {"options", {{"a", {{"value", 1}, {"source", "flag"}}}, {"b", {{"value", nullptr}, {"source", "default"}}}}},
        {"host", {{"layers", {5, 5, 5, 7}}, {"bytes", 2048}, {"deep", deep}}}};
    const auto groups = facts_of(r);
    ASSERT_EQ(groups[0].name, "options");
    EXPECT_EQ(groups[0].facts[0].set, true);
    EXPECT_EQ(groups[0].facts[1].set, false);
    EXPECT_EQ(groups[0].facts[1].value, "none");
    ASSERT_EQ(groups[1].name, "host");
    EXPECT_EQ(groups[1].facts[0].value, "5 (x3), 7");
    EXPECT_EQ(groups[1].facts[1].value, "2048 (2.0 KiB)");
    EXPECT_LT(groups[1].facts.size(), 100U);
}

}  // namespace
}  // namespace sluice::report
