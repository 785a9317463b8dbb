#include "base/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>

namespace sluice {

uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before) {
    // The library counts in int, and leaves the inversions at both ends to its caller. It does not write through the
    // pointer.
    constexpr size_t kPiece = size_t{1} << 30U;
    uint32_t state = ~before;
    while (!bytes.empty()) {
        const size_t n = std::min(bytes.size(), kPiece);
        auto* data = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(bytes.data()));
        state = crc32_iscsi(data, static_cast<int>(n), state);
        bytes = bytes.subspan(n);
    }
    return ~state;
}

}  // namespace sluice
