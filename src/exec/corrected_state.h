// Owns: what a layer's router is run on to guess its choice while an earlier layer computes.
// Keeps: where nothing was trained for the two layers it is the earlier one's state, as it is.
#pragma once

#include <span>
#include <vector>

#include "exec/model_runtime.h"

namespace sluice::exec {

// `state`: what the router of `from` was given. The result is that, or lies in `memory`.
inline std::span<const float> corrected_state(const ModelRuntime& runtime, uint32_t to, uint32_t from,
                                              std::span<const float> state, std::vector<float>& memory) {
    const route::Correction* c = runtime.trained ? runtime.trained->correction(to, from) : nullptr;
    if (c == nullptr || c->n() != state.size()) return state;
    memory.resize(state.size());
    c->apply(state, memory);
    return memory;
}

}  // namespace sluice::exec
