// Owns: the notion of time. Everything that measures or waits takes a Clock, so that tests run on a virtual one.
// Keeps: time never goes backwards.
#pragma once

#include <cstdint>
#include <string>

namespace sluice {

// Nanoseconds since an arbitrary fixed point.
using Nanos = int64_t;

class Clock {
  public:
    virtual ~Clock() = default;
    // Thread-safe.
    [[nodiscard]] virtual Nanos now() const = 0;
};

// CLOCK_MONOTONIC.
class SystemClock final : public Clock {
  public:
    [[nodiscard]] Nanos now() const override;
    static const SystemClock& instance();
};

// Moves only when told to. Not thread-safe.
class VirtualClock final : public Clock {
  public:
    [[nodiscard]] Nanos now() const override { return now_; }
    void advance_to(Nanos t) {
        if (t > now_) now_ = t;
    }

  private:
    Nanos now_ = 0;
};

// The date and time, so many seconds ago, for people and files: "2026-11-30T14:05:00Z". Nothing is measured with it.
std::string utc_text(uint64_t seconds_ago = 0);

}  // namespace sluice
