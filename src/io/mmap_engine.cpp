#include "io/mmap_engine.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <new>

#include "io/pool_engine.h"

namespace sluice::io {
namespace {

// The kernel makes the copy, because it answers a page that cannot be had with EFAULT where a plain load would end the
// process by SIGBUS.
int64_t copy_by_kernel(std::byte* dst, const std::byte* from, size_t bytes) {
    const iovec to = {dst, bytes};
    const iovec source = {const_cast<std::byte*>(from), bytes};
    const ssize_t n = process_vm_readv(getpid(), &to, 1, &source, 1, 0);
    return n >= 0 ? n : -errno;
}

class Mappings {
  public:
    Mappings() = default;
    ~Mappings() {
        for (const auto& [serial, m] : mapped_) munmap(m.data, m.bytes);
    }
    Mappings(const Mappings&) = delete;
    Mappings& operator=(const Mappings&) = delete;

    int64_t read(const File& file, std::byte* dst, size_t length, uint64_t offset) {
        const uint64_t size = file.size_at_open();
        if (size == 0) return 0;
        const std::byte* data = nullptr;
        if (const int e = find(file, data); e != 0) return -e;
        if (offset >= size) return 0;
        const int64_t n = copy_by_kernel(dst, data + offset, std::min<uint64_t>(length, size - offset));
        // Asked after the copy: what was cut off reads as zeros up to the end of its page, and the size has changed
        // before they appear.
        struct stat st = {};
        if (fstat(file.fd(), &st) != 0) return -errno;
        const auto now = static_cast<uint64_t>(st.st_size);
        const int64_t there = now > offset ? static_cast<int64_t>(std::min<uint64_t>(length, now - offset)) : 0;
        if (n == -EFAULT) return there == 0 ? 0 : -EIO;
        return std::min(n, there);
    }

  private:
    struct Mapped {
        void* data;
        size_t bytes;
    };
    // 0 or an errno.
    int find(const File& file, const std::byte*& data) {
        const std::lock_guard lock(mutex_);
        const auto found = mapped_.find(file.serial());
        if (found != mapped_.end()) {
            data = static_cast<const std::byte*>(found->second.data);
            return 0;
        }
        const size_t bytes = file.size_at_open();
        void* const p = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file.fd(), 0);
        if (p == MAP_FAILED) return errno;
        try {
            mapped_.emplace(file.serial(), Mapped{p, bytes});
        } catch (const std::bad_alloc&) {
            munmap(p, bytes);
            return ENOMEM;
        }
        data = static_cast<const std::byte*>(p);
        return 0;
    }

    std::mutex mutex_;
    std::map<uint64_t, Mapped> mapped_;  // by the file's serial number
};

}  // namespace

Result<std::unique_ptr<Engine>> make_mmap_engine(unsigned lanes) {
    std::byte from{1};
    std::byte to{};
    if (const int64_t n = copy_by_kernel(&to, &from, 1); n != 1) {
        return error(Code::unsupported, "the kernel does not let this process copy from its own memory: {}",
                     std::strerror(n < 0 ? static_cast<int>(-n) : EIO));
    }
    auto mappings = std::make_shared<Mappings>();
    return make_pool_engine(lanes, {.name = "mmap"},
                            [mappings](const File& file, std::byte* dst, size_t length, uint64_t offset) {
                                return mappings->read(file, dst, length, offset);
                            });
}

}  // namespace sluice::io
