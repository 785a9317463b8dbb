// Owns: a large file in some directory, to read from.
// Keeps: it has no name, so that it is gone when the process is, however that ends; it is refused where it would take
// the last free space. Its bytes can be neither compressed nor shared.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/status.h"

namespace sluice::machine {

// Move-only owner.
class ScratchFile {
  public:
    // `goes_on` is called with the bytes written so far; false ends it (`cancelled`).
    static Result<ScratchFile> write(const std::string& directory, uint64_t bytes,
                                     const std::function<bool(uint64_t)>& goes_on);
    // So much must be left on the file system.
    static constexpr uint64_t kLeaveFree = uint64_t{256} << 20U;

    ScratchFile(ScratchFile&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
    ScratchFile& operator=(ScratchFile&&) = delete;
    ScratchFile(const ScratchFile&) = delete;
    ScratchFile& operator=(const ScratchFile&) = delete;
    ~ScratchFile();

    // To open it by, as long as it lives; nobody else can.
    [[nodiscard]] std::string path() const;

  private:
    explicit ScratchFile(int fd) : fd_(fd) {}
    int fd_ = -1;
};

}  // namespace sluice::machine
