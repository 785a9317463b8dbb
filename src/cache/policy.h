// Owns: in which order records that nobody has leased give their slots away.
// Keeps: the order is a function of the calls alone; nothing allocates after construction; what a policy has learned of
// a record stays when the record goes.
//
// What `reuse` knows of the past is told by two sums for each record, and by cache/echo.h.
//
// Time is counted in visits of a record's own set (the experts of one layer), not in passes through the model: halfway
// through a token, an expert of a layer that has had its turn is not younger than one whose turn is still to come. Each
// set keeps its records in a heap, rebuilt once in a visit, when its uses are known, which is when their keys change;
// across sets the first of each are compared. A decision takes O(sets + log slots), 3 ns for each set, a visit
// O(experts of the set), and O(tokens that Echo remembers) if it listens.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "cache/echo.h"

namespace sluice::cache {

// Who goes first when a slot is needed.
enum class Policy : uint8_t {
    lru,        // who was released longest ago: the control
    frequency,  // who was used least, where a use counts half after kHalfLife visits
    reuse,   // whose next use is farthest: from how often and how lately it was used, what followed when routers chose
             // as they do now, and when its layer's turn is
    stall,   // the same, weighed by what waiting for a byte of it would cost (Order::set_cost); among records of one
             // size that is `reuse`
    hinted,  // as reuse, but who was told when the next use is goes by that (Order::hint)
    lfru,    // the longest time since its last use by number of uses, those before it was evicted too
    age_count,  // the same, with uses since it came
    staleness,  // of the layer whose turn is farthest; there, who was released longest ago
};
inline constexpr std::array<std::string_view, 8> kPolicyNames{"lru",    "frequency", "reuse",     "stall",
                                                              "hinted", "lfru",      "age-count", "staleness"};
constexpr std::string_view name_of(Policy policy) {
    return kPolicyNames[static_cast<size_t>(policy)];
}
constexpr std::optional<Policy> policy_named(std::string_view name) {
    for (size_t i = 0; i < kPolicyNames.size(); ++i) {
        if (kPolicyNames[i] == name) return static_cast<Policy>(i);
    }
    return std::nullopt;
}

// Of `frequency`, in visits. Real routes (Qwen3-30B, Gemma-4, gpt-oss-120b) are flat between 8 and 16.
inline constexpr double kHalfLife = 12;

// So few rows at once may be of several sequences, none of which follows on another, whatever the visit is called. What
// they choose is counted, and not listened to (cache/echo.h).
inline constexpr uint32_t kUnclearRows = 16;

// What `reuse` believes. The chance that a record is used in its layer's next visit is taken from two sums over its
// uses in which old ones count less, one that forgets within a token or two, and one that remembers a few dozen; and
// from what followed on tokens that chose alike (cache/echo.h). How these were chosen, and what other
// values do: docs/results/cache-policy.md.
struct Tuning {
    double short_half_life = 0.5;
    double long_half_life = 10;
    double short_share = 0.2;   // of what the sums tell; the rest is the long one's
    double phase = 2;           // how much the place of the layer's turn counts, in visits for a whole round
    double prompt_share = 0.5;  // what a use by a token of the prompt counts
    double echo_share = 0.4;    // of the estimate: what followed on tokens that chose alike; 0: nobody listens
    double echo_sharpness = 8;  // how much more a token counts that chose alike (Echo)
};

class Order {
  public:
    // `set_of_record` rises with the record, and records of a set are of one class. Sets of one class compete for the
    // same slots.
    Order(std::span<const uint32_t> set_of_record, std::span<const uint32_t> class_of_record, size_t n_classes,
          Policy policy, const Tuning& tuning);

    // The model computes a set's block for so many tokens. Once per block, before its uses.
    void visit(uint32_t set, uint32_t tokens, bool prompt);
    // A token of this visit uses the record; `age`: how many tokens of the visit come after it.
    void use(RecordId record, uint32_t age);
    // The visit's uses are told, and somebody may have to go: orders its set anew. Until then the order of that set is
    // the one before. Adding a record does it, too; the next visit, if nobody has.
    void settle() {
        if (unsettled_ != kNowhere) settle_now(true);
    }
    // Whether the record was used in its set's present visit.
    [[nodiscard]] bool used_now(RecordId record) const { return used_in_[record] == visits_[set_of_[record]]; }

    // The record may go; it is in no order yet. `came`: it was given its slot since it was last here.
    void add(RecordId record, bool came);
    // The same for one that note_rest() was told of: its place among equals is by that, and not by this call.
    void add_late(RecordId record);
    // Nobody holds the record any more, though it need not go: remembers when.
    void note_rest(RecordId record) { released_[record] = ++releases_; }
    // It may not.
    void remove(RecordId record);
    [[nodiscard]] bool has(RecordId record) const { return place_[record] != kNowhere; }
    // Who of the class goes first, or kNoRecord.
    [[nodiscard]] RecordId first(uint32_t size_class) const;
    [[nodiscard]] uint32_t n(uint32_t size_class) const { return classes_[size_class].n; }
    // By what records are compared, also one that may not go: the longer, the sooner. `lru` knows no difference.
    [[nodiscard]] double wait(RecordId record) const { return key(record) + turn(set_of_[record]); }

