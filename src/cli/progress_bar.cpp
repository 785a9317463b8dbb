#include "cli/progress_bar.h"

#include <fmt/core.h>
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

void ProgressBar::show(uint64_t done, uint64_t total) {
    if (!on_terminal_ || total == 0) return;
    const Nanos now = SystemClock::instance().now();
    if (drawn_ && now - last_ < kBetween && done < total) return;
    last_ = now;
    drawn_ = true;
    const double part = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
    const double seconds = static_cast<double>(now - start_) / 1e9;
    const auto full = static_cast<size_t>(part * static_cast<double>(kBarColumns));
    std::string line =
        fmt::format("\r{} [{}{}] {:3.0f} %  {} of {}", what_, std::string(full, '#'),
                    std::string(kBarColumns - full, '.'), part * 100, human_bytes(done), human_bytes(total));
    if (seconds > 1 && done > 0) {
        line += fmt::format("  {}/s  {:.0f} s left",
                            human_bytes(static_cast<uint64_t>(static_cast<double>(done) / seconds)),
                            seconds * (1 - part) / std::max(part, 1e-9));
    }
    std::fprintf(stderr, "%s\x1b[K", line.c_str());
    std::fflush(stderr);
}

void ProgressBar::clear() {
    if (!drawn_) return;
    std::fputs("\r\x1b[K", stderr);
    std::fflush(stderr);
    drawn_ = false;
}

}  // namespace sluice::cli
