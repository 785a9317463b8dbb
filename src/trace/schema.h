// Owns: the one schema of the run record: what a row is, and the name, unit and meaning of each of its columns. Every
// output (record, CSV, progress, live view, metrics, report) is made from this table.
// Keeps: each column is a field of Row and a line of columns(), and nothing else; the parts of a row sum to its wall
// time exactly.
//
// A mechanism that comes later adds its fields to Row, its lines to the table in schema.cpp, and fills them where it
// works. Until then such columns are null.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trace/measure.h"

namespace sluice::trace {

// Where the wall time of a row can have gone. Exactly one part is running at any moment.
enum class Part : uint8_t {
    overhead,    // none of the others: llama.cpp's scheduler, graph building, copies
    dense,       // graph outside the expert blocks; with the router unless that is measured apart
    router,      // choosing experts (only where nodes are traced)
    shared,      // shared experts (only where nodes are traced)
    routed,      // the chosen experts' arithmetic
    wait_read,   // standing still for a read that the router's choice made necessary
    wait_join,   // standing still for a read that a prediction had already started
    wait_late,   // standing still for a read whose deadline had passed
    wait_lock,   // standing still because another context of the same model was computing experts
    convert,     // bringing what was read into the form that is computed from (repacking)
    manage,      // planning, leases, eviction, submitting reads
    sample,      // choosing the next token
    detokenise,  // token to text
    output,      // handing the text on: printing, pipes
    draft,       // proposing tokens for speculation
    record,      // writing the record itself
};
inline constexpr size_t kParts = 16;

enum class Phase : uint8_t { prefill, decode };
const char* phase_name(Phase phase);

// One batch of prefill, or one token of decode; every field that is not measured is null. Times in ns, sizes in bytes.
struct Row {
    // Which row this is.
    Measure model;          // number of the model in this record
    Measure turn;           // prompts answered before, by this context
    Measure phase;          // 0 prefill, 1 decode
    Measure step;           // rows of this turn and phase before this one
    Measure start;          // since the record began
    Measure tokens;         // that went through the model
    Measure output_tokens;  // that came out: sampled and not the end of text

    Measure wall;
    std::array<Measure, kParts> parts;

    // Bytes of experts. Logical: what was needed. Physical: what the drive was asked for, with alignment and padding.
    Measure exact_bytes, exact_physical;
    Measure predicted_bytes, predicted_physical, predicted_used, rejected_bytes;
    Measure engine_bytes;  // the read engine's own count of all that it was asked for, experts or not
    Measure kernel_bytes;  // growth of /proc/self/io read_bytes since the sample before

    Measure lookups;  // distinct experts, per layer
    Measure hits, misses, joins, hints, guess_on, late;
    Measure reads;
    Measure evictions_capacity, evictions_shrink, evictions_speculative;
    Measure rereads;                     // records brought in again after an eviction
    Measure waves;                       // rounds of layers whose experts did not fit at once
    Measure blocks_micro, blocks_macro;  // layers of a prompt, by how their experts were read
    Measure ahead_bytes;                 // of exact_bytes: asked for before a router had chosen
    // Route-ahead: routings that were the early ranking's, and those that stayed the router's; of the latter, those of
    // the first layers and of the first token after a prompt; of the former, chosen experts, and how many of these the
    // router would have chosen, too; time for ranking, for asking for reads, and for its watchdog.
    Measure ra_committed, ra_passed, ra_passed_below, ra_passed_first, ra_slots, ra_agreed;
    Measure ra_rank, ra_issue, ra_watch;
    Measure routed, dropped, substituted, unedited;  // what lossy options did
    Measure retries;                                 // attempts at the device beyond one per read

    // Issue to ready, of the reads of this row.
    Measure read_p50, read_p95, read_p99, read_max;
    Measure read_busy;     // at least one read was on its way
    Measure slack_p50;     // of reads that were ready before their deadline: by how much
    Measure lateness_p50;  // of the others
    Measure queue_depth_max;

    Measure cache_bytes, cache_slots, cache_resident;  // memory of the slots; slots; records in them

    // The process and the machine, sampled at most ten times a second; null in the rows between.
    Measure rss, anon, file, swap;
    Measure mem_available, mem_free, swap_free;
    Measure psi_io_some, psi_io_full, psi_memory_some, psi_memory_full;  // growth since the sample before, in ns
    // These in every row.
    Measure major_faults, minor_faults;
    Measure cpu;  // CPU time of all threads

    // By layer with experts, in the order of the model's expert sets. Empty where nothing is recorded by layer.
    struct Layer {
        int64_t wait = 0;    // ns, all causes
        int64_t routed = 0;  // ns
        int64_t lookups = 0, hits = 0;
        int64_t physical = 0;  // bytes
    };
    std::vector<Layer> layers;
};

enum class Unit : uint8_t { none, nanos, bytes, count };
// How a column of many rows becomes one number.
enum class Total : uint8_t {
    sum,
    last,     // the newest known value
    highest,  // the largest known value
    none,     // not a thing to sum: identities, percentiles
};
enum class Group : uint8_t { identity, time, bytes, cache, reads, memory };

struct Column {
    const char* name;  // in the record, lower case with underscores; times end in _ns, sizes in _bytes
    Unit unit;
    Total total;
    Group group;
    const char* help;
    Measure& (*of)(Row& row);
};

// All columns, in the order in which outputs show them.
std::span<const Column> columns();
const Column* find_column(std::string_view name);
// The column of a part of the time.
const Column& part_column(Part part);
// "wait_read": its column without the unit.
std::string_view part_name(Part part);
// The same for people: "waiting for reads".
const char* part_label(Part part);
// The table of docs/record.md: name, unit, how it is totalled, meaning.
std::string columns_markdown();
inline const Measure& value_of(const Column& c, const Row& row) {
    return c.of(const_cast<Row&>(row));  // NOLINT(cppcoreguidelines-pro-type-const-cast): one accessor for both
}

// Raised whenever a column changes its name or meaning; new columns do not raise it.
inline constexpr int kSchemaVersion = 1;

}  // namespace sluice::trace
