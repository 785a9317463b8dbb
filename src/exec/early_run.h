// Owns: the nodes of a block that need no expert (the shared one), computed while experts are read: their numbers until
// their turn in the graph comes.
// Keeps: they are computed once, in memory of our own. The graph's memory gets their numbers in node order, since nodes
// before them may use that memory.
#pragma once

#include <ggml.h>

#include <cstddef>
#include <vector>

#include "exec/early_nodes.h"
#include "exec/launch.h"

namespace sluice::exec {

// One per context.
class EarlyRun {
  public:
    explicit EarlyRun(Launch& launch) : launch_(launch) {}

    // Another graph: there are none.
    void clear();
    // From node `at` of the graph on. None where they take more than `most_bytes`.
    void find(ggml_cgraph* graph, int at, WeightLookup weight_of, size_t most_bytes);
    [[nodiscard]] const EarlyNodes& nodes() const { return nodes_; }
    // All that were found lie where they belong.
    [[nodiscard]] bool all_placed() const { return placed_ == nodes_.at.size(); }

    // Computes them, if nobody has; nothing waits for the launch, and what comes before them is computed.
    ggml_status compute();
    // Where the numbers are that `t` shows, a view of the node `made` or that node itself.
    std::byte* memory(const ggml_tensor* t, size_t made);

    // Whether the next of them comes before the graph's node `at`, and whether it is that.
    [[nodiscard]] bool is_before(int at) const { return !all_placed() && nodes_.at[placed_] < at; }
    [[nodiscard]] bool is_next(int at) const;
    // Puts its numbers where they belong, now or by a node of the launch, which has room.
    void place();

  private:
    Launch& launch_;
    EarlyNodes nodes_;
    size_t placed_ = 0;
    bool computed_ = true;
    std::vector<std::byte> numbers_;
};

}  // namespace sluice::exec
