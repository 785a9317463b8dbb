#include "cli/progress_bar.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/bytes.h"
#include "cli/terminal.h"

namespace sluice::cli {
namespace {

constexpr Nanos kBetween = 100'000'000;
constexpr size_t kMostBar = 24, kLeastBar = 8;

size_t columns() {
    constexpr size_t kUnknown = 80;
    return terminal_columns(STDERR_FILENO).value_or(kUnknown);
}

std::string bar(double part, size_t columns) {
    const auto full = static_cast<size_t>(part * static_cast<double>(columns));
    return fmt::format(" [{}{}]", std::string(full, '#'), std::string(columns - full, '.'));
}

// "what [###...]  42 %" and what follows, the bar as wide as there is room for, or none. Nothing if even that is too
// wide.
std::string with_bar(const std::string& what, double part, const std::string& rest, size_t columns, size_t least_bar) {
    const std::string percent = fmt::format(" {:3.0f} %", part * 100);
    const size_t used = what.size() + percent.size() + rest.size();
    if (least_bar == 0) return used <= columns ? what + percent + rest : "";
    constexpr size_t kFrame = 3;
    if (used + kFrame + least_bar > columns) return "";
    return what + bar(part, std::min(kMostBar, columns - used - kFrame)) + percent + rest;
}

}  // namespace

ProgressBar::ProgressBar(std::string what)
    : what_(std::move(what)), on_terminal_(isatty(STDERR_FILENO) == 1), start_(SystemClock::instance().now()) {}

bool ProgressBar::due(bool over) {
    if (!on_terminal_) return false;
    const Nanos now = SystemClock::instance().now();
    if (drawn_ && now - last_ < kBetween && !over) return false;
    last_ = now;
    drawn_ = true;
    return true;
}

std::string progress_line(const std::string& what, uint64_t done, uint64_t total, double seconds, size_t columns) {
    const double part = total == 0 ? 0 : std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
    const std::string bytes = fmt::format("  {} of {}", human_bytes(done), human_bytes(total));
    std::string speed, left;
    if (seconds > 1 && done > 0) {
        speed = fmt::format("  {}/s", human_bytes(static_cast<uint64_t>(static_cast<double>(done) / seconds)));
        left = fmt::format("  {:.0f} s left", seconds * (1 - part) / std::max(part, 1e-9));
    }
    std::string line = with_bar(what, part, bytes + speed + left, columns, kLeastBar);
    if (line.empty()) line = with_bar(what, part, bytes + left, columns, kLeastBar);
    if (line.empty()) line = with_bar(what, part, bytes + left, columns, 0);
    if (line.empty()) line = with_bar(what, part, left, columns, 0);
    if (line.empty()) line = with_bar("", part, left, columns, 0);
    return line.empty() ? with_bar("", part, "", columns, 0) : line;
}

std::string progress_line(const std::string& what, double part, const std::string& doing, size_t columns) {
    part = std::clamp(part, 0.0, 1.0);
    std::string line = with_bar(what, part, doing.empty() ? "" : "  " + doing, columns, kLeastBar);
    if (line.empty()) line = with_bar(what, part, doing.empty() ? "" : "  " + doing, columns, 0);
    if (line.empty()) line = with_bar(what, part, "", columns, 0);
    return line.empty() ? with_bar("", part, "", columns, 0) : line;
}

void ProgressBar::show(uint64_t done, uint64_t total) {
    if (total == 0 || !due(done >= total)) return;
    // A line that wrapped could not be written over: each would leave one behind.
    draw(progress_line(what_, done, total, static_cast<double>(last_ - start_) / 1e9, columns() - 1));
}

void ProgressBar::show(double part, const std::string& doing) {
    if (!due(part >= 1)) return;
    draw(progress_line(what_, part, doing, columns() - 1));
}

void ProgressBar::draw(const std::string& line) {
    std::fprintf(stderr, "\r%s\x1b[K", line.c_str());
    std::fflush(stderr);
}

void ProgressBar::clear() {
    if (!drawn_) return;
    std::fputs("\r\x1b[K", stderr);
    std::fflush(stderr);
    drawn_ = false;
}

}  // namespace sluice::cli
