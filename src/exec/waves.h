// Owns: when what has come of a block's experts is worth a launch, and waiting for a slot.
// Keeps: the last expert is never waited for alone, because its read may be stuck.
#pragma once

#include <algorithm>
#include <cstddef>

#include "base/status.h"
#include "exec/launch.h"
#include "sched/fetcher.h"

namespace sluice::exec {

// Of `open` experts that are not computed, so many are worth a launch while others are read, although the user prefers
// `wave` of them.
inline size_t worth_a_launch(size_t wave, size_t open) {
    return std::clamp<size_t>(wave, 1, std::max<size_t>(open, 2) - 1);
}

// Nothing of the block is leased: until a slot may be free.
inline Status wait_for_slot(sched::Fetcher& fetcher, const Launch& launch) {
    if (fetcher.wait_for_any(&launch.pass(), launch.stop())) return {};
    if (launch.stop()()) return error(Code::cancelled, "stopped");
    return error(Code::internal, "no slot is free although nothing is leased");
}

}  // namespace sluice::exec
