#include "read_faults.h"

#include <dlfcn.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace {

struct State {
    std::mutex mutex;
    uint64_t device = 0, inode = 0;
    bool planned = false;
    uint64_t number = 0, times = 0;
    ReadFault kind = read_fault_none;
    off64_t place = -1;  // of the read that suffered first
    uint64_t seen = 0, suffered = 0;
};

// Never destroyed: threads may still read while the program ends.
State& state() {
    static auto* s = new State;
    return *s;
}

// What this read suffers.
ReadFault fault_of(int fd, off64_t offset) {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    if (!s.planned) return read_fault_none;
    struct stat st = {};
    if (fstat(fd, &st) != 0 || st.st_dev != s.device || st.st_ino != s.inode) return read_fault_none;
    if (s.seen++ == s.number) s.place = offset;
    if (offset != s.place || s.suffered >= s.times) return read_fault_none;
    ++s.suffered;
    return s.kind;
}

void say(const char* text) {
    const ssize_t ignored = write(STDERR_FILENO, text, std::strlen(text));
    (void)ignored;
}

template <typename Function>
Function next(const char* name) {
    return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

ssize_t failed(int error) {
    errno = error;
    return -1;
}

// `spoil(n)` inverts a bit of byte n of what was read.
template <typename Read, typename Spoil>
ssize_t faulty(int fd, off64_t offset, const Read& read, const Spoil& spoil) {
    switch (fault_of(fd, offset)) {
        case read_fault_none:
            break;
        case read_fault_io:
            return failed(EIO);
        case read_fault_stale:
            return failed(ESTALE);
        case read_fault_interrupted:
            return failed(EINTR);
        case read_fault_end:
            return 0;
        case read_fault_short: {
            const ssize_t got = read();
            return got > 1 ? got / 2 : got;
        }
        case read_fault_flip: {
            const ssize_t got = read();
            if (got > 0) spoil(static_cast<size_t>(got) / 2);
            return got;
        }
        case read_fault_stuck:
            say("stuck\n");
            for (;;) pause();
    }
    return read();
}

ssize_t faulty_pread(const char* name, int fd, void* data, size_t bytes, off64_t offset) {
    using Function = ssize_t (*)(int, void*, size_t, off64_t);
    static_assert(sizeof(off_t) == sizeof(off64_t));
    return faulty(
        fd, offset, [&] { return next<Function>(name)(fd, data, bytes, offset); },
        [&](size_t at) { static_cast<unsigned char*>(data)[at] ^= 1U; });
}

ssize_t faulty_preadv(const char* name, int fd, const iovec* parts, int n, off64_t offset) {
    using Function = ssize_t (*)(int, const iovec*, int, off64_t);
    return faulty(
        fd, offset, [&] { return next<Function>(name)(fd, parts, n, offset); },
        [&](size_t at) {
            for (int i = 0; i < n; ++i) {
                if (at < parts[i].iov_len) {
                    static_cast<unsigned char*>(parts[i].iov_base)[at] ^= 1U;
                    return;
                }
                at -= parts[i].iov_len;
            }
        });
}

}  // namespace

extern "C" {

void read_faults_watch(uint64_t device, uint64_t inode) {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    s.device = device;
    s.inode = inode;
}

void read_faults_plan(uint64_t number, ReadFault kind, uint64_t times) {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    s.planned = true;
    s.number = number;
    s.kind = kind;
    s.times = times;
    s.place = -1;
    s.seen = s.suffered = 0;
}

uint64_t read_faults_seen() {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    return s.seen;
}

uint64_t read_faults_suffered() {
    State& s = state();
    const std::lock_guard lock(s.mutex);
    return s.suffered;
}

__attribute__((visibility("default"))) ssize_t pread(int fd, void* data, size_t bytes, off_t offset) {
    return faulty_pread("pread", fd, data, bytes, offset);
}
__attribute__((visibility("default"))) ssize_t pread64(int fd, void* data, size_t bytes, off64_t offset) {
    return faulty_pread("pread64", fd, data, bytes, offset);
}
__attribute__((visibility("default"))) ssize_t preadv(int fd, const iovec* parts, int n, off_t offset) {
    return faulty_preadv("preadv", fd, parts, n, offset);
}
__attribute__((visibility("default"))) ssize_t preadv64(int fd, const iovec* parts, int n, off64_t offset) {
    return faulty_preadv("preadv64", fd, parts, n, offset);
}
}

namespace {

struct FromEnvironment {
    FromEnvironment() {
        const char* plan = std::getenv("STUCK_READ");
        char* colon = nullptr;
        const uint64_t number = plan != nullptr ? std::strtoull(plan, &colon, 10) : 0;
        struct stat st = {};
        if (plan == nullptr || *colon != ':' || stat(colon + 1, &st) != 0) return;
        read_faults_watch(st.st_dev, st.st_ino);
        read_faults_plan(number, read_fault_stuck, 1);
        told = true;
    }
    ~FromEnvironment() {
        if (!told) return;
        char text[40];
        (void)std::snprintf(text, sizeof text, "reads: %" PRIu64 "\n", read_faults_seen());
        say(text);
    }
    FromEnvironment(const FromEnvironment&) = delete;
    FromEnvironment& operator=(const FromEnvironment&) = delete;
    bool told = false;
} from_environment;

}  // namespace
