// Owns: the lines that a run ends with on the terminal.
// Keeps: every number is a column or figure of the book; what was not measured says so in words.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trace/book.h"
#include "trace/counters.h"

namespace sluice::trace {

// What the book does not know.
struct SummaryExtras {
    Measure peak_bytes;              // largest resident size ever
    std::vector<std::string> lossy;  // names of options in use that change results
};
// How much of what routers chose lossy options have changed: ": 3.1 % of 480 routed slots dropped". Empty if they could
// have changed nothing.
std::string changed_text(uint64_t routed, uint64_t dropped, uint64_t substituted);
// What route-ahead with so many layers did, in words; `prompts`: choices that were left to routers because they were of
// a prompt.
std::string route_ahead_text(uint32_t layers, const RouteAheadCounts& decode, uint64_t prompts);
std::string summary_text(const Book& book, const SummaryExtras& extras = {});

}  // namespace sluice::trace
