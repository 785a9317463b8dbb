// Owns: computing a graph piece by piece to see what each piece costs.
// Keeps: nodes run in their order, each exactly once, by the function that would have run the whole graph.
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include "trace/pass.h"

namespace sluice::exec {

using GraphCompute = ggml_status (*)(ggml_backend_t backend, ggml_cgraph* graph);

// Node by node if the pass wants nodes, else in runs of nodes that belong to one layer. Each piece becomes an event of
// the pass. `routed`: the graph is one that Sluice computes. If the pass's ledger watches these parts, it tells shared
// experts, and elsewhere the router, from the rest. `layer`: of nodes before the first whose name has one; updated to
// that of the last.
ggml_status compute_traced(ggml_backend_t backend, GraphCompute compute, ggml_cgraph* graph, trace::Pass& pass,
                           bool routed, int32_t& layer);

// The layer that llama.cpp's name of a node ends with ("ffn_moe_logits-3", "cache_k_l3 (view)" has none), else -1.
int32_t layer_in_name(const char* name);

}  // namespace sluice::exec
