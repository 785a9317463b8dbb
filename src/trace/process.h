// Owns: what the kernel says this process uses.
// Keeps: a number that could not be read is absent, never zero.
#pragma once

#include <cstdint>
#include <optional>

namespace sluice::trace {

struct ProcessMemory {
    std::optional<uint64_t> rss;   // resident now, bytes
    std::optional<uint64_t> peak;  // largest ever
    std::optional<uint64_t> anon, file;
};
ProcessMemory process_memory();

// Bytes that this process has caused to be read from a device so far.
std::optional<uint64_t> process_bytes_read();

}  // namespace sluice::trace
