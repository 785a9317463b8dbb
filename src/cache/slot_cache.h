// Owns: which record sits in which slot, who is using it, and who has to go.
// Keeps: a record is in at most one slot and a slot holds at most one record; a slot with a lease is never a victim; a
// slot whose record changed has a new generation and no ready bits, so nobody can take old bytes for new ones; guests
// push out no more members than their limit, but for such as only prompts have used; no more slots are touched than the
// cap allows, but for those that were leased when it fell.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "cache/policy.h"

namespace sluice::cache {

using SlotId = uint32_t;  // counts through all size classes: class 0's slots first
inline constexpr SlotId kNoSlot = UINT32_MAX;

// How a record that is not there gets a slot.
enum class Seat : uint8_t {
    member,  // an empty slot, else the guest's who has been there longest, else that of whom the policy names
    guest,   // an empty slot, which makes it a member; else that of whom the policy names while guests are fewer than
             // their limit, else the guest's who has been there longest; but if whom the policy names came as a guest,
             // too, and is wanted less than that guest, the guest becomes a member and the other one goes
    trial,   // as a guest's, but a guest also in an empty slot: for what nobody has asked for yet, a prediction
};

// Bit c set: component number c of the record is there and whole.
using ComponentMask = uint8_t;
constexpr ComponentMask component_bit(uint32_t component) {
    return static_cast<ComponentMask>(1U << component);
}

struct CacheCounters {
    uint64_t evictions = 0;
    uint64_t rereads = 0;    // records brought in again after an eviction
    uint64_t shrunk = 0;     // of the evictions: because the cap fell
    uint64_t predicted = 0;  // of the evictions: for a prediction
};

// Slots in size classes, each with its own order of eviction (cache/policy.h). Not thread-safe. Leasing and releasing
// are O(log n) in the slots of a class, and O(sets) more if somebody has to go; O(1) in a class that holds all its
// records. Nothing allocates after construction.
//
// Guests are records that pass through: those of a prompt, which wants nearly every expert once and in turn, and
// predictions, until somebody does want them. An order of use would keep none of the first until they are wanted again,
// and would lose what decode lives on. So guests share a bounded number of slots among themselves, and who needs a slot
// for good takes one of those first. What decode has not used since it came is no such loss: the first prompt, which
// finds an empty cache, would otherwise fill it with its first layers, and leave nothing of the others. Among records
// of prompts those stay that the policy wants most.
class SlotCache {
  public:
    // `class_of_record[r]` says in which class record r lives; `slots_per_class[c]` how many slots that class has, at
    // least one. `least_guests`: guests may have a quarter of a class's slots, but at least so many if it has them.
    // Where a class has a slot for every record, each record always gets the slot of its own rank, so that
    // the experts of a layer lie side by side.
    // `set_of_record` rises with the record, and records of a set are of one class; empty: neighbours of one class are
    // a set.
    SlotCache(std::vector<uint32_t> class_of_record, std::span<const uint32_t> slots_per_class,
              Policy policy = Policy::lru, uint32_t least_guests = 1, std::vector<uint32_t> set_of_record = {},
              const Tuning& tuning = {});

    // The model computes a set's block now, for so many tokens. Once per block, before its uses.
    void visit(uint32_t set, uint32_t tokens = 1, bool prompt = false) { order_.visit(set, tokens, prompt); }
    // The router has chosen the record in this visit of its set. Once per visit counts.
    void use(RecordId record) {
        if (!order_.used_now(record)) order_.use(record, 0);
    }
    // The same for one of the visit's tokens, after which `age` more come.
    void use_by(RecordId record, uint32_t age) { order_.use(record, age); }
    // What the policy knows of records.
    [[nodiscard]] Order& order() { return order_; }
    [[nodiscard]] const Order& order() const { return order_; }

    // Where the record is, or kNoSlot. Does not touch the order.
    [[nodiscard]] SlotId find(RecordId record) const { return slot_of_[record]; }

    // Gives the record a slot and takes a lease on it: its own slot if it has one, else as its seat says. A slot is
    // taken only from a record without a lease; among those equal to the policy, from who was released longest ago.
    // kNoSlot when there is none to be had. With no slot of the class leased there always is one.
    SlotId lease(RecordId record, Seat seat = Seat::member);
    // A guest, leased or not, becomes a member. Of others nothing changes.
    void keep(RecordId record);
    // The record, if it is there, is expected in its set's next visit: until that begins it goes after all others.
    // Also for one that is yet to come.
    void retain(RecordId record) {
        keep(record);
        order_.retain(record);
    }
    // Whether a lease for this record would push out one that is retained.
    [[nodiscard]] bool costs_retained(RecordId record, Seat seat = Seat::member) const;
    // Whether the record, which is a member, is the next to give its slot away to one that becomes a member. Nobody is
    // while there are empty slots, or guests who can go.
    [[nodiscard]] bool goes_next(RecordId record) const;
    // So many records of the class could be leased as guests now, besides those that are there.
    [[nodiscard]] uint32_t guest_room(uint32_t c) const;
    [[nodiscard]] uint32_t guest_limit(uint32_t c) const;
    [[nodiscard]] uint32_t n_guests(uint32_t c) const { return classes_[c].n_guests; }
    // Ends one lease. The record has a lease.
    void release(RecordId record);
    // Forgets the record's bytes (a read failed): the slot becomes empty when its last lease ends.
    void discard(RecordId record);

