#include "cache/slot_cache.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <utility>

namespace sluice::cache {

SlotCache::SlotCache(std::vector<uint32_t> class_of_record, std::span<const uint32_t> slots_per_class, Policy policy,
                     uint32_t least_guests)
    : class_of_record_(std::move(class_of_record)),
      slot_of_(class_of_record_.size(), kNoSlot),
      home_(class_of_record_.size(), kNoSlot),
      was_evicted_(class_of_record_.size(), false),
      classes_(slots_per_class.size()),
      policy_(policy),
      least_guests_(std::max(1U, least_guests)) {
    if (policy_ == Policy::frequency) {
        weight_.assign(class_of_record_.size(), -std::numeric_limits<double>::infinity());
        used_in_.assign(class_of_record_.size(), 0);
    }
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
        if (!classes_[c].complete) classes_[c].victims.reserve(slots_per_class[c]);
        classes_[c].n_empty = slots_per_class[c];
        total += slots_per_class[c];
    }
    slots_.resize(total);
    for (size_t c = 0; c < classes_.size(); ++c) {
        for (uint32_t i = 0; i < classes_[c].n_slots; ++i) {
            slots_[classes_[c].first + i].size_class = static_cast<uint32_t>(c);
            push_back(classes_[c].empty, classes_[c].first + i);
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

void SlotCache::use(RecordId record) {
    if (policy_ != Policy::frequency || used_in_[record] == pass_) return;
    used_in_[record] = pass_;
    // log2(2^a + 2^b) for the weight until now and one use now.
    const double now = static_cast<double>(pass_) / kHalfLife;
    const double high = std::max(weight_[record], now), low = std::min(weight_[record], now);
    weight_[record] = high + std::log2(1 + std::exp2(low - high));
}

bool SlotCache::goes_before(SlotId a, SlotId b) const {
    const Slot &x = slots_[a], &y = slots_[b];
    return x.weight != y.weight ? x.weight < y.weight : x.released < y.released;
}

void SlotCache::put(Class& cls, uint32_t place, SlotId s) {
    cls.victims[place] = s;
    slots_[s].place = place;
}

void SlotCache::rise(Class& cls, uint32_t place, SlotId s) {
    while (place > 0) {
        const uint32_t parent = (place - 1) / 2;
        if (!goes_before(s, cls.victims[parent])) break;
        put(cls, place, cls.victims[parent]);
        place = parent;
    }
    put(cls, place, s);
}

void SlotCache::sink(Class& cls, uint32_t place, SlotId s) {
    const auto n = static_cast<uint32_t>(cls.victims.size());
    for (;;) {
        uint32_t child = 2 * place + 1;
        if (child >= n) break;
        if (child + 1 < n && goes_before(cls.victims[child + 1], cls.victims[child])) ++child;
        if (!goes_before(cls.victims[child], s)) break;
        put(cls, place, cls.victims[child]);
        place = child;
    }
    put(cls, place, s);
}

// In a complete class nobody ever has to go, so nothing is kept in order there.
void SlotCache::add_victim(Class& cls, SlotId s) {
    if (cls.complete) return;
    slots_[s].released = ++releases_;
    slots_[s].weight = policy_ == Policy::frequency ? weight_[slots_[s].record] : 0;
    cls.victims.push_back(s);
    rise(cls, static_cast<uint32_t>(cls.victims.size() - 1), s);
}

void SlotCache::remove_victim(Class& cls, SlotId s) {
    if (cls.complete) return;
    const uint32_t place = slots_[s].place;
    assert(cls.victims[place] == s);
    const SlotId last = cls.victims.back();
    cls.victims.pop_back();
    if (last == s) return;
    if (place > 0 && goes_before(last, cls.victims[(place - 1) / 2])) {
        rise(cls, place, last);
    } else {
        sink(cls, place, last);
    }
}

// A slot without a lease waits for its record to be wanted again, or to be given away.
void SlotCache::begin_rest(Class& cls, SlotId s) {
    if (!slots_[s].guest) {
        add_victim(cls, s);
        return;
    }
    push_back(cls.guests, s);
    ++cls.guests_listed;
}

void SlotCache::end_rest(Class& cls, SlotId s) {
    if (!slots_[s].guest) {
        remove_victim(cls, s);
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
    slot.guest = false;
    ++slot.generation;
    --n_resident_;
}

uint32_t SlotCache::guest_limit(uint32_t c) const {
    return std::max(classes_[c].n_slots / 4, std::min(classes_[c].n_slots, least_guests_));
}

uint32_t SlotCache::guest_room(uint32_t c) const {
    const Class& cls = classes_[c];
    const uint32_t limit = guest_limit(c);
    const uint32_t more = cls.n_guests < limit ? limit - cls.n_guests : 0;
    return cls.n_empty + cls.guests_listed + std::min(more, static_cast<uint32_t>(cls.victims.size()));
}

// An empty slot for the record, or one that is emptied for it. kNoSlot if there is none.
SlotId SlotCache::take_slot(Class& cls, RecordId record, Seat seat) {
    SlotId s = kNoSlot;
    if (cls.complete || cls.empty.head != kNoSlot) {
        s = cls.complete ? home_[record] : cls.empty.head;
        assert(slots_[s].record == kNoRecord);
        unlink(cls.empty, s);
        --cls.n_empty;
        return s;
    }
    const auto c = static_cast<uint32_t>(&cls - classes_.data());
    const bool may_push_out = seat == Seat::member || cls.n_guests < guest_limit(c);
    const bool guest_first = seat == Seat::member || !may_push_out || cls.victims.empty();
    if (guest_first && cls.guests.head != kNoSlot) {
        s = cls.guests.head;
    } else if (may_push_out && !cls.victims.empty()) {
        s = cls.victims.front();
    } else {
        return kNoSlot;
    }
    end_rest(cls, s);
    was_evicted_[slots_[s].record] = true;
    ++counters_.evictions;
    vacate(s);
    if (seat == Seat::guest) {
        slots_[s].guest = true;
        ++cls.n_guests;
    }
    return s;
}

SlotId SlotCache::lease(RecordId record, Seat seat) {
    assert(record < slot_of_.size());
    Class& cls = classes_[class_of_record_[record]];
    SlotId s = slot_of_[record];
    if (s != kNoSlot) {
        if (slots_[s].leases == 0) end_rest(cls, s);
    } else {
        s = take_slot(cls, record, seat);
        if (s == kNoSlot) return kNoSlot;
        slots_[s].record = record;
        slot_of_[record] = s;
        ++n_resident_;
        if (was_evicted_[record]) ++counters_.rereads;
    }
    ++slots_[s].leases;
    ++total_leases_;
    return s;
}

void SlotCache::keep(RecordId record) {
    const SlotId s = slot_of_[record];
    if (s == kNoSlot || !slots_[s].guest) return;
    Class& cls = classes_[slots_[s].size_class];
    const bool resting = slots_[s].leases == 0;
    if (resting) end_rest(cls, s);
    slots_[s].guest = false;
    --cls.n_guests;
    if (resting) begin_rest(cls, s);
}

void SlotCache::release(RecordId record) {
    const SlotId s = slot_of_[record];
    assert(s != kNoSlot && slots_[s].leases > 0);
    --total_leases_;
    if (--slots_[s].leases > 0) return;
    Class& cls = classes_[slots_[s].size_class];
    if (slots_[s].doomed) {
        vacate(s);
        push_front(cls.empty, s);
        ++cls.n_empty;
    } else {
        begin_rest(cls, s);
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
    push_front(cls.empty, s);
    ++cls.n_empty;
}

}  // namespace sluice::cache
