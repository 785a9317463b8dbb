// Owns: the lines that a run ends with on the terminal.
// Keeps: every number is a column or figure of the book; what was not measured says so in words.
#pragma once

#include <string>
#include <vector>

#include "trace/book.h"

namespace sluice::trace {

// What the book does not know.
struct SummaryExtras {
    Measure peak_bytes;              // largest resident size ever
    std::vector<std::string> lossy;  // names of options in use that change results
};
std::string summary_text(const Book& book, const SummaryExtras& extras = {});

}  // namespace sluice::trace
