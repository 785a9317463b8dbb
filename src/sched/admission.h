// Owns: whether a speculative read may go to the device now.
// Keeps: speculative bytes at the device never exceed the window, from which follows how long an exact read can be
// delayed; speculation has only the bandwidth that exact reads leave; what it reads in vain stays below a share of what
// has to be read; without a measured device there is none.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"
#include "machine/verdict.h"

namespace sluice::sched {

// What is known of the device, from a measurement of it. Zero: not measured.
struct DeviceModel {
    double bytes_per_ns = 0;  // that it sustains
    Nanos service = 0;        // of one piece of `chunk` bytes, median
    uint32_t chunk = 0;       // largest piece of a speculative read, aligned
    uint64_t window = 0;      // speculative bytes at the device at most
    uint32_t reserved_lanes = 1;
    uint32_t lanes = 8;
    [[nodiscard]] bool measured() const { return bytes_per_ns > 0 && chunk > 0 && window >= chunk; }
    // The longest that speculation at the device can hold up exact reads: the window's bytes and one service time. As
    // far as the numbers hold: for the drive at its sustained rate, and for pieces that are no slower than most.
    [[nodiscard]] Nanos worst_delay() const {
        return static_cast<Nanos>(static_cast<double>(window) / bytes_per_ns) + service;
    }
};

// From what `sluice probe` found. A drive on which any speculation delays exact reads too much counts as not measured.
inline DeviceModel device_model(const machine::Derived& found) {
    return {.bytes_per_ns = found.sustained,
            .service = found.service,
            .chunk = static_cast<uint32_t>(std::min<uint64_t>(found.chunk, 1U << 30U)),
            .window = found.window,
            .reserved_lanes = found.reserved,
            .lanes = found.lanes};
}

enum class Refusal : uint8_t {
    none,
    not_measured,
    switched_off,
    exact_waiting,
    window_full,
    lanes_taken,
    no_bandwidth,
    no_gap,
    too_much_in_vain,
};
inline constexpr size_t kRefusals = 9;

class Admission {
  public:
    explicit Admission(const DeviceModel& device)
        : device_(device),
          tokens_(static_cast<double>(device.window)),
          allowance_(kAllowance * static_cast<double>(device.window)) {}

    static constexpr Nanos kNoGap = 0;
    // Whether a piece that begins now is worth it although it may still be under way at `until`, when somebody comes
    // who waits for other reads: by the chance that it is wanted then. The part of it that comes before is a gain if it
    // is, all of it a delay if it is not.
    [[nodiscard]] bool fits(Nanos now, Nanos until, double sure) const {
        const Nanos left = until - now;
        if (left >= device_.service) return true;
        return left > 0 && sure * static_cast<double>(left) > (1 - sure) * static_cast<double>(device_.service);
    }
    // Whether a piece of `bytes` may go now. `exact_waiting`: exact reads are queued or at the device; `outstanding`:
    // all pieces there; `gap_end`: when the next exact reads are expected, kNoGap where nobody knows; `sure`: the
    // chance that it is wanted.
    [[nodiscard]] Refusal ask(uint32_t bytes, Nanos now, bool exact_waiting, uint32_t outstanding, Nanos gap_end,
                              double sure) {
        if (!device_.measured()) return Refusal::not_measured;
        if (off_) return Refusal::switched_off;
        if (exact_waiting) return Refusal::exact_waiting;
        if (in_flight_ + bytes > device_.window) return Refusal::window_full;
        if (outstanding + device_.reserved_lanes >= device_.lanes) return Refusal::lanes_taken;
        if (!fits(now, gap_end, sure)) return Refusal::no_gap;
        refill(now);
        if (tokens_ < bytes) return Refusal::no_bandwidth;
        if (allowance_ < bytes) return Refusal::too_much_in_vain;
        return Refusal::none;
    }
    void submitted(uint32_t bytes) {
        in_flight_ += bytes;
        tokens_ -= bytes;
        allowance_ -= bytes;
    }
    // Bytes that speculation has read, or begun to, were wanted then.
    void used(uint64_t bytes) { allow(static_cast<double>(bytes)); }
    void completed(uint32_t bytes) { in_flight_ -= std::min<uint64_t>(in_flight_, bytes); }
    // Bytes of a prediction that became exact are no longer speculation's.
    void promoted(uint32_t bytes_at_device) { completed(bytes_at_device); }
    void exact(uint32_t bytes, Nanos now) {
        refill(now);
        tokens_ -= bytes;  // exact demand comes out of the same bandwidth, and may overdraw it
        tokens_ = std::max(tokens_, -static_cast<double>(device_.window) * kDebt);
        allow(kMostInVain * bytes);
    }

    // A prediction ended: used, or evicted unused. The switch looks at kJudged of them at a time. True if this turns
    // speculation off.
    bool judge(bool useful) {
        useful_ += useful ? 1 : 0;
        if (++judged_ < kJudged) return false;
        const bool worth_it = useful_ >= kOffBelow * kJudged;
        judged_ = useful_ = 0;
        if (off_ || worth_it) return false;
        off_ = true;
        resume_in_ = kRestLayers;
        ++switched_off_;
        return true;
    }
    // Called once per layer; speculation is tried again after a rest, and judged anew. True if that is now.
    bool layer() {
        if (!off_ || --resume_in_ > 0) return false;
        off_ = false;
        return true;
    }

    [[nodiscard]] uint64_t in_flight() const { return in_flight_; }
    [[nodiscard]] bool off() const { return off_; }
    [[nodiscard]] uint64_t times_switched_off() const { return switched_off_; }
    [[nodiscard]] const DeviceModel& device() const { return device_; }

    // Bytes that are read for nothing, or not used yet, by bytes of exact reads: over any stretch of time at most this
    // share of them, and kAllowance windows.
    static constexpr double kMostInVain = 0.5;
    static constexpr double kAllowance = 16;
    static constexpr uint32_t kJudged = 64;
    static constexpr double kOffBelow = 0.25;
    static constexpr uint32_t kRestLayers = 4096;

  private:
    static constexpr double kDebt = 8;

    void allow(double bytes) {
        allowance_ = std::min(allowance_ + bytes, kAllowance * static_cast<double>(device_.window));
    }
    void refill(Nanos now) {
        if (now > last_) tokens_ += static_cast<double>(now - last_) * device_.bytes_per_ns;
        last_ = std::max(last_, now);
        tokens_ = std::min(tokens_, static_cast<double>(device_.window));
    }

    DeviceModel device_;
    uint64_t in_flight_ = 0;
    double tokens_ = 0;
    double allowance_ = 0;
    Nanos last_ = 0;
    bool off_ = false;
    uint32_t judged_ = 0, useful_ = 0, resume_in_ = 0;
    uint64_t switched_off_ = 0;
};

}  // namespace sluice::sched
