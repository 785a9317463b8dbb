#include "cache/process_need.h"

#include <algorithm>

#include "base/bytes.h"

namespace sluice::cache {
namespace {

// Measured with the smallest models: code and libraries that are touched, threads' stacks, ggml's graphs are 25 to 28
// MiB in `sluice run`, serve and perplexity.
constexpr uint64_t kProgram = 32 * MiB;
// The vocabulary and its merges in llama.cpp's maps take this many times what they take in the header.
constexpr uint64_t kHeaderGrowth = 8;
constexpr uint64_t kMarginLeast = 8 * MiB;
constexpr uint64_t kMarginMost = 256 * MiB;
constexpr uint64_t kMarginPart = 64;

}  // namespace

uint64_t ProcessNeed::total() const {
    return add_capped(add_capped(dense, context), add_capped(compute, program));
}

std::string ProcessNeed::text() const {
    if (!context_known) {
        return fmt::format("dense weights {} + program {}, context and compute buffers not known yet",
                           human_bytes(dense), human_bytes(program));
    }
    return fmt::format("dense weights {} + context {} + compute buffers {} + program {}", human_bytes(dense),
                       human_bytes(context), human_bytes(compute), human_bytes(program));
}

uint64_t program_need(uint64_t header_bytes, uint64_t own_buffers) {
    return add_capped(add_capped(kProgram, checked_mul(kHeaderGrowth, header_bytes).value_or(UINT64_MAX)), own_buffers);
}

uint64_t process_margin(uint64_t ram) {
    return std::clamp(ram / kMarginPart, kMarginLeast, kMarginMost);
}

uint64_t least_ram(const ProcessNeed& need, uint64_t least) {
    const uint64_t used = add_capped(need.total(), least);
    // The margin is part of the number that it is a 64th of.
    uint64_t margin = process_margin(used);
    for (uint64_t next = 0; (next = process_margin(add_capped(used, margin))) > margin;) margin = next;
    return add_capped(used, margin);
}

Result<uint64_t> room_for_experts(const ProcessNeed& need, uint64_t ram, uint64_t least, uint64_t full) {
    const uint64_t margin = process_margin(ram);
    const uint64_t taken = add_capped(need.total(), margin);
    const uint64_t left = sub_floored(ram, taken);
    if (left >= least) return std::min(left, full);
    return error(Code::no_memory,
                 "{} for the process leave too little for experts: {} + margin {} = {}, and the cache needs at least "
                 "{}: give --ram at least {:.0f} MiB, a shorter context (-c), or smaller batches (-ub)",
                 human_bytes(ram), need.text(), human_bytes(margin), human_bytes(taken), human_bytes(least),
                 to_mib(align_up(std::min(least_ram(need, least), UINT64_MAX - MiB), MiB)));
}

}  // namespace sluice::cache
