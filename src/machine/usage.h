// Owns: what the kernel says this process uses, and how short of memory and drive time the machine is.
// Keeps: a number that could not be read is absent, never zero. Counts only grow, except when the kernel resets them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace sluice::machine {

struct Usage {
    // Of this process, in bytes.
    std::optional<uint64_t> rss;           // resident now
    std::optional<uint64_t> peak;          // largest ever
    std::optional<uint64_t> anon, file;    // of rss
    std::optional<uint64_t> swap;          // swapped out
    std::optional<uint64_t> bytes_read;    // caused to be read from a device so far
    std::optional<uint64_t> major_faults;  // pages that had to be read, so far
    std::optional<uint64_t> minor_faults;  // pages that had only to be mapped
    std::optional<uint64_t> cpu_ns;        // computed so far, all threads
    // Of the machine, in bytes.
    std::optional<uint64_t> mem_available, mem_free, swap_free;
    // Of the machine: microseconds so far in which some, or all, that had work waited (pressure stall information).
    std::optional<uint64_t> psi_io_some_us, psi_io_full_us, psi_mem_some_us, psi_mem_full_us;
};

// The part of it that asks no file: cheap enough for every token.
struct Faults {
    std::optional<uint64_t> major, minor;
    std::optional<uint64_t> cpu_ns;
};
Faults faults();

// Keeps the files open, so that a sample opens and allocates nothing. Any thread may sample, also several at once.
// After fork() it still tells of the parent.
class UsageReader {
  public:
    // Files are those below `root`/proc ("" for the real ones; tests give a folder). Faults and CPU time are always
    // those of this process.
    explicit UsageReader(const std::string& root = "");
    UsageReader(const UsageReader&) = delete;
    UsageReader& operator=(const UsageReader&) = delete;
    ~UsageReader();

    [[nodiscard]] Usage read() const;

  private:
    static constexpr size_t kFiles = 5;
    std::array<int, kFiles> fds_{};  // in the order of the names in usage.cpp; -1 where there is none
};

// One sample, for those who need no second one soon.
Usage usage(const std::string& root = "");

}  // namespace sluice::machine
