// Owns: taking single values out of JSON that a file may have filled with anything.
// Keeps: what is missing or of another kind is null or empty; nothing throws.
#pragma once

#include <string>

#include "trace/book.h"
#include "trace/measure.h"

namespace sluice::trace {

// A whole number that is not negative and fits; else null.
inline Measure measure_in(const Json& j, const char* name) {
    if (!j.is_object()) return {};
    const auto it = j.find(name);
    if (it == j.end() || !it->is_number_integer()) return {};
    const auto v = it->get<int64_t>();  // beyond its range it wraps to a negative one
    return v < 0 ? Measure() : Measure(v);
}

inline std::string text_in(const Json& j, const char* name) {
    if (!j.is_object()) return "";
    const auto it = j.find(name);
    return it != j.end() && it->is_string() ? it->get<std::string>() : "";
}

// The options that changed what was computed, with commas between them; empty: none.
inline std::string lossy_in(const Json& header) {
    std::string out;
    if (!header.is_object()) return out;
    const auto it = header.find("lossy");
    if (it == header.end() || !it->is_array()) return out;
    for (const Json& name : *it) {
        if (name.is_string()) out += (out.empty() ? "" : ", ") + name.get_ref<const std::string&>();
    }
    return out;
}

}  // namespace sluice::trace
