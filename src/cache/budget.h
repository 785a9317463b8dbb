// Owns: how large the cache is when the user named no size.
// Keeps: a reserve is left to everybody else; what cannot be known is said to be unknown.
#pragma once

#include <cstdint>
#include <string>

#include "machine/memory_room.h"

namespace sluice::cache {

struct AutoBudget {
    uint64_t bytes = 0;
    std::string why;  // one line for people
};

// The cache size when the user named none: what is free less a reserve, at most `full`, at least `least`.
AutoBudget choose_budget(const machine::MemoryRoom& room, uint64_t least, uint64_t full);

}  // namespace sluice::cache
