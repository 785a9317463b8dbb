#include "trace/histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/trace/support.h"

namespace sluice::trace {
namespace {

TEST(Histogram, EmptyHasNoPercentile) {
    const Histogram h;
    EXPECT_FALSE(h.percentile(0.5).known());
    EXPECT_EQ(h.count(), 0U);
    EXPECT_EQ(h.sum(), Measure(0));
}

TEST(Histogram, BucketsTileTheRange) {
    for (size_t b = 0; b + 1 < Histogram::kBuckets; ++b) {
        const Nanos top = Histogram::upper_bound(b);
        if (top == INT64_MAX) break;
        EXPECT_EQ(Histogram::bucket_of(top), b);
        EXPECT_EQ(Histogram::bucket_of(top + 1), b + 1);
    }
    EXPECT_LT(Histogram::bucket_of(INT64_MAX), Histogram::kBuckets);
    EXPECT_EQ(Histogram::bucket_of(-5), 0U);
    EXPECT_EQ(Histogram::bucket_of(INT64_MIN), 0U);
}

TEST(Histogram, PercentilesAreAtMostASixteenthAbove) {
    Random random(7);
    for (int round = 0; round < 60; ++round) {
        Histogram h;
        std::vector<Nanos> values(1 + random.below(400));
        const uint64_t spread = 1 + random.below(50);
        Nanos sum = 0;
        for (Nanos& v : values) {
            v = static_cast<Nanos>(random.next() >> (64U - spread));
            h.add(v);
            sum += v;
        }
        std::sort(values.begin(), values.end());
        EXPECT_EQ(h.count(), values.size());
        EXPECT_EQ(h.largest(), values.back());
        EXPECT_EQ(h.sum(), Measure(sum));
        for (const double share : {0.001, 0.25, 0.5, 0.9, 0.95, 0.99, 1.0}) {
            const auto rank = static_cast<size_t>(std::ceil(static_cast<double>(values.size()) * share));
            const Nanos exact = values[std::max<size_t>(rank, 1) - 1];
            const Nanos found = h.percentile(share).value();
            EXPECT_GE(found, exact);
            EXPECT_LE(found, exact + exact / 16);
        }
        EXPECT_EQ(h.percentile(1.0), Measure(values.back()));
    }
}

TEST(Histogram, ThePartsMakeTheWhole) {
    Random random(3);
    Histogram whole, parts, part;
    for (int round = 0; round < 20; ++round) {
        part.clear();
        for (uint64_t i = random.below(50); i > 0; --i) {
            const auto v = static_cast<Nanos>(random.below(1U << 30U));
            whole.add(v);
            part.add(v);
        }
        parts.add(part);
    }
    EXPECT_EQ(parts.count(), whole.count());
    EXPECT_EQ(parts.sum(), whole.sum());
    EXPECT_EQ(parts.largest(), whole.largest());
    for (size_t b = 0; b < Histogram::kBuckets; ++b) EXPECT_EQ(parts.in_bucket(b), whole.in_bucket(b));
}

TEST(Histogram, TheSumOfBucketsIsNotKnown) {
    Histogram h;
    h.add_bucket(Histogram::bucket_of(1000), 3);
    EXPECT_FALSE(h.sum().known());
    Histogram other;
    other.add(5);
    other.add(h);
    EXPECT_FALSE(other.sum().known());
    h.note_sum(3000);
    EXPECT_EQ(h.sum(), Measure(3000));
    h.add_bucket(Histogram::kBuckets + 5, 3);  // not one of ours
    EXPECT_EQ(h.count(), 3U);
    h.clear();
    EXPECT_EQ(h.sum(), Measure(0));
}

TEST(Histogram, ClearLeavesNothing) {
    Histogram h;
    h.add(1);
    h.add(INT64_MAX);
    h.clear();
    for (size_t b = 0; b < Histogram::kBuckets; ++b) EXPECT_EQ(h.in_bucket(b), 0U);
    EXPECT_FALSE(h.percentile(1).known());
    h.add(20);
    EXPECT_EQ(h.percentile(0.5), Measure(20));
}

}  // namespace
}  // namespace sluice::trace
