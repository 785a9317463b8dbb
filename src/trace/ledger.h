// Owns: where the wall time of one row goes while it goes.
// Keeps: at any moment exactly one part is running, so the parts sum to the wall time exactly, whatever happens in
// between. A part that is not watched costs no reading of the clock: its time goes to the part around it.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "trace/schema.h"

namespace sluice::trace {

using PartMask = uint32_t;
constexpr PartMask bit(Part part) {
    return PartMask{1} << static_cast<unsigned>(part);
}
template <typename... P>
constexpr PartMask parts_of(P... part) {
    return (bit(part) | ...);
}

// A stretch of one part's time, for the picture of a single token.
struct Span {
    Part part = Part::overhead;
    int32_t layer = -1;  // -1: none
    Nanos begin = 0, end = 0;
};

// Used by one thread at a time.
class Ledger {
  public:
    // `watched`: parts that are told apart; overhead always is. `clock` outlives the ledger.
    Ledger(const Clock& clock, PartMask watched) : clock_(&clock) { watch(watched); }

    void watch(PartMask watched) { watched_ = watched | bit(Part::overhead); }
    [[nodiscard]] PartMask watched() const { return watched_; }

    // A new row begins now, in `part`.
    void start(Part part = Part::overhead) {
        begin_ = last_ = clock_->now();
        spent_.fill(0);
        current_ = watched(part) ? part : Part::overhead;
        running_ = true;
    }
    // Accounts for the time up to now, so that wall() and spent() are of this moment.
    void mark() {
        if (running_) settle();
    }
    // The next row begins where the last mark() or change of parts was; what is running keeps running.
    void next_row() {
        begin_ = last_;
        spent_.fill(0);
    }
    // The row ended at the last mark() or change of parts; nothing runs until the next start().
    void stop_at_mark() { running_ = false; }
    [[nodiscard]] bool running() const { return running_; }

    // Time from now on belongs to `part`. Returns what ran before, for going back.
    Part enter(Part part) {
        const Part before = current_;
        if (!running_ || part == current_ || !watched(part)) return before;
        settle();
        current_ = part;
        return before;
    }
    // The layer that spans belong to from now on.
    void at_layer(int32_t layer) { layer_ = layer; }

    // Of the row so far, up to the last change of parts.
    [[nodiscard]] Nanos spent(Part part) const { return spent_[static_cast<size_t>(part)]; }
    [[nodiscard]] Nanos wall() const { return last_ - begin_; }
    [[nodiscard]] Nanos begin() const { return begin_; }
    [[nodiscard]] const Clock& clock() const { return *clock_; }

    // While set, every stretch of time is appended there. nullptr: none.
    void keep_spans(std::vector<Span>* spans) { spans_ = spans; }

  private:
    [[nodiscard]] bool watched(Part part) const { return (watched_ & bit(part)) != 0; }
    void settle() {
        const Nanos now = clock_->now();
        spent_[static_cast<size_t>(current_)] += now - last_;
        if (spans_ != nullptr && now > last_) spans_->push_back({current_, layer_, last_, now});
        last_ = now;
    }

    const Clock* clock_;
    PartMask watched_ = 0;
    Part current_ = Part::overhead;
    bool running_ = false;
    int32_t layer_ = -1;
    Nanos begin_ = 0, last_ = 0;
    std::array<Nanos, kParts> spent_{};
    std::vector<Span>* spans_ = nullptr;
};

// A part for the length of a scope.
class During {
  public:
    During(Ledger& ledger, Part part) : ledger_(ledger), before_(ledger.enter(part)) {}
    ~During() { ledger_.enter(before_); }
    During(const During&) = delete;
    During& operator=(const During&) = delete;

  private:
    Ledger& ledger_;
    Part before_;
};

// The same where there may be no ledger.
class MaybeDuring {
  public:
    MaybeDuring(Ledger* ledger, Part part) : ledger_(ledger), before_(ledger != nullptr ? ledger->enter(part) : part) {}
    ~MaybeDuring() {
        if (ledger_ != nullptr) ledger_->enter(before_);
    }
    MaybeDuring(const MaybeDuring&) = delete;
    MaybeDuring& operator=(const MaybeDuring&) = delete;

  private:
    Ledger* ledger_;
    Part before_;
};

}  // namespace sluice::trace
