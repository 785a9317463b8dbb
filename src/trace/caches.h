// Owns: what a record's lines about caches come to: which size one has, had at first, and whether decode saw only one.
// Keeps: lines that a file may have filled with anything never throw.
#pragma once

#include <cstdint>

#include "trace/book.h"

namespace sluice::trace {

// Of this model: the line that holds now, and the one it began with; nullptr where there is none.
const Json* newest_cache(const Book& book, int64_t model);
const Json* first_cache(const Book& book, int64_t model);

// Whether all rows of decode ran with nearly the size that the model's cache has now: what was hit and read is then of
// that size.
bool one_cache_in_decode(const Book& book, int64_t model);
inline constexpr double kSameCache = 1.05;

}  // namespace sluice::trace
