#include "base/log.h"

#include <atomic>
#include <cstdio>

namespace sluice {
namespace {

void to_stderr(LogLevel level, const std::string& line) {
    const char* word = level == LogLevel::error ? "error: " : level == LogLevel::warn ? "warning: " : "";
    // One write, so that lines of several threads do not mix.
    const std::string text = fmt::format("sluice: {}{}\n", word, line);
    std::fwrite(text.data(), 1, text.size(), stderr);
}

std::atomic<LogLevel> g_level{LogLevel::warn};
std::atomic<LogSink> g_sink{to_stderr};

}  // namespace

void set_log_level(LogLevel level) {
    g_level.store(level, std::memory_order_relaxed);
}
LogLevel log_level() {
    return g_level.load(std::memory_order_relaxed);
}
void set_log_sink(LogSink sink) {
    g_sink.store(sink != nullptr ? sink : to_stderr);
}
void log_line(LogLevel level, const std::string& line) {
    g_sink.load()(level, line);
}

}  // namespace sluice
