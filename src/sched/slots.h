// Owns: the memory of the cache: where in which slot each component lies, and the buffers for what is converted first.
// Keeps: a component's place does not move while its record has a lease; memory is reserved once, and slots that were
// touched never take more than the limit, but for those that are leased when it falls.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "base/ids.h"
#include "base/memory.h"
#include "base/status.h"
#include "cache/layout.h"
#include "cache/shared_budget.h"
#include "cache/slot_cache.h"
#include "store/record_store.h"

namespace sluice::sched {

using cache::ComponentMask;
using cache::SlotId;

// Turns the file's bytes of one component into the form that slots hold: `bytes` from `raw` to `slot`, which do not
// overlap. Runs on the thread that handles the read's completion.
using Convert =
    std::function<void(uint32_t set, uint32_t component, const std::byte* raw, std::byte* slot, uint64_t bytes)>;

// Not thread-safe. Nothing allocates after create(), but for a new limit.
class Slots {
  public:
    // Large enough that a look at memory costs nothing beside the reads that fill it.
    static constexpr uint64_t kSlab = 32ULL << 20U;
    struct Options {
        uint64_t budget = 0;  // bytes for slots, at most
        // If given, it says how many of these may be in use. It outlives the slots.
        cache::BudgetShare* share = nullptr;
        // With a share, slots are taken into use in slabs of this, or one by one where they are larger.
        uint64_t slab = kSlab;
        uint32_t min_slots = 1;  // top-k: what a layer wants at once
        cache::Policy policy = cache::Policy::lru;
        cache::Tuning tuning;
        std::vector<std::vector<bool>> converted;  // [set][component]: slots hold convert()'s form
        Convert convert;                           // may be empty when nothing is converted
        // Is told when the share's limit has changed what may be in use, within the call that noticed.
        std::function<void(const Slots&)> on_limit;
    };

    // `store` outlives the slots. Errors: the budget holds no record; no memory.
    static Result<std::unique_ptr<Slots>> create(const store::RecordStore& store, Options options);
    // The slot shapes that a budget is checked against, without making anything.
    static std::vector<cache::SetShape> shapes(const store::RecordStore& store,
                                               const std::vector<std::vector<bool>>& converted);

    // Memory for what is converted first, or lies otherwise at another holder.
    static uint64_t staging_bytes(const store::RecordStore& store, const std::vector<std::vector<bool>>& converted);

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

    // Bytes of slots that cost memory.
    [[nodiscard]] uint64_t held() const;
    [[nodiscard]] uint64_t limit() const { return limit_; }
    // Bytes that the kernel may have put beside held ones, because its pages are huge; later slots take them. O(slots).
    [[nodiscard]] uint64_t beside() const;
    // Slots that the limit allows.
    [[nodiscard]] uint64_t within_limit() const;
    // The least limit with which each layer can be computed with at least one expert at a time.
    [[nodiscard]] uint64_t least_limit() const;
    // Held bytes are at most this from now on, except for leased slots; those follow when their leases end. A higher
    // limit allows growth and takes nothing yet.
    void set_limit(uint64_t bytes);
    // Does what the share says now. Before a block; cheap when there is nothing new.
    void follow_share();
    // Before a lease: if the record would have to evict another although there is memory left, takes a slab of that.
    void make_room(RecordId record);
    // Gives the memory of slots that were closed back to the kernel. After leases end.
    void give_back() {
        if (cache_.has_closed()) give_back_closed();
    }
    // From now on memory stays, whatever the limit: the kernel has the addresses of its pages.
    void pin() { pinned_ = true; }

    static constexpr size_t kStagingBuffers = 8;
    static constexpr uint64_t kHugePage = 2 * MiB;

  private:
    Slots(const store::RecordStore& store, Options options, cache::Layout layout, cache::SlotCache cache)
        : store_(store), options_(std::move(options)), layout_(std::move(layout)), cache_(std::move(cache)) {}

    [[nodiscard]] std::vector<uint32_t> caps_for(uint64_t limit) const;
    [[nodiscard]] uint64_t capped() const;
    void give_back_closed();

    const store::RecordStore& store_;
    Options options_;
    cache::Layout layout_;
    cache::SlotCache cache_;
    uint64_t limit_ = 0;
    uint64_t told_ = 0;               // by the share, last
    std::vector<uint32_t> caps_;      // by class, with the limit
    std::optional<uint64_t> denied_;  // memory was denied, in this look of the share's
    uint64_t beside_at_ = 0;          // look of the share's at which it was told
    bool pinned_ = false;
    Region arena_;
    Region staging_region_;
    std::vector<std::byte*> free_staging_;
};

}  // namespace sluice::sched
