#include "cache/budget.h"

#include <algorithm>

#include "base/bytes.h"

namespace sluice::cache {
namespace {

// Left to everybody else when the size is chosen for the user: an eighth of what is free, within these bounds. A memory
// cgroup usually holds nobody else, and the context's own memory is taken by then.
constexpr uint64_t kReserveLeast = 256 * MiB;
constexpr uint64_t kReserveLeastInGroup = 64 * MiB;
constexpr uint64_t kReserveMost = 2 * GiB;

}  // namespace

AutoBudget choose_budget(const machine::MemoryRoom& room, uint64_t least, uint64_t full) {
    const std::optional<uint64_t> free = room.free();
    const bool in_group = free && room.cgroup_limit && (!room.available || *free < *room.available);
    if (!free) return {std::min(full, std::max(least, GiB)), "the amount of free memory is unknown"};
    const uint64_t reserve = std::clamp(*free / 8, in_group ? kReserveLeastInGroup : kReserveLeast, kReserveMost);
    const uint64_t usable = *free - std::min(*free, reserve);
    if (usable >= full) {
        return {full, "all experts fit"};
    }
    return {std::max(usable, least), std::string(in_group ? "room in the memory cgroup" : "free memory") + " " +
                                         human_bytes(*free) + " less a reserve of " + human_bytes(reserve)};
}

}  // namespace sluice::cache
