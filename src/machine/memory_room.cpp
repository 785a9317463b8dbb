#include "machine/memory_room.h"

#include <algorithm>

#include "base/bytes.h"
#include "machine/cgroup.h"
#include "machine/text.h"

namespace sluice::machine {
namespace {

// cgroup v1 spells "no limit" as a huge number.
constexpr uint64_t kNoLimit = 1ULL << 60;

struct Files {
    const char* limit;
    const char* throttle;  // above it the kernel makes the group's processes wait and reclaims; nullptr: there is none
    const char* used;
    // Key in memory.stat. Not the active file pages: rather than those the kernel swaps out what the group has in
    // memory.
    const char* droppable;
};
constexpr Files kVersion1{"/memory.limit_in_bytes", nullptr, "/memory.usage_in_bytes", "total_inactive_file "};
constexpr Files kVersion2{"/memory.max", "/memory.high", "/memory.current", "inactive_file "};

struct Limit {
    uint64_t limit = 0;
    uint64_t used = 0;
    [[nodiscard]] uint64_t left() const { return limit - std::min(limit, used); }
};

std::optional<Limit> read_limit(const std::string& folder, const Files& files) {
    auto limit = read_number(folder + files.limit);
    if (files.throttle != nullptr) {
        const auto throttle = read_number(folder + files.throttle);
        if (throttle && (!limit || *throttle < *limit)) limit = throttle;
    }
    const auto used = read_number(folder + files.used);
    if (!limit || !used || *limit >= kNoLimit) return std::nullopt;
    const auto stat = read_text(folder + "/memory.stat");
    const uint64_t droppable = stat ? number_after(*stat, files.droppable).value_or(0) : 0;
    return Limit{*limit, *used - std::min(*used, droppable)};
}

}  // namespace

MemoryRoom read_memory_room(const std::string& root) {
    MemoryRoom room;
    if (const auto text = read_text(root + "/proc/meminfo")) room.available = number_after(*text, "MemAvailable:", KiB);
    std::optional<Limit> tightest;
    for (const Hierarchy& h : hierarchies(root, "memory")) {
        for (const std::string& folder : h.folders) {
            const auto here = read_limit(folder, h.version == 1 ? kVersion1 : kVersion2);
            if (here && (!tightest || here->left() < tightest->left())) tightest = here;
        }
    }
    if (tightest) {
        room.cgroup_limit = tightest->limit;
        room.cgroup_used = tightest->used;
    }
    return room;
}

std::optional<double> read_memory_pressure(const std::string& root) {
    std::optional<double> worst = read_waited(root + "/proc/pressure/memory");
    for (const Hierarchy& h : hierarchies(root, "memory")) {
        if (h.version != 2) continue;
        const auto here = read_waited(h.folders.front() + "/memory.pressure");
        if (here && (!worst || *here > *worst)) worst = here;
    }
    return worst;
}

std::optional<uint64_t> MemoryRoom::free() const {
    if (!cgroup_limit) return available;
    const uint64_t in_group = *cgroup_limit - std::min(*cgroup_limit, cgroup_used.value_or(0));
    return available ? std::min(*available, in_group) : in_group;
}

MemoryRoom MemoryRoom::after(uint64_t taken) const {
    MemoryRoom left = *this;
    if (available) left.available = sub_floored(*available, taken);
    if (cgroup_limit) left.cgroup_used = add_capped(cgroup_used.value_or(0), taken);
    return left;
}

}  // namespace sluice::machine
