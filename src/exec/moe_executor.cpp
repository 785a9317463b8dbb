#include "exec/moe_executor.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/log.h"

namespace sluice::exec {

void MoeExecutor::begin_graph() {
    earlier_set_ = UINT32_MAX;
    book_.begin_graph();
    choices_.begin_graph();
}

ggml_status MoeExecutor::compute(ggml_cgraph* graph, trace::Pass& pass) {
    launch_.begin(pass);
    last_block_ = false;
    early_.clear();
    const trace::During managing(pass.ledger, trace::Part::manage);
    ggml_status status = run(graph);
    if (status == GGML_STATUS_SUCCESS) status = launch_.flush();
    if (status != GGML_STATUS_SUCCESS) pace_.forget();
    look_again();
    pace_.end_block();
    if (last_block_) pass.stage = trace::Pass::Stage::after_last_block;
    earlier_set_ = set_;
    launch_.drop();
    let_go();
    if (last_block_ && status == GGML_STATUS_SUCCESS) choices_.end_pass();
    return status;
}

ggml_status MoeExecutor::run(ggml_cgraph* graph) {
    const int n = ggml_graph_n_nodes(graph);
    for (int i = 0; i < n; ++i) {
        ggml_tensor* node = ggml_graph_node(graph, i);
        const WeightRef* weight = node->op == GGML_OP_MUL_MAT_ID ? weight_of_(node->src[0]) : nullptr;
        const bool wanted = (node->flags & GGML_TENSOR_FLAG_COMPUTE) != 0 && !ggml_is_empty(node);
        ggml_status status = GGML_STATUS_SUCCESS;
        if (weight != nullptr && wanted) {
            status = held_.is_of(*weight, node->src[2]) ? compute_held(node, *weight) : begin_block(graph, i, *weight);
        } else if (early_.is_next(i)) {
            status = launch_.make_room(1);
            if (status == GGML_STATUS_SUCCESS) early_.place();
        } else {
            if (wanted) book_.note_weights(node);
            status = launch_.make_room(1);
            if (status == GGML_STATUS_SUCCESS) launch_.append(node);
        }
        if (status != GGML_STATUS_SUCCESS) return status;
    }
    return GGML_STATUS_SUCCESS;
}

// Node `at` is a product with experts of another block than the one before: computes it, and with it what can only be
// computed together; `at` is then the last of these.
ggml_status MoeExecutor::begin_block(ggml_cgraph* graph, int& at, const WeightRef& weight) {
    // The block before is finished, and its leases end. The ids may be among what it computes.
    ggml_status status = launch_.flush();
    if (status != GGML_STATUS_SUCCESS) return status;
    pace_.end_block();
    let_go();
    if (launch_.stop()()) return GGML_STATUS_ABORTED;

    const ggml_tensor* node = ggml_graph_node(graph, at);
    Turn turn;
    status = enter(weight, node, turn);
    if (status != GGML_STATUS_SUCCESS) return status;
    bool first = false;
    if (Status s = choose(graph, at, weight, first); !s.ok()) return launch_.fail(std::move(s));
    weight.runtime->fetcher->enter(weight.set, book_.phase());
    pace_.plan(weight, node->src[2], first);
    const size_t leased = lease(weight);
    if (leased < block_.records.size()) return run_in_waves(graph, at, weight, first, leased);

    held_.weight = &weight;
    held_.ids_data = node->src[2]->data;
    held_.n_ids = node->src[2]->ne[0];
    held_.n_tokens = node->src[2]->ne[1];
    held_.turn = std::move(turn);
    return run_held(graph, at, weight, first);
}

// Takes the right to use the model's slots, and tells everybody which block is at hand.
ggml_status MoeExecutor::enter(const WeightRef& weight, const ggml_tensor* node, Turn& turn) {
    ModelRuntime& runtime = *weight.runtime;
    trace::Ledger& ledger = launch_.pass().ledger;
    std::unique_lock lock(runtime.mutex, std::try_to_lock);
    if (!lock.owns_lock()) {
        const trace::During waiting(ledger, trace::Part::wait_lock);
        lock = claim(runtime.mutex, launch_.stop());
        if (!lock.owns_lock()) return GGML_STATUS_ABORTED;
    }
    turn = Turn(std::move(lock), runtime, launch_.cpu());
    if (runtime.fetcher == nullptr) {
        auto made = runtime.make_fetcher();
        if (!made.ok()) return launch_.fail(made.status());
        runtime.fetcher = std::move(*made);
    }
    const model::Geometry& geometry = runtime.store->geometry();
    const int32_t layer = geometry.sets[weight.set].layer;
    if (weight.set == earlier_set_ && !std::exchange(runtime.told.parts, true)) {
        log(LogLevel::debug,
            "layer {}: its experts come in several graphs, of which this one begins with {}: a pattern that Sluice "
            "does not know, or somebody looks at nodes in between. It is computed part by part, and less is read "
            "meanwhile",
            layer, node->name);
    }
    set_ = weight.set;
    last_block_ = weight.set + 1 == geometry.sets.size();
    launch_.at_set(weight.set, layer);
    ledger.at_layer(layer);
    return GGML_STATUS_SUCCESS;
}

// Which experts run, and for which rows. `first` says whether the block is counted here, by its first product.
Status MoeExecutor::choose(ggml_cgraph* graph, int at, const WeightRef& weight, bool& first) {
    ModelRuntime& runtime = *weight.runtime;
    const ggml_tensor* ids = ggml_graph_node(graph, at)->src[2];
    const PassBook::Visit visit = book_.visit(weight, ids);
    first = visit.first;
    if (visit.new_pass) {
        pace_.begin_pass();
        choices_.begin_pass(runtime, ids->ne[1]);
    }
    // What came meanwhile is there, for whoever looks.
    if (choices_.looks_ahead(runtime)) book_.accounted(weight, [&] { runtime.fetcher->settle(&launch_.pass()); });
    choices_.decide(graph, at, weight, first);
    if (Status s = block_.group(weight, ids); !s.ok()) return s;
    if (first) {
        book_.count_choice(weight, ids);
        choices_.learn(weight, ids);
    }
    return {};
}

// As many of the block's experts as there is room for.
size_t MoeExecutor::lease(const WeightRef& weight) {
    sched::Fetcher& fetcher = *weight.runtime->fetcher;
    const cache::Seat seat = seat_in(block_.mode);
    size_t leased = book_.accounted(weight, [&] { return fetcher.lease(block_.records, seat); });
    // Reads that were begun for another prompt may still hold every slot.
    while (leased == 0 && fetcher.wait_for_any(&launch_.pass(), launch_.stop()))
        leased = fetcher.lease(block_.records, seat);
    book_.count_evictions(*weight.runtime);
    return leased;
}

// The block does not fit: its experts come, compute and go.
ggml_status MoeExecutor::run_in_waves(ggml_cgraph* graph, int& at, const WeightRef& weight, bool first, size_t leased) {
    ModelRuntime& runtime = *weight.runtime;
    choices_.rank_ahead();
    // With the block's first product. What comes after its others is placed when its turn is.
    if (runtime.overlap && early_.all_placed()) early_.find(graph, at, weight_of_, runtime.own_bytes);
    const size_t n = block_.records.size();
    const size_t rounds = leased == 0 ? n : (n + leased - 1) / leased;
    book_.counters(runtime).waves += rounds;
    launch_.pass().waves += static_cast<int64_t>(rounds);
    pace_.forget();
    const bool by_rank = runtime.overlap && by_rank_.find(graph, at, weight, first);
    const ggml_status status = book_.accounted(weight, [&] {
        return by_rank ? by_rank_.run_in_waves(weight, leased)
                       : by_node_.run_in_waves(ggml_graph_node(graph, at), weight, leased);
    });
    book_.count_evictions(runtime);
    block_.records.clear();
    if (by_rank && status == GGML_STATUS_SUCCESS) place_ranks(at);
    return status;
}

// All of its experts are leased: what is missing is read, and what can be is computed meanwhile.
ggml_status MoeExecutor::run_held(ggml_cgraph* graph, int& at, const WeightRef& weight, bool first) {
    ModelRuntime& runtime = *weight.runtime;
    sched::Fetcher& fetcher = *runtime.fetcher;
    ggml_tensor* node = ggml_graph_node(graph, at);
    batch_.emplace();
    const bool all_there =
        std::all_of(block_.records.begin(), block_.records.end(), [&](RecordId r) { return fetcher.resident(r); });
    if (all_there || !runtime.overlap) {
        if (!all_there) {
            const auto load = [&] { return fetcher.load(block_.records, UINT8_MAX, &launch_.pass(), launch_.stop()); };
            if (Status s = book_.accounted(weight, load); !s.ok()) return launch_.fail(std::move(s));
        }
        book_.accounted(weight, [&] {
            choices_.look_ahead(weight);
            pace_.plan_next(weight);
        });
        held_.reading = pace_.next_is_ahead();
        return compute_held(node, weight);
    }
    held_.reading = true;
    early_.find(graph, at, weight_of_, runtime.own_bytes);
    if (!by_rank_.find(graph, at, weight, first)) {
        book_.accounted(weight, [&] {
            by_node_.ask(weight, *batch_);
            choices_.look_ahead(weight);
            pace_.plan_next(weight);
        });
        const ggml_status status = early_.compute();
        return status == GGML_STATUS_SUCCESS ? compute_held(node, weight) : status;
    }
    const ggml_status status = book_.accounted(weight, [&] {
        by_rank_.ask(weight, *batch_);
        pace_.plan_next(weight);
        choices_.look_ahead(weight);
        return by_rank_.run(weight, *batch_);
    });
    if (status == GGML_STATUS_SUCCESS) place_ranks(at);
    return status;
}

// A product of the block that is held: its experts are there or on their way.
ggml_status MoeExecutor::compute_held(ggml_tensor* node, const WeightRef& weight) {
    if (!held_.reading) return compute_there(node, weight);
    const auto which = cache::component_bit(weight.component);
    const sched::Fetcher& fetcher = *weight.runtime->fetcher;
    const bool all_there =
        std::all_of(block_.records.begin(), block_.records.end(), [&](RecordId r) { return fetcher.ready(r, which); });
    if (all_there && !(pace_.next_is_ahead() && fetcher.reading())) return compute_there(node, weight);
    // The rows are taken from the node's input, so that has to be there.
    const ggml_status status = launch_.flush();
    if (status != GGML_STATUS_SUCCESS) return status;
    return book_.accounted(weight, [&] { return by_node_.run(node, weight, *batch_); });
}

ggml_status MoeExecutor::compute_there(ggml_tensor* node, const WeightRef& weight) {
    const std::optional<Window> window = products_.window_for(node, weight);
    if (window || node->src[2]->ne[1] == 1) return products_.append(node, weight, window);
    // Gathering rows needs the node's input to be there.
    const ggml_status status = launch_.flush();
    if (status != GGML_STATUS_SUCCESS) return status;
    return book_.accounted(weight, [&] { return products_.gather(node, weight, block_.records); });
}

// What was computed by ranks goes to where it belongs.
void MoeExecutor::place_ranks(int& at) {
    at = by_rank_.finish([&](ggml_tensor* node) {
        book_.note_weights(node);
        products_.clear_dropped_rows(node);
    });
}

// Nobody is asked again before the next block: what has come makes room at the drive.
void MoeExecutor::look_again() {
    if (!held_.active() || block_.mode != Mode::decode || !choices_.looks_ahead(*held_.weight->runtime)) return;
    book_.accounted(*held_.weight, [&] { held_.weight->runtime->fetcher->look(&launch_.pass()); });
}

void MoeExecutor::let_go() {
    if (!held_.active()) return;
    sched::Fetcher& fetcher = *held_.weight->runtime->fetcher;
    if (batch_ && !batch_->done()) fetcher.give_up(*batch_);
    batch_.reset();
    fetcher.release(block_.records);
    held_ = Held();
    block_.records.clear();
}

}  // namespace sluice::exec
