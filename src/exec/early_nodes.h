// Owns: which nodes of a graph need no expert, so that they can be computed while experts are read: the shared expert.
// Keeps: a node named here takes its numbers only from what is there before `begin` and from other nodes named here,
// and no node in between changes what it reads. Its own memory in the graph is not its to write before its turn.
#pragma once

#include <ggml.h>

#include <vector>

#include "exec/rank_block.h"

namespace sluice::exec {

struct EarlyNodes {
    std::vector<int> at;              // in the graph, ascending
    std::vector<ggml_tensor*> nodes;  // the same
    std::vector<size_t> begin;        // by node: where its numbers lie in memory of our own
    size_t bytes = 0;                 // of that memory

    void clear();
    // Place among `nodes` of the one that `t` shows, -1 if none. `t` may be a view of it.
    [[nodiscard]] int source(const ggml_tensor* t) const;

  private:
    friend void find_early_nodes(ggml_cgraph* graph, int begin, WeightLookup weight_of, EarlyNodes& early);
    std::vector<const ggml_tensor*> late_;  // computed or changed in between
};

// From node `begin` of the graph to its end. Memory of `early` is reused.
void find_early_nodes(ggml_cgraph* graph, int begin, WeightLookup weight_of, EarlyNodes& early);

}  // namespace sluice::exec
