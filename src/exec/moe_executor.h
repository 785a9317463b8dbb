// Owns: computing a graph in which expert weights are not in memory: plan which experts are needed, have them fetched,
// and let the CPU backend compute over the slots.
// Keeps: bit identity. Every number is computed by the CPU backend's own kernel for the original node, over the same
// bytes, with all rows of an expert in one call; only the weight's address and the expert's number change.
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/stop.h"
#include "exec/early_nodes.h"
#include "exec/model_runtime.h"
#include "exec/prefetcher.h"
#include "exec/rank_block.h"
#include "exec/route_ahead.h"
#include "exec/route_edit.h"
#include "exec/route_probe.h"
#include "exec/router_book.h"

namespace sluice::exec {

// One per llama context; used by one thread at a time. Memory for nodes is kept and reused between graphs.
class MoeExecutor {
  public:
    // `cpu` computes everything and outlives the executor.
    MoeExecutor(ggml_backend_t cpu, WeightLookup weight_of);
    ~MoeExecutor();
    MoeExecutor(const MoeExecutor&) = delete;
    MoeExecutor& operator=(const MoeExecutor&) = delete;

    // Computes all nodes, in order. On failure nothing of ours stays leased and last_error() says why; the graph's
    // results are then undefined, as ggml has it. What it costs is counted in `pass`.
    ggml_status compute(ggml_cgraph* graph, trace::Pass& pass);
    [[nodiscard]] const Status& last_error() const { return last_error_; }
    // Asked between launches and while reads do not come; compute() then ends with GGML_STATUS_ABORTED, as the CPU
    // backend does, which asks between nodes.
    void set_stop(Stop stop) { stop_ = stop; }
    // The next compute() is of a new pass through the model, of which a graph may be only a part.
    void begin_graph() {
        counted_set_ = earlier_set_ = edited_set_ = UINT32_MAX;
        routers_->begin_graph();
        probe_.begin_graph();
        route_ahead_.begin_graph();
    }
    // Filled where the model's runtime wants its routers followed. May outlive the executor.
    [[nodiscard]] const std::shared_ptr<RouterBook>& routers() const { return routers_; }

  private:
    struct Row {
        int32_t k = 0;  // rank in the router's choice
        int32_t t = 0;  // token
    };
    // Neighbouring slots, seen as one tensor.
    struct Window {
        const std::byte* begin = nullptr;  // of the component in the first slot
        cache::SlotId first = 0;
        int64_t slots = 0;
        size_t stride = 0;
    };
    // The experts that the block at hand has leased, with their rows.
    struct Held {
        const WeightRef* weight = nullptr;  // of the node that took the leases
        const void* ids_data = nullptr;
        int64_t n_ids = 0, n_tokens = 0;
        Turn turn;
        bool reading = false;  // batch_ may still be waiting for some of them
        [[nodiscard]] bool active() const { return weight != nullptr; }
    };

