// Owns: the decision how much memory experts may take, from what was read about process and machine.
// Keeps: pure: the same readings give the same decisions, and time is part of them. What it allows is within the floor
// and the ceiling; it goes down at once and comes back slowly, later after every time it went down again, so that it
// cannot swing; above what it was told by set_limit() it never goes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/bytes.h"
#include "base/clock.h"

namespace sluice::cache {

// What was read, in bytes; absent: it could not be.
struct Readings {
    Nanos now = 0;
    std::optional<uint64_t> process;  // memory of this process, the experts' included, also what is swapped out
    std::optional<uint64_t> free;     // what machine and memory cgroup still have for it
    std::optional<double> pressure;   // parts of a hundred of the last ten seconds in which somebody waited for memory
    uint64_t pending = 0;             // of the process, not touched yet but sure to be (compute buffers)
};

class Governor {
  public:
    struct Options {
        std::optional<uint64_t> ram;      // for the whole process
        uint64_t margin = 8 * MiB;        // of it, kept for what comes and goes between two looks
        uint64_t reserve = 256 * MiB;     // of free memory, kept for others
        uint64_t floor = 0;               // experts keep this whatever happens
        uint64_t ceiling = UINT64_MAX;    // and take this at most
        bool heeds_pressure = true;       // goes down when others wait for memory, even if there seems to be some
        Nanos patience = 10'000'000'000;  // after going down, for the first time
    };
    enum class Change : uint8_t { none, down, up, denied, stuck };  // stuck: at the floor, and it is still too much
    enum class Cause : uint8_t { none, ram, free, pressure, told };
    struct Decision {
        Change change = Change::none;
        Cause cause = Cause::none;
    };

    // What there is for experts, and why it is not more.
    struct Room {
        uint64_t bytes = 0;
        Cause cause = Cause::none;  // of its being less than the ceiling
        bool below_floor = false;   // it would be less than the floor, which it is now
    };

    explicit Governor(Options options) : options_(options), wait_(options.patience) {}

    // Somebody is going to take memory: what is there now is the limit, as if more had been denied.
    Room begin(const Readings& now, uint64_t held);

    // Looks at what was read; `held` are the bytes that experts take now. limit() is then up to date.
    Decision look(const Readings& now, uint64_t held);
    // Whether so much more may be taken now. What is denied is not allowed again before memory was free for a while.
    bool may_take(const Readings& now, uint64_t held, uint64_t bytes);
    // From outside: at most so many bytes until the next call; absent: no such limit any more.
    void set_limit(std::optional<uint64_t> bytes);
    void set_bounds(uint64_t floor, uint64_t ceiling);

    [[nodiscard]] uint64_t limit() const;
    [[nodiscard]] const Options& options() const { return options_; }

    // Pressure from which on it goes down, and below which it may grow.
    static constexpr double kPressed = 10;
    static constexpr double kCalm = 1;
    static constexpr Nanos kSecond = 1'000'000'000;
    static constexpr Nanos kBetweenSteps = 2 * kSecond;
    static constexpr Nanos kOneEvent = 5 * kSecond;  // steps down within this of each other count as one
    static constexpr Nanos kLongestWait = 320 * kSecond;
    static constexpr Nanos kForget = 600 * kSecond;  // without going down: the wait is short again

  private:
    // What experts may hold; with part = 2 only half of margin and reserve is kept.
    [[nodiscard]] Room room(const Readings& now, uint64_t held, unsigned part) const;
    [[nodiscard]] bool pressed(const Readings& now) const;
    [[nodiscard]] uint64_t step() const;
    [[nodiscard]] uint64_t least_step() const;
    uint64_t drop(const Readings& now, uint64_t seen);
    void freeze(Nanos now);

    Options options_;
    std::optional<uint64_t> told_;
    std::optional<uint64_t> own_;  // the limit that it has set itself: it went down, or denied something
    Nanos wait_ = 0;               // before the next step up
    uint64_t taken_ = 0;           // by the last step down for want of free memory
    Nanos went_down_ = 0;          // last
    bool has_gone_down_ = false;
    std::optional<Nanos> roomy_since_;  // there has been memory to grow into
};

const char* cause_text(Governor::Cause cause);

}  // namespace sluice::cache
