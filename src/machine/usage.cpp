#include "machine/usage.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

#include "base/bytes.h"
#include "machine/text.h"

namespace sluice::machine {
namespace {

enum : size_t { kStatus, kIo, kMemory, kPressureIo, kPressureMemory };
constexpr std::array<const char*, 5> kNames{"/proc/self/status", "/proc/self/io", "/proc/meminfo", "/proc/pressure/io",
                                            "/proc/pressure/memory"};

// A few times what any of these files has.
constexpr size_t kBuffer = 16 * KiB;
using Buffer = std::array<char, kBuffer>;

// Whole lines of the file; empty if it cannot be read.
std::string_view read_again(int fd, Buffer& buffer) {
    size_t size = 0;
    while (fd >= 0 && size < buffer.size()) {
        const ssize_t n = pread(fd, buffer.data() + size, buffer.size() - size, static_cast<off_t>(size));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return {};
        if (n == 0) return {buffer.data(), size};
        size += static_cast<size_t>(n);
    }
    const std::string_view text(buffer.data(), size);
    return text.substr(0, text.rfind('\n') + 1);  // cut off: its last number may lack digits
}

// "some avg10=0.00 avg60=0.00 avg300=0.00 total=123".
std::optional<uint64_t> stalled(std::string_view text, std::string_view who) {
    constexpr std::string_view kTotal = "total=";
    const auto line = rest_after(text, who);
    if (!line) return std::nullopt;
    const size_t at = line->find(kTotal);
    return at == std::string_view::npos ? std::nullopt : parse_number(line->substr(at + kTotal.size()));
}

}  // namespace

Faults faults() {
    Faults f;
    rusage r = {};
    if (getrusage(RUSAGE_SELF, &r) == 0) {
        f.major = static_cast<uint64_t>(r.ru_majflt);
        f.minor = static_cast<uint64_t>(r.ru_minflt);
    }
    timespec t = {};
    if (clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) == 0) {
        f.cpu_ns = static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
    }
    return f;
}

UsageReader::UsageReader(const std::string& root) {
    static_assert(kFiles == kNames.size());
    for (size_t i = 0; i < kFiles; ++i) {
        fds_[i] = open((root + kNames[i]).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        struct stat st = {};
        if (fds_[i] >= 0 && (fstat(fds_[i], &st) != 0 || !S_ISREG(st.st_mode))) {
            close(fds_[i]);
            fds_[i] = -1;
        }
    }
}

UsageReader::~UsageReader() {
    for (const int fd : fds_) {
        if (fd >= 0) close(fd);
    }
}

Usage UsageReader::read() const {
    Usage u;
    Buffer buffer;
    std::string_view text = read_again(fds_[kStatus], buffer);
    u.rss = number_after(text, "VmRSS:", KiB);
    u.peak = number_after(text, "VmHWM:", KiB);
    u.anon = number_after(text, "RssAnon:", KiB);
    u.file = number_after(text, "RssFile:", KiB);
    u.swap = number_after(text, "VmSwap:", KiB);
    text = read_again(fds_[kIo], buffer);
    u.bytes_read = number_after(text, "read_bytes:");
    text = read_again(fds_[kMemory], buffer);
    u.mem_available = number_after(text, "MemAvailable:", KiB);
    u.mem_free = number_after(text, "MemFree:", KiB);
    u.swap_free = number_after(text, "SwapFree:", KiB);
    text = read_again(fds_[kPressureIo], buffer);
    u.psi_io_some_us = stalled(text, "some ");
    u.psi_io_full_us = stalled(text, "full ");
    text = read_again(fds_[kPressureMemory], buffer);
    u.psi_mem_some_us = stalled(text, "some ");
    u.psi_mem_full_us = stalled(text, "full ");
    const Faults f = faults();
    u.major_faults = f.major;
    u.minor_faults = f.minor;
    u.cpu_ns = f.cpu_ns;
    return u;
}

Usage usage(const std::string& root) {
    return UsageReader(root).read();
}

}  // namespace sluice::machine
