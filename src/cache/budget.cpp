#include "cache/budget.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/bytes.h"

namespace sluice::cache {
namespace {

struct Reserve {
    uint64_t part, least, most;
    uint64_t part_in_group, least_in_group;
};
constexpr Reserve kChosen{8, 256 * MiB, 2 * GiB, 16, 64 * MiB};
constexpr Reserve kTold{32, 64 * MiB, 512 * MiB, 32, 16 * MiB};

}  // namespace

bool limited_by_group(const machine::MemoryRoom& room) {
    const std::optional<uint64_t> free = room.free();
    return free && room.cgroup_limit && (!room.available || *free < *room.available);
}

const char* name_of_free(const machine::MemoryRoom& room) {
    return limited_by_group(room) ? "room in the memory cgroup" : "free memory";
}

uint64_t reserve_of(const machine::MemoryRoom& room, bool told) {
    const Reserve& r = told ? kTold : kChosen;
    const std::optional<uint64_t> free = room.free();
    const bool group = limited_by_group(room);
    const uint64_t usual =
        std::clamp(free.value_or(0) / (group ? r.part_in_group : r.part), group ? r.least_in_group : r.least, r.most);
    // Where there is hardly any, experts get most of it: a cache of a few experts reads all of them for every token.
    return free ? std::min(usual, *free / 4) : usual;
}

AutoBudget choose_budget(const machine::MemoryRoom& room, bool told, uint64_t least, uint64_t full) {
    const std::optional<uint64_t> free = room.free();
    if (!free) return {std::min(full, std::max(least, GiB)), "the amount of free memory is unknown"};
    const uint64_t reserve = reserve_of(room, told);
    const uint64_t usable = sub_floored(*free, reserve);
    if (usable >= full) {
        return {full, "all experts fit"};
    }
    return {std::max(usable, least),
            fmt::format("{} {} less a reserve of {}", name_of_free(room), human_bytes(*free), human_bytes(reserve))};
}

}  // namespace sluice::cache
