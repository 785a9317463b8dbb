// Owns: how much memory a block of experts may take beside the graph's, to be computed out of order.
// Keeps: at least what the executor takes for a batch of so many tokens; never more than two times kOwnBytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/geometry.h"
#include "model/gguf.h"

namespace sluice::exec {

// A block's rows are computed in memory of our own, and so in another order than the graph's, if they take at most
// this: any decode, and batches of some hundred rows. What is more is computed node by node. What needs no expert (the
// shared one) may take as much again.
inline constexpr size_t kOwnBytes = 32ULL << 20U;

uint64_t own_memory_need(const model::GgufIndex& index, const model::Geometry& geometry, uint64_t tokens);

}  // namespace sluice::exec
