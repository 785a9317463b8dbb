// Owns: a number of the run record that may be absent.
// Keeps: what was not measured is null, never zero; adding to null makes a measurement, reading null is a bug.
#pragma once

#include <cassert>
#include <cstdint>

namespace sluice::trace {

// A whole number (nanoseconds, bytes, a count), or null. The same size as the number.
class Measure {
  public:
    constexpr Measure() = default;
    constexpr Measure(int64_t value) : value_(value) {}  // NOLINT(google-explicit-constructor)

    [[nodiscard]] constexpr bool known() const { return value_ != kNull; }
    [[nodiscard]] constexpr int64_t value() const {
        assert(known());
        return value_;
    }
    [[nodiscard]] constexpr int64_t or_zero() const { return known() ? value_ : 0; }
    // Stays at the end of the range instead of overflowing: records come from files, too.
    constexpr void add(Measure other) {
        if (other.known()) value_ = saturating_add(or_zero(), other.value_);
    }
    static constexpr int64_t saturating_add(int64_t a, int64_t b) {
        int64_t sum = 0;
        if (__builtin_add_overflow(a, b, &sum)) return a > 0 ? INT64_MAX : INT64_MIN + 1;
        return sum;
    }
    friend constexpr bool operator==(Measure, Measure) = default;

  private:
    static constexpr int64_t kNull = INT64_MIN;
    int64_t value_ = kNull;
};

}  // namespace sluice::trace
