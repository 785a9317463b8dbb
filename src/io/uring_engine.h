// Owns: the read engine on io_uring.
// Keeps: the kernel never holds a buffer of ours after the read was handed back or the engine has ended.
#pragma once

#include <memory>

#include "base/status.h"
#include "io/engine.h"

struct io_uring;
struct iovec;

namespace sluice::io {

int system_uring_init(unsigned entries, io_uring* ring);
int system_uring_submit(io_uring* ring, unsigned wait_for);
int system_uring_register_memory(io_uring* ring, unsigned at, const iovec* piece);
int system_uring_register_file(io_uring* ring, unsigned at, int fd);
inline int system_uring_result(int result) {
    return result;
}

// Where a kernel can refuse a ring or fail a read, replaceable by tests. Results as liburing's: minus an errno on
// error.
struct UringCalls {
    int (*init)(unsigned entries, io_uring* ring) = system_uring_init;
    // Gives all prepared reads to the kernel and waits for `wait_for` completions. Returns how many it took.
    int (*submit)(io_uring* ring, unsigned wait_for) = system_uring_submit;
    // What one finished read is taken to have given, from what the kernel says it gave.
    int (*result)(int result) = system_uring_result;
    // Fill one place of the table that the ring has for memory, or for files. A piece of no bytes empties its place.
    int (*register_memory)(io_uring* ring, unsigned at, const iovec* piece) = system_uring_register_memory;
    int (*register_file)(io_uring* ring, unsigned at, int fd) = system_uring_register_file;
};

// A ring of depth `lanes`, 1..64. Files are registered with it as they come; `priorities` as in EngineOptions.
Result<std::unique_ptr<Engine>> make_uring_engine(unsigned lanes, const UringCalls& calls = {},
                                                  bool priorities = false);

// make_engine (engine.h) with these calls.
Result<MadeEngine> make_engine(const EngineOptions& options, const UringCalls& calls);

}  // namespace sluice::io
