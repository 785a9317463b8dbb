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

}  // namespace sluice::trace
