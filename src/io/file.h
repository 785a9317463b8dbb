// Owns: a file opened for reading, together with the alignment that reading it directly demands.
// Keeps: what it says about alignment was tested by one real read of this file, never assumed from the open alone.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/status.h"

namespace sluice::io {

enum class Access { direct, buffered };

struct OpenCalls;  // open_calls.h: the system calls behind open(), replaceable by tests

// Move-only owner of a descriptor. Immutable after open; reads through it may come from any thread.
class File {
  public:
    File() = default;
    // Access::direct tries O_DIRECT, takes its alignment from statx(STATX_DIOALIGN) (4096 where the kernel does not
    // say), and reads one aligned block both ways to see that it works and agrees. If it does not, the file is opened
    // buffered and fallback_reason() says why. Errors name the path.
    static Result<File> open(const std::string& path, Access access);
    static Result<File> open(const std::string& path, Access access, const OpenCalls& calls);
    // A file without a descriptor, whose bytes only a simulated device knows. It is `direct` when an alignment is
    // above 1; device 0 and a number of its own stand for its identity. The alignments are powers of two.
    static File simulated(std::string path, uint64_t size, uint32_t offset_align = 1, uint32_t mem_align = 1);

    File(File&& other) noexcept { swap(other); }
    File& operator=(File&& other) noexcept {
        File(std::move(other)).swap(*this);
        return *this;
    }
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    ~File();

    [[nodiscard]] int fd() const { return fd_; }
    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] uint64_t size_at_open() const { return size_; }
    [[nodiscard]] uint64_t device() const { return device_; }
    [[nodiscard]] uint64_t inode() const { return inode_; }
    [[nodiscard]] bool direct() const { return direct_; }
    // No other open file of this process has or had this number, unlike a descriptor's or an address.
    [[nodiscard]] uint64_t serial() const { return serial_; }
    // Powers of two; 1 when buffered.
    [[nodiscard]] uint32_t offset_align() const { return offset_align_; }
    [[nodiscard]] uint32_t mem_align() const { return mem_align_; }
    // Empty unless direct access was asked for and could not be had.
    [[nodiscard]] const std::string& fallback_reason() const { return fallback_reason_; }

  private:
    void swap(File& other) noexcept;
    int fd_ = -1;
    std::string path_;
    uint64_t size_ = 0;
    uint64_t device_ = 0;
    uint64_t inode_ = 0;
    uint64_t serial_ = 0;
    bool direct_ = false;
    uint32_t offset_align_ = 1;
    uint32_t mem_align_ = 1;
    std::string fallback_reason_;
};

}  // namespace sluice::io
