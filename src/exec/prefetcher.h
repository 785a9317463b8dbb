// Owns: in decode, guessing what later layers will choose, and telling the cache and the scheduler.
// Keeps: no way from a guess to what is computed: it reads ids and never writes them, and nobody waits for what it
// asked for.
#pragma once

#include <ggml.h>

#include <optional>
#include <utility>
#include <vector>

#include "exec/model_runtime.h"
#include "exec/router_book.h"
#include "exec/stale_gate.h"
#include "route/calibration.h"
#include "route/last_choice.h"
#include "route/prefetch.h"
#include "trace/pass.h"

namespace sluice::exec {

// One per context; the runtime's lock is held during each call.
class Prefetcher {
  public:
    // The block's router chose these, in decode or in a prompt; of several tokens the last one counts.
    void chose(const WeightRef& weight, const ggml_tensor* ids);
    // What the block needs was asked for: what may be done for those after it. Only in decode.
    void look_ahead(const WeightRef& weight, RouterBook& routers, trace::Pass& pass);

    // With PrefetchOptions::automatic: what looking ahead has taken since the last call, and whether it has led to
    // anything, a read or somebody who was to go and stays.
    struct Did {
        Nanos spent = 0;
        bool acted = false;
    };
    Did take_did() { return {std::exchange(spent_, 0), std::exchange(acted_, false)}; }

  private:
    void guess(uint32_t from, uint32_t to, RouterBook& routers);
    const ModelRuntime* runtime_ = nullptr;  // that last_ is of
    std::optional<route::LastChoice> last_;
    std::vector<uint32_t> experts_;
    // By set: what its next choice was said to be, until it comes; and how sure such guesses are of experts that are
    // not there. Those that are there are chosen far more often, and nothing is read for them.
    struct Pending {
        bool made = false;
        std::vector<uint32_t> experts;
        std::vector<uint8_t> absent;
    };
    std::vector<Pending> pending_;
    route::Calibration calibration_;
    route::LikelyExperts guesses_, chosen_;
    StaleGate stale_gate_;
    std::vector<sched::Fetcher::Foreseen> foreseen_;
    Nanos spent_ = 0;
    bool acted_ = false;
};

}  // namespace sluice::exec
