// Owns: how wide the terminal is that somebody reads.
// Keeps: what nobody knows is absent; who asks has a width of his own for that.
#pragma once

#include <cstddef>
#include <optional>

namespace sluice::cli {

// Of the terminal behind a descriptor; absent if there is none, or it does not say.
std::optional<size_t> terminal_columns(int fd);
// The same, and where there is none what COLUMNS says.
std::optional<size_t> told_columns(int fd);

}  // namespace sluice::cli
