#include "sched/slots.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "base/bytes.h"

namespace sluice::sched {

std::vector<cache::SetShape> Slots::shapes(const store::RecordStore& store,
                                           const std::vector<std::vector<bool>>& converted) {
    std::vector<cache::SetShape> shapes;
    const model::Geometry& geometry = store.geometry();
    for (uint32_t s = 0; s < geometry.sets.size(); ++s) {
        cache::SetShape shape;
        shape.n_expert = geometry.sets[s].n_expert;
        for (uint32_t c = 0; c < store.n_components(s); ++c) {
            const bool raw = converted.empty() || !converted[s][c];
            shape.component_bytes.push_back(raw ? store.aligned_capacity(s, c)
                                                : geometry.sets[s].tensors[c].bytes_per_expert);
        }
        shapes.push_back(std::move(shape));
    }
    return shapes;
}

uint64_t Slots::staging_bytes(const store::RecordStore& store, const std::vector<std::vector<bool>>& converted) {
    uint64_t largest = 0;
    for (uint32_t s = 0; s < store.geometry().sets.size(); ++s) {
        for (uint32_t c = 0; c < store.n_components(s); ++c) {
            const bool converts = !converted.empty() && converted[s][c];
            for (size_t h = converts ? 0 : 1; h < store.n_holders(); ++h)
                largest = std::max(largest, store.aligned_capacity(s, c, static_cast<store::HolderId>(h)));
        }
    }
    return kStagingBuffers * align_up(largest, cache::kSlotAlign);
}

Result<std::unique_ptr<Slots>> Slots::create(const store::RecordStore& store, Options options) {
    const std::vector<cache::SetShape> set_shapes = shapes(store, options.converted);
    auto layout = cache::plan_layout(set_shapes, options.budget, options.min_slots);
    if (!layout.ok()) return layout.status();
    // What may be in use now must do, too. Where it would not with these classes, the rest is given up.
    const uint64_t limit = options.share != nullptr ? options.share->limit() : options.budget;
    const auto least_of = [&](const cache::Layout& l) {
        uint64_t sum = 0;
        for (const cache::SizeClass& c : l.classes) sum += c.slot_bytes * std::min(c.n_slots, options.min_slots);
        return sum;
    };
    if (limit < least_of(*layout)) {
        layout = cache::plan_layout(set_shapes, std::max(limit, cache::minimum_budget(set_shapes)), options.min_slots);
        if (!layout.ok()) return layout.status();
    }

    std::vector<uint32_t> class_of_record, set_of_record;
    for (RecordId r = 0; r < store.n_records(); ++r) {
        set_of_record.push_back(store.set_of(r));
        class_of_record.push_back(layout->class_of_set[store.set_of(r)]);
    }
    std::vector<uint32_t> slots;
    for (const cache::SizeClass& c : layout->classes) slots.push_back(c.n_slots);

    auto arena = Region::allocate(layout->arena_bytes, true);
    if (!arena.ok()) return arena.status();

    const uint64_t staging = staging_bytes(store, options.converted);
    cache::SlotCache cache(std::move(class_of_record), slots, options.policy, 2 * options.min_slots,
                           std::move(set_of_record), options.tuning);
    std::unique_ptr<Slots> made(new Slots(store, std::move(options), std::move(*layout), std::move(cache)));
    made->arena_ = std::move(*arena);
    made->limit_ = made->layout_.arena_bytes;
    made->caps_ = made->caps_for(made->limit_);
    if (made->options_.share != nullptr) {
        for (uint32_t c = 0; c < made->layout_.classes.size(); ++c) made->cache_.set_cap(c, 1);
        made->told_ = limit;
        made->set_limit(limit);
        made->options_.share->holds(made->held());
    }
    made->free_staging_.reserve(kStagingBuffers);
    if (staging > 0) {
        auto region = Region::allocate(staging, false);
        if (!region.ok()) return region.status();
        made->staging_region_ = std::move(*region);
        for (size_t i = 0; i < kStagingBuffers; ++i) {
            made->free_staging_.push_back(made->staging_region_.data() + i * (staging / kStagingBuffers));
        }
    }
    return made;
}

std::byte* Slots::place(RecordId record, uint32_t component) const {
    const SlotId s = cache_.find(record);
    assert(s != cache::kNoSlot);
    const uint32_t set = store_.set_of(record);
    const cache::SizeClass& cls = layout_.classes[layout_.class_of_set[set]];
    return arena_.data() + cls.offset + (s - cls.first_slot) * cls.slot_bytes +
           layout_.component_offset[set][component];
}

std::byte* Slots::data(RecordId record, uint32_t component) const {
    std::byte* p = place(record, component);
    if (converted(store_.set_of(record), component)) return p;
    return p + store::RecordStore::aligned(store_.extent(record, component)).delta;
}

uint64_t Slots::held() const {
    uint64_t sum = 0;
    for (uint32_t c = 0; c < layout_.classes.size(); ++c) sum += layout_.classes[c].slot_bytes * cache_.touched(c);
    return sum;
}

uint64_t Slots::within_limit() const {
    uint64_t sum = 0;
    for (const uint32_t n : caps_) sum += n;
    return sum;
}

uint64_t Slots::capped() const {
    uint64_t sum = 0;
    for (uint32_t c = 0; c < layout_.classes.size(); ++c) sum += layout_.classes[c].slot_bytes * cache_.cap(c);
    return sum;
}

uint64_t Slots::least_limit() const {
    uint64_t sum = 0;
    for (const cache::SizeClass& c : layout_.classes) sum += c.slot_bytes;
    return sum;
}

// The limit's slots, by class: in proportion to what each has, but at least one.
std::vector<uint32_t> Slots::caps_for(uint64_t limit) const {
    std::vector<uint32_t> caps;
    uint64_t sum = 0;
    const double share = std::min(1.0, static_cast<double>(limit) / static_cast<double>(layout_.arena_bytes));
    for (const cache::SizeClass& c : layout_.classes) {
        const auto n = limit >= layout_.arena_bytes ? c.n_slots : static_cast<uint32_t>(share * c.n_slots);
        caps.push_back(std::max(1U, n));
        sum += c.slot_bytes * caps.back();
    }
    // The ones that were rounded up come from the largest class.
    while (sum > limit) {
        size_t most = caps.size();
        uint64_t bytes = 0;
        for (size_t c = 0; c < caps.size(); ++c) {
            if (caps[c] == 1 || layout_.classes[c].slot_bytes * caps[c] <= bytes) continue;
            bytes = layout_.classes[c].slot_bytes * caps[c];
            most = c;
        }
        if (most == caps.size()) break;
        --caps[most];
        sum -= layout_.classes[most].slot_bytes;
    }
    return caps;
}

void Slots::set_limit(uint64_t bytes) {
    limit_ = std::clamp(bytes, least_limit(), layout_.arena_bytes);
    caps_ = caps_for(limit_);
    denied_.reset();
    if (capped() > limit_) {
        for (uint32_t c = 0; c < caps_.size(); ++c) cache_.set_cap(c, std::min(caps_[c], cache_.cap(c)));
    }
    for (uint32_t c = 0; c < caps_.size(); ++c) {
        if (caps_[c] < layout_.classes[c].n_slots) cache_.give_up_homes(c);
    }
    give_back();
}

// Only homes lie apart; other slots are taken side by side.
uint64_t Slots::beside() const {
    uint64_t sum = 0;
    for (uint32_t c = 0; c < layout_.classes.size(); ++c) {
        const cache::SizeClass& cls = layout_.classes[c];
        if (!cache_.class_is_complete(c) || cache_.touched(c) == cls.n_slots) continue;
        const auto begin = reinterpret_cast<uintptr_t>(arena_.data()) + cls.offset;
        const uintptr_t end = begin + cls.n_slots * cls.slot_bytes;
        uintptr_t covered = begin;  // up to here it is counted
        uint64_t there = 0;
        for (SlotId s = cls.first_slot; s < cls.first_slot + cls.n_slots; ++s) {
            if (!cache_.is_touched(s)) continue;
            const uintptr_t slot = begin + (s - cls.first_slot) * cls.slot_bytes;
            const uintptr_t from = std::max<uintptr_t>(covered, align_down(slot, kHugePage));
            const uintptr_t to = std::min<uintptr_t>(end, align_up(slot + cls.slot_bytes, kHugePage));
            if (to <= from) continue;
            there += to - from;
            covered = to;
        }
        const uint64_t touched = cls.slot_bytes * cache_.touched(c);
        sum += sub_floored(there, touched);
    }
    return sum;
}

void Slots::follow_share() {
    give_back();
    if (options_.share == nullptr) return;
    options_.share->holds(held());
    if (const uint64_t looks = options_.share->looks(); looks != beside_at_) {
        beside_at_ = looks;
        options_.share->has_beside(beside());
    }
    const uint64_t limit = options_.share->limit();
    if (limit == told_) return;
    told_ = limit;
    const uint64_t before = limit_;
    set_limit(limit);
    options_.share->holds(held());
    if (options_.on_limit && limit_ != before) options_.on_limit(*this);
}

void Slots::make_room(RecordId record) {
    if (options_.share == nullptr || denied_ == options_.share->looks() || !cache_.wants_higher_cap(record)) return;
    const uint32_t c = cache_.class_of(record);
    const uint64_t each = layout_.classes[c].slot_bytes;
    const uint64_t left = sub_floored(limit_, capped());
    const uint64_t most = std::min<uint64_t>(sub_floored(caps_[c], cache_.cap(c)), left / each);
    auto n = static_cast<uint32_t>(std::min(most, std::max<uint64_t>(1, options_.slab / each)));
    if (n == 0) return;
    options_.share->holds(held());
    options_.share->has_beside(beside());
    if (!options_.share->may_take(n * each)) {
        // What there is instead is the limit now.
        const uint64_t limit = options_.share->limit();
        n = static_cast<uint32_t>(std::min<uint64_t>(n, sub_floored(limit, capped()) / each));
        if (n == 0 || !options_.share->may_take(n * each)) {
            denied_ = options_.share->looks();
            return;
        }
    }
    cache_.set_cap(c, cache_.cap(c) + n);
}

// Neighbours in one call.
void Slots::give_back_closed() {
    uint64_t begin = 0, end = 0;
    const auto flush = [&] {
        if (end > begin && !pinned_) arena_.give_back(begin, end - begin);
    };
    cache_.take_closed([&](SlotId s) {
        const cache::SizeClass& cls = *std::find_if(layout_.classes.rbegin(), layout_.classes.rend(),
                                                    [&](const cache::SizeClass& k) { return s >= k.first_slot; });
        const uint64_t at = cls.offset + (s - cls.first_slot) * cls.slot_bytes;
        if (at + cls.slot_bytes == begin) {
            begin = at;
            return;
        }
        if (at == end && end > begin) {
            end += cls.slot_bytes;
            return;
        }
        flush();
        begin = at;
        end = at + cls.slot_bytes;
    });
    flush();
    if (options_.share != nullptr) options_.share->holds(held());
}

std::byte* Slots::take_staging() {
    if (free_staging_.empty()) return nullptr;
    std::byte* buffer = free_staging_.back();
    free_staging_.pop_back();
    return buffer;
}

bool Slots::staged(RecordId record, uint32_t component, store::HolderId holder) const {
    if (converted(store_.set_of(record), component)) return true;
    if (holder == 0) return false;
    const auto own = store::RecordStore::aligned(store_.extent(record, component));
    const auto other = store::RecordStore::aligned(store_.extent(record, component, holder));
    return other.delta != own.delta || other.length > own.length;
}

void Slots::settle(RecordId record, uint32_t component, const std::byte* bytes) {
    const uint32_t set = store_.set_of(record);
    const uint64_t n = store_.extent(record, component).bytes;
    if (converted(set, component)) {
        options_.convert(set, component, bytes, place(record, component), n);
    } else {
        std::memcpy(data(record, component), bytes, n);
    }
}

}  // namespace sluice::sched
