// Owns: all that is known of a run so far, apart from its rows, and the interface by which outputs follow it.
// Keeps: outputs only read; every number they show is a column, a total or a figure of this book.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "trace/totals.h"

namespace sluice::trace {

using Json = nlohmann::ordered_json;

// How often each expert of a model ran and how often it had to be read, by set and expert.
struct ExpertUse {
    std::vector<std::vector<uint32_t>> uses, misses;
};

struct Ending {
    std::string status = "ok";  // ok, interrupted, failed
    std::string error;          // one sentence, empty when there was none
    std::string output_digest;  // of the text; empty where nobody saw the text
};

struct Book {
    Json header;                // "kind": "run"
    std::vector<Json> models;   // "kind": "model", by number
    std::vector<Json> caches;   // "kind": "cache", one whenever a cache was made or changed its size
    std::vector<Json> guesses;  // "kind": "predict", one for each model that guessed
    Json load;                  // "kind": "load"; null where nobody loaded anything
    std::array<Totals, 2> phases;
    std::vector<ExpertUse> experts;  // by model
    // What sampled counts grew by between the last sample and the end of the run; in the totals of `rest_phase`, which
    // is that of the last row.
    std::optional<Row> rest;
    Phase rest_phase = Phase::decode;
    uint64_t routes_digest = 0;  // of all choices of the routers, in order
    Ending ending;               // once the run is over

    [[nodiscard]] const Totals& of(Phase phase) const { return phases[static_cast<size_t>(phase)]; }
    [[nodiscard]] Totals& of(Phase phase) { return phases[static_cast<size_t>(phase)]; }
};

// One output. Called under the recorder's lock, in this order: begin, then models, caches, load and rows as they come,
// then end. After an error an output is not called again.
class Sink {
  public:
    virtual ~Sink() = default;
    virtual Status begin(const Book&) { return {}; }
    virtual Status model(const Book&, size_t /*number*/) { return {}; }
    virtual Status cache(const Book&, const Json& /*cache*/) { return {}; }
    virtual Status guesses(const Book&, const Json& /*guesses*/) { return {}; }
    virtual Status load(const Book&) { return {}; }
    // `text`: what came out with this row, valid UTF-8; empty where nobody saw the text. The totals include the row.
    virtual Status row(const Book&, const Row&, std::string_view /*text*/) { return {}; }
    // Every so many rows: what is too large for every row.
    virtual Status checkpoint(const Book&) { return {}; }
    virtual Status end(const Book&) { return {}; }
};

}  // namespace sluice::trace
