// Owns: the numbers by which rooms speak of the same thing.
#pragma once

#include <cstdint>

namespace sluice {

// Dense number of one (expert set, expert) of one model: all bytes of that expert are one record.
using RecordId = uint32_t;
inline constexpr RecordId kNoRecord = UINT32_MAX;

}  // namespace sluice