    ggml_status run(ggml_cgraph* graph);
    ggml_status mul_mat_id(ggml_cgraph* graph, int& at, const WeightRef& weight);
    void choose_experts(ggml_cgraph* graph, int at, const WeightRef& weight, bool first);
    void follow_router(ggml_cgraph* graph, int at, const WeightRef& weight, bool first);
    Status route(const ggml_tensor* ids, uint32_t n_expert);
    ggml_status append_resident(ggml_tensor* node, const WeightRef& weight);
    ggml_status compute_held(ggml_tensor* node, const WeightRef& weight);
    ggml_status compute_early();
    void find_early(ggml_cgraph* graph, int at, const ModelRuntime& runtime);
    std::byte* early_memory(const ggml_tensor* t, size_t made);
    [[nodiscard]] bool is_early_before(int at) const;
    [[nodiscard]] bool is_early(int at) const;
    void place_early();
    void plan_block(const WeightRef& weight, const ggml_tensor* ids);
    void look_ahead(const WeightRef& weight);
    void look_again();
    bool plan_next(const WeightRef& weight);
    void end_block();
    void ask_for_all(const WeightRef& weight);
    ggml_status run_as_they_come(ggml_tensor* node, const WeightRef& weight);
    bool find_ranks(ggml_cgraph* graph, int at, const WeightRef& weight, bool first);
    void tell_of_pattern(ggml_cgraph* graph, const WeightRef& weight);
    ggml_status run_ranks(const WeightRef& weight);
    ggml_status run_ranks_in_waves(const WeightRef& weight, size_t leased);
    void ask_for_ranks(sched::Fetcher& fetcher, sched::Batch& batch, std::span<const RecordId> records,
                       sched::ComponentMask which);
    void begin_ranks(size_t rows);
    void end_ranks(int& at);
    // Of a row that nobody has computed: what comes before the last product needs no expert if there is but one.
    [[nodiscard]] uint8_t first_stage() const { return block_.last_product == 0 ? 1 : 0; }
    size_t order_rows(const WeightRef& weight);
    [[nodiscard]] size_t end_of_expert(size_t place) const;
    size_t append_ready_ranks(const WeightRef& weight, size_t most_experts);
    void append_ranks(const WeightRef& weight, size_t begin, size_t end, size_t first_node, size_t last_node);
    void append_rank_product(ggml_tensor* node, const WeightRef& weight, size_t begin, size_t end, size_t number);
    ggml_tensor* rank_rows(const ggml_tensor* src, size_t begin, size_t end);
    [[nodiscard]] std::byte* rank_row(size_t node, size_t i) {
        return rank_scratch_.data() + rank_begin_[node] + i * block_.nodes[node]->nb[1];
    }
    ggml_status run_in_waves(ggml_tensor* node, const WeightRef& weight, size_t leased);
    ggml_status run_gathered(ggml_tensor* node, const WeightRef& weight, std::span<const RecordId> records);
    void append_strided(ggml_tensor* node, const WeightRef& weight, const Window& window,
                        std::span<const int32_t> place_of_expert);
    void append_single_rows(ggml_tensor* node, const WeightRef& weight);
    void append_dropped_rows(ggml_tensor* node);
    void clear_dropped_rows(ggml_tensor* node);
    [[nodiscard]] Window window_over(const WeightRef& weight, std::span<const RecordId> records) const;
    ggml_tensor* weight_of_one(const ggml_tensor* original, const WeightRef& weight, RecordId record);
    ggml_tensor* ids_of(const ggml_tensor* original, int32_t* values, int64_t n_ids, int64_t n_tokens);
    ggml_tensor* weight_view(const ggml_tensor* original, const WeightRef& weight, const std::byte* data, int64_t n_as,
                             size_t stride);
    ggml_status make_room(size_t nodes);
    void append(ggml_tensor* node);
    ggml_status flush();
    ggml_status run_appended();
    void let_go();
    ggml_status fail(Status status);
    trace::PhaseCounters& phase(ModelRuntime& runtime) const;
    // False where the block was visited already, by another of its nodes.
    bool visit(const WeightRef& weight, const ggml_tensor* ids);
    void count_lookups(const WeightRef& weight, const ggml_tensor* ids);
    void commit_shadow();
    void begin_token(ModelRuntime& runtime, int64_t rows);
    void tell_choices(const WeightRef& weight, int64_t n_tokens);
    void count_routes(const WeightRef& weight, const ggml_tensor* ids);
    void note_weights(const ggml_tensor* node);
    void note_router(const WeightRef& weight, const ggml_tensor* ids);
    // Runs `reading`, which waits for reads and may compute, and books what the scheduler did meanwhile.
    template <typename F>
    auto accounted(ModelRuntime& runtime, uint32_t set, F&& reading);
    Status load(ModelRuntime& runtime, uint32_t set, std::span<const RecordId> records, sched::ComponentMask which);
    void count_evictions(ModelRuntime& runtime);

    ggml_tensor* new_tensor();
    int32_t* new_ints(size_t n);
    std::byte* new_bytes(size_t n);
    std::byte* scratch(size_t bytes);

