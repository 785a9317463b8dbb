// Owns: what is counted while one row of the record happens.
// Keeps: it is filled by one thread at a time; nothing in it allocates once its vectors have grown; what is not asked
// for is not collected.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "trace/counters.h"
#include "trace/events.h"
#include "trace/histogram.h"
#include "trace/ledger.h"
#include "trace/schema.h"

namespace sluice::trace {

// What the outputs that are on need. All false: only the counts that everybody gets.
struct Wants {
    bool rows = false;           // somebody follows the rows: latencies, layers, experts
    bool routes = false;         // every routing
    bool reads = false;          // every read
    bool nodes = false;          // every node of the graph on its own
    bool node_layers = false;    // the nodes of each layer together
    bool router_inputs = false;  // what routers were given, in passes over one token
    int64_t capture_row = -1;    // the row of decode to be captured whole; -1: none
};

struct Pass {
    Pass(const Clock& clock, PartMask watched) : ledger(clock, watched) {}

    Ledger ledger;
    Wants wants;
    // A host that knows whether it is filling in a prompt or generating says so; otherwise a graph over one token
    // counts as decode.
    std::optional<Phase> told;
    Phase phase = Phase::decode;
    int32_t model = -1;   // number in the record; -1: no expert layer was reached yet
    bool warmup = false;  // llama.cpp's own first runs: not a row
    bool capturing = false;
    // How far the graph has come. Of one whose output is computed nobody counts any more: whoever takes it from there
    // to `closing`, its own thread or the end of the process, makes its row.
    enum class Stage : uint8_t { before_last_block, after_last_block, output_computed, closing };
    std::atomic<Stage> stage = Stage::before_last_block;

    // The ids of a batch of two tokens, where somebody looked: by them trial runs are known.
    std::optional<std::array<int32_t, 2>> pair;

    int64_t tokens = 0;
    int64_t lookups = 0, hits = 0, joins = 0;
    int64_t reads = 0, retries = 0;
    int64_t exact_bytes = 0, exact_physical = 0, engine_bytes = 0;
    bool predicts = false;            // somebody has predicted something
    int64_t hints = 0;                // records
    std::optional<int64_t> guess_on;  // tokens whose guesses were acted on; nothing where that is not found out
    int64_t predicted_bytes = 0, predicted_physical = 0, predicted_used = 0, rejected_bytes = 0, late = 0;
    // What route-ahead did; nothing where it is off.
    struct RouteAhead {
        RouteAheadCounts counts;
        Nanos rank = 0, issue = 0, watch = 0;
    };
    std::optional<RouteAhead> route_ahead;
    int64_t evictions = 0, evictions_shrink = 0, evictions_predicted = 0;  // by cause, each in one of them
    int64_t rereads = 0, waves = 0;
    int64_t blocks_micro = 0, blocks_macro = 0, ahead_bytes = 0;
    // Ranks of tokens in layers that a lossy option was asked about, and what became of them; rows that it could not
    // change.
    bool dials = false;
    int64_t routed = 0, dropped = 0, substituted = 0, unedited = 0;
    Nanos read_busy = 0;
    int64_t queue_depth_max = 0;
    int64_t cache_resident = 0;
    Histogram latency;  // of reads; only with wants.rows or wants.reads
    uint64_t routes_digest = 0;

    std::vector<Row::Layer> layers;  // by set; only with wants.rows
    struct Use {
        uint32_t set = 0, expert = 0;
        uint32_t rows = 0;
        bool miss = false;
    };
    std::vector<Use> uses;  // only with wants.rows
    std::vector<RouteEvent> route_events;
    std::vector<ReadEvent> read_events;
    std::vector<NodeEvent> node_events;
    std::vector<Span> spans;
    // What the routers of a pass over one token were given, and what they chose, one after the other; only with
    // wants.router_inputs.
    struct RouterInput {
        uint32_t set = 0;
        uint32_t numbers = 0, chosen = 0;  // how many of the vectors below
    };
    std::vector<RouterInput> router_inputs;
    std::vector<float> router_numbers;
    std::vector<int32_t> router_chosen;

    // Makes ready for the next row; memory and ledger stay.
    void clear_counts() {
        model = -1;
        warmup = false;
        pair.reset();
        tokens = lookups = hits = joins = reads = retries = 0;
        exact_bytes = exact_physical = engine_bytes = 0;
        predicts = false;
        hints = predicted_bytes = predicted_physical = predicted_used = rejected_bytes = late = 0;
        route_ahead.reset();
        guess_on.reset();
        evictions = evictions_shrink = evictions_predicted = 0;
        rereads = waves = 0;
        blocks_micro = blocks_macro = ahead_bytes = 0;
        dials = false;
        routed = dropped = substituted = unedited = 0;
        read_busy = 0;
        queue_depth_max = cache_resident = 0;
        latency.clear();
        routes_digest = 0;
        for (Row::Layer& l : layers) l = {};
        uses.clear();
        route_events.clear();
        read_events.clear();
        node_events.clear();
        spans.clear();
        router_inputs.clear();
        router_numbers.clear();
        router_chosen.clear();
    }
};

}  // namespace sluice::trace
