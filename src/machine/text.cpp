#include "machine/text.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>

#include "base/bytes.h"

namespace sluice::machine {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

// Digits at the start of `text`.
std::optional<uint64_t> leading_number(std::string_view text) {
    text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
    uint64_t n = 0;
    const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (ec != std::errc()) return std::nullopt;
    // "12x" and "1.5" are something else.
    const auto after = static_cast<size_t>(end - text.data());
    if (after < text.size() && kBlanks.find(text[after]) == std::string_view::npos) return std::nullopt;
    return n;
}

}  // namespace

std::optional<std::string> read_text(const std::string& path) {
    // Not blocking: in a planted tree, or a strange /sys, it could be a FIFO.
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return std::nullopt;
    struct stat st = {};
    std::string text;
    bool failed = fstat(fd, &st) != 0 || !S_ISREG(st.st_mode);
    while (!failed && text.size() < kMostText) {
        const size_t had = text.size();
        text.resize(std::min(kMostText, had + 4 * KiB + had));
        const ssize_t n = read(fd, text.data() + had, text.size() - had);
        if (n < 0 && errno == EINTR) {
            text.resize(had);
            continue;
        }
        failed = n < 0;
        text.resize(had + (n > 0 ? static_cast<size_t>(n) : 0));
        if (n <= 0) break;
    }
    close(fd);
    if (failed) return std::nullopt;
    if (text.size() == kMostText) text.resize(text.rfind('\n') == std::string::npos ? 0 : text.rfind('\n') + 1);
    return text;
}

std::optional<std::string> read_line(const std::string& path) {
    const auto text = read_text(path);
    if (!text) return std::nullopt;
    const std::string_view line = trimmed(std::string_view(*text).substr(0, text->find('\n')));
    if (!is_name(line)) return std::nullopt;
    return std::string(line);
}

bool is_name(std::string_view text) {
    constexpr size_t kMost = 256;
    return !text.empty() && text.size() <= kMost && std::none_of(text.begin(), text.end(), [](char c) {
        return static_cast<unsigned char>(c) < ' ' || c == '\x7f';
    });
}

std::optional<std::string> bracketed(std::string_view choice) {
    const size_t from = choice.find('[');
    const size_t to = choice.find(']');
    if (from == std::string_view::npos || to == std::string_view::npos || to < from) return std::nullopt;
    const std::string_view word = choice.substr(from + 1, to - from - 1);
    if (!is_name(word) || word.find(' ') != std::string_view::npos) return std::nullopt;
    return std::string(word);
}

std::optional<double> read_waited(const std::string& path) {
    const auto text = read_text(path);
    const auto rest = text ? rest_after(*text, "some avg10=") : std::nullopt;
    if (!rest) return std::nullopt;
    double part = 0;
    const auto [end, ec] = std::from_chars(rest->data(), rest->data() + rest->size(), part);
    if (ec != std::errc() || !(part >= 0 && part <= 100)) return std::nullopt;
    return part;
}

std::string_view trimmed(std::string_view text) {
    const size_t from = text.find_first_not_of(kBlanks);
    if (from == std::string_view::npos) return {};
    return text.substr(from, text.find_last_not_of(kBlanks) - from + 1);
}

std::optional<uint64_t> parse_number(std::string_view text) {
    text = trimmed(text);
    uint64_t n = 0;
    const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (ec != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return n;
}

std::optional<uint64_t> read_number(const std::string& path) {
    const auto text = read_text(path);
    return text ? parse_number(*text) : std::nullopt;
}

std::optional<std::string_view> rest_after(std::string_view text, std::string_view key) {
    while (!text.empty()) {
        const std::string_view line = text.substr(0, text.find('\n'));
        if (line.starts_with(key)) return trimmed(line.substr(key.size()));
        text.remove_prefix(std::min(line.size() + 1, text.size()));
    }
    return std::nullopt;
}

std::optional<uint64_t> number_after(std::string_view text, std::string_view key, uint64_t unit) {
    const auto rest = rest_after(text, key);
    const auto n = rest ? leading_number(*rest) : std::nullopt;
    return n ? checked_mul(*n, unit) : std::nullopt;
}

}  // namespace sluice::machine
