#include "cli/progress_bar.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/bytes.h"

namespace sluice::cli {
namespace {

constexpr Nanos kBetween = 100'000'000;
constexpr size_t kBarColumns = 24;

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

std::string ProgressBar::bar(double part) const {
    const auto full = static_cast<size_t>(part * static_cast<double>(kBarColumns));
    return fmt::format("{} [{}{}] {:3.0f} %", what_, std::string(full, '#'), std::string(kBarColumns - full, '.'),
                       part * 100);
}

void ProgressBar::show(uint64_t done, uint64_t total) {
    if (total == 0 || !due(done >= total)) return;
    const double part = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
    const double seconds = static_cast<double>(last_ - start_) / 1e9;
    std::string line = fmt::format("{}  {} of {}", bar(part), human_bytes(done), human_bytes(total));
    if (seconds > 1 && done > 0) {
        line += fmt::format("  {}/s  {:.0f} s left",
                            human_bytes(static_cast<uint64_t>(static_cast<double>(done) / seconds)),
                            seconds * (1 - part) / std::max(part, 1e-9));
    }
    draw(line);
}

void ProgressBar::show(double part, const std::string& doing) {
    if (!due(part >= 1)) return;
    draw(fmt::format("{}  {}", bar(std::clamp(part, 0.0, 1.0)), doing));
}

// A line that wrapped could not be written over: each would leave one behind.
void ProgressBar::draw(std::string line) {
    winsize size{};
    constexpr size_t kUnknown = 80;
    const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    const size_t columns = known ? size.ws_col : kUnknown;
    if (line.size() >= columns) line.resize(columns - 1);
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
