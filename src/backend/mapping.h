// Owns: finding out which file, and which place in it, a pointer into a mapping shows.
// Keeps: the answer is checked against the open file's device and inode, so a file that was renamed or replaced since
// it was mapped is never taken for the mapped one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace sluice::backend {

struct MappedFile {
    std::string path;            // opens the very file that is mapped
    std::byte* begin = nullptr;  // the mapping around the pointer
    std::byte* end = nullptr;
    uint64_t offset = 0;  // of `begin` in the file

    // Where in the file an address inside the mapping lies.
    [[nodiscard]] uint64_t offset_of(const void* address) const {
        return offset + static_cast<uint64_t>(static_cast<const std::byte*>(address) - begin);
    }
};

// Linux: reads /proc/self/maps. Error `not_found` if the pointer is not in a file mapping.
Result<MappedFile> find_mapping(const void* pointer);

}  // namespace sluice::backend