    // `stall`: what one byte of this set's records saves when it need not be read, in any unit that all sets share.
    void set_cost(uint32_t set, double per_byte) { cost_[set] = per_byte; }
    // `hinted`: the record will be used again after so many visits of its set (0: in the next one), as far as is known
    // now. It holds until the record's next use, or until it should have been used.
    void hint(RecordId record, uint32_t visits);
    // The same where only so much is known, that the next so many visits do not use it.
    void hint_idle(RecordId record, uint32_t visits);
    // Every policy: somebody expects the record in its set's next visit. Until that begins it goes after all others.
    void retain(RecordId record);
    // What the set's next visit uses is known, and is retained: the others have their turn in the visit after that.
    void decide(uint32_t set) { decided_[set] = 1; }
    [[nodiscard]] bool retained(RecordId record) const { return kept_until_[record] > visits_[set_of_[record]]; }

    // The chance of a use in the next visit as `reuse` sees it, and a value to begin with: as if the record had had
    // that chance for as long as the long sum remembers, weighed by `trust` in [0, 1].
    [[nodiscard]] double chance(RecordId record) const;
    void expect(RecordId record, double chance, double trust);
    // Since the first call, of every policy but `lru`: tokens that came through a set, prompts' too, and those of them
    // that used a record.
    [[nodiscard]] uint64_t tokens(uint32_t set) const { return tokens_[set]; }
    [[nodiscard]] uint64_t token_uses(RecordId record) const { return token_uses_[record]; }
    [[nodiscard]] uint32_t n_sets() const { return static_cast<uint32_t>(visits_.size()); }
    // First record of a set; of the number of sets, the number of records.
    [[nodiscard]] RecordId begin(uint32_t set) const { return set_begin_[set]; }
    [[nodiscard]] Policy policy() const { return policy_; }
    [[nodiscard]] uint32_t set_of(RecordId record) const { return set_of_[record]; }

  private:
    static constexpr uint32_t kNowhere = UINT32_MAX;
    static constexpr uint64_t kNever = UINT64_MAX;

    struct Group {  // who may go, of one set; of a whole class where the turn of layers does not matter
        std::vector<RecordId> heap;
    };
    struct Class {
        uint32_t first_group = 0, n_groups = 0;  // in groups_of_class_
        uint32_t n = 0;
    };

    [[nodiscard]] uint32_t group_of(RecordId record) const { return group_of_set_[set_of_[record]]; }
    [[nodiscard]] double key(RecordId record) const;
    [[nodiscard]] double turn(uint32_t set) const;
    [[nodiscard]] bool goes_before(RecordId a, RecordId b) const {
        return key_[a] != key_[b] ? key_[a] > key_[b] : released_[a] < released_[b];
    }
    void settle_now(bool wanted);
    void rekey(RecordId record);
    void end_retention(uint32_t set);
    void put(Group& group, uint32_t place, RecordId record);
    void rise(Group& group, uint32_t place, RecordId record);
    void sink(Group& group, uint32_t place, RecordId record);

    Policy policy_;
    Tuning tuning_;
    double short_keep_ = 0, long_keep_ = 0;                 // what a use is worth one token later
    std::array<double, 256> short_worth_{}, long_worth_{};  // and after so many; nothing after more
    std::vector<uint32_t> set_of_;                          // by record
    std::vector<uint32_t> class_of_;                        // by record
    std::vector<uint32_t> set_begin_;                       // first record of each set, and one past the last
    std::vector<uint32_t> group_of_set_;
    std::vector<uint32_t> groups_of_class_;
    std::vector<uint32_t> set_of_group_;
    std::vector<Group> groups_;
    std::vector<Class> classes_;
    std::vector<double> cost_;      // by set
    std::vector<uint64_t> visits_;  // by set
    std::vector<uint64_t> tokens_;  // by set
    std::vector<uint8_t> prompt_;   // by set: its present visit is one of a prompt
    std::vector<uint8_t> decided_;  // by set: what its next visit uses is known
    std::vector<uint8_t> keeps_;    // by set: records of it were retained for its next visit
    std::optional<Echo> echo_;      // of policies that ask for the chance of a use
    std::vector<double> echoes_;    // by record: the chance it gave when the set was settled last
    std::vector<double> heard_;     // by set: how much that counts in the estimate
    bool listens_ = false;          // to the present visit
    uint32_t now_ = 0;              // set visited last
    uint32_t unsettled_ = kNowhere;
    uint64_t releases_ = 0;

    // By record.
    std::vector<double> short_, long_;
    std::vector<double> key_;           // among those who may go: the greatest goes first
    std::vector<uint64_t> released_;    // number of its last release
    std::vector<uint64_t> used_in_;     // visit of its set
    std::vector<uint64_t> due_;         // visit of its set in which it is expected
    std::vector<uint64_t> idle_;        // it is not expected until after this one
    std::vector<uint64_t> kept_until_;  // visit of its set that ends its retention
    std::vector<uint64_t> token_uses_;
    std::vector<uint32_t> uses_;   // ever, or since it came
    std::vector<uint32_t> place_;  // in its group's heap
};

}  // namespace sluice::cache
