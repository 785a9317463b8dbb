// Owns: a row in the units people read (milliseconds, MiB, percent), under the column names that the tools of this
// trade already share, so that scripts and front ends made for those work here.
// Keeps: each is a column, a named sum of columns, or a figure of the book; what Sluice has not got is absent.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "trace/book.h"

namespace sluice::trace {

// What of a run only the caller knows.
struct Planned {
    Measure steps;  // tokens that were asked for
};

struct PlainColumn {
    const char* name;
    int decimals;
    const char* from;  // of which columns it is made, and what differs; "" where Sluice has no such thing
    std::optional<double> (*of)(const Book& book, const Row& row, const Planned& planned);
};
std::span<const PlainColumn> plain_columns();
const PlainColumn* find_plain_column(std::string_view name);

// The table of docs/record.md.
std::string plain_columns_markdown();

}  // namespace sluice::trace
