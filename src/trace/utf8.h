// Owns: any bytes as code points, and how many columns of a terminal they take.
// Keeps: every byte belongs to exactly one code point; what is no UTF-8 is one replacement character per byte.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sluice::trace {

struct CodePoint {
    char32_t value = 0;
    size_t bytes = 0;  // that it takes in the text, at least 1
    bool valid = false;
};
// The one that begins at `at`, which is below text.size().
CodePoint code_point_at(std::string_view text, size_t at);

void append_utf8(std::string& out, char32_t value);

// The same text with what is no UTF-8 replaced.
std::string valid_utf8(std::string_view text);

// 0 for what is drawn upon the character before, 2 for wide ones (East Asian, emoji), -1 for control characters.
int columns_of(char32_t value);
// Of valid text without control characters.
int columns_of(std::string_view text);

}  // namespace sluice::trace
