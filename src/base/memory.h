// Owns: large page-aligned anonymous memory.
// Keeps: a region is mapped once and unmapped once; its pages cost memory only from their first touch on, and none is
// given back before the region ends unless that is asked for (first touch is the expensive part on small machines).
#pragma once

#include <cstddef>
#include <utility>

#include "base/status.h"

namespace sluice {

// Move-only owner of one anonymous mapping.
class Region {
  public:
    Region() = default;
    // `bytes` > 0. Asks for huge pages where the machine allows them: `huge` costs up to 2 MiB of slack per touched
    // place but makes first touch several times cheaper.
    static Result<Region> allocate(size_t bytes, bool huge);

    Region(Region&& other) noexcept { swap(other); }
    Region& operator=(Region&& other) noexcept {
        Region(std::move(other)).swap(*this);
        return *this;
    }
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;
    ~Region();

    // Whole pages that cost nothing any more until they are touched again, when they are zero. Nobody reads or writes
    // there meanwhile, the kernel included.
    void give_back(size_t offset, size_t bytes) const;

    [[nodiscard]] std::byte* data() const { return data_; }
    [[nodiscard]] size_t size() const { return size_; }

  private:
    void swap(Region& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
    }
    std::byte* data_ = nullptr;
    size_t size_ = 0;
};

size_t page_size();

// The largest alignment of direct I/O that memory of ours satisfies.
inline constexpr size_t kDirectAlign = 4096;

}  // namespace sluice
