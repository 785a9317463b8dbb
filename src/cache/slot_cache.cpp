#include "cache/slot_cache.h"

#include <cassert>
#include <utility>

namespace sluice::cache {

SlotCache::SlotCache(std::vector<uint32_t> class_of_record, std::span<const uint32_t> slots_per_class)
    : class_of_record_(std::move(class_of_record)),
      slot_of_(class_of_record_.size(), kNoSlot),
      home_(class_of_record_.size(), kNoSlot),
      was_evicted_(class_of_record_.size(), false),
      classes_(slots_per_class.size()) {
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

// The record leaves the slot; the slot is in no list afterwards.
void SlotCache::vacate(SlotId s) {
    Slot& slot = slots_[s];
    assert(slot.record != kNoRecord && slot.leases == 0);
    slot_of_[slot.record] = kNoSlot;
    slot.record = kNoRecord;
    slot.ready = 0;
    slot.doomed = false;
    ++slot.generation;
    --n_resident_;
}

SlotId SlotCache::lease(RecordId record) {
    assert(record < slot_of_.size());
    Class& cls = classes_[class_of_record_[record]];
    SlotId s = slot_of_[record];
    if (s != kNoSlot) {
        if (slots_[s].leases == 0) unlink(cls.lru, s);
    } else {
        if (cls.complete) {
            s = home_[record];
            assert(slots_[s].record == kNoRecord);
            unlink(cls.empty, s);
        } else if (cls.empty.head != kNoSlot) {
            s = cls.empty.head;
            unlink(cls.empty, s);
        } else if (cls.lru.head != kNoSlot) {
            s = cls.lru.head;
            unlink(cls.lru, s);
            was_evicted_[slots_[s].record] = true;
            ++counters_.evictions;
            vacate(s);
        } else {
            return kNoSlot;
        }
        slots_[s].record = record;
        slot_of_[record] = s;
        ++n_resident_;
        if (was_evicted_[record]) ++counters_.rereads;
    }
    ++slots_[s].leases;
    ++total_leases_;
    return s;
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
    } else {
        push_back(cls.lru, s);
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
    unlink(cls.lru, s);
    vacate(s);
    push_front(cls.empty, s);
}

}  // namespace sluice::cache