    ggml_backend_t cpu_;
    WeightLookup weight_of_;
    Stop stop_;
    trace::Pass* pass_ = nullptr;  // of the graph at hand
    uint32_t set_ = UINT32_MAX;    // of the block whose nodes are appended
    int32_t layer_of_set_ = -1;
    uint32_t earlier_set_ = UINT32_MAX;  // that the graph before this one ended with, in the same pass
    Nanos early_ = 0;                    // arithmetic of nodes before the first set of the pass was known
    bool last_block_ = false;            // the graph at hand reached the model's last set
    std::shared_ptr<RouterBook> routers_ = std::make_shared<RouterBook>();
    RouteProbe probe_;
    ggml_context* context_ = nullptr;
    ggml_cgraph* graph_ = nullptr;  // nodes appended and not yet computed
    bool graph_has_work_ = false;
    Status last_error_;

    Held held_;
    RouteEdit edit_;
    uint32_t edited_set_ = UINT32_MAX;  // whose block edit_ is of
    PassLog log_;                       // of the pass at hand, for the shadow of shadowed_
    ModelRuntime* shadowed_ = nullptr;
    Prefetcher prefetcher_;
    RouteAhead route_ahead_;
    // The phase of a pass is told by the set that it visits first: the last layer of a prompt may have a single row,
    // since only outputs that somebody asked for are computed there.
    const ModelRuntime* counted_runtime_ = nullptr;
    uint32_t counted_set_ = UINT32_MAX;
    std::vector<uint8_t> counting_component_;  // by set: the component whose node comes first, as once seen
    bool decoding_ = false;
    // A token of decode, for who finds out whether guesses pay.
    struct Token {
        ModelRuntime* of = nullptr;  // null: there is none
        Nanos began = 0, ended = -1;
        Nanos waited = 0;
        bool on = false;
    };
    Token token_;
    Mode mode_ = Mode::decode;       // of the block at hand
    bool next_is_ahead_ = false;     // the set after it is being read before its router has run
    int64_t pass_rows_ = 0;          // that the first set of the pass saw
    ModelRuntime* timed_ = nullptr;  // of the prompt's block whose time is being taken
    Nanos block_began_ = 0, block_waited_ = 0;
    Nanos block_ended_ = -1;          // of the prompt's block before; -1: there is none
    std::vector<RecordId> records_;   // distinct experts of the block
    std::vector<RecordId> group_;     // those that are computed next, and others
    size_t routes_begin_ = 0;         // in the pass: the block's routings, whose weights are still to come
    std::vector<int32_t> row_begin_;  // [n_expert + 1] into rows_
    std::vector<Row> rows_;           // by expert
    std::vector<int32_t> place_;      // [n_expert] scratch of append_strided

    // Node storage: addresses stay valid until the graph was computed.
    std::deque<ggml_tensor> tensors_;
    size_t tensors_used_ = 0;
    std::deque<std::vector<int32_t>> ints_;
    size_t ints_used_ = 0;
    std::deque<std::vector<std::byte>> bytes_;
    size_t bytes_used_ = 0;
    std::vector<std::byte> scratch_;

    // What was computed while the block's experts were being read, and how many of these lie where they belong.
    EarlyNodes early_nodes_;
    size_t early_placed_ = 0;
    bool early_computed_ = true;
    std::vector<std::byte> early_scratch_;

    // A block whose ranks are computed as their experts come. Rows of its nodes lie in memory of its own, because the
    // graph's may be shared by nodes that stock computes one after the other.
    std::optional<sched::Batch> batch_;
    std::vector<sched::Scheduler::Part> parts_;
    RankBlock block_;
    std::vector<Row> order_;            // those whose experts were there first; in memory of our own they lie so
    std::vector<RecordId> row_record_;  // by place in order_
    std::vector<uint8_t> stage_;        // by place: 0 before the last product, 1 before it ends, 2 done, 3 no slot
    std::vector<size_t> rank_begin_;    // by node, into rank_scratch_
    std::vector<std::byte> rank_scratch_;
};

}  // namespace sluice::exec
