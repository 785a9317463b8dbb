// Owns: the number that follows an option of one command's own.
// Keeps: what is no number, or out of bounds, is an error that names the option and the bounds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "machine/text.h"

namespace sluice::cli {

// Of the option arguments[i]; `i` goes on to it.
inline Result<uint64_t> number_after(std::span<const std::string> arguments, size_t& i, uint64_t least, uint64_t most) {
    const auto n = i + 1 < arguments.size() ? machine::parse_number(arguments[i + 1]) : std::nullopt;
    if (!n || *n < least || *n > most)
        return error(Code::invalid_argument, "{}: a number from {} to {} is needed", arguments[i], least, most);
    ++i;
    return *n;
}

}  // namespace sluice::cli
