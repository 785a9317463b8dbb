// Owns: guessing what a layer's router will choose, from the state that an earlier layer's router was given: by the
// layer's own router, on that state as it is, or as what was trained for the two layers corrects it.
// Keeps: one guess for who acts on it (--predict-prefetch) and who scores it (--predict-log).
#pragma once

#include <span>
#include <vector>

#include "exec/model_runtime.h"
#include "exec/router_book.h"

namespace sluice::exec {

// One per context.
class StaleGate {
  public:
    // The router of set `to`, run in 8 bits where it has such a copy: its ids() and weights() are the guess. nullptr:
    // there is none. `corrected`: by what was trained, where that knows the two layers.
    RouterReplay* guess(const ModelRuntime& runtime, RouterBook& routers, uint32_t from, uint32_t to, bool corrected) {
        RouterReplay* router = routers.replay_on(to, from);
        if (router == nullptr) return nullptr;
        std::span<const float> state = routers.input(from);
        const route::Correction* c = corrected && runtime.trained ? runtime.trained->correction(to, from) : nullptr;
        if (c != nullptr && c->n() == state.size()) {
            corrected_.resize(state.size());
            c->apply(state, corrected_);
            state = corrected_;
        }
        return router->guess(routers.cpu(), state).ok() ? router : nullptr;
    }

  private:
    std::vector<float> corrected_;
};

}  // namespace sluice::exec
