#include "trace/write.h"

#include <algorithm>

#include "trace/utf8.h"

namespace sluice::trace {
namespace {

// Some readers of lines also end one at these.
bool breaks_lines(char32_t c) {
    return c == 0x85 || c == 0x2028 || c == 0x2029;
}

}  // namespace

void append(fmt::memory_buffer& out, std::string_view text) {
    out.append(text.data(), text.data() + text.size());
}

void append(fmt::memory_buffer& out, int64_t number) {
    const fmt::format_int n(number);
    out.append(n.data(), n.data() + n.size());
}

void append(fmt::memory_buffer& out, uint64_t number) {
    const fmt::format_int n(number);
    out.append(n.data(), n.data() + n.size());
}

void append_json_string(fmt::memory_buffer& out, std::string_view text) {
    constexpr const char* kHex = "0123456789abcdef";
    out.push_back('"');
    for (size_t at = 0; at < text.size();) {
        const CodePoint c = code_point_at(text, at);
        if (!c.valid) {
            append(out, "\xEF\xBF\xBD");
        } else if (c.value == '"' || c.value == '\\') {
            out.push_back('\\');
            out.push_back(static_cast<char>(c.value));
        } else if (c.value == '\n') {
            append(out, "\\n");
        } else if (c.value == '\t') {
            append(out, "\\t");
        } else if (c.value < 0x20 || c.value == 0x7F || breaks_lines(c.value)) {
            append(out, "\\u");
            for (const unsigned shift : {12U, 8U, 4U, 0U}) out.push_back(kHex[(c.value >> shift) & 0xFU]);
        } else {
            append(out, text.substr(at, c.bytes));
        }
        at += c.bytes;
    }
    out.push_back('"');
}

void append_csv_field(fmt::memory_buffer& out, std::string_view text) {
    const bool quoted = std::any_of(text.begin(), text.end(), [](char c) {
        return static_cast<unsigned char>(c) <= ' ' || c == ',' || c == '"' || c == '#' || c == ';';
    });
    if (quoted) out.push_back('"');
    for (size_t at = 0; at < text.size();) {
        const CodePoint c = code_point_at(text, at);
        if (!c.valid) {
            append(out, "\xEF\xBF\xBD");
        } else if (c.value == '"') {
            append(out, "\"\"");
        } else if (columns_of(c.value) < 0 || breaks_lines(c.value)) {
            out.push_back(' ');
        } else {
            append(out, text.substr(at, c.bytes));
        }
        at += c.bytes;
    }
    if (quoted) out.push_back('"');
}

void for_each_value(const Json& j, const std::string& path,
                    const std::function<void(const std::string& path, const std::string& value)>& take, int depth) {
    if (depth == 0) return take(path, "");
    const auto below = [&](const std::string& name) { return path.empty() ? name : path + "." + name; };
    if (j.is_object()) {
        for (const auto& [name, value] : j.items()) for_each_value(value, below(name), take, depth - 1);
    } else if (j.is_array() && std::none_of(j.begin(), j.end(), [](const Json& v) { return v.is_structured(); })) {
        std::string list;
        for (const Json& value : j) {
            for_each_value(
                value, "", [&](const std::string&, const std::string& v) { list += (list.empty() ? "" : " ") + v; }, 1);
        }
        take(path, list);
    } else if (j.is_array()) {
        size_t number = 0;
        for (const Json& value : j) for_each_value(value, below(std::to_string(number++)), take, depth - 1);
    } else if (j.is_null() || j.is_discarded()) {
        take(path, "");
    } else if (j.is_string()) {
        take(path, j.get_ref<const std::string&>());
    } else {
        take(path, j.dump());
    }
}

}  // namespace sluice::trace
