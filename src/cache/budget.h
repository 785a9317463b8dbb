// Owns: how large the cache is when the user named no size.
// Keeps: a reserve is left to everybody else; what cannot be known is said to be unknown.
#pragma once

#include <cstdint>
#include <string>

#include "machine/memory_room.h"

namespace sluice::cache {

// What is left free for everybody else: an eighth of what is free now, within 256 MiB and 2 GiB (in a memory cgroup,
// which usually holds nobody else, a sixteenth, within 64 MiB and 2 GiB). Where the user has named a number (`told`),
// only what keeps the kernel from swapping or killing: a 32nd, within 64 and 512 MiB (16 MiB in a cgroup). Never more
// than a quarter of what is free.
uint64_t reserve_of(const machine::MemoryRoom& room, bool told);
// True if the cgroup's limit is what is tighter.
bool limited_by_group(const machine::MemoryRoom& room);
// What room.free() is, in words.
const char* name_of_free(const machine::MemoryRoom& room);

struct AutoBudget {
    uint64_t bytes = 0;
    std::string why;  // one line for people
};

// The cache size when the user named none: what is free less a reserve, at most `full`, at least `least`. `told`: he
// named one for the process.
AutoBudget choose_budget(const machine::MemoryRoom& room, bool told, uint64_t least, uint64_t full);

}  // namespace sluice::cache
