// Owns: how values are spelled in the outputs: numbers, JSON strings, CSV fields.
// Keeps: whatever bytes come in, what goes out is valid UTF-8 and stays within its line, its string or its field.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string>
#include <string_view>

#include "trace/book.h"

namespace sluice::trace {

void append(fmt::memory_buffer& out, std::string_view text);
void append(fmt::memory_buffer& out, int64_t number);
void append(fmt::memory_buffer& out, uint64_t number);

// With its quotes.
void append_json_string(fmt::memory_buffer& out, std::string_view text);

// RFC 4180: quoted where it holds a comma, a quote, a blank or a line break. Line breaks and other control characters
// become blanks first, so that a line of the file is a row.
void append_csv_field(fmt::memory_buffer& out, std::string_view text);

// Calls `take` with each plain value in `j` and its path ("versions.ggml"). A list of plain values is one value,
// with blanks between; members of other lists go by number. Null is "", and so is what lies deeper than `depth`.
void for_each_value(const Json& j, const std::string& path,
                    const std::function<void(const std::string& path, const std::string& value)>& take, int depth = 8);

}  // namespace sluice::trace
