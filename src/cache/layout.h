// Owns: how the memory budget is cut into slots, and where a record's components lie inside its slot.
// Keeps: the slots of a layout never take more than the budget; a component's place can take the aligned read that
// brings it in.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/memory.h"
#include "base/status.h"

namespace sluice::cache {

// What one expert set asks of its slots.
struct SetShape {
    uint32_t n_expert = 0;
    std::vector<uint64_t> component_bytes;  // room that each component needs in a slot, already padded
    [[nodiscard]] uint64_t slot_bytes() const;
};

struct SizeClass {
    uint64_t slot_bytes = 0;  // stride between slots
    uint32_t n_slots = 0;
    uint32_t first_slot = 0;  // number of its first slot, counted through all classes
    uint64_t offset = 0;      // of that slot in the arena
    uint32_t n_records = 0;   // that live in this class
};

struct Layout {
    std::vector<SizeClass> classes;
    std::vector<uint32_t> class_of_set;
    std::vector<std::vector<uint64_t>> component_offset;  // [set][component], from the slot's start
    uint64_t arena_bytes = 0;                             // sum of all slots: at most the budget
};

// Every place in a slot starts at a multiple of this: enough for direct I/O everywhere and for any vector load.
inline constexpr uint64_t kSlotAlign = kDirectAlign;

// Sets with equal slot sizes share a class; classes get slots in proportion to the bytes of their records, at least
// `min_slots` each (a layer's top-k: below that it could not even run in one wave). A budget too small for that gets
// one class in which every record fits. Error `no_memory` with the arithmetic when not even one record fits.
Result<Layout> plan_layout(std::span<const SetShape> sets, uint64_t budget, uint32_t min_slots);

// The least budget that plan_layout accepts: one slot for the largest record.
uint64_t minimum_budget(std::span<const SetShape> sets);
// The budget that holds every record.
uint64_t full_budget(std::span<const SetShape> sets);

}  // namespace sluice::cache
