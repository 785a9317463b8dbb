// Owns: computing a graph in which expert weights are not in memory: the life of a block, from its router's choice to
// the end of its leases.
// Keeps: bit identity. Every number is computed by the CPU backend's own kernel for the original node, over the same
// bytes, with all rows of an expert in one call; only the weight's address and the expert's number change.
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <memory>
#include <optional>

#include "base/status.h"
#include "base/stop.h"
#include "exec/block.h"
#include "exec/choices.h"
#include "exec/early_run.h"
#include "exec/launch.h"
#include "exec/model_runtime.h"
#include "exec/node_run.h"
#include "exec/pace.h"
#include "exec/pass_book.h"
#include "exec/products.h"
#include "exec/rank_run.h"

namespace sluice::exec {

// One per llama context; used by one thread at a time. Memory for nodes is kept and reused between graphs.
class MoeExecutor {
  public:
    // `cpu` computes everything and outlives the executor.
    MoeExecutor(ggml_backend_t cpu, WeightLookup weight_of) : weight_of_(weight_of), launch_(cpu) {}
    MoeExecutor(const MoeExecutor&) = delete;
    MoeExecutor& operator=(const MoeExecutor&) = delete;

    // Computes all nodes, in order. On failure nothing of ours stays leased and last_error() says why; the graph's
    // results are then undefined, as ggml has it. What it costs is counted in `pass`.
    ggml_status compute(ggml_cgraph* graph, trace::Pass& pass);
    [[nodiscard]] const Status& last_error() const { return launch_.error(); }
    // Asked between launches and while reads do not come; compute() then ends with GGML_STATUS_ABORTED, as the CPU
    // backend does, which asks between nodes.
    void set_stop(Stop stop) { launch_.set_stop(stop); }
    // The next compute() is of a new pass through the model, of which a graph may be only a part.
    void begin_graph();
    // Filled where the model's runtime wants its routers followed. May outlive the executor.
    [[nodiscard]] const std::shared_ptr<RouterBook>& routers() const { return choices_.routers(); }

  private:
    // A block all of whose experts are leased, until another one comes or the graph ends.
    struct Held {
        const WeightRef* weight = nullptr;  // of the node that took the leases
        const void* ids_data = nullptr;
        int64_t n_ids = 0, n_tokens = 0;
        Turn turn;
        bool reading = false;  // batch_ may still be waiting for some of them
        [[nodiscard]] bool active() const { return weight != nullptr; }
        [[nodiscard]] bool is_of(const WeightRef& other, const ggml_tensor* ids) const {
            return active() && weight->runtime == other.runtime && weight->set == other.set && ids_data == ids->data &&
                   n_ids == ids->ne[0] && n_tokens == ids->ne[1];
        }
    };

    ggml_status run(ggml_cgraph* graph);
    ggml_status begin_block(ggml_cgraph* graph, int& at, const WeightRef& weight);
    ggml_status enter(const WeightRef& weight, const ggml_tensor* node, Turn& turn);
    Status choose(ggml_cgraph* graph, int at, const WeightRef& weight, bool& first);
    size_t lease(const WeightRef& weight);
    ggml_status run_in_waves(ggml_cgraph* graph, int& at, const WeightRef& weight, bool first, size_t leased);
    ggml_status run_held(ggml_cgraph* graph, int& at, const WeightRef& weight, bool first);
    ggml_status compute_held(ggml_tensor* node, const WeightRef& weight);
    ggml_status compute_there(ggml_tensor* node, const WeightRef& weight);
    void place_ranks(int& at);
    void look_again();
    void let_go();

    WeightLookup weight_of_;
    Launch launch_;
    Block block_;
    PassBook book_{launch_, block_};
    Choices choices_{launch_, book_, block_, weight_of_};
    Pace pace_{launch_, book_, block_};
    EarlyRun early_{launch_};
    Products products_{launch_, block_};
    NodeRun by_node_{launch_, early_, products_, block_};
    RankRun by_rank_{launch_, early_, block_, weight_of_};
    Held held_;
    std::optional<sched::Batch> batch_;  // of the held block's reads
    uint32_t set_ = UINT32_MAX;          // of the block at hand
    uint32_t earlier_set_ = UINT32_MAX;  // that the graph before this one ended with, in the same pass
    bool last_block_ = false;            // the graph at hand reached the model's last set
};

}  // namespace sluice::exec
