#include "machine/scratch_file.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <span>

#include "base/bytes.h"
#include "base/memory.h"

namespace sluice::machine {
namespace {

constexpr uint64_t kPiece = 4 * MiB;
constexpr uint64_t kBlock = 4096;  // of direct writing

Status failed(const char* what, const std::string& directory, int error_number) {
    return error(error_number == ENOENT ? Code::not_found : Code::io_error, "cannot {} a temporary file in {}: {}",
                 what, directory, std::strerror(error_number));
}

// -1 with errno.
int open_nameless(const std::string& directory) {
    constexpr mode_t kMode = 0600;
    const int fd = open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL, kMode);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return fd;
    // This file system has no files without a name, so it loses its name at once.
    std::string name = directory + "/.sluice-probe-XXXXXX";
    const int named = mkostemp(name.data(), O_CLOEXEC);
    if (named >= 0) unlink(name.c_str());
    return named;
}

// 0 or an errno.
int write_piece(int fd, std::span<const std::byte> bytes, uint64_t offset) {
    while (!bytes.empty()) {
        const ssize_t n = pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EINVAL && (fcntl(fd, F_GETFL) & O_DIRECT) != 0) {
            (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_DIRECT);
            continue;
        }
        if (n < 0) return errno;
        if (n == 0) return EIO;
        bytes = bytes.subspan(static_cast<size_t>(n));
        offset += static_cast<uint64_t>(n);
    }
    return 0;
}

}  // namespace

Result<ScratchFile> ScratchFile::write(const std::string& directory, uint64_t bytes,
                                       const std::function<bool(uint64_t)>& goes_on) {
    bytes = align_down(std::min<uint64_t>(bytes, INT64_MAX), kBlock);
    struct statvfs space = {};
    if (statvfs(directory.c_str(), &space) != 0) return failed("write", directory, errno);
    const uint64_t free = checked_mul(space.f_bavail, space.f_frsize).value_or(UINT64_MAX);
    if (free < bytes || free - bytes < kLeaveFree) {
        return error(Code::no_memory,
                     "{} are free in {}, but a temporary file of {} is to be written there and {} left; name a file to "
                     "read instead",
                     human_bytes(free), directory, human_bytes(bytes), human_bytes(kLeaveFree));
    }
    const int fd = open_nameless(directory);
    if (fd < 0) return failed("create", directory, errno);
    ScratchFile file(fd);
    // Past the page cache, which need not learn what is to be read from the drive.
    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_DIRECT);
    const auto memory = Region::allocate(kPiece, false);
    if (!memory.ok()) return memory.status();
    std::mt19937_64 random(bytes);
    for (uint64_t at = 0; at < bytes;) {
        if (goes_on && !goes_on(at)) return error(Code::cancelled, "interrupted");
        const uint64_t n = std::min(kPiece, bytes - at);
        for (uint64_t i = 0; i < n; i += sizeof(uint64_t)) {
            const uint64_t word = random();
            std::memcpy(memory->data() + i, &word, sizeof word);
        }
        if (const int e = write_piece(fd, {memory->data(), n}, at); e != 0) return failed("write", directory, e);
        at += n;
    }
    if (fsync(fd) != 0) return failed("write", directory, errno);
    return file;
}

ScratchFile::~ScratchFile() {
    if (fd_ >= 0) close(fd_);
}

std::string ScratchFile::path() const {
    return fmt::format("/proc/self/fd/{}", fd_);
}

}  // namespace sluice::machine
