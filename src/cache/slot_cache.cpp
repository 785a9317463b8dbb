#include "cache/slot_cache.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <utility>

namespace sluice::cache {

SlotCache::SlotCache(std::vector<uint32_t> class_of_record, std::span<const uint32_t> slots_per_class, Policy policy)
    : class_of_record_(std::move(class_of_record)),
      slot_of_(class_of_record_.size(), kNoSlot),
      home_(class_of_record_.size(), kNoSlot),
      was_evicted_(class_of_record_.size(), false),
      classes_(slots_per_class.size()),
      policy_(policy) {
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
        if (slots_[s].leases == 0) remove_victim(cls, s);
    } else {
        if (cls.complete) {
            s = home_[record];
            assert(slots_[s].record == kNoRecord);
            unlink(cls.empty, s);
        } else if (cls.empty.head != kNoSlot) {
            s = cls.empty.head;
            unlink(cls.empty, s);
        } else if (!cls.victims.empty()) {
            s = cls.victims.front();
            remove_victim(cls, s);
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
        add_victim(cls, s);
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
    remove_victim(cls, s);
    vacate(s);
    push_front(cls.empty, s);
}

}  // namespace sluice::cache
