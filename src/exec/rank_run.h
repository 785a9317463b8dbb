// Owns: computing a block's rows in the order in which their experts come: which rows can be computed, how many are
// worth a launch, and what is asked for next.
// Keeps: each row is computed once. Whoever is computed makes room at once, whoever came before and is still being
// read, so that a read that is stuck holds one slot and nothing else.
#pragma once

#include <ggml.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "exec/block.h"
#include "exec/early_run.h"
#include "exec/launch.h"
#include "exec/rank_block.h"
#include "exec/rank_rows.h"
#include "sched/scheduler.h"

namespace sluice::exec {

// One per context.
class RankRun {
  public:
    RankRun(Launch& launch, EarlyRun& early, Block& block, WeightLookup weight_of)
        : launch_(launch), early_(early), block_(block), weight_of_(weight_of), rows_(launch, early, block) {}

    // Whether the block whose product is node `at` can be computed so, at least as far as its pattern is known. What
    // becomes of it is counted where it is the layer's `first`.
    bool find(ggml_cgraph* graph, int at, const WeightRef& weight, bool first);

    // All experts are leased: asks for what is missing, ...
    void ask(const WeightRef& weight, sched::Batch& batch);
    // ... then computes what is there, while the rest is read, and each other one when its matrices have come.
    ggml_status run(const WeightRef& weight, sched::Batch& batch);

    // Not all fit; the first `leased` are. The others come, compute and go. No lease is left.
    ggml_status run_in_waves(const WeightRef& weight, size_t leased);

    // All rows are computed: the graph's memory becomes what it would be had the nodes been computed one after the
    // other. `placed` sees each node when that is done for it. Returns the block's last node.
    template <typename F>
    int finish(F&& placed) {
        const RankBlock& nodes = rows_.nodes();
        for (size_t n = 0; n < nodes.nodes.size(); ++n) {
            while (early_.is_before(nodes.at[n])) early_.place();
            rows_.place(n);
            placed(nodes.nodes[n]);
        }
        return nodes.end - 1;
    }

  private:
    // Of the rows of an expert.
    enum class Stage : uint8_t {
        open,     // nothing is computed
        halfway,  // what comes before the last product is, or needs no expert
        done,
        no_seat,  // the expert has no slot: not yet, or not any more
    };
    [[nodiscard]] Stage first_stage() const { return rows_.nodes().last_product == 0 ? Stage::halfway : Stage::open; }
    void set_stage(size_t begin, size_t end, Stage stage);
    void tell_of_pattern(ggml_cgraph* graph, const WeightRef& weight) const;
    void request(sched::Fetcher& fetcher, sched::Batch& batch, std::span<const RecordId> records,
                 sched::ComponentMask which);
    size_t append_ready(const WeightRef& weight, size_t most_experts);

    Launch& launch_;
    EarlyRun& early_;
    Block& block_;
    WeightLookup weight_of_;
    RankRows rows_;
    std::vector<Stage> stage_;  // by place
    std::vector<RecordId> group_;
    std::vector<sched::Scheduler::Part> parts_;
};

}  // namespace sluice::exec
