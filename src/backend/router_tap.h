// Owns: stopping within a graph of the CPU backend right after a router, whose input does not live longer.
// Keeps: every node is computed once and in its order, by the function that would have computed the whole graph.
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <functional>

#include "exec/router_book.h"

namespace sluice::backend {

using ComputePiece = std::function<ggml_status(ggml_cgraph* piece)>;

// Tells `book` of every router's product that it taps. A graph without such is one piece.
ggml_status compute_with_taps(ggml_cgraph* graph, exec::RouterBook& book, const ComputePiece& compute);

}  // namespace sluice::backend
