#include "base/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/bytes.h"

namespace sluice {

Result<Region> Region::allocate(size_t bytes, bool huge) {
    assert(bytes > 0);
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        return error(Code::no_memory, "cannot map {} of memory: {}", human_bytes(bytes), std::strerror(errno));
    }
    // Only a hint: without transparent huge pages everything works, first touch is just slower.
    if (huge) (void)madvise(p, bytes, MADV_HUGEPAGE);
    Region r;
    r.data_ = static_cast<std::byte*>(p);
    r.size_ = bytes;
    return r;
}

Region::~Region() {
    if (data_ != nullptr) munmap(data_, size_);
}

void Region::give_back(size_t offset, size_t bytes) const {
    assert(offset % page_size() == 0 && bytes % page_size() == 0 && offset + bytes <= align_up(size_, page_size()));
    (void)madvise(data_ + offset, bytes, MADV_DONTNEED);
}

size_t page_size() {
    static const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return size;
}

}  // namespace sluice
