// Owns: CRC-32C, the checksum by which the store knows the bytes of an expert again.
// Keeps: it is computed by the processor's own instructions where there are any; the value is the usual one (iSCSI,
// ext4), so other tools can check it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace sluice {

// Of the bytes that gave `before`, followed by `bytes`; 0 is the checksum of nothing. Thread-safe.
[[nodiscard]] uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);
// The same of text, or of bytes that are kept as text.
[[nodiscard]] inline uint32_t crc32c(std::string_view bytes) {
    return crc32c(std::as_bytes(std::span(bytes.data(), bytes.size())));
}

}  // namespace sluice
