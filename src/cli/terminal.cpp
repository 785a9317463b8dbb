#include "cli/terminal.h"

#include <sys/ioctl.h>

#include <cstdlib>

#include "machine/text.h"

namespace sluice::cli {

std::optional<size_t> terminal_columns(int fd) {
    winsize size = {};
    if (ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return std::nullopt;
    return size.ws_col;
}

std::optional<size_t> told_columns(int fd) {
    if (const auto columns = terminal_columns(fd)) return columns;
    const char* text = std::getenv("COLUMNS");
    return text != nullptr ? machine::parse_number(text) : std::nullopt;
}

}  // namespace sluice::cli
