// Owns: taking a layer's choice of experts from the ranking that its own router gave on the hidden state some layers
// earlier (--route-ahead), and having those experts read from then on.
// Keeps: which choice is taken is a function of the tokens alone: each ranking is made inline, in its block, and none
// is skipped for want of time. Only what is going to be taken is ranked and read, so that no read is in vain. A router
// whose copy does not choose what the graph chose ends it for good, aloud.
#pragma once

#include <ggml.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exec/model_runtime.h"
#include "exec/rank_block.h"
#include "exec/router_book.h"
#include "route/likely.h"
#include "trace/counters.h"
#include "trace/pass.h"

namespace sluice::exec {

// One per context; the runtime's lock is held during each call.
class RouteAhead {
  public:
    // A new pass through the model: no ranking is known.
    void begin_graph();

    // What a block is, before its experts are planned. Nodes before `at`, its first product, are computed.
    struct Block {
        ggml_cgraph* graph = nullptr;
        int at = 0;
        const WeightRef* weight = nullptr;
        bool decode = false;
    };
    // Puts the early ranking in the place of the router's choice, with its weights. Does nothing where the runtime has
    // it off.
    void decide(const Block& block, WeightLookup weight_of, RouterBook& routers, trace::Pass& pass);
    // What was done in the block at hand.
    [[nodiscard]] const trace::RouteAheadCounts& block() const { return block_; }
    // Of the block at hand, by rank: 1 for an expert that its early ranking had read unless it was there, whenever that
    // was begun. A run that drops experts takes it for one that is there. Empty: the block is its router's.
    [[nodiscard]] std::span<const uint8_t> read_early() const { return read_early_; }
    // Ranks the experts of the layer that is as far ahead of the block decided last, once. Has to be called in every
    // block, but need not be before what that needs was asked for.
    void rank(RouterBook& routers, trace::Pass& pass);
    // What the block needs was asked for: so is, after ranking, what later ones are sure to need.
    void look_ahead(const WeightRef& weight, RouterBook& routers, trace::Pass& pass);

    // In tokens: how long a router may choose something else than its copy before that is found out, at most.
    static constexpr uint32_t kCheckEvery = 32;

  private:
    struct Ranking {
        bool known = false;
        std::vector<int32_t> ids;
        std::vector<float> weights;  // of the early ranking
        route::LikelyExperts shares;
        std::vector<uint8_t> read;  // by rank: it is read early, as none that is dropped
    };
    // Whether the block of a set can take another choice than its router's, as a graph over one token has shown.
    enum class Able : uint8_t { unknown, no, yes };
    void start(const ModelRuntime& runtime);
    bool commit(const Block& block, WeightLookup weight_of, RouterBook& routers, trace::Pass& pass);
    void learn(const Block& block, WeightLookup weight_of, RouterBook& routers);
    void rank_one(uint32_t to, uint32_t from, RouterBook& routers);
    void disarm(const WeightRef& weight, const std::string& why);
    void refuse(const WeightRef& weight, const std::string& why);
    void tell(const WeightRef& weight, const std::string& why);

    const ModelRuntime* runtime_ = nullptr;
    std::vector<uint32_t> layer_of_;              // by set: place of its layer among those with experts
    std::vector<std::vector<uint32_t>> sets_of_;  // by place: the layer's sets
    std::vector<Ranking> rankings_;               // by set
    std::vector<Able> able_;                      // by set
    std::optional<uint32_t> rank_from_;           // set whose hidden state is still to be ranked by
    std::vector<uint32_t> ranked_;                // sets that the block at hand ranked
    bool first_decode_ = true;                    // no token was decoded since the last prompt
    bool decoded_ = false;                        // the pass at hand is of decode
    uint64_t token_ = 0;                          // passes of decode
    bool disarmed_ = false, told_ = false;
    std::span<const uint8_t> read_early_;
    trace::RouteAheadCounts block_;  // of the block at hand
    route::LikelyExperts chosen_;
    std::vector<sched::Fetcher::Foreseen> early_;
};

}  // namespace sluice::exec
