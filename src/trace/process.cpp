#include "trace/process.h"

#include <fstream>
#include <sstream>
#include <string>

namespace sluice::trace {
namespace {

std::optional<uint64_t> field(const char* path, const std::string& key, uint64_t unit) {
    std::ifstream f(path);
    std::string line;
    while (std::getline(f, line)) {
        if (line.rfind(key, 0) != 0) continue;
        std::istringstream rest(line.substr(key.size()));
        uint64_t n = 0;
        if (rest >> n) return n * unit;
    }
    return std::nullopt;
}

}  // namespace

ProcessMemory process_memory() {
    constexpr const char* kStatus = "/proc/self/status";
    return {.rss = field(kStatus, "VmRSS:", 1024),
            .peak = field(kStatus, "VmHWM:", 1024),
            .anon = field(kStatus, "RssAnon:", 1024),
            .file = field(kStatus, "RssFile:", 1024)};
}

std::optional<uint64_t> process_bytes_read() {
    return field("/proc/self/io", "read_bytes:", 1);
}

}  // namespace sluice::trace
