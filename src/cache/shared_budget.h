// Owns: the one budget of a process for experts, and its shares: one for each model's slots.
// Keeps: the shares' limits never sum to more than the budget allows; memory is looked at at most every kLookEvery and
// before each slab, never per expert.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "cache/governor.h"

namespace sluice::cache {

class SharedBudget;

// One model's part. It leaves the budget when it goes. limit() and may_take() are its holder's; holds() too.
class BudgetShare {
  public:
    ~BudgetShare();
    BudgetShare(const BudgetShare&) = delete;
    BudgetShare& operator=(const BudgetShare&) = delete;

    // How many bytes it may hold now; looks at memory if it is time to. Who holds more gives back when he can.
    uint64_t limit();
    // Whether so much more may be taken. Reads memory.
    bool may_take(uint64_t bytes);
    // What it holds now.
    void holds(uint64_t bytes) { held_.store(bytes, std::memory_order_relaxed); }
    [[nodiscard]] uint64_t held() const { return held_.load(std::memory_order_relaxed); }
    // Memory beside that, which it will hold later and which nobody else has.
    void has_beside(uint64_t bytes) { beside_.store(bytes, std::memory_order_relaxed); }
    // Rises with every look at memory: what was denied may be asked for again.
    [[nodiscard]] uint64_t looks() const;

  private:
    friend class SharedBudget;
    BudgetShare(SharedBudget& budget, uint64_t least, uint64_t most) : budget_(budget), least_(least), most_(most) {}
    SharedBudget& budget_;
    uint64_t least_, most_;
    std::atomic<uint64_t> limit_{0};
    std::atomic<uint64_t> held_{0}, beside_{0};
};

// Thread-safe.
class SharedBudget {
  public:
    // Reads process and machine. Called by whoever asks, one at a time.
    using Read = std::function<Readings()>;
    // Is told what the governor decided, with the bytes that experts may take from then on.
    using Tell = std::function<void(Governor::Decision, uint64_t limit)>;

    // `clock` outlives the budget, the budget its shares. Floor and ceiling of `options` are those of all shares
    // together.
    SharedBudget(const Clock& clock, Read read, Governor::Options options, Tell tell = {});

    // A share of at least `least` bytes and at most `most`. What others hold beyond their new part they give back at
    // their next look. `found`, if given, is what there was for all.
    std::unique_ptr<BudgetShare> join(uint64_t least, uint64_t most, Governor::Room* found = nullptr);
    // Somebody takes so much for something else now: the limit falls if that would leave too little. Returns false if
    // there is not enough even with experts at their least.
    bool make_room(uint64_t bytes);

    // At most so many bytes for all until the next call; absent: no such limit.
    void set_limit(std::optional<uint64_t> bytes);
    // Looks now if it is time to. For who holds no share's slots.
    void look();
    // Of all shares.
    [[nodiscard]] uint64_t limit() const;
    [[nodiscard]] uint64_t held() const;
    [[nodiscard]] uint64_t least() const;
    [[nodiscard]] size_t shares() const;

    static constexpr Nanos kLookEvery = 200'000'000;

  private:
    friend class BudgetShare;
    void leave(BudgetShare& share);
    void look_locked(Nanos now);
    void divide();
    void tell(Governor::Decision decision);
    [[nodiscard]] uint64_t held_locked() const;
    [[nodiscard]] Readings readings() const;

    const Clock& clock_;
    Read read_;
    Tell tell_;
    std::atomic<Nanos> next_look_{0};
    std::atomic<uint64_t> looks_{0};
    mutable std::mutex mutex_;
    uint64_t floor_, ceiling_;  // as told
    Governor governor_;
    std::vector<BudgetShare*> shares_;
    bool stuck_ = false;  // was told
};

}  // namespace sluice::cache
