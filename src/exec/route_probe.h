// Owns: guessing what routers will choose, only to see how often that is right (--predict-log).
// Keeps: nothing that it computes reaches the loading path: it reads routers' inputs and choices, and asks the cache
// what is there. Only single tokens of decode are scored; a guess is made before the choice is known.
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <optional>
#include <vector>

#include "base/clock.h"
#include "exec/model_runtime.h"
#include "exec/router_book.h"
#include "exec/stale_gate.h"
#include "route/popularity.h"
#include "route/scores.h"

namespace sluice::exec {

// One per context.
class RouteProbe {
  public:
    // The next block is of a new graph.
    void begin_graph() { last_set_ = kNoSet; }

    // The block of `set` begins, over `ids`, which nobody has changed; `routers` has been told of it. `decoding`: of a
    // pass that generates. The lock of `runtime` is held, and its scores are there.
    void at_block(uint32_t set, const ggml_tensor* ids, bool decoding, RouterBook& routers, ModelRuntime& runtime,
                  const Clock& clock);

  private:
    static constexpr uint32_t kNoSet = UINT32_MAX;
    static constexpr double kHalfLife = 64;  // tokens

    struct Pending {
        bool made = false;
        std::vector<int32_t> experts;
        std::vector<float> confidence;
        std::vector<uint8_t> absent;
        Nanos at = 0, busy = 0, spent = 0;  // clock, the drive's and the probe's own time when it was made
    };
    struct Set {
        std::vector<int32_t> previous;  // of the token before; empty: none yet
        std::optional<route::Popularity> popularity;
        std::array<Pending, route::kPredictors> pending;
        std::array<uint32_t, 5> ahead{}, before{};  // sets of the same kind so many layers later and earlier, or kNoSet
    };
    void learn_model(const ModelRuntime& runtime);
    [[nodiscard]] route::Unranked reason(route::Predictor p, uint32_t set, RouterBook& routers) const;
    void score(uint32_t set, RouterBook& routers, ModelRuntime& runtime, const Clock& clock);
    void score_attention(uint32_t set, RouterReplay* own, RouterBook& routers, ModelRuntime& runtime,
                         const route::Chosen& choice, const Clock& clock);
    void guess_ahead(uint32_t set, RouterBook& routers, ModelRuntime& runtime, const Clock& clock);
    void compare_exact(uint32_t set, uint32_t target, RouterBook& routers, ModelRuntime& runtime, const Clock& clock);
    void put(route::Predictor p, uint32_t target, std::span<const int32_t> experts, const ModelRuntime& runtime,
             Nanos now);
    void forget();

    const ModelRuntime* model_ = nullptr;
    std::vector<Set> sets_;
    uint32_t last_set_ = kNoSet;
    std::vector<int32_t> chosen_;
    std::vector<int32_t> guess_;
    StaleGate stale_gate_;
    std::vector<uint8_t> missing_;
    Nanos spent_ = 0;  // by the probe so far
};

}  // namespace sluice::exec
