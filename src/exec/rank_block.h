// Owns: which nodes of a graph can be computed for some rows of the router's choice before the others. A row is what
// one expert computes for one token: a rank of a token. Keeps: each node named here takes its numbers of a row from the
// same row, or from tensors that are there before the first of them, so that rows may be computed in any order and in
// any grouping.
#pragma once

#include <ggml.h>

#include <vector>

#include "exec/model_runtime.h"

namespace sluice::exec {

// The weight behind a tensor if it is one of ours, else nullptr.
using WeightLookup = const WeightRef* (*)(const ggml_tensor* tensor);

struct EarlyNodes;

struct RankBlock {
    int end = 0;                      // of the graph: one past the last node that belongs to the block, views included
    int64_t ranks = 0, tokens = 0;    // top-k, and how many chose
    std::vector<ggml_tensor*> nodes;  // that compute, in order
    std::vector<int> at;              // where they are in the graph
    size_t row_bytes = 0;             // of all of them together, for one row
    size_t last_product = 0;          // in `nodes`: the last product with experts
    uint8_t before_last = 0;          // components needed by products before it
    uint8_t all = 0;                  // components needed at all
    int unknown = -1;                 // the node that ended it; -1: the graph did, or there is but one row

    [[nodiscard]] bool empty() const { return nodes.empty(); }
    // Which node's rows `t` shows; -1 where that is none of the block. `t` may be a view of it.
    [[nodiscard]] int source(const ggml_tensor* t) const;
};

// From node `begin` of the graph on, which is a product with experts of ours for several rows. What needs no expert may
// lie in between: it is there by then. Empty if not even the first product can be taken apart. Memory of `block` is
// reused.
void find_rank_block(ggml_cgraph* graph, int begin, WeightLookup weight_of, const EarlyNodes& early, RankBlock& block);

}  // namespace sluice::exec
