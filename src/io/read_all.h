// Owns: reading one long stretch of a file at the drive's full speed, for those who want all of it now.
// Keeps: when it returns, well or not, no read into the caller's memory is under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/bytes.h"
#include "base/status.h"
#include "io/engine.h"

namespace sluice::io {

struct ReadExactOptions {
    // Reads in flight. Drives gain nothing beyond a handful; the engine's lanes bound it too.
    unsigned depth = 8;
    // Bytes per read, rounded up to the file's alignment.
    uint32_t chunk = MiB;
};

// How much memory read_exact needs for these bytes: the range, rounded out to the file's alignment at both ends.
// nullopt if that does not fit 64 bits.
std::optional<uint64_t> region_bytes(const File& file, uint64_t offset, uint64_t bytes);

// Reads [offset, offset + bytes) into `region` and returns where the first wanted byte lies: region.data() plus what
// `offset` has beyond the file's alignment. Neither `offset` nor `bytes` need be aligned. `region` starts at a multiple
// of file.mem_align() and holds region_bytes(). The engine has nothing outstanding before and after.
// An error is that of the first stretch in file order that is known to have failed.
Result<std::byte*> read_exact(Engine& engine, const File& file, uint64_t offset, uint64_t bytes,
                              std::span<std::byte> region, const ReadExactOptions& options = {});

// The Status for a read that completed with an errno: names the file, the place and the reason; for ENODATA also how
// long the file is now.
Status read_error(const File& file, uint64_t offset, uint64_t bytes, int error_number);

}  // namespace sluice::io
