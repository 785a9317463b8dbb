// Owns: what many rows come to, and every figure that is derived from that. No output computes one itself.
// Keeps: a figure whose inputs are not all known is absent.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "trace/histogram.h"
#include "trace/schema.h"

namespace sluice::trace {

// Of the rows of one phase.
struct Totals {
    Row sum;  // columns totalled as the schema says; `layers` added up
    uint64_t rows = 0;
    Histogram reads;  // issue to ready

    void add(const Row& row);
    void add(const Row& row, const Histogram& row_reads) {
        add(row);
        reads.add(row_reads);
    }
};

// A number made from totals.
struct Figure {
    const char* name;
    const char* unit;  // "tok/s", "ms", "bytes", "1" for fractions, "bytes/s"
    const char* help;
    std::optional<double> (*of)(const Totals& totals);
};
std::span<const Figure> figures();
const Figure* find_figure(std::string_view name);
std::optional<double> figure(std::string_view name, const Totals& totals);

// "drive" or "compute": which of the two bounds the run if all waiting could be hidden; "" where it is not known.
std::string what_binds(const Totals& totals);

}  // namespace sluice::trace
