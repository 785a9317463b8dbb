// Owns: reading the small text files in which the kernel describes itself, /proc and /sys.
// Keeps: nothing is taken for a number that is not wholly one and fits; no file, whatever it is, blocks or costs more
// than a bounded amount of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice::machine {

// What is behind that is left out, down to the last whole line.
inline constexpr size_t kMostText = 1 << 20;

// nullopt if there is no such file, it is none that can simply be read, or reading fails.
std::optional<std::string> read_text(const std::string& path);

// The first line of such a file, without blanks around it; nullopt also if that is not a name.
std::optional<std::string> read_line(const std::string& path);

// Something to show to people: not empty, not long, without control characters.
bool is_name(std::string_view text);

// Of a choice such as "none [mq-deadline] kyber", what is chosen.
std::optional<std::string> bracketed(std::string_view choice);

// A decimal number, blanks around it allowed, and nothing else.
std::optional<uint64_t> parse_number(std::string_view text);
std::optional<uint64_t> read_number(const std::string& path);

// The number at the start of what follows `key`, `key` standing at the start of a line. Counted in `unit`.
std::optional<uint64_t> number_after(std::string_view text, std::string_view key, uint64_t unit = 1);

// The rest of the first line that starts with `key`, without blanks around it.
std::optional<std::string_view> rest_after(std::string_view text, std::string_view key);

// Of a file of pressure stall information, the part of a hundred in "some avg10=1.50 avg60=...".
std::optional<double> read_waited(const std::string& path);

std::string_view trimmed(std::string_view text);

}  // namespace sluice::machine
