// Owns: the memory of the cache: where in which slot each component lies, and the buffers for what is converted first.
// Keeps: a component's place does not move while its record has a lease; all memory is allocated and touched once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/memory.h"
#include "base/status.h"
#include "cache/layout.h"
#include "cache/slot_cache.h"
#include "store/record_store.h"

namespace sluice::sched {

using cache::ComponentMask;
using cache::SlotId;

// Turns the file's bytes of one component into the form that slots hold: `bytes` from `raw` to `slot`, which do not
// overlap. Runs on the thread that handles the read's completion.
using Convert =
    std::function<void(uint32_t set, uint32_t component, const std::byte* raw, std::byte* slot, uint64_t bytes)>;

// Not thread-safe. Nothing allocates after create().
class Slots {
  public:
    struct Options {
        uint64_t budget = 0;     // bytes for slots
        uint32_t min_slots = 1;  // top-k: what a layer wants at once
        cache::Policy policy = cache::Policy::lru;
        cache::Tuning tuning;
        std::vector<std::vector<bool>> converted;  // [set][component]: slots hold convert()'s form
        Convert convert;                           // may be empty when nothing is converted
    };

    // `store` outlives the slots. Errors: the budget holds no record; no memory.
    static Result<std::unique_ptr<Slots>> create(const store::RecordStore& store, Options options);
    // The slot shapes that a budget is checked against, without making anything.
    static std::vector<cache::SetShape> shapes(const store::RecordStore& store,
                                               const std::vector<std::vector<bool>>& converted);

    [[nodiscard]] cache::SlotCache& cache() { return cache_; }
    [[nodiscard]] const cache::SlotCache& cache() const { return cache_; }
    [[nodiscard]] const cache::Layout& layout() const { return layout_; }
    [[nodiscard]] const store::RecordStore& store() const { return store_; }
    [[nodiscard]] std::span<std::byte> arena() const { return {arena_.data(), layout_.arena_bytes}; }

    [[nodiscard]] bool converted(uint32_t set, uint32_t component) const {
        return !options_.converted.empty() && options_.converted[set][component];
    }
    [[nodiscard]] ComponentMask all_components(uint32_t set) const {
        return static_cast<ComponentMask>((1U << store_.n_components(set)) - 1U);
    }
    // True if all of the record's components are there.
    [[nodiscard]] bool resident(RecordId record) const { return has(record, all_components(store_.set_of(record))); }
    [[nodiscard]] bool ready(RecordId record, uint32_t component) const {
        return has(record, cache::component_bit(component));
    }
    // True if these components are there; each is one of the record's.
    [[nodiscard]] bool has(RecordId record, ComponentMask which) const {
        const SlotId s = cache_.find(record);
        return s != cache::kNoSlot && (cache_.ready(s) & which) == which;
    }
    // Where an aligned read of the component goes, or its converted form. The record has a slot.
    [[nodiscard]] std::byte* place(RecordId record, uint32_t component) const;
    // The component's first byte in its slot. The record has a slot and the component is ready.
    [[nodiscard]] std::byte* data(RecordId record, uint32_t component) const;

    // Whether a read of the component from this holder goes through a buffer: it is converted, or would lie elsewhere
    // in the slot than the first holder's.
    [[nodiscard]] bool staged(RecordId record, uint32_t component, store::HolderId holder) const;
    // Buffers for those; nullptr when all are taken.
    [[nodiscard]] std::byte* take_staging();
    void give_staging(std::byte* buffer) { free_staging_.push_back(buffer); }
    [[nodiscard]] size_t free_staging() const { return free_staging_.size(); }
    // The component's bytes, from a staging buffer into the slot in the form that slots have.
    void settle(RecordId record, uint32_t component, const std::byte* bytes);

    static constexpr size_t kStagingBuffers = 8;

  private:
    Slots(const store::RecordStore& store, Options options, cache::Layout layout, cache::SlotCache cache)
        : store_(store), options_(std::move(options)), layout_(std::move(layout)), cache_(std::move(cache)) {}

    const store::RecordStore& store_;
    Options options_;
    cache::Layout layout_;
    cache::SlotCache cache_;
    Region arena_;
    Region staging_region_;
    std::vector<std::byte*> free_staging_;
};

}  // namespace sluice::sched