    // How many slots of the class may be touched, which is what makes them cost memory: at first all, never fewer than
    // one. When the cap falls, slots without a lease are closed from the last one on, whatever they hold, so that the
    // memory that goes lies together; the most useful records among them come back at their next use. If what is leased
    // is more than the cap, the rest follows when leases end. O(slots of the class); a rare thing.
    void set_cap(uint32_t c, uint32_t n);
    [[nodiscard]] uint32_t cap(uint32_t c) const { return classes_[c].cap; }
    // Those that hold a record, or did since they were closed last.
    [[nodiscard]] uint32_t touched(uint32_t c) const { return classes_[c].touched; }
    // Of those, how many are beyond the cap: all touched ones are leased then, and the first whose leases end go.
    [[nodiscard]] uint32_t over_cap(uint32_t c) const {
        return classes_[c].touched - std::min(classes_[c].touched, classes_[c].cap);
    }
    [[nodiscard]] uint32_t n_slots(uint32_t c) const { return classes_[c].n_slots; }
    // The class's records have no slots of their own any more: slots are taken from the first on, so that those in use
    // lie together. For a class that will never have all its slots.
    void give_up_homes(uint32_t c);
    [[nodiscard]] bool is_touched(SlotId slot) const { return slots_[slot].touched; }
    // True if a lease for this record, which has no slot, would evict another although slots were never touched.
    [[nodiscard]] bool wants_higher_cap(RecordId record) const;
    // Calls f(slot) for each slot that was closed since the last call and not taken again, or that lies between homes
    // that were given up: its memory can be given back.
    template <typename F>
    void take_closed(F&& f) {
        for (const SlotId s : closed_) {
            slots_[s].listed_closed = false;
            if (!slots_[s].touched) f(s);
        }
        closed_.clear();
    }
    [[nodiscard]] bool has_closed() const { return !closed_.empty(); }

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
    // True when each record of the class has its own slot. Ends for good when the cap keeps one from it.
    [[nodiscard]] bool class_is_complete(uint32_t c) const { return classes_[c].complete; }
    [[nodiscard]] const CacheCounters& counters() const { return counters_; }

  private:
    struct Slot {
        RecordId record = kNoRecord;
        uint32_t generation = 0;
        uint32_t leases = 0;
        ComponentMask ready = 0;
        bool doomed = false;  // discarded while leased
        bool guest = false;
        bool trial = false;   // a guest that nobody has asked for yet
        bool earned = false;  // its record came as a member, or was kept since it came
        bool touched = false;
        bool listed_closed = false;  // in closed_
        // The slot is in exactly one place: leased (nowhere), in its class's order, or in the list of guests, of empty
        // slots or of spare ones.
        SlotId prev = kNoSlot, next = kNoSlot;
        uint32_t size_class = 0;
        bool fresh = false;  // its record came since it was last in the order
    };
    struct List {
        SlotId head = kNoSlot, tail = kNoSlot;
    };
    struct Class {
        SlotId first = 0;
        uint32_t n_slots = 0;
        bool complete = false;
        List empty;  // touched; head: next to use
        List spare;  // not touched
        uint32_t cap = 0;
        uint32_t touched = 0;
        List guests;            // those without a lease; head: released longest ago
        uint32_t n_guests = 0;  // leased ones too
        uint32_t guests_listed = 0;
        uint32_t n_empty = 0;
    };

    void push_back(List& list, SlotId s);
    void push_front(List& list, SlotId s);
    void unlink(List& list, SlotId s);
    void vacate(SlotId s);
    void begin_rest(Class& cls, SlotId s);
    void end_rest(Class& cls, SlotId s);
    void make_guest(Class& cls, SlotId s);
    void settle(Class& cls, SlotId s);
    [[nodiscard]] bool replaces_first(const Class& cls, SlotId guest) const;
    SlotId take_slot(Class& cls, RecordId record, Seat seat);
    SlotId take_empty(Class& cls, SlotId s);
    void list_closed(SlotId s);
    void put_empty(Class& cls, SlotId s);
    void close(Class& cls, SlotId s);
    void shrink_away(SlotId s);

    std::vector<uint32_t> class_of_record_;
    std::vector<SlotId> slot_of_;
    std::vector<SlotId> home_;  // of records of complete classes
    std::vector<bool> was_evicted_;
    std::vector<Slot> slots_;
    std::vector<SlotId> closed_;
    std::vector<Class> classes_;
    Order order_;  // of members without a lease, in classes that are not complete
    uint32_t least_guests_ = 1;
    uint32_t n_resident_ = 0;
    uint32_t total_leases_ = 0;
    CacheCounters counters_;
};

}  // namespace sluice::cache
