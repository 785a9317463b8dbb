#include "cache/layout.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/bytes.h"

namespace sluice::cache {

uint64_t SetShape::slot_bytes() const {
    uint64_t sum = 0;
    for (const uint64_t bytes : component_bytes) sum += align_up(bytes, kSlotAlign);
    return sum;
}

uint64_t minimum_budget(std::span<const SetShape> sets) {
    uint64_t largest = 0;
    for (const SetShape& s : sets) largest = std::max(largest, s.slot_bytes());
    return largest;
}

uint64_t full_budget(std::span<const SetShape> sets) {
    uint64_t sum = 0;
    for (const SetShape& s : sets) sum += s.slot_bytes() * s.n_expert;
    return sum;
}

Result<Layout> plan_layout(std::span<const SetShape> sets, uint64_t budget, uint32_t min_slots) {
    assert(!sets.empty() && min_slots > 0);
    const uint64_t least = minimum_budget(sets);
    if (budget < least) {
        return error(
            Code::no_memory,
            "the expert cache of {} cannot hold a single expert of this model, which takes {} ({:.3f} MiB): raise it "
            "to at least that",
            human_bytes(budget), human_bytes(least), std::ceil(to_mib(least) * 1000) / 1000);
    }

    Layout layout;
    layout.class_of_set.resize(sets.size());
    std::map<uint64_t, uint32_t> by_size;  // slot size -> class
    for (size_t i = 0; i < sets.size(); ++i) {
        const uint64_t size = sets[i].slot_bytes();
        const auto [it, is_new] = by_size.try_emplace(size, static_cast<uint32_t>(layout.classes.size()));
        if (is_new) {
            layout.classes.emplace_back();
            layout.classes.back().slot_bytes = size;
        }
        layout.classes[it->second].n_records += sets[i].n_expert;
        layout.class_of_set[i] = it->second;
    }

    // Proportional shares, rounded down, so that the sum stays inside the budget.
    const uint64_t full = full_budget(sets);
    bool fits = true;
    for (SizeClass& c : layout.classes) {
        const double share = std::min(1.0, static_cast<double>(budget) / static_cast<double>(full));
        c.n_slots = static_cast<uint32_t>(share * c.n_records);
        if (budget >= full) c.n_slots = c.n_records;
        fits = fits && c.n_slots >= std::min(min_slots, c.n_records);
    }
    if (!fits) {
        uint32_t records = 0;
        for (const SizeClass& c : layout.classes) records += c.n_records;
        layout.classes.assign(1, SizeClass());
        layout.classes[0].slot_bytes = least;
        layout.classes[0].n_records = records;
        layout.classes[0].n_slots = static_cast<uint32_t>(std::min<uint64_t>(budget / least, records));
        std::fill(layout.class_of_set.begin(), layout.class_of_set.end(), 0U);
    }

    uint32_t first_slot = 0;
    for (SizeClass& c : layout.classes) {
        c.first_slot = first_slot;
        first_slot += c.n_slots;
        c.offset = layout.arena_bytes;
        layout.arena_bytes += c.slot_bytes * c.n_slots;
    }
    assert(layout.arena_bytes <= budget);

    for (const SetShape& s : sets) {
        std::vector<uint64_t> offsets;
        uint64_t at = 0;
        for (const uint64_t bytes : s.component_bytes) {
            offsets.push_back(at);
            at += align_up(bytes, kSlotAlign);
        }
        layout.component_offset.push_back(std::move(offsets));
    }
    return layout;
}

}  // namespace sluice::cache
