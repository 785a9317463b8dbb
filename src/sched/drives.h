// Owns: which holder of a component a read of it goes to, where several have it.
// Keeps: ordinary reads are shared out so that each holder is done with its part at the same time, as far as its speed
// is known; a holder whose reads keep failing is retired and gets only what nobody else can give; for one wish, no
// holder is asked again that has used up its attempts.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "store/record_store.h"

namespace sluice::sched {

using store::HolderId;

// Not thread-safe; nothing allocates after construction.
class Drives {
  public:
    static constexpr HolderId kNoHolder = UINT8_MAX;
    // This many reads in a row that fail retire a holder.
    static constexpr uint32_t kRetireAfter = 4;

    // The store outlives this.
    explicit Drives(const store::RecordStore& store);

    // Who reads the component next; `exhausted`: bit h set where holder h has had its attempts at it. kNoHolder when
    // all have. Holders that share come first, of those the one that would be done first; then the others; retired
    // ones last.
    [[nodiscard]] HolderId choose(RecordId record, uint32_t component, uint32_t bytes, uint8_t exhausted) const;

    // A stretch of a read goes to the holder's drive, and comes back.
    void submitted(HolderId h, uint32_t bytes, Nanos now);
    void completed(HolderId h, uint32_t bytes, Nanos now);
    // Whether a whole component came, without error and with the right bytes. True if that retires the holder just now.
    bool judged(HolderId h, bool good);

    [[nodiscard]] bool single() const { return drives_.size() == 1; }
    [[nodiscard]] bool retired(HolderId h) const { return drives_[h].retired; }
    [[nodiscard]] uint64_t in_flight(HolderId h) const { return drives_[h].in_flight; }
    // Bytes per nanosecond while it had anything to do; 0 before it is known.
    [[nodiscard]] double speed(HolderId h) const { return drives_[h].speed(); }

  private:
    struct Drive {
        bool shares = false;
        bool retired = false;
        uint32_t failures = 0;  // in a row
        uint64_t in_flight = 0;
        Nanos busy_since = 0;
        double bytes = 0, busy = 0;  // recent ones count most
        [[nodiscard]] double speed() const { return bytes >= kLeast && busy > 0 ? bytes / busy : 0; }
        // Below this nothing is said about speed; above kMost what was before counts half.
        static constexpr double kLeast = 1 << 20U, kMost = 64 << 20U;
    };

    const store::RecordStore& store_;
    std::vector<Drive> drives_;
};

}  // namespace sluice::sched
