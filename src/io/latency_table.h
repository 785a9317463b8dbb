// Owns: how long a read takes at a device, from what is known for a few sizes and depths.
// Keeps: between known points time is linear in both, beyond them it is that of the nearest: nothing is extrapolated.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"

namespace sluice::io {

class LatencyTable {
  public:
    // Without a point.
    LatencyTable() = default;
    // `nanos[s * depths.size() + d]` is the time of one of depths[d] reads of sizes[s] bytes that are at the device
    // together. Sizes and depths rise; there is at least one of each.
    LatencyTable(std::vector<uint64_t> sizes, std::vector<uint32_t> depths, std::vector<Nanos> nanos);

    [[nodiscard]] bool empty() const { return nanos_.empty(); }
    // A depth between whole numbers: beside reads of other sizes. The table has a point.
    [[nodiscard]] Nanos at(uint64_t bytes, double depth) const;

  private:
    std::vector<uint64_t> sizes_;
    std::vector<uint32_t> depths_;
    std::vector<Nanos> nanos_;
};

}  // namespace sluice::io
