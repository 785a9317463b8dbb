// Owns: computing one product while its experts come, for blocks that cannot be taken apart by rank: node by node.
// Keeps: rows of an expert are computed when it is there, all of them together. Where not all experts fit, whoever is
// computed makes room at once.
#pragma once

#include <ggml.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "exec/block.h"
#include "exec/early_run.h"
#include "exec/launch.h"
#include "exec/products.h"
#include "sched/scheduler.h"

namespace sluice::exec {

// One per context.
class NodeRun {
  public:
    NodeRun(Launch& launch, EarlyRun& early, Products& products, Block& block)
        : launch_(launch), early_(early), products_(products), block_(block) {}

    // All experts are leased. All their components are wanted: the product's first, then those of the later ones.
    void ask(const WeightRef& weight, sched::Batch& batch);
    // The product's rows of those that are there, and so on until it is computed. What comes before it is.
    ggml_status run(ggml_tensor* node, const WeightRef& weight, sched::Batch& batch);

    // Not all fit; the first `leased` are. The others come, with this product's component only, compute and go. No
    // lease is left.
    ggml_status run_in_waves(ggml_tensor* node, const WeightRef& weight, size_t leased);

  private:
    Launch& launch_;
    EarlyRun& early_;
    Products& products_;
    Block& block_;
    std::vector<RecordId> group_;
    std::vector<uint8_t> computed_;  // by record of the block: and its lease has ended
    std::vector<sched::Scheduler::Part> parts_;
};

}  // namespace sluice::exec
