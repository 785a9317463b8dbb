#include "trace/schema.h"

#include <fmt/core.h>

#include <algorithm>
#include <string_view>

namespace sluice::trace {
namespace {

// NOLINTBEGIN(cppcoreguidelines-macro-usage,bugprone-macro-parentheses): a field has no other name
#define SLUICE_FIELD(field) [](Row& r) -> Measure& { return r.field; }
#define SLUICE_PART(part) [](Row& r) -> Measure& { return r.parts[static_cast<size_t>(Part::part)]; }
// NOLINTEND(cppcoreguidelines-macro-usage,bugprone-macro-parentheses)

using enum Unit;
constexpr auto kSum = Total::sum;
constexpr auto kLast = Total::last;
constexpr auto kHighest = Total::highest;
constexpr auto kNone = Total::none;
constexpr auto kId = Group::identity;
constexpr auto kTime = Group::time;
constexpr auto kBytes = Group::bytes;
constexpr auto kCache = Group::cache;
constexpr auto kReads = Group::reads;
constexpr auto kMemory = Group::memory;

constexpr Column kColumns[] = {
    {"model", none, kNone, kId, "number of the model in this record", SLUICE_FIELD(model)},
    {"turn", none, kNone, kId, "prompts answered before", SLUICE_FIELD(turn)},
    {"phase", none, kNone, kId, "0 prefill, 1 decode", SLUICE_FIELD(phase)},
    {"step", none, kNone, kId, "rows of this turn and phase before this one", SLUICE_FIELD(step)},
    {"start_ns", nanos, kNone, kId, "when the row began, since the record began", SLUICE_FIELD(start)},
    {"tokens", count, kSum, kId, "tokens that went through the model", SLUICE_FIELD(tokens)},
    {"output_tokens", count, kSum, kId, "tokens that came out", SLUICE_FIELD(output_tokens)},

    {"wall_ns", nanos, kSum, kTime, "wall time; the known parts sum to it", SLUICE_FIELD(wall)},
    {"overhead_ns", nanos, kSum, kTime, "none of the others: scheduler, graph building, copies", SLUICE_PART(overhead)},
    {"dense_ns", nanos, kSum, kTime,
     "graph outside the expert blocks: attention, dense layers, output; and the router where that is null",
     SLUICE_PART(dense)},
    {"router_ns", nanos, kSum, kTime, "choosing experts", SLUICE_PART(router)},
    {"shared_ns", nanos, kSum, kTime, "shared experts", SLUICE_PART(shared)},
    {"routed_ns", nanos, kSum, kTime, "arithmetic of the chosen experts; and of the shared ones where that is null",
     SLUICE_PART(routed)},
    {"wait_read_ns", nanos, kSum, kTime, "exposed wait for reads that the router's choice made necessary",
     SLUICE_PART(wait_read)},
    {"wait_join_ns", nanos, kSum, kTime, "exposed wait for reads alone that had begun before the router chose",
     SLUICE_PART(wait_join)},
    {"wait_late_ns", nanos, kSum, kTime, "the same, past the moment at which they were to be there",
     SLUICE_PART(wait_late)},
    {"wait_lock_ns", nanos, kSum, kTime, "wait for another context of the same model", SLUICE_PART(wait_lock)},
    {"convert_ns", nanos, kSum, kTime, "checking and repacking what was read", SLUICE_PART(convert)},
    {"manage_ns", nanos, kSum, kTime, "planning, leases, eviction, submitting reads", SLUICE_PART(manage)},
    {"sample_ns", nanos, kSum, kTime, "choosing the next token", SLUICE_PART(sample)},
    {"detokenise_ns", nanos, kSum, kTime, "token to text", SLUICE_PART(detokenise)},
    {"output_ns", nanos, kSum, kTime, "handing the text on", SLUICE_PART(output)},
    {"draft_ns", nanos, kSum, kTime, "proposing tokens for speculation", SLUICE_PART(draft)},
    {"record_ns", nanos, kSum, kTime, "writing this record", SLUICE_PART(record)},

    {"exact_bytes", bytes, kSum, kBytes, "expert bytes that the router's choice needed read",
     SLUICE_FIELD(exact_bytes)},
    {"exact_physical_bytes", bytes, kSum, kBytes,
     "bytes asked of the drive for what was needed, alignment and padding included", SLUICE_FIELD(exact_physical)},
    {"predicted_bytes", bytes, kSum, kBytes, "expert bytes read because they were predicted",
     SLUICE_FIELD(predicted_bytes)},
    {"predicted_physical_bytes", bytes, kSum, kBytes, "bytes asked of the drive for what was predicted",
     SLUICE_FIELD(predicted_physical)},
    {"predicted_used_bytes", bytes, kSum, kBytes, "predicted bytes that a router then chose",
     SLUICE_FIELD(predicted_used)},
    {"rejected_bytes", bytes, kSum, kBytes, "predicted bytes that were evicted unused, as far as that is known",
     SLUICE_FIELD(rejected_bytes)},
    {"engine_bytes", bytes, kSum, kBytes, "all bytes that the read engine was asked for, by its own count",
     SLUICE_FIELD(engine_bytes)},
    {"kernel_bytes", bytes, kSum, kBytes, "growth of the kernel's count of bytes read for this process",
     SLUICE_FIELD(kernel_bytes)},

    {"lookups", count, kSum, kCache, "distinct experts looked up, per layer", SLUICE_FIELD(lookups)},
    {"hits", count, kSum, kCache, "looked-up experts that were wholly resident", SLUICE_FIELD(hits)},
    {"misses", count, kSum, kCache, "looked-up experts that were not", SLUICE_FIELD(misses)},
    {"joins", count, kSum, kCache, "looked-up experts that were already being read", SLUICE_FIELD(joins)},
    {"hints", count, kSum, kCache, "experts to be read because they were predicted", SLUICE_FIELD(hints)},
    {"guess_on", count, kSum, kCache, "tokens that acted on guesses, where that is for measurements to say",
     SLUICE_FIELD(guess_on)},
    {"late", count, kSum, kCache, "predicted reads that came after their deadline", SLUICE_FIELD(late)},
    {"evictions_capacity", count, kSum, kCache, "records evicted to make room for one that was needed",
     SLUICE_FIELD(evictions_capacity)},
    {"evictions_shrink", count, kSum, kCache, "records evicted because the budget shrank",
     SLUICE_FIELD(evictions_shrink)},
    {"evictions_speculative", count, kSum, kCache, "records evicted for a prediction",
     SLUICE_FIELD(evictions_speculative)},
    {"rereads", count, kSum, kCache, "records brought in again after an eviction", SLUICE_FIELD(rereads)},
    {"waves", count, kSum, kCache, "rounds of layers whose experts did not fit at once", SLUICE_FIELD(waves)},
    {"blocks_micro", count, kSum, kCache, "layers of a prompt whose experts were read as their routers chose them",
     SLUICE_FIELD(blocks_micro)},
    {"blocks_macro", count, kSum, kCache, "layers of a prompt that were read while the layer before computed",
     SLUICE_FIELD(blocks_macro)},
    {"ahead_bytes", bytes, kSum, kCache, "expert bytes asked for before a router had chosen; a part of exact_bytes",
     SLUICE_FIELD(ahead_bytes)},
    {"routed", count, kSum, kCache, "choices of routers (one for each rank) that lossy options could have changed",
     SLUICE_FIELD(routed)},
    {"dropped", count, kSum, kCache, "choices of routers that --drop-cold-experts left out", SLUICE_FIELD(dropped)},
    {"substituted", count, kSum, kCache, "choices of routers that --expert-substitute replaced",
     SLUICE_FIELD(substituted)},
    {"unedited", count, kSum, kCache, "tokens in layers whose choice lossy options could not change",
     SLUICE_FIELD(unedited)},
    {"ra_committed", count, kSum, kCache, "route-ahead: routings that were taken from an early ranking",
     SLUICE_FIELD(ra_committed)},
    {"ra_passed", count, kSum, kCache, "route-ahead: routings that stayed the router's, for want of an early ranking",
     SLUICE_FIELD(ra_passed)},
    {"ra_passed_below", count, kSum, kCache, "route-ahead: of those, in layers that too few others precede",
     SLUICE_FIELD(ra_passed_below)},
    {"ra_passed_first", count, kSum, kCache, "route-ahead: of those, in the first token after a prompt",
     SLUICE_FIELD(ra_passed_first)},
    {"ra_slots", count, kSum, kCache, "route-ahead: experts of the routings that were committed",
     SLUICE_FIELD(ra_slots)},
    {"ra_agreed", count, kSum, kCache, "route-ahead: of those, how many the router chose, too",
     SLUICE_FIELD(ra_agreed)},
    {"ra_rank_ns", nanos, kSum, kCache, "route-ahead: ranking experts early; a part of manage_ns",
     SLUICE_FIELD(ra_rank)},
    {"ra_issue_ns", nanos, kSum, kCache, "route-ahead: asking for reads early; a part of manage_ns",
     SLUICE_FIELD(ra_issue)},
    {"ra_watch_ns", nanos, kSum, kCache, "route-ahead: checking the ranking against the router; a part of manage_ns",
     SLUICE_FIELD(ra_watch)},
    {"cache_bytes", bytes, kLast, kCache, "memory of all slots of the cache", SLUICE_FIELD(cache_bytes)},
    {"cache_slots", count, kLast, kCache, "slots of the cache", SLUICE_FIELD(cache_slots)},
    {"cache_resident", count, kLast, kCache, "records in the slots", SLUICE_FIELD(cache_resident)},

    {"reads", count, kSum, kReads, "reads of expert components", SLUICE_FIELD(reads)},
    {"retries", count, kSum, kReads, "reads, and attempts at them, that had to be repeated", SLUICE_FIELD(retries)},
    {"read_p50_ns", nanos, kNone, kReads, "issue to ready, median", SLUICE_FIELD(read_p50)},
    {"read_p95_ns", nanos, kNone, kReads, "issue to ready, 95th percentile", SLUICE_FIELD(read_p95)},
    {"read_p99_ns", nanos, kNone, kReads, "issue to ready, 99th percentile", SLUICE_FIELD(read_p99)},
    {"read_max_ns", nanos, kHighest, kReads, "issue to ready, longest", SLUICE_FIELD(read_max)},
    {"read_busy_ns", nanos, kSum, kReads, "time with at least one read on its way", SLUICE_FIELD(read_busy)},
    {"slack_p50_ns", nanos, kNone, kReads, "reads in time: how long before their deadline, median",
     SLUICE_FIELD(slack_p50)},
    {"lateness_p50_ns", nanos, kNone, kReads, "reads past their deadline: by how much, median",
     SLUICE_FIELD(lateness_p50)},
    {"queue_depth_max", count, kHighest, kReads, "most reads on their way at once", SLUICE_FIELD(queue_depth_max)},

    {"rss_bytes", bytes, kLast, kMemory, "resident memory of the process", SLUICE_FIELD(rss)},
    {"anon_bytes", bytes, kLast, kMemory, "resident memory that is anonymous", SLUICE_FIELD(anon)},
    {"file_bytes", bytes, kLast, kMemory, "resident memory of files", SLUICE_FIELD(file)},
    {"swap_bytes", bytes, kLast, kMemory, "swapped out", SLUICE_FIELD(swap)},
    {"mem_available_bytes", bytes, kLast, kMemory, "MemAvailable of the machine", SLUICE_FIELD(mem_available)},
    {"mem_free_bytes", bytes, kLast, kMemory, "MemFree of the machine", SLUICE_FIELD(mem_free)},
    {"swap_free_bytes", bytes, kLast, kMemory, "SwapFree of the machine", SLUICE_FIELD(swap_free)},
    {"psi_io_some_ns", nanos, kSum, kMemory, "some task of the machine stood still for I/O", SLUICE_FIELD(psi_io_some)},
    {"psi_io_full_ns", nanos, kSum, kMemory, "all tasks of the machine stood still for I/O", SLUICE_FIELD(psi_io_full)},
    {"psi_memory_some_ns", nanos, kSum, kMemory, "some task of the machine stood still for memory",
     SLUICE_FIELD(psi_memory_some)},
    {"psi_memory_full_ns", nanos, kSum, kMemory, "all tasks of the machine stood still for memory",
     SLUICE_FIELD(psi_memory_full)},
    {"major_faults", count, kSum, kMemory, "page faults that needed the drive", SLUICE_FIELD(major_faults)},
    {"minor_faults", count, kSum, kMemory, "page faults that needed no drive", SLUICE_FIELD(minor_faults)},
    {"cpu_ns", nanos, kSum, kMemory, "CPU time of all threads", SLUICE_FIELD(cpu)},
};

// The fields of Row that are columns: all but the layers.
static_assert(std::size(kColumns) * sizeof(Measure) + sizeof(std::vector<Row::Layer>) == sizeof(Row),
              "a field of Row has no column, or a column no field");

}  // namespace

const char* phase_name(Phase phase) {
    return phase == Phase::prefill ? "prefill" : "decode";
}

std::span<const Column> columns() {
    return kColumns;
}

const Column* find_column(std::string_view name) {
    const auto* it =
        std::find_if(std::begin(kColumns), std::end(kColumns), [&](const Column& c) { return name == c.name; });
    return it == std::end(kColumns) ? nullptr : it;
}

const Column& part_column(Part part) {
    static const size_t first = static_cast<size_t>(find_column("overhead_ns") - kColumns);
    return kColumns[first + static_cast<size_t>(part)];
}

std::string_view part_name(Part part) {
    const std::string_view name = part_column(part).name;
    return name.substr(0, name.size() - std::string_view("_ns").size());
}

const char* part_label(Part part) {
    constexpr std::array<const char*, kParts> kLabels = {
        "llama.cpp around the graph",
        "attention and dense",
        "router",
        "shared experts",
        "experts",
        "waiting for reads",
        "joining",
        "late reads",
        "other contexts",
        "repacking",
        "managing",
        "sampling",
        "detokenising",
        "printing",
        "drafting",
        "recording",
    };
    return kLabels[static_cast<size_t>(part)];
}

std::string columns_markdown() {
    constexpr std::array<const char*, 4> kUnits = {"", "ns", "bytes", "count"};
    constexpr std::array<const char*, 4> kTotals = {"sum", "newest", "highest", ""};
    std::string out = "| column | unit | total | meaning |\n| --- | --- | --- | --- |\n";
    for (const Column& c : kColumns) {
        out += fmt::format("| `{}` | {} | {} | {} |\n", c.name, kUnits[static_cast<size_t>(c.unit)],
                           kTotals[static_cast<size_t>(c.total)], c.help);
    }
    return out;
}

}  // namespace sluice::trace
