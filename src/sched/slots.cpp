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

Result<std::unique_ptr<Slots>> Slots::create(const store::RecordStore& store, Options options) {
    const std::vector<cache::SetShape> set_shapes = shapes(store, options.converted);
    auto layout = cache::plan_layout(set_shapes, options.budget, options.min_slots);
    if (!layout.ok()) return layout.status();

    std::vector<uint32_t> class_of_record, set_of_record;
    for (RecordId r = 0; r < store.n_records(); ++r) {
        set_of_record.push_back(store.set_of(r));
        class_of_record.push_back(layout->class_of_set[store.set_of(r)]);
    }
    std::vector<uint32_t> slots;
    for (const cache::SizeClass& c : layout->classes) slots.push_back(c.n_slots);

    auto arena = Region::allocate(layout->arena_bytes, true);
    if (!arena.ok()) return arena.status();

    uint64_t staging_bytes = 0;
    for (uint32_t s = 0; s < set_shapes.size(); ++s) {
        for (uint32_t c = 0; c < store.n_components(s); ++c) {
            const bool converts = !options.converted.empty() && options.converted[s][c];
            for (size_t h = converts ? 0 : 1; h < store.n_holders(); ++h) {
                staging_bytes = std::max(staging_bytes, store.aligned_capacity(s, c, static_cast<store::HolderId>(h)));
            }
        }
    }
    cache::SlotCache cache(std::move(class_of_record), slots, options.policy, 2 * options.min_slots,
                           std::move(set_of_record), options.tuning);
    std::unique_ptr<Slots> made(new Slots(store, std::move(options), std::move(*layout), std::move(cache)));
    made->arena_ = std::move(*arena);
    made->free_staging_.reserve(kStagingBuffers);
    if (staging_bytes > 0) {
        const uint64_t each = align_up(staging_bytes, cache::kSlotAlign);
        auto staging = Region::allocate(each * kStagingBuffers, false);
        if (!staging.ok()) return staging.status();
        made->staging_region_ = std::move(*staging);
        for (size_t i = 0; i < kStagingBuffers; ++i) {
            made->free_staging_.push_back(made->staging_region_.data() + i * each);
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
