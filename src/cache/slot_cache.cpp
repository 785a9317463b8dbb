#include "cache/slot_cache.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace sluice::cache {

namespace {

// Who does not tell has neighbours of one class in one set: a set whose records are of different classes cannot be.
std::vector<uint32_t> or_runs_of_classes(std::vector<uint32_t> set_of_record,
                                         const std::vector<uint32_t>& class_of_record) {
    if (!set_of_record.empty()) return set_of_record;
    uint32_t set = 0;
    for (size_t r = 0; r < class_of_record.size(); ++r) {
        if (r > 0 && class_of_record[r] != class_of_record[r - 1]) ++set;
        set_of_record.push_back(set);
    }
    return set_of_record;
}

}  // namespace

SlotCache::SlotCache(std::vector<uint32_t> class_of_record, std::span<const uint32_t> slots_per_class, Policy policy,
                     uint32_t least_guests, std::vector<uint32_t> set_of_record, const Tuning& tuning)
    : class_of_record_(std::move(class_of_record)),
      slot_of_(class_of_record_.size(), kNoSlot),
      home_(class_of_record_.size(), kNoSlot),
      was_evicted_(class_of_record_.size(), false),
      classes_(slots_per_class.size()),
      order_(or_runs_of_classes(std::move(set_of_record), class_of_record_), class_of_record_, slots_per_class.size(),
             policy, tuning),
      least_guests_(std::max(1U, least_guests)) {
    std::vector<uint32_t> records(classes_.size(), 0);
    for (const uint32_t c : class_of_record_) {
        assert(c < classes_.size());
        ++records[c];
    }
    uint32_t total = 0;
    for (size_t c = 0; c < classes_.size(); ++c) {
        assert(slots_per_class[c] > 0);
        classes_[c].first = total;
        classes_[c].n_slots = slots_per_class[c];
        classes_[c].complete = slots_per_class[c] >= records[c];
        classes_[c].cap = slots_per_class[c];
        total += slots_per_class[c];
    }
    slots_.resize(total);
    closed_.reserve(total);
    for (size_t c = 0; c < classes_.size(); ++c) {
        for (uint32_t i = 0; i < classes_[c].n_slots; ++i) {
            slots_[classes_[c].first + i].size_class = static_cast<uint32_t>(c);
            push_back(classes_[c].spare, classes_[c].first + i);
        }
    }
    std::vector<uint32_t> rank(classes_.size(), 0);
    for (size_t r = 0; r < class_of_record_.size(); ++r) {
        const uint32_t c = class_of_record_[r];
        if (classes_[c].complete) home_[r] = classes_[c].first + rank[c]++;
    }
}

void SlotCache::push_back(List& list, SlotId s) {
    slots_[s].prev = list.tail;
    slots_[s].next = kNoSlot;
    if (list.tail != kNoSlot) slots_[list.tail].next = s;
    list.tail = s;
    if (list.head == kNoSlot) list.head = s;
}

void SlotCache::push_front(List& list, SlotId s) {
    slots_[s].next = list.head;
    slots_[s].prev = kNoSlot;
    if (list.head != kNoSlot) slots_[list.head].prev = s;
    list.head = s;
    if (list.tail == kNoSlot) list.tail = s;
}

void SlotCache::unlink(List& list, SlotId s) {
    const Slot& slot = slots_[s];
    if (slot.prev != kNoSlot) slots_[slot.prev].next = slot.next;
    if (slot.next != kNoSlot) slots_[slot.next].prev = slot.prev;
    if (list.head == s) list.head = slot.next;
    if (list.tail == s) list.tail = slot.prev;
    slots_[s].prev = slots_[s].next = kNoSlot;
}

// A slot without a lease waits for its record to be wanted again, or to be given away.
void SlotCache::begin_rest(Class& cls, SlotId s) {
    if (!slots_[s].guest) {
        // In a complete class nobody has to go, so nothing is kept in order there before the cap falls.
        if (cls.complete) {
            order_.note_rest(slots_[s].record);
        } else {
            order_.add(slots_[s].record, std::exchange(slots_[s].fresh, false));
        }
        return;
    }
    push_back(cls.guests, s);
    ++cls.guests_listed;
}

void SlotCache::end_rest(Class& cls, SlotId s) {
    if (!slots_[s].guest) {
        if (!cls.complete) order_.remove(slots_[s].record);
        return;
    }
    unlink(cls.guests, s);
    --cls.guests_listed;
}

// The record leaves the slot; the slot is in no list afterwards.
void SlotCache::vacate(SlotId s) {
    Slot& slot = slots_[s];
    assert(slot.record != kNoRecord && slot.leases == 0);
    slot_of_[slot.record] = kNoSlot;
    slot.record = kNoRecord;
    slot.ready = 0;
    slot.doomed = false;
    if (slot.guest) --classes_[slot.size_class].n_guests;
    slot.guest = slot.trial = slot.earned = false;
    ++slot.generation;
    --n_resident_;
}

