#include "io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/bytes.h"
#include "io/open_calls.h"

namespace sluice::io {
namespace {

// Assumed where the kernel does not say. Every drive and file system in use accepts it.
constexpr uint32_t default_align = 4096;
// An alignment above this is not one that slots and chunks could be laid out for.
constexpr uint32_t max_align = 64 * KiB;

// STATX_DIOALIGN and its two fields, by number and place: they are kernel ABI since Linux 6.1, but older C libraries
// ship a struct statx without them (as spare space).
constexpr unsigned statx_dioalign = 0x2000U;
constexpr size_t statx_dio_mem_align_at = 0x98;
constexpr size_t statx_dio_offset_align_at = 0x9c;
static_assert(sizeof(struct statx) >= statx_dio_offset_align_at + sizeof(uint32_t));

uint64_t next_serial() {
    static std::atomic<uint64_t> next = 1;
    return next.fetch_add(1, std::memory_order_relaxed);
}

struct Free {
    void operator()(std::byte* p) const { std::free(p); }
};

Status open_error(const std::string& path, int error_number) {
    const Code code = error_number == ENOENT || error_number == ENOTDIR ? Code::not_found : Code::io_error;
    return error(code, "cannot open {}: {}", path, std::strerror(error_number));
}

// Files only: opening a FIFO would block, and a device or directory has no size to index.
Status check_type(const std::string& path, const struct stat& st) {
    if (S_ISREG(st.st_mode)) return {};
    if (S_ISDIR(st.st_mode)) {
        return error(Code::invalid_argument, "cannot open {}: {}", path, std::strerror(EISDIR));
    }
    return error(Code::invalid_argument, "cannot open {}: not a regular file", path);
}

struct Direct {
    uint32_t mem_align = 0;
    uint32_t offset_align = 0;
    std::string refusal;  // not empty: direct reading does not work, and this is why
};

Direct refused(std::string why) {
    return {0, 0, std::move(why)};
}

// Leaves the descriptor in direct mode unless it reports a refusal.
// One descriptor plays both modes (O_DIRECT can be switched), so that both reads certainly see the same file.
Direct try_direct(int fd, uint64_t size, const OpenCalls& calls) {
    DirectAlignment align = calls.direct_alignment(fd);
    if (!align.known) align = {true, default_align, default_align};
    if (align.mem == 0 || align.offset == 0) return refused("the kernel says this file cannot be read directly");
    if (!is_power_of_two(align.mem) || !is_power_of_two(align.offset) || align.mem > max_align ||
        align.offset > max_align) {
        return refused(
            fmt::format("the kernel asks for an alignment of {} bytes in memory and {} in the file, which is "
                        "not supported",
                        align.mem, align.offset));
    }

    const uint32_t block = std::max({align.mem, align.offset, default_align});
    const std::unique_ptr<std::byte, Free> memory(
        static_cast<std::byte*>(std::aligned_alloc(block, size_t{2} * block)));
    if (memory == nullptr) return refused("no memory for a trial read");
    std::byte* const buffered = memory.get();
    std::byte* const direct = buffered + block;
    // The middle of the file: headers at the front are likely to be cached, so they prove less.
    const uint64_t at = align_down(size / 2, block);

    const int64_t buffered_bytes = calls.read(fd, buffered, block, at, false);
    if (buffered_bytes < 0) {
        return refused(fmt::format("a trial read at offset {} failed even without O_DIRECT: {}", at,
                                   std::strerror(static_cast<int>(-buffered_bytes))));
    }
    if (const int e = calls.set_direct(fd, true); e != 0) {
        return refused(fmt::format("the file system refuses O_DIRECT: {}", std::strerror(e)));
    }
    const int64_t direct_bytes = calls.read(fd, direct, block, at, true);
    std::string why;
    if (direct_bytes < 0) {
        why = fmt::format("a direct trial read of {} bytes at offset {} failed: {}", block, at,
                          std::strerror(static_cast<int>(-direct_bytes)));
    } else if (direct_bytes != buffered_bytes) {
        why = fmt::format("a direct trial read at offset {} gave {} bytes where a buffered one gave {}", at,
                          direct_bytes, buffered_bytes);
    } else if (std::memcmp(buffered, direct, static_cast<size_t>(direct_bytes)) != 0) {
        why = fmt::format("a direct trial read at offset {} gave other bytes than a buffered one", at);
    }
    if (why.empty()) return {align.mem, align.offset, {}};
    return refused(std::move(why));
}

}  // namespace

DirectAlignment system_direct_alignment(int fd) {
    struct statx st;
    std::memset(&st, 0, sizeof st);
    if (statx(fd, "", AT_EMPTY_PATH, statx_dioalign, &st) != 0 || (st.stx_mask & statx_dioalign) == 0) return {};
    DirectAlignment align;
    align.known = true;
    const auto* bytes = reinterpret_cast<const std::byte*>(&st);
    std::memcpy(&align.mem, bytes + statx_dio_mem_align_at, sizeof align.mem);
    std::memcpy(&align.offset, bytes + statx_dio_offset_align_at, sizeof align.offset);
    return align;
}

int system_set_direct(int fd, bool on) {
    const int flags = fcntl(fd, F_GETFL);
    if (flags < 0) return errno;
    return fcntl(fd, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0 ? 0 : errno;
}

int64_t system_read(int fd, std::byte* dst, size_t length, uint64_t offset, bool) {
    for (;;) {
        const ssize_t n = pread(fd, dst, length, static_cast<off_t>(offset));
        if (n >= 0) return n;
        if (errno != EINTR) return -errno;
    }
}

Result<File> File::open(const std::string& path, Access access) {
    return open(path, access, OpenCalls());
}

Result<File> File::open(const std::string& path, Access access, const OpenCalls& calls) {
    struct stat st = {};
    if (stat(path.c_str(), &st) != 0) return open_error(path, errno);
    if (Status s = check_type(path, st); !s) return s;

    File f;
    f.fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (f.fd_ < 0) return open_error(path, errno);
    // Asked again of the descriptor: the name may have changed hands in between.
    if (fstat(f.fd_, &st) != 0) return open_error(path, errno);
    if (Status s = check_type(path, st); !s) return s;
    f.path_ = path;
    f.size_ = static_cast<uint64_t>(st.st_size);
    f.device_ = st.st_dev;
    f.inode_ = st.st_ino;
    f.serial_ = next_serial();
    // Keeps the kernel from reading ahead on its own: every read of an expert is one that we asked for.
    (void)posix_fadvise(f.fd_, 0, 0, POSIX_FADV_RANDOM);
    if (access == Access::buffered) return f;

    Direct direct = try_direct(f.fd_, f.size_, calls);
    if (direct.refusal.empty()) {
        f.direct_ = true;
        f.offset_align_ = direct.offset_align;
        f.mem_align_ = direct.mem_align;
        return f;
    }
    // A descriptor left in direct mode would demand an alignment that this File denies.
    if (const int e = calls.set_direct(f.fd_, false); e != 0) {
        return error(Code::io_error, "cannot read {} without O_DIRECT ({}) after {}", path, std::strerror(e),
                     direct.refusal);
    }
    f.fallback_reason_ = std::move(direct.refusal);
    return f;
}

File File::simulated(std::string path, uint64_t size, uint32_t offset_align, uint32_t mem_align) {
    assert(is_power_of_two(offset_align) && is_power_of_two(mem_align));
    File f;
    f.path_ = std::move(path);
    f.size_ = size;
    f.serial_ = next_serial();
    f.inode_ = f.serial_;
    f.direct_ = offset_align > 1 || mem_align > 1;
    f.offset_align_ = offset_align;
    f.mem_align_ = mem_align;
    return f;
}

File::~File() {
    if (fd_ >= 0) close(fd_);
}

void File::swap(File& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(path_, other.path_);
    std::swap(size_, other.size_);
    std::swap(device_, other.device_);
    std::swap(inode_, other.inode_);
    std::swap(serial_, other.serial_);
    std::swap(direct_, other.direct_);
    std::swap(offset_align_, other.offset_align_);
    std::swap(mem_align_, other.mem_align_);
    std::swap(fallback_reason_, other.fallback_reason_);
}

}  // namespace sluice::io
