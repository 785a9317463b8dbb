// Owns: many durations as counts, for percentiles.
// Keeps: fixed memory; a percentile is at most 1/16 above the true one and never below it, the largest is exact. The
// sum is exact or null.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "trace/measure.h"

namespace sluice::trace {

// Buckets are sixteenths of powers of two. Not thread-safe.
class Histogram {
  public:
    static constexpr unsigned kSteps = 16;
    static constexpr size_t kBuckets = size_t{64} * kSteps;

    void add(Nanos value) {
        count(bucket_of(value), 1);
        if (value > largest_) largest_ = value;
        sum_ = Measure::saturating_add(sum_, value > 0 ? value : 0);
    }
    // What they add up to is no longer known then.
    void add_bucket(size_t bucket, uint64_t n) {
        if (n == 0 || bucket >= kBuckets) return;
        count(bucket, n);
        sum_known_ = false;
    }
    void add(const Histogram& other) {
        for (size_t b = other.low_; b <= other.high_ && b < kBuckets; ++b) {
            if (other.counts_[b] > 0) count(b, other.counts_[b]);
        }
        if (other.largest_ > largest_) largest_ = other.largest_;
        sum_ = Measure::saturating_add(sum_, other.sum_);
        sum_known_ = sum_known_ && other.sum_known_;
    }
    void clear() {
        for (size_t b = low_; b <= high_ && b < kBuckets; ++b) counts_[b] = 0;
        n_ = 0;
        sum_ = 0;
        sum_known_ = true;
        largest_ = 0;
        low_ = kBuckets;
        high_ = 0;
    }

    [[nodiscard]] uint64_t count() const { return n_; }
    [[nodiscard]] Nanos largest() const { return largest_; }
    [[nodiscard]] Measure sum() const { return sum_known_ ? Measure(sum_) : Measure(); }
    // From a record, which knows it.
    void note_sum(Measure sum) {
        sum_known_ = sum.known();
        sum_ = sum.or_zero();
    }
    void note_largest(Nanos value) {
        if (value > largest_) largest_ = value;
    }
    // `share` in (0, 1]. Null when empty.
    [[nodiscard]] Measure percentile(double share) const {
        if (n_ == 0) return {};
        const auto wanted = static_cast<double>(n_) * share;
        uint64_t seen = 0;
        for (size_t b = low_; b <= high_; ++b) {
            seen += counts_[b];
            if (static_cast<double>(seen) >= wanted) {
                const Nanos top = upper_bound(b);
                return largest_ > 0 && largest_ < top ? largest_ : top;
            }
        }
        return largest_;
    }
    [[nodiscard]] uint64_t in_bucket(size_t bucket) const { return counts_[bucket]; }

    // Values below 16 have a bucket each; above, sixteen to a power of two.
    static size_t bucket_of(Nanos value) {
        if (value < static_cast<Nanos>(kSteps)) return value < 0 ? 0 : static_cast<size_t>(value);
        const auto v = static_cast<uint64_t>(value);
        const auto power = static_cast<unsigned>(std::bit_width(v)) - 1U;  // 4..62
        return size_t{power - 3U} * kSteps + ((v >> (power - 4U)) & (kSteps - 1U));
    }
    // The largest value that falls into the bucket.
    static Nanos upper_bound(size_t bucket) {
        if (bucket < kSteps) return static_cast<Nanos>(bucket);
        const size_t power = bucket / kSteps + 3;
        const uint64_t first = (uint64_t{kSteps} + bucket % kSteps) << (power - 4);
        return static_cast<Nanos>(first + (uint64_t{1} << (power - 4)) - 1);
    }

  private:
    void count(size_t bucket, uint64_t n) {
        counts_[bucket] += n;
        n_ += n;
        if (bucket < low_) low_ = bucket;
        if (bucket > high_) high_ = bucket;
    }

    std::array<uint64_t, kBuckets> counts_{};
    uint64_t n_ = 0;
    Nanos sum_ = 0;
    bool sum_known_ = true;
    Nanos largest_ = 0;
    size_t low_ = kBuckets, high_ = 0;
};

}  // namespace sluice::trace