uint32_t SlotCache::guest_limit(uint32_t c) const {
    return std::max(classes_[c].cap / 4, std::min(classes_[c].cap, least_guests_));
}

uint32_t SlotCache::guest_room(uint32_t c) const {
    const Class& cls = classes_[c];
    const uint32_t limit = guest_limit(c);
    const uint32_t more = cls.n_guests < limit ? limit - cls.n_guests : 0;
    const uint32_t spare = cls.cap - std::min(cls.cap, cls.touched);
    return cls.n_empty + spare + cls.guests_listed + std::min(more, order_.n(c));
}

// The slot is in the list of empty or of spare ones.
SlotId SlotCache::take_empty(Class& cls, SlotId s) {
    assert(slots_[s].record == kNoRecord);
    if (slots_[s].touched) {
        unlink(cls.empty, s);
        --cls.n_empty;
    } else {
        unlink(cls.spare, s);
        slots_[s].touched = true;
        ++cls.touched;
    }
    return s;
}

void SlotCache::put_empty(Class& cls, SlotId s) {
    push_front(cls.empty, s);
    ++cls.n_empty;
}

// From now on somebody may have to go. Homes lie apart, and where pages are huge, memory between them may be there,
// too.
void SlotCache::give_up_homes(uint32_t c) {
    Class& cls = classes_[c];
    if (!cls.complete) return;
    cls.complete = false;
    if (cls.touched == 0) return;
    for (SlotId s = cls.spare.head; s != kNoSlot; s = slots_[s].next) list_closed(s);
    for (SlotId s = cls.first; s < cls.first + cls.n_slots; ++s) {
        if (slots_[s].record == kNoRecord) continue;
        // It has been here all along, and its uses count.
        slots_[s].fresh = false;
        if (slots_[s].leases == 0 && !slots_[s].guest) order_.add_late(slots_[s].record);
    }
}

// The slot, which is empty and in no list, costs no memory any more once that is given back.
void SlotCache::close(Class& cls, SlotId s) {
    slots_[s].touched = false;
    --cls.touched;
    push_front(cls.spare, s);
    list_closed(s);
}

void SlotCache::list_closed(SlotId s) {
    if (slots_[s].listed_closed) return;
    slots_[s].listed_closed = true;
    closed_.push_back(s);
}

void SlotCache::set_cap(uint32_t c, uint32_t n) {
    Class& cls = classes_[c];
    cls.cap = std::clamp(n, 1U, cls.n_slots);
    if (cls.touched <= cls.cap) return;
    give_up_homes(c);
    for (SlotId s = cls.first + cls.n_slots; s-- > cls.first && cls.touched > cls.cap;) {
        const Slot& slot = slots_[s];
        if (!slot.touched || slot.leases > 0) continue;
        if (slot.record == kNoRecord) {
            unlink(cls.empty, s);
            --cls.n_empty;
        } else {
            end_rest(cls, s);
            shrink_away(s);
        }
        close(cls, s);
    }
}

// The record leaves because the cap fell.
void SlotCache::shrink_away(SlotId s) {
    was_evicted_[slots_[s].record] = true;
    ++counters_.evictions;
    ++counters_.shrunk;
    vacate(s);
}

bool SlotCache::wants_higher_cap(RecordId record) const {
    const Class& cls = classes_[class_of_record_[record]];
    if (slot_of_[record] != kNoSlot || cls.touched < cls.cap || cls.cap == cls.n_slots) return false;
    return cls.complete ? !slots_[home_[record]].touched : cls.empty.head == kNoSlot;
}

bool SlotCache::costs_retained(RecordId record, Seat seat) const {
    const uint32_t c = class_of_record_[record];
    const Class& cls = classes_[c];
    if (slot_of_[record] != kNoSlot || cls.touched < cls.cap || cls.empty.head != kNoSlot || order_.n(c) == 0)
        return false;
    const bool guest_first = seat == Seat::member || cls.n_guests >= guest_limit(c);
    if (guest_first && (cls.guests.head != kNoSlot || seat != Seat::member)) return false;
    return order_.retained(order_.first(c));
}

bool SlotCache::goes_next(RecordId record) const {
    const uint32_t c = class_of_record_[record];
    const Class& cls = classes_[c];
    const bool full = cls.touched >= cls.cap && cls.empty.head == kNoSlot && cls.guests.head == kNoSlot;
    return full && order_.has(record) && order_.first(c) == record;
}

void SlotCache::make_guest(Class& cls, SlotId s) {
    slots_[s].guest = true;
    ++cls.n_guests;
}

