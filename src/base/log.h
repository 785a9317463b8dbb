// Owns: the one way by which Sluice talks to a person while it works.
// Keeps: one message is one line, whole, whatever other threads print.
#pragma once

#include <fmt/core.h>

#include <string>
#include <utility>

namespace sluice {

enum class LogLevel { error, warn, info, debug };

using LogSink = void (*)(LogLevel level, const std::string& line);

// Messages above `level` are dropped before they are formatted. Default: warn. Thread-safe.
void set_log_level(LogLevel level);
LogLevel log_level();
// Where lines go (without a newline). Default: standard error with the prefix "sluice: ". nullptr restores it.
void set_log_sink(LogSink sink);
void log_line(LogLevel level, const std::string& line);

template <typename... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
    if (level <= log_level()) log_line(level, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace sluice
