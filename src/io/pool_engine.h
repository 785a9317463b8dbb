// Owns: the read engine made of plain threads that call pread, for kernels and containers without io_uring.
// Keeps: a thread without work sleeps; when the engine is gone, so are its threads and their writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "base/status.h"
#include "io/engine.h"

namespace sluice::io {

// One attempt to read: bytes, or minus an errno. Called from any of the pool's threads; throws nothing.
using ReadCall = std::function<int64_t(const File& file, std::byte* dst, size_t length, uint64_t offset)>;

// pread of the file's descriptor.
int64_t system_pread(const File& file, std::byte* dst, size_t length, uint64_t offset);

struct PoolOptions {
    const char* name = "pread";
    bool priorities = false;  // as in EngineOptions
    // Gives the calling thread the scheduling class of a kind of reads. 0 or an errno.
    int (*set_priority)(Priority priority) = nullptr;  // nullptr: the system's
};

// `lanes` threads, 1..64. Tests pass a `read` that misbehaves.
Result<std::unique_ptr<Engine>> make_pool_engine(unsigned lanes, const PoolOptions& options,
                                                 ReadCall read = system_pread);
inline Result<std::unique_ptr<Engine>> make_pool_engine(unsigned lanes, ReadCall read = system_pread) {
    return make_pool_engine(lanes, PoolOptions(), std::move(read));
}

}  // namespace sluice::io
