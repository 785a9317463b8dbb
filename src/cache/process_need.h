// Owns: the arithmetic of a whole process's memory: what it needs besides its experts, and what that leaves for them.
// Keeps: pure; sums that do not fit are the largest number, never a small one; what cannot fit is refused with the sum.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace sluice::cache {

// In bytes, when everything is touched that will be.
struct ProcessNeed {
    uint64_t dense = 0;         // the always-needed weights
    uint64_t context = 0;       // KV cache and recurrent state of all contexts, at full length
    uint64_t compute = 0;       // llama.cpp's compute buffers
    uint64_t program = 0;       // the rest: code, vocabulary, graphs, and our own buffers
    bool context_known = true;  // false: what context and compute buffers take comes on top of the sum

    // Without the margin.
    [[nodiscard]] uint64_t total() const;
    // "dense weights 1.2 GiB + context 256.0 MiB + compute buffers 300.0 MiB + program 64.0 MiB"
    [[nodiscard]] std::string text() const;
};

// What `program` comes to: code and libraries, llama.cpp's vocabulary and tables, of which the model's header has
// `header_bytes`, and our own buffers: those through which reads go that are converted, and those in which blocks are
// computed out of order.
uint64_t program_need(uint64_t header_bytes, uint64_t own_buffers);

// What a process that was told a number keeps of it for what comes and goes between two looks at its size: a 64th of
// it, within 8 and 256 MiB.
uint64_t process_margin(uint64_t ram);

// The memory that `ram` for the whole process leaves for experts: at most `full`. Error `no_memory` with the sum, and
// with the number that would do, when that is less than `least`.
Result<uint64_t> room_for_experts(const ProcessNeed& need, uint64_t ram, uint64_t least, uint64_t full);

// The smallest number for the whole process with which room_for_experts() finds `least`.
uint64_t least_ram(const ProcessNeed& need, uint64_t least);

}  // namespace sluice::cache
