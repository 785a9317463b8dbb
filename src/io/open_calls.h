// Owns: the system calls that File::open makes, as values, so that tests can play file systems they do not have.
// Keeps: the defaults are the real calls.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice::io {

// What statx says about direct reads of one file.
struct DirectAlignment {
    bool known = false;  // the kernel answered; the numbers below are its answer
    uint32_t mem = 0;    // both 0: this file cannot be read directly
    uint32_t offset = 0;
};

DirectAlignment system_direct_alignment(int fd);
// Turns O_DIRECT of an open descriptor on or off. 0 or an errno.
int system_set_direct(int fd, bool on);
// pread, repeated on EINTR. Bytes or minus an errno.
int64_t system_read(int fd, std::byte* dst, size_t length, uint64_t offset, bool direct);

struct OpenCalls {
    DirectAlignment (*direct_alignment)(int fd) = system_direct_alignment;
    int (*set_direct)(int fd, bool on) = system_set_direct;
    // `direct` only tells a test which of the two reads this is; the descriptor is already in that mode.
    int64_t (*read)(int fd, std::byte* dst, size_t length, uint64_t offset, bool direct) = system_read;
};

}  // namespace sluice::io
