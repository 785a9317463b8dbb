#include "cache/budget.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <string_view>

#include "base/bytes.h"

namespace sluice::cache {
namespace {

// Left to everybody else when the size is chosen for the user: an eighth of what is free, within these bounds.
constexpr uint64_t kReserveLeast = 256 * MiB;
constexpr uint64_t kReserveMost = 2 * GiB;
// cgroup v1 spells "no limit" as a huge number.
constexpr uint64_t kNoLimit = 1ULL << 60;

std::optional<std::string> slurp(const std::string& path) {
    std::ifstream f(path);
    if (!f) return std::nullopt;
    std::ostringstream text;
    text << f.rdbuf();
    return text.str();
}

std::optional<uint64_t> number(std::string_view text) {
    while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
    uint64_t n = 0;
    const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (ec != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return n;
}

std::optional<uint64_t> read_number(const std::string& path) {
    const auto text = slurp(path);
    return text ? number(*text) : std::nullopt;
}

// The value after "key" in lines of "key value".
std::optional<uint64_t> field(const std::string& text, std::string_view key) {
    std::istringstream lines(text);
    std::string line;
    while (std::getline(lines, line)) {
        if (!std::string_view(line).starts_with(key)) continue;
        std::istringstream rest(line.substr(key.size()));
        uint64_t n = 0;
        if (rest >> n) return n;
    }
    return std::nullopt;
}

struct Limit {
    uint64_t limit = 0;
    uint64_t used = 0;
};

// The tightest limit from the process's own group up to the root of its hierarchy.
std::optional<Limit> tightest(const std::string& mount, std::string group, const char* limit_file, const char* use_file,
                              const char* cache_key) {
    std::optional<Limit> best;
    while (true) {
        const std::string dir = mount + (group == "/" ? "" : group);
        const auto limit = read_number(dir + "/" + limit_file);
        const auto used = read_number(dir + "/" + use_file);
        if (limit && used && *limit < kNoLimit) {
            const auto stat = slurp(dir + "/memory.stat");
            const uint64_t droppable = stat ? field(*stat, cache_key).value_or(0) : 0;
            const Limit here{*limit, *used - std::min(*used, droppable)};
            if (!best ||
                here.limit - std::min(here.limit, here.used) < best->limit - std::min(best->limit, best->used)) {
                best = here;
            }
        }
        if (group.empty() || group == "/") return best;
        group.resize(group.rfind('/'));
    }
}

}  // namespace

MemoryRoom read_memory_room(const std::string& root) {
    MemoryRoom room;
    if (const auto text = slurp(root + "/proc/meminfo")) {
        if (const auto kib = field(*text, "MemAvailable:")) room.available = *kib * KiB;
    }
    std::optional<Limit> limit;
    if (const auto text = slurp(root + "/proc/self/cgroup")) {
        std::istringstream lines(*text);
        std::string line;
        while (std::getline(lines, line)) {  // "number:controllers:/path"
            const size_t a = line.find(':');
            const size_t b = a == std::string::npos ? a : line.find(':', a + 1);
            if (b == std::string::npos) continue;
            const std::string controllers = "," + line.substr(a + 1, b - a - 1) + ",";
            const std::string group = line.substr(b + 1);
            std::optional<Limit> here;
            if (controllers == ",,") {
                here = tightest(root + "/sys/fs/cgroup", group, "memory.max", "memory.current", "inactive_file ");
            } else if (controllers.find(",memory,") != std::string::npos) {
                here = tightest(root + "/sys/fs/cgroup/memory", group, "memory.limit_in_bytes", "memory.usage_in_bytes",
                                "total_inactive_file ");
            }
            if (here && (!limit || here->limit - std::min(here->limit, here->used) <
                                       limit->limit - std::min(limit->limit, limit->used))) {
                limit = here;
            }
        }
    }
    if (limit) {
        room.cgroup_limit = limit->limit;
        room.cgroup_used = limit->used;
    }
    return room;
}

AutoBudget choose_budget(const MemoryRoom& room, uint64_t least, uint64_t full) {
    std::optional<uint64_t> free = room.available;
    const char* source = "free memory";
    if (room.cgroup_limit) {
        const uint64_t in_group = *room.cgroup_limit - std::min(*room.cgroup_limit, *room.cgroup_used);
        if (!free || in_group < *free) {
            free = in_group;
            source = "room in the memory cgroup";
        }
    }
    if (!free) return {std::min(full, std::max(least, GiB)), "the amount of free memory is unknown"};
    const uint64_t reserve = std::clamp(*free / 8, kReserveLeast, kReserveMost);
    const uint64_t usable = *free - std::min(*free, reserve);
    if (usable >= full) {
        return {full, "all experts fit"};
    }
    return {std::max(usable, least),
            std::string(source) + " " + human_bytes(*free) + " less a reserve of " + human_bytes(reserve)};
}

}  // namespace sluice::cache
