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

// Sums of columns that have a name of their own, of a row or of totals. Null where all of them are.
Measure exposed_wait(const Row& row);    // standing still for reads
Measure computing(const Row& row);       // the graph's arithmetic
Measure outside_graph(const Row& row);   // sampling, text and writing it, the record
Measure asked_of_drive(const Row& row);  // bytes for experts, needed or predicted

// Of the rows of one phase.
struct Totals {
    Phase phase = Phase::decode;
    Row sum;  // columns totalled as the schema says; `layers` added up
    uint64_t rows = 0;
    Histogram reads;  // issue to ready

    void add(const Row& row);
    // Columns that belong to no row.
    void add_rest(const Row& rest);
    void add(const Row& row, const Histogram& row_reads) {
        add(row);
        reads.add(row_reads);
    }
};

// Tokens that count: those that came out; where nobody saw them come out, those that went through.
Measure counted_tokens(const Totals& totals);
// Of the wall time.
std::optional<double> share_of_wall(Part part, const Totals& totals);
std::optional<double> hit_rate(const Row::Layer& layer);

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

// "drive" or "compute" (all that is not waiting for reads): which of the two bounds the run if all waiting could be
// hidden; "" where it is not known.
std::string what_binds(const Totals& totals);

}  // namespace sluice::trace
