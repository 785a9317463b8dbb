// Owns: what is made of routers' choices: who looks at them, who changes them, and in which order.
// Keeps: predictors see what the router chose, before anybody changes it; a choice is changed once per block, before
// its first product.
#pragma once

#include <ggml.h>

#include <cstdint>
#include <memory>

#include "exec/block.h"
#include "exec/launch.h"
#include "exec/model_runtime.h"
#include "exec/pass_book.h"
#include "exec/prefetcher.h"
#include "exec/rank_block.h"
#include "exec/route_ahead.h"
#include "exec/route_probe.h"
#include "exec/router_book.h"
#include "exec/shadow_cache.h"

namespace sluice::exec {

// One per context; the runtime's lock is held during each call that is given one.
class Choices {
  public:
    Choices(Launch& launch, PassBook& book, Block& block, WeightLookup weight_of)
        : launch_(launch), book_(book), block_(block), weight_of_(weight_of) {}

    // The next graph is of a new pass.
    void begin_graph();
    // Its first block has come, over so many rows.
    void begin_pass(ModelRuntime& runtime, int64_t rows);
    // The block whose product is node `at` comes, and what precedes it is computed: it is followed to its router, and
    // what options say is made of the choice. `first`: of its products, as the book has it.
    void decide(ggml_cgraph* graph, int at, const WeightRef& weight, bool first);
    // Which experts run is known and counted: the cache and predictors learn it. Once per block.
    void learn(const WeightRef& weight, const ggml_tensor* ids);
    // Whether the token at hand looks ahead, or something that one before has asked for is still on its way or queued.
    [[nodiscard]] bool looks_ahead(const ModelRuntime& runtime) const;
    // All of this block is asked for: the drive's idle time until the next one is for what that may choose.
    void look_ahead(const WeightRef& weight);
    // For a block that does not look ahead, since it does not fit: what later layers are to take of its hidden state is
    // found out all the same.
    void rank_ahead();
    // All blocks of the pass are computed.
    void end_pass();

    // Filled where the model's runtime wants its routers followed. May outlive this.
    [[nodiscard]] const std::shared_ptr<RouterBook>& routers() const { return routers_; }

  private:
    void edit(ggml_cgraph* graph, int at, const WeightRef& weight, bool first);
    void begin_token(ModelRuntime& runtime, int64_t rows);
    [[nodiscard]] bool guesses(const ModelRuntime& runtime) const;

    Launch& launch_;
    PassBook& book_;
    Block& block_;
    WeightLookup weight_of_;
    std::shared_ptr<RouterBook> routers_ = std::make_shared<RouterBook>();
    RouteProbe probe_;
    RouteAhead route_ahead_;
    Prefetcher prefetcher_;
    uint32_t edited_set_ = UINT32_MAX;  // whose block the edit is of
    // A token of decode, for who finds out whether guesses pay.
    struct Token {
        ModelRuntime* of = nullptr;  // null: there is none
        Nanos began = 0, ended = -1;
        Nanos waited = 0;    // for reads until then, as the book has it
        Nanos followed = 0;  // routers, so long
        bool on = false;
    };
    Token token_;
    PassLog log_;  // of the pass at hand, for the shadow of shadowed_
    ModelRuntime* shadowed_ = nullptr;
};

}  // namespace sluice::exec
