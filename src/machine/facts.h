// Owns: what the machine says about itself: processor, memory, kernel and the limits on this process.
// Keeps: a fact that could not be read is absent, never a default; reading facts changes nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "machine/memory_room.h"

namespace sluice::machine {

inline constexpr uint64_t kUnlimited = UINT64_MAX;

// Something that was really tried.
struct Attempt {
    bool works = false;
    std::string refusal;  // why not
};

// Parts of a hundred of the last ten seconds in which some process waited.
struct Pressure {
    std::optional<double> cpu, io, memory;
};

struct Facts {
    std::string architecture;  // "x86-64", "arm64", or empty: something else
    std::optional<std::string> cpu_model;
    // Those of kCpuFeatures that the processor has, as the kernel spells them.
    std::optional<std::vector<std::string>> cpu_features;
    std::optional<uint64_t> cores_online;
    std::optional<uint64_t> cores_allowed;  // of those, this process may run on
    std::optional<double> cpu_quota;        // in cores; absent: no quota, or none that can be read
    std::optional<std::string> governor;    // "schedutil"; several: "performance, powersave"
    std::optional<std::string> governor_driver;

    std::optional<uint64_t> ram_total;
    MemoryRoom room;
    std::optional<uint64_t> swap_total, swap_used;
    std::optional<uint64_t> memlock_limit;  // bytes, or kUnlimited
    std::optional<std::string> huge_pages;  // transparent ones: "always", "madvise", "never"
    uint64_t page_size = 0;

    std::optional<std::string> kernel_release;
    std::optional<int> cgroup_version;          // of the memory controller
    std::optional<uint64_t> io_uring_disabled;  // the sysctl; kernels before 6.6 have none
    std::optional<Attempt> io_uring;            // by try_io_uring
    std::optional<double> load;                 // processes that ran or waited for the drive, last minute
    std::optional<Pressure> pressure;           // absent: this kernel keeps no account of it
};

// What matters to llama.cpp's kernels, of x86-64 and of arm64.
inline constexpr std::string_view kCpuFeatures[] = {
    "avx2",     "fma",      "f16c",     "avx512f", "avx512bw", "avx512_vnni", "avx_vnni", "avx512_bf16",
    "amx_tile", "amx_int8", "amx_bf16", "asimd",   "asimddp",  "i8mm",        "sve",      "bf16"};

// Reads /proc and /sys below `root` ("" for the real ones; tests give a folder); only the page size is the system's.
// Costs some hundred microseconds. Does not fill in `io_uring`.
Facts read_facts(const std::string& root = "");

// Makes a ring as the read engine would, and drops it.
Attempt try_io_uring();

[[nodiscard]] bool has_feature(const Facts& facts, std::string_view feature);

// Major and minor number of a release such as "6.1.0-13-amd64".
struct KernelVersion {
    uint64_t major = 0;
    uint64_t minor = 0;
    bool operator==(const KernelVersion&) const = default;
    bool operator<(const KernelVersion& other) const {
        return major != other.major ? major < other.major : minor < other.minor;
    }
};
std::optional<KernelVersion> parse_kernel(std::string_view release);

// "0-3,8" as the kernel writes lists of processors: how many they are.
std::optional<uint64_t> count_cpus(std::string_view list);

}  // namespace sluice::machine
