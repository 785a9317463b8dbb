// Owns: recorded routes: which experts the router of each layer chose, token by token, as --route-trace writes them.
// Keeps: every expert is below its layer's count, every layer of every visit is known, and within a visit no token
// chooses an expert twice; what a file says is checked, and a file that is not such a trace is an error that names the
// line.
#pragma once

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "model/geometry.h"

namespace sluice::replay {

struct RouteSet {
    int32_t layer = 0;
    uint32_t n_expert = 0;
    uint64_t expert_bytes = 0;  // of one expert; 0: the trace does not say
};

struct Choice {
    uint32_t expert = 0;
    uint32_t token = 0;  // of its visit, from 0
};

// One layer's block, computed for one batch.
struct Visit {
    uint32_t set = 0;
    uint32_t begin = 0, end = 0;  // in Routes::choices: by token, then rank
    uint32_t tokens = 0;
};

// One batch through the model.
struct Pass {
    bool prompt = false;
    uint32_t turn = 0;
    uint32_t begin = 0, end = 0;  // in Routes::visits
    uint32_t tokens = 0;
};

struct Routes {
    std::string model, architecture;
    // Options with which the run's experts were not what its routers chose; empty: none. "lossy options" where a trace
    // shows that there were some, but does not name them.
    std::string lossy;
    uint32_t top_k = 0;           // most choices of one token in one layer
    std::vector<RouteSet> sets;   // by layer; those that appear
    std::vector<uint32_t> first;  // first record of each set, and the number of all
    std::vector<Choice> choices;
    std::vector<Visit> visits;
    std::vector<Pass> passes;
    uint64_t decode_tokens = 0;

    [[nodiscard]] RecordId record(uint32_t set, uint32_t expert) const { return first[set] + expert; }
    [[nodiscard]] uint32_t n_records() const { return first.back(); }
    // Distinct records of a visit, in the order of their first choice, and how often each was chosen.
    void records(const Visit& visit, std::vector<RecordId>& out) const;
    // All experts, and those of one token of decode: what one needs when nothing is cached.
    [[nodiscard]] uint64_t full_bytes() const;
    [[nodiscard]] uint64_t cycle_bytes() const;
};

// `name` is for messages.
Result<Routes> read_routes(std::istream& in, const std::string& name);
// "-" is standard input. Says what to do with a compressed file.
Result<Routes> read_routes(const std::string& path);
// What whoever concludes something from lossy routes has to be told; empty if they are the routers'.
std::string lossy_note(const Routes& routes, const std::string& name);
// Sizes of experts from the model itself, which must have the trace's layers and at least its experts.
Status take_sizes(Routes& routes, const model::Geometry& geometry);

}  // namespace sluice::replay