// Whether the guest, which rests, is worth more than the member that would go, and decode loses nothing.
bool SlotCache::replaces_first(const Class& cls, SlotId guest) const {
    const auto c = static_cast<uint32_t>(&cls - classes_.data());
    if (slots_[guest].trial || order_.n(c) == 0) return false;
    const RecordId first = order_.first(c);
    return !slots_[slot_of_[first]].earned && order_.wait(slots_[guest].record) < order_.wait(first);
}

// An empty slot for the record, or one that is emptied for it. kNoSlot if there is none.
SlotId SlotCache::take_slot(Class& cls, RecordId record, Seat seat) {
    const bool may_touch = cls.touched < cls.cap;
    if (cls.complete) {
        const SlotId home = home_[record];
        if (slots_[home].touched || may_touch) return take_empty(cls, home);
        give_up_homes(static_cast<uint32_t>(&cls - classes_.data()));
    }
    if (cls.empty.head != kNoSlot) return take_empty(cls, cls.empty.head);
    if (may_touch && cls.spare.head != kNoSlot) return take_empty(cls, cls.spare.head);
    SlotId s = kNoSlot;
    const auto c = static_cast<uint32_t>(&cls - classes_.data());
    const bool may_push_out = seat == Seat::member || cls.n_guests < guest_limit(c);
    const bool guest_first = seat == Seat::member || !may_push_out || order_.n(c) == 0;
    if (guest_first && cls.guests.head != kNoSlot) {
        s = cls.guests.head;
        if (seat == Seat::guest && replaces_first(cls, s)) {
            const SlotId goes = slot_of_[order_.first(c)];
            settle(cls, s);
            s = goes;
        }
    } else if (may_push_out && order_.n(c) > 0) {
        s = slot_of_[order_.first(c)];
    } else {
        return kNoSlot;
    }
    end_rest(cls, s);
    was_evicted_[slots_[s].record] = true;
    ++counters_.evictions;
    counters_.predicted += seat == Seat::trial ? 1 : 0;
    vacate(s);
    if (seat == Seat::guest) make_guest(cls, s);
    return s;
}

SlotId SlotCache::lease(RecordId record, Seat seat) {
    assert(record < slot_of_.size());
    Class& cls = classes_[class_of_record_[record]];
    if (!cls.complete) order_.settle();
    SlotId s = slot_of_[record];
    if (s != kNoSlot) {
        if (slots_[s].leases == 0) end_rest(cls, s);
    } else {
        s = take_slot(cls, record, seat);
        if (s == kNoSlot) return kNoSlot;
        if (seat == Seat::trial) make_guest(cls, s);
        slots_[s].trial = seat == Seat::trial;
        slots_[s].earned = seat == Seat::member;
        slots_[s].record = record;
        slots_[s].fresh = true;
        slot_of_[record] = s;
        ++n_resident_;
        if (was_evicted_[record]) ++counters_.rereads;
    }
    if (seat != Seat::trial) slots_[s].trial = false;
    ++slots_[s].leases;
    ++total_leases_;
    return s;
}

// The guest becomes a member.
void SlotCache::settle(Class& cls, SlotId s) {
    const bool resting = slots_[s].leases == 0;
    if (resting) end_rest(cls, s);
    slots_[s].guest = false;
    --cls.n_guests;
    if (resting) begin_rest(cls, s);
}

void SlotCache::keep(RecordId record) {
    const SlotId s = slot_of_[record];
    if (s == kNoSlot) return;
    slots_[s].earned = true;
    slots_[s].trial = false;
    if (slots_[s].guest) settle(classes_[slots_[s].size_class], s);
}

void SlotCache::release(RecordId record) {
    const SlotId s = slot_of_[record];
    assert(s != kNoSlot && slots_[s].leases > 0);
    --total_leases_;
    if (--slots_[s].leases > 0) return;
    Slot& slot = slots_[s];
    Class& cls = classes_[slot.size_class];
    const bool closes = cls.touched > cls.cap;
    if (!slot.doomed && !closes) {
        begin_rest(cls, s);
        return;
    }
    if (slot.doomed) {
        vacate(s);
    } else {
        shrink_away(s);
    }
    if (closes) {
        close(cls, s);
    } else {
        put_empty(cls, s);
    }
}

void SlotCache::discard(RecordId record) {
    const SlotId s = slot_of_[record];
    if (s == kNoSlot) return;
    slots_[s].ready = 0;
    if (slots_[s].leases > 0) {
        slots_[s].doomed = true;
        return;
    }
    Class& cls = classes_[slots_[s].size_class];
    end_rest(cls, s);
    vacate(s);
    put_empty(cls, s);
}

}  // namespace sluice::cache
