// Owns: how much memory this process may still take, by the machine's and its cgroup's own account.
// Keeps: every number is read, none assumed; a limit that cannot be read is said to be unknown.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace sluice::machine {

struct MemoryRoom {
    std::optional<uint64_t> available;     // MemAvailable of the machine
    std::optional<uint64_t> cgroup_limit;  // tightest limit above this process, if any
    std::optional<uint64_t> cgroup_used;   // of that cgroup, without page cache that can be dropped

    // What both leave; absent when neither is known.
    [[nodiscard]] std::optional<uint64_t> free() const;
    // The same once this process has taken so much more.
    [[nodiscard]] MemoryRoom after(uint64_t taken) const;
};

// Reads /proc and /sys below `root` ("" for the real ones; tests give a folder). cgroup v1 and v2.
MemoryRoom read_memory_room(const std::string& root);

// Parts of a hundred of the last ten seconds in which something waited for memory: on the machine, or in this process's
// own cgroup (version 2), whichever is more. Absent: neither is kept.
std::optional<double> read_memory_pressure(const std::string& root);

}  // namespace sluice::machine
