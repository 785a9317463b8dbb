// Owns: changing which experts run for a block before its first product: where the router's choice and its weights lie
// in the graph, and what the lossy dials make of them there.
// Keeps: a block is edited once, however many products and rounds it is computed in; without dials nothing is read or
// written; a block that cannot be edited is left as the router had it, counted, and the reason is said once.
#pragma once

#include <ggml.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "exec/rank_block.h"
#include "exec/router_book.h"
#include "route/dials.h"
#include "trace/pass.h"

namespace sluice::exec {

// The tensor of a block's final weights, or why it cannot be edited.
struct BlockWeights {
    ggml_tensor* tensor = nullptr;
    const char* why_not = "";
};
// Of the block whose first product is node `at`: what the node that weighs the experts' results multiplies them by.
BlockWeights find_block_weights(ggml_cgraph* graph, int at, WeightLookup weight_of);

// What editing needs besides the block.
struct EditTools {
    WeightLookup weight_of;
    ggml_backend_t cpu;   // runs a router again
    RouterBook& routers;  // filled where the runtime follows routers
    // By rank, of a block of one token: 1 for what was read early by rule (exec/route_ahead). It is as good as there,
    // whether or not it came in time; empty: nothing was.
    std::span<const uint8_t> read_early = {};
};

class RouteEdit {
  public:
    // What the router had chosen for a rank of the block.
    struct Was {
        int32_t rank = 0;
        float weight = std::numeric_limits<float>::quiet_NaN();  // NaN: the rank was not edited
        bool dropped = false;
    };

    // Another block is at hand, and it is as the router had it.
    void clear() { kept_.clear(); }
    // Applies the dials of the model's runtime to the block whose first product is node `at`; the lock of the runtime
    // is held. What was done is counted in `pass`.
    void edit(ggml_cgraph* graph, int at, const WeightRef& weight, const EditTools& tools, trace::Pass& pass);

    // Whether the block is another one than the router chose.
    [[nodiscard]] bool active() const { return !kept_.empty(); }
    // How many ranks of the token are computed: the first ones. All `ranks` where nothing was dropped.
    [[nodiscard]] int64_t kept(int64_t token, int64_t ranks) const {
        return active() ? kept_[static_cast<size_t>(token)] : ranks;
    }
    [[nodiscard]] Was was(int64_t rank, int64_t token, int64_t ranks) const {
        if (!active()) return {.rank = static_cast<int32_t>(rank)};
        return was_[static_cast<size_t>(token * ranks + rank)];
    }

  private:
    void refuse(const WeightRef& weight, std::string_view why, trace::Pass& pass);
    Result<size_t> substitute(const WeightRef& weight, const EditTools& tools);

    std::vector<int32_t> kept_;  // by token; empty: all of all tokens
    std::vector<Was> was_;       // by token and rank
    std::vector<int32_t> experts_, router_experts_, order_;
    std::vector<float> weights_, router_weights_;
    std::vector<uint8_t> resident_, router_resident_, dropped_;
    std::vector<route::Candidate> candidates_;
    std::vector<int32_t> asked_;  // of a router run again
    bool told_ = false;           // why a block was left alone
};

}  // namespace sluice::exec
