// Owns: which record sits in which slot, who is using it, and who has to go.
// Keeps: a record is in at most one slot and a slot holds at most one record; a slot with a lease is never a victim; a
// slot whose record changed has a new generation and no ready bits, so nobody can take old bytes for new ones.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"

namespace sluice::cache {

using SlotId = uint32_t;  // counts through all size classes: class 0's slots first
inline constexpr SlotId kNoSlot = UINT32_MAX;

// Who goes first when a slot is needed.
enum class Policy : uint8_t {
    lru,        // whoever was released longest ago: the control
    frequency,  // whoever was used least, where a use counts half after kHalfLife passes through the model
};
// In passes. Real routes (Qwen3-30B, Gemma-4, gpt-oss-120b) are flat between 8 and 16.
inline constexpr double kHalfLife = 12;

// Bit c set: component number c of the record is there and whole.
using ComponentMask = uint8_t;
constexpr ComponentMask component_bit(uint32_t component) {
    return static_cast<ComponentMask>(1U << component);
}

struct CacheCounters {
    uint64_t evictions = 0;
    uint64_t rereads = 0;  // records brought in again after an eviction
};

// Slots in size classes, each with its own order of eviction. Not thread-safe. Leasing and releasing are O(log n) in
// the slots of a class, O(1) in one that holds all its records; nothing allocates after construction.
//
// With `frequency` a record's weight is the sum of 2^(-age / kHalfLife) over its uses, also those from before it was
// evicted. Since all weights decay alike, their order changes only when one is used; what is kept is the logarithm,
// moved to the time of the first pass, which never has to be brought up to date.
class SlotCache {
  public:
    // `class_of_record[r]` says in which class record r lives; `slots_per_class[c]` how many slots that class has, at
    // least one. Where a class has a slot for every record, each record always gets the slot of its own rank, so that
    // the experts of a layer lie side by side.
    SlotCache(std::vector<uint32_t> class_of_record, std::span<const uint32_t> slots_per_class,
              Policy policy = Policy::lru);

    // A new pass through the model begins.
    void next_pass() { ++pass_; }
    // The router has chosen the record in this pass. Once per pass counts.
    void use(RecordId record);

    // Where the record is, or kNoSlot. Does not touch the order.
    [[nodiscard]] SlotId find(RecordId record) const { return slot_of_[record]; }

    // Gives the record a slot and takes a lease on it: its own slot if it has one, else an empty one, else that of the
    // record without a lease whom the policy names; among equals, who was released longest ago. kNoSlot when every slot
    // of the class is leased.
    SlotId lease(RecordId record);
    // Ends one lease. The record has a lease.
    void release(RecordId record);
    // Forgets the record's bytes (a read failed): the slot becomes empty when its last lease ends.
    void discard(RecordId record);

    [[nodiscard]] ComponentMask ready(SlotId slot) const { return slots_[slot].ready; }
    void mark_ready(SlotId slot, ComponentMask components) {
        slots_[slot].ready = static_cast<ComponentMask>(slots_[slot].ready | components);
    }
    [[nodiscard]] uint32_t generation(SlotId slot) const { return slots_[slot].generation; }
    [[nodiscard]] uint32_t leases(SlotId slot) const { return slots_[slot].leases; }
    [[nodiscard]] uint32_t total_leases() const { return total_leases_; }
    [[nodiscard]] RecordId record(SlotId slot) const { return slots_[slot].record; }

    [[nodiscard]] uint32_t n_slots() const { return static_cast<uint32_t>(slots_.size()); }
    [[nodiscard]] uint32_t n_records() const { return static_cast<uint32_t>(slot_of_.size()); }
    [[nodiscard]] uint32_t n_resident() const { return n_resident_; }
    [[nodiscard]] uint32_t class_of(RecordId record) const { return class_of_record_[record]; }
    // True when each record of the class has its own slot.
    [[nodiscard]] bool class_is_complete(uint32_t c) const { return classes_[c].complete; }
    [[nodiscard]] const CacheCounters& counters() const { return counters_; }

  private:
    struct Slot {
        RecordId record = kNoRecord;
        uint32_t generation = 0;
        uint32_t leases = 0;
        ComponentMask ready = 0;
        bool doomed = false;  // discarded while leased
        // The slot is in exactly one place: leased (nowhere), among its class's victims, or in the list of empty slots.
        SlotId prev = kNoSlot, next = kNoSlot;
        uint32_t size_class = 0;
        uint32_t place = 0;     // among the victims
        uint64_t released = 0;  // number of that release
        double weight = 0;      // of its record then
    };
    struct List {
        SlotId head = kNoSlot, tail = kNoSlot;
    };
    struct Class {
        SlotId first = 0;
        uint32_t n_slots = 0;
        bool complete = false;
        std::vector<SlotId> victims;  // without a lease, as a heap: the first goes first. Unused where complete.
        List empty;                   // head: next to use
    };

    void push_back(List& list, SlotId s);
    void push_front(List& list, SlotId s);
    void unlink(List& list, SlotId s);
    void vacate(SlotId s);
    [[nodiscard]] bool goes_before(SlotId a, SlotId b) const;
    void put(Class& cls, uint32_t place, SlotId s);
    void rise(Class& cls, uint32_t place, SlotId s);
    void sink(Class& cls, uint32_t place, SlotId s);
    void add_victim(Class& cls, SlotId s);
    void remove_victim(Class& cls, SlotId s);

    std::vector<uint32_t> class_of_record_;
    std::vector<SlotId> slot_of_;
    std::vector<SlotId> home_;  // of records of complete classes
    std::vector<bool> was_evicted_;
    std::vector<Slot> slots_;
    std::vector<Class> classes_;
    Policy policy_;
    uint64_t pass_ = 1;
    uint64_t releases_ = 0;
    std::vector<double> weight_;     // by record: log2 of its weight; only with frequency
    std::vector<uint64_t> used_in_;  // by record: the pass that counted it last
    uint32_t n_resident_ = 0;
    uint32_t total_leases_ = 0;
    CacheCounters counters_;
};

}  // namespace sluice::cache
