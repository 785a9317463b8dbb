#include "exec/moe_executor.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <limits>
#include <utility>

#include "base/bytes.h"
#include "base/log.h"
#include "exec/node_trace.h"
#include "exec/views.h"

namespace sluice::exec {
namespace {

// More nodes than any block appends between two flushes; a fuller graph is simply computed earlier.
constexpr size_t kMaxNodes = 2048;
// Widest range of slots that one node may span. The kernel's bookkeeping grows with it (72 bytes written per slot and
// call, plus 8 per slot and row reserved), and at this width it still costs less than one more node per expert.
constexpr int64_t kMaxWindow = 2048;
constexpr uint64_t kMaxWindowWork = 64 * MiB;
// Rows gathered for computing experts one by one: enough to keep launches rare, small enough to stay in cache and
// budget.
constexpr size_t kGatherBytes = 4 * MiB;
// Rows computed in one launch while reads are on their way, in bytes of their results: it is we who give the device
// more.
constexpr size_t kLaunchBytes = 2 * MiB;
// While reads are on their way: nobody but us gives the device more, so launches are short beside what it has queued.
constexpr size_t kGatherBytesReading = 1 * MiB;
// From this many rows of one expert on, ggml's IQ kernels use other arithmetic, but only over contiguous weights.
constexpr int32_t kPanelRows = 8;

bool has_panel_kernel(ggml_type type) {
    switch (type) {
        case GGML_TYPE_IQ1_S:
        case GGML_TYPE_IQ1_M:
        case GGML_TYPE_IQ2_XXS:
        case GGML_TYPE_IQ2_XS:
        case GGML_TYPE_IQ2_S:
        case GGML_TYPE_IQ3_XXS:
        case GGML_TYPE_IQ3_S:
        case GGML_TYPE_IQ4_NL:
        case GGML_TYPE_IQ4_XS:
            return true;
        default:
            return false;
    }
}

// Makes it `n` rows, as far apart as they are.
void set_rows(ggml_tensor& t, int64_t n) {
    t.ne[1] = n;
    t.ne[2] = t.ne[3] = 1;
    t.nb[2] = t.nb[3] = t.nb[1] * static_cast<size_t>(n);
}

// Rows of one tensor each, instead of rows of one.
void stand_apart(ggml_tensor& t) {
    t.ne[2] = std::exchange(t.ne[1], 1);
    t.nb[2] = t.nb[1];
    t.nb[3] = t.nb[1] * static_cast<size_t>(t.ne[2]);
}

// Stage of a row whose expert has no slot: not yet, or not any more.
constexpr uint8_t kNoSeat = 3;

bool is_prompt(Mode mode) {
    return mode == Mode::micro || mode == Mode::macro;
}

// What a prompt brings in passes through; what decode lives on stays.
cache::Seat seat_in(Mode mode) {
    return is_prompt(mode) ? cache::Seat::guest : cache::Seat::member;
}

uint64_t record_bytes(const model::ExpertSet& set) {
    uint64_t bytes = 0;
    for (const model::ExpertTensor& t : set.tensors) bytes += t.bytes_per_expert;
    return bytes;
}

// Of `open` experts that are not computed, so many are worth a launch while others are read, although the user prefers
// `wave` of them. The last one is not waited for: its read may be stuck.
size_t worth_a_launch(size_t wave, size_t open) {
    return std::clamp<size_t>(wave, 1, std::max<size_t>(open, 2) - 1);
}

char* row_at(const ggml_tensor* t, int64_t i1, int64_t i2) {
    return static_cast<char*>(t->data) + i1 * static_cast<int64_t>(t->nb[1]) + i2 * static_cast<int64_t>(t->nb[2]);
}

}  // namespace

MoeExecutor::MoeExecutor(ggml_backend_t cpu, WeightLookup weight_of) : cpu_(cpu), weight_of_(weight_of) {
    const ggml_init_params params{ggml_graph_overhead_custom(kMaxNodes, false) + ggml_tensor_overhead(), nullptr, true};
    context_ = ggml_init(params);
    graph_ = ggml_new_graph_custom(context_, kMaxNodes, false);
}

MoeExecutor::~MoeExecutor() {
    ggml_free(context_);
}

ggml_status MoeExecutor::compute(ggml_cgraph* graph, trace::Pass& pass) {
    last_error_ = Status();
    pass_ = &pass;
    last_block_ = false;
    early_nodes_.clear();
    early_placed_ = 0;
    early_computed_ = true;
    const trace::During managing(pass.ledger, trace::Part::manage);
    ggml_status status = run(graph);
    if (status == GGML_STATUS_SUCCESS) status = flush();
    if (status != GGML_STATUS_SUCCESS) timed_ = nullptr;
    look_again();
    end_block();
    if (last_block_) pass.stage = trace::Pass::Stage::after_last_block;
    earlier_set_ = set_;
    ggml_graph_clear(graph_);
    graph_has_work_ = false;
    let_go();
    if (last_block_ && status == GGML_STATUS_SUCCESS) commit_shadow();
    if (token_.of != nullptr && last_block_ && status == GGML_STATUS_SUCCESS) token_.ended = pass.ledger.clock().now();
    return status;
}

// The pass is over, as far as experts are concerned.
void MoeExecutor::commit_shadow() {
    ModelRuntime* runtime = std::exchange(shadowed_, nullptr);
    if (runtime == nullptr) return;
    const std::lock_guard lock(runtime->mutex);
    runtime->shadow->commit(log_);
    log_.begin();
}

// Tells of the token before, if it was computed to its end, and asks about this one. The runtime's lock is held.
void MoeExecutor::begin_token(ModelRuntime& runtime, int64_t rows) {
    const Token last = std::exchange(token_, {});
    if (!runtime.trial) return;
    const Prefetcher::Did did = prefetcher_.take_did();
    if (last.of == &runtime && last.ended >= 0) {
        runtime.trial->token({.cost = static_cast<double>(last.waited + did.spent),
                              .time = static_cast<double>(last.ended - last.began),
                              .acted = did.acted});
    }
    if (!decoding_ || pass_->warmup) return;
    // As records count: a token that is not computed to its end, or beside others, is one too.
    const int64_t token = std::exchange(runtime.asked.tokens, runtime.asked.tokens + rows);
    pass_->guess_on = pass_->guess_on.value_or(0);
    if (rows != 1) return;
    const bool on = runtime.prefetch.acts ? runtime.prefetch.acts(token) : runtime.trial->on();
    token_ = {.of = &runtime, .began = pass_->ledger.clock().now(), .on = on};
    runtime.asked.on += token_.on ? 1 : 0;
    *pass_->guess_on += token_.on ? 1 : 0;
}

ggml_status MoeExecutor::run(ggml_cgraph* graph) {
    const int n = ggml_graph_n_nodes(graph);
    for (int i = 0; i < n; ++i) {
        ggml_tensor* node = ggml_graph_node(graph, i);
        const WeightRef* weight = node->op == GGML_OP_MUL_MAT_ID ? weight_of_(node->src[0]) : nullptr;
        const bool wanted = (node->flags & GGML_TENSOR_FLAG_COMPUTE) != 0 && !ggml_is_empty(node);
        ggml_status status = GGML_STATUS_SUCCESS;
        if (weight != nullptr && wanted) {
            status = mul_mat_id(graph, i, *weight);
        } else if (is_early(i)) {
            status = make_room(1);
            if (status == GGML_STATUS_SUCCESS) place_early();
        } else {
            if (pass_->wants.routes && wanted) note_weights(node);
            status = make_room(1);
            if (status == GGML_STATUS_SUCCESS) append(node);
        }
        if (status != GGML_STATUS_SUCCESS) return status;
    }
    return GGML_STATUS_SUCCESS;
}

// ---- what needs no expert, computed while experts are read

void MoeExecutor::find_early(ggml_cgraph* graph, int at, const ModelRuntime& runtime) {
    find_early_nodes(graph, at, weight_of_, early_nodes_);
    if (early_nodes_.bytes > runtime.own_bytes || early_nodes_.nodes.size() > kMaxNodes) early_nodes_.clear();
    early_placed_ = 0;
    early_computed_ = early_nodes_.nodes.empty();
}

// Computes these nodes in memory of our own, once; nothing else is appended, and what comes before them is computed.
ggml_status MoeExecutor::compute_early() {
    if (std::exchange(early_computed_, true)) return GGML_STATUS_SUCCESS;
    if (early_scratch_.size() < early_nodes_.bytes) early_scratch_.resize(early_nodes_.bytes);
    for (size_t i = 0; i < early_nodes_.nodes.size(); ++i) {
        const ggml_tensor* node = early_nodes_.nodes[i];
        ggml_tensor* out = new_tensor();
        *out = *node;
        out->data = early_scratch_.data() + early_nodes_.begin[i];
        for (ggml_tensor*& src : out->src) {
            const int made = src != nullptr ? early_nodes_.source(src) : -1;
            if (made < 0) continue;
            ggml_tensor* shown = new_tensor();
            *shown = *src;
            shown->op = GGML_OP_NONE;
            shown->view_src = nullptr;
            shown->data = early_memory(src, static_cast<size_t>(made));
            src = shown;
        }
        append(out);
    }
    return flush();
}

// Where the numbers are that `t` shows, a view of the early node `made` or that node itself.
std::byte* MoeExecutor::early_memory(const ggml_tensor* t, size_t made) {
    return early_scratch_.data() + early_nodes_.begin[made] +
           (static_cast<const char*>(t->data) - static_cast<const char*>(early_nodes_.nodes[made]->data));
}

// Whether the next node that was computed early comes before the graph's node `at`.
bool MoeExecutor::is_early_before(int at) const {
    return early_placed_ < early_nodes_.at.size() && early_nodes_.at[early_placed_] < at;
}

// Whether the graph's node `at` is the next of those that were computed early.
bool MoeExecutor::is_early(int at) const {
    assert(!is_early_before(at));
    return early_placed_ < early_nodes_.at.size() && early_nodes_.at[early_placed_] == at;
}

// Puts its numbers where they belong, now that its turn has come: nodes before it may have used that memory.
void MoeExecutor::place_early() {
    ggml_tensor* node = early_nodes_.nodes[early_placed_];
    std::byte* numbers = early_scratch_.data() + early_nodes_.begin[early_placed_++];
    if (!graph_has_work_) {
        std::memcpy(node->data, numbers, ggml_nbytes(node));
        return;
    }
    ggml_tensor* from = new_tensor();
    *from = *node;
    from->op = GGML_OP_NONE;
    from->data = numbers;
    ggml_tensor* copy = new_tensor();
    *copy = *node;
    copy->op = GGML_OP_DUP;
    std::fill(std::begin(copy->src), std::end(copy->src), nullptr);
    std::fill(std::begin(copy->op_params), std::end(copy->op_params), 0);
    copy->src[0] = from;
    append(copy);
}

ggml_status MoeExecutor::fail(Status status) {
    if (status.code() == Code::cancelled) return GGML_STATUS_ABORTED;
    last_error_ = std::move(status);
    log(LogLevel::error, "{}", last_error_.message());
    return GGML_STATUS_FAILED;
}

// ---- nodes that wait for their launch

// Called before nodes of our own are made: a flush in between would recycle them.
ggml_status MoeExecutor::make_room(size_t nodes) {
    assert(nodes <= kMaxNodes);
    if (static_cast<size_t>(ggml_graph_n_nodes(graph_)) + nodes <= kMaxNodes) return GGML_STATUS_SUCCESS;
    return flush();
}

void MoeExecutor::append(ggml_tensor* node) {
    ggml_graph_add_node(graph_, node);
    graph_has_work_ = graph_has_work_ || !is_view(node->op);
}

ggml_status MoeExecutor::flush() {
    ggml_status status = GGML_STATUS_SUCCESS;
    if (graph_has_work_) status = run_appended();
    ggml_graph_clear(graph_);
    graph_has_work_ = false;
    tensors_used_ = 0;
    ints_used_ = 0;
    bytes_used_ = 0;
    return status;
}

ggml_status MoeExecutor::run_appended() {
    const Nanos before = pass_->ledger.spent(trace::Part::routed);
    ggml_status status = GGML_STATUS_SUCCESS;
    {
        const trace::During computing(pass_->ledger, trace::Part::routed);
        if (pass_->wants.nodes || pass_->wants.node_layers) {
            int32_t layer = layer_of_set_;
            status = compute_traced(cpu_, ggml_backend_graph_compute, graph_, *pass_, true, layer);
        } else {
            status = ggml_backend_graph_compute(cpu_, graph_);
        }
    }
    const Nanos took = pass_->ledger.spent(trace::Part::routed) - before;
    if (set_ < pass_->layers.size()) {
        pass_->layers[set_].routed += took;
    } else {
        early_ += took;
    }
    return status;
}

void MoeExecutor::let_go() {
    if (!held_.active()) return;
    sched::Fetcher& fetcher = *held_.weight->runtime->fetcher;
    if (batch_ && !batch_->done()) fetcher.give_up(*batch_);
    batch_.reset();
    fetcher.release(records_);
    held_ = Held();
    records_.clear();
}

ggml_tensor* MoeExecutor::new_tensor() {
    if (tensors_used_ == tensors_.size()) tensors_.emplace_back();
    return &tensors_[tensors_used_++];
}

int32_t* MoeExecutor::new_ints(size_t n) {
    if (ints_used_ == ints_.size()) ints_.emplace_back();
    std::vector<int32_t>& v = ints_[ints_used_++];
    if (v.size() < n) v.resize(n);
    return v.data();
}

std::byte* MoeExecutor::new_bytes(size_t n) {
    if (bytes_used_ == bytes_.size()) bytes_.emplace_back();
    std::vector<std::byte>& v = bytes_[bytes_used_++];
    if (v.size() < n) v.resize(n);
    return v.data();
}

std::byte* MoeExecutor::scratch(size_t bytes) {
    if (scratch_.size() < bytes) scratch_.resize(bytes);
    return scratch_.data();
}

// ---- one MUL_MAT_ID over experts that may be anywhere

// Groups the rows of the graph's choice by expert: records_ gets the distinct ones, rows_ their rows in token order, as
// the kernel itself would group them.
Status MoeExecutor::route(const ggml_tensor* ids, uint32_t n_expert) {
    const int64_t n_ids = ids->ne[0];
    const int64_t n_tokens = ids->ne[1];
    row_begin_.assign(n_expert + 1, 0);
    for (int64_t t = 0; t < n_tokens; ++t) {
        for (int64_t k = 0; k < edit_.kept(t, n_ids); ++k) {
            const int32_t id = id_at(ids, k, t);
            if (id < 0 || static_cast<uint32_t>(id) >= n_expert) {
                return error(Code::corrupt, "the router chose expert {} of {} ({})", id, n_expert, ids->name);
            }
            ++row_begin_[static_cast<size_t>(id) + 1];
        }
    }
    for (size_t e = 0; e < n_expert; ++e) row_begin_[e + 1] += row_begin_[e];
    rows_.resize(static_cast<size_t>(row_begin_.back()));
    place_.assign(row_begin_.begin(), row_begin_.end() - 1);  // where the next row of each expert goes
    for (int64_t t = 0; t < n_tokens; ++t) {
        for (int64_t k = 0; k < edit_.kept(t, n_ids); ++k) {
            const auto id = static_cast<size_t>(id_at(ids, k, t));
            rows_[static_cast<size_t>(place_[id]++)] = {static_cast<int32_t>(k), static_cast<int32_t>(t)};
        }
    }
    return {};
}

// What predictors learn from, before anybody changes the router's choice.
void MoeExecutor::follow_router(ggml_cgraph* graph, int at, const WeightRef& weight, bool first) {
    ModelRuntime& runtime = *weight.runtime;
    const ggml_tensor* ids = ggml_graph_node(graph, at)->src[2];
    routers_->reach(weight.set, graph, at);
    if (first && pass_->wants.router_inputs) note_router(weight, ids);
    if (!runtime.scores) return;
    probe_.at_block(weight.set, ids, decoding_, *routers_, runtime, pass_->ledger.clock());
}

// For an output that keeps them.
void MoeExecutor::note_router(const WeightRef& weight, const ggml_tensor* ids) {
    const std::span<const float> input = routers_->input(weight.set);
    if (ids->ne[1] != 1 || input.empty()) return;
    pass_->router_inputs.push_back({.set = weight.set,
                                    .numbers = static_cast<uint32_t>(input.size()),
                                    .chosen = static_cast<uint32_t>(ids->ne[0])});
    pass_->router_numbers.insert(pass_->router_numbers.end(), input.begin(), input.end());
    for (int64_t k = 0; k < ids->ne[0]; ++k) pass_->router_chosen.push_back(id_at(ids, k, 0));
}

trace::PhaseCounters& MoeExecutor::phase(ModelRuntime& runtime) const {
    return decoding_ ? runtime.counters.decode : runtime.counters.prefill;
}

bool MoeExecutor::visit(const WeightRef& weight, const ggml_tensor* ids) {
    ModelRuntime& runtime = *weight.runtime;
    constexpr uint8_t kUnknown = UINT8_MAX;
    const model::Geometry& geometry = runtime.store->geometry();
    if (counted_runtime_ != &runtime) {
        counting_component_.assign(geometry.sets.size(), kUnknown);
        counted_set_ = UINT32_MAX;
        counted_runtime_ = &runtime;
    }
    // A block visits a set once, however many of its nodes look the experts up, and in however many pieces it comes.
    uint8_t& counting = counting_component_[weight.set];
    if (counting == kUnknown) counting = static_cast<uint8_t>(weight.component);
    if (counting != weight.component) return false;
    const bool new_pass = counted_set_ == UINT32_MAX;
    counted_set_ = weight.set;
    if (new_pass) {
        log_.begin();
        shadowed_ = runtime.shadow ? &runtime : nullptr;
        pass_rows_ = ids->ne[1];
        block_ended_ = -1;
        next_is_ahead_ = false;
        decoding_ = pass_->told ? *pass_->told == trace::Phase::decode : ids->ne[1] == 1;
        pass_->phase = decoding_ ? trace::Phase::decode : trace::Phase::prefill;
        pass_->model = runtime.number;
        // llama.cpp warms up with all experts. Fewer than all may be more than the model says, with --override-kv.
        pass_->warmup = geometry.n_expert_used > 0 && ids->ne[0] > static_cast<int64_t>(geometry.n_expert_used) &&
                        ids->ne[0] == static_cast<int64_t>(geometry.sets[weight.set].n_expert);
        begin_token(runtime, ids->ne[1]);
        pass_->tokens += ids->ne[1];
        phase(runtime).tokens += static_cast<uint64_t>(ids->ne[1]);
    }
    return true;
}

void MoeExecutor::count_lookups(const WeightRef& weight, const ggml_tensor* ids) {
    ModelRuntime& runtime = *weight.runtime;
    uint64_t hits = 0;
    for (const RecordId r : records_) hits += runtime.fetcher->resident(r) ? 1 : 0;
    phase(runtime).lookups += records_.size();
    phase(runtime).hits += hits;
    pass_->lookups += static_cast<int64_t>(records_.size());
    pass_->hits += static_cast<int64_t>(hits);
    if (pass_->wants.rows) {
        pass_->layers.resize(runtime.store->geometry().sets.size());
        pass_->layers[weight.set].routed += std::exchange(early_, 0);
        pass_->layers[weight.set].lookups += static_cast<int64_t>(records_.size());
        pass_->layers[weight.set].hits += static_cast<int64_t>(hits);
        count_routes(weight, ids);
    }
}

// Which experts run: what the router chose, unless an option says otherwise. Once per block, before its first product.
void MoeExecutor::choose_experts(ggml_cgraph* graph, int at, const WeightRef& weight, bool first) {
    if (first || edited_set_ != weight.set) edit_.clear();
    edited_set_ = weight.set;
    if (!first || !decoding_ || pass_->warmup || !weight.runtime->dials.any()) return;
    const int64_t routed = pass_->routed, dropped = pass_->dropped, substituted = pass_->substituted;
    edit_.edit(graph, at, weight, {weight_of_, cpu_, *routers_, route_ahead_.read_early()}, *pass_);
    trace::PhaseCounters& counters = phase(*weight.runtime);
    counters.routed += static_cast<uint64_t>(pass_->routed - routed);
    counters.dropped += static_cast<uint64_t>(pass_->dropped - dropped);
    counters.substituted += static_cast<uint64_t>(pass_->substituted - substituted);
}

// The cache learns what was chosen, token by token where there are several.
void MoeExecutor::tell_choices(const WeightRef& weight, int64_t n_tokens) {
    sched::Fetcher& fetcher = *weight.runtime->fetcher;
    const store::RecordStore& store = *weight.runtime->store;
    fetcher.visit(weight.set, static_cast<uint32_t>(n_tokens),
                  decoding_ ? trace::Phase::decode : trace::Phase::prefill);
    const bool shadowed = shadowed_ != nullptr;
    if (shadowed) log_.block(weight.set, static_cast<uint32_t>(n_tokens), !decoding_);
    for (const RecordId r : records_) {
        const uint32_t e = store.expert_of(r);
        for (int32_t i = row_begin_[e]; i < row_begin_[e + 1]; ++i) {
            const auto age = static_cast<uint32_t>(n_tokens - 1 - rows_[static_cast<size_t>(i)].t);
            fetcher.chosen(r, age);
            if (shadowed) log_.use(r, age);
        }
    }
}

// Who was chosen, for outputs that show experts.
void MoeExecutor::count_routes(const WeightRef& weight, const ggml_tensor* ids) {
    const ModelRuntime& runtime = *weight.runtime;
    const store::RecordStore& store = *runtime.store;
    for (const RecordId r : records_) {
        const uint32_t e = store.expert_of(r);
        pass_->uses.push_back({.set = weight.set,
                               .expert = e,
                               .rows = static_cast<uint32_t>(row_begin_[e + 1] - row_begin_[e]),
                               .miss = !runtime.fetcher->resident(r)});
    }
    routes_begin_ = pass_->route_events.size();
    const model::ExpertSet& set = store.geometry().sets[weight.set];
    const uint64_t bytes = record_bytes(set);
    place_.assign(set.n_expert, 0);  // 1: a row before has paid for the miss
    for (int64_t t = 0; t < ids->ne[1]; ++t) {
        for (int64_t k = 0; k < ids->ne[0]; ++k) {
            const auto e = static_cast<uint32_t>(id_at(ids, k, t));
            pass_->routes_digest = (pass_->routes_digest ^ (uint64_t{weight.set} << 32U) ^ e) * 0x100000001b3ULL;
            if (!pass_->wants.routes) continue;
            const RecordId r = store.record(weight.set, e);
            const bool hit = runtime.fetcher->resident(r);
            const RouteEdit::Was was = edit_.was(k, t, ids->ne[0]);
            const bool pays = !hit && !was.dropped && place_[e]++ == 0;
            pass_->route_events.push_back({.record = r,
                                           .layer = set.layer,
                                           .token = static_cast<int32_t>(t),
                                           .rank = was.rank,
                                           .expert = e,
                                           .weight = was.weight,
                                           .residency = static_cast<int8_t>(hit ? 1 : 0),
                                           .bytes = pays ? bytes : 0,
                                           .dropped = was.dropped});
        }
        // In the router's order, which the edit may have changed.
        if (edit_.active() && pass_->wants.routes) {
            std::sort(pass_->route_events.end() - ids->ne[0], pass_->route_events.end(),
                      [](const auto& a, const auto& b) { return a.rank < b.rank; });
        }
    }
}

// The weights of the block's routings are an input of the node that applies them.
void MoeExecutor::note_weights(const ggml_tensor* node) {
    if (node->op != GGML_OP_MUL || std::strncmp(node->name, "ffn_moe_weighted", 16) != 0) return;
    if (edit_.active()) return;  // told with the choice, as the router had them
    const ggml_tensor* w = node->src[1];
    if (w->type != GGML_TYPE_F32 || w->data == nullptr || w->ne[0] != 1) return;
    for (size_t i = routes_begin_; i < pass_->route_events.size(); ++i) {
        trace::RouteEvent& e = pass_->route_events[i];
        if (e.rank < w->ne[1] && e.token < w->ne[2])
            std::memcpy(&e.weight, row_at(w, e.rank, e.token), sizeof e.weight);
    }
}

template <typename F>
auto MoeExecutor::accounted(ModelRuntime& runtime, uint32_t set, F&& reading) {
    const sched::Fetcher& fetcher = *runtime.fetcher;
    const auto waited = [this] {
        return pass_->ledger.spent(trace::Part::wait_read) + pass_->ledger.spent(trace::Part::wait_join) +
               pass_->ledger.spent(trace::Part::wait_late);
    };
    const sched::SchedCounters before = fetcher.counters();
    const io::EngineTotals engine_before = fetcher.engine_totals();
    const Nanos waited_before = waited();
    auto result = reading();
    const sched::SchedCounters& now = fetcher.counters();
    const io::EngineTotals& engine = fetcher.engine_totals();

    trace::PhaseCounters& p = phase(runtime);
    p.reads += now.reads - before.reads;
    p.logical_bytes += now.exact_bytes - before.exact_bytes;
    p.physical_bytes += now.exact_physical - before.exact_physical;
    p.read_wait += now.wait - before.wait;
    token_.waited += now.wait - before.wait;
    p.convert += now.convert - before.convert;

    const auto physical = static_cast<int64_t>(now.exact_physical - before.exact_physical);
    pass_->reads += static_cast<int64_t>(now.reads - before.reads);
    pass_->exact_bytes += static_cast<int64_t>(now.exact_bytes - before.exact_bytes);
    pass_->exact_physical += physical;
    pass_->ahead_bytes += static_cast<int64_t>(now.ahead_bytes - before.ahead_bytes);
    pass_->joins += static_cast<int64_t>(now.joins - before.joins);
    pass_->read_busy += now.busy - before.busy;
    pass_->engine_bytes += static_cast<int64_t>(engine.bytes - engine_before.bytes);
    pass_->retries += static_cast<int64_t>(engine.retries - engine_before.retries + now.retries - before.retries);
    pass_->predicts = pass_->predicts || now.hints > 0;
    pass_->predicted_bytes += static_cast<int64_t>(now.predicted_bytes - before.predicted_bytes);
    pass_->predicted_physical += static_cast<int64_t>(now.predicted_physical - before.predicted_physical);
    pass_->predicted_used += static_cast<int64_t>(now.used_bytes - before.used_bytes);
    pass_->rejected_bytes += static_cast<int64_t>(now.rejected_bytes - before.rejected_bytes);
    pass_->late += static_cast<int64_t>(now.late - before.late);
    if (set < pass_->layers.size()) {
        pass_->layers[set].wait += waited() - waited_before;
        pass_->layers[set].physical += physical;
    }
    return result;
}

// Makes components of leased records ready.
Status MoeExecutor::load(ModelRuntime& runtime, uint32_t set, std::span<const RecordId> records,
                         sched::ComponentMask which) {
    return accounted(runtime, set, [&] { return runtime.fetcher->load(records, which, pass_, stop_); });
}

// All that was not counted before: what went between blocks belongs to the next one.
void MoeExecutor::count_evictions(ModelRuntime& runtime) {
    const cache::SlotCache& slots = runtime.fetcher->cache();
    const cache::CacheCounters& now = slots.counters();
    const cache::CacheCounters before = std::exchange(runtime.counted, now);
    const uint64_t shrunk = now.shrunk - before.shrunk;
    const uint64_t predicted = now.predicted - before.predicted;
    pass_->evictions += static_cast<int64_t>(now.evictions - before.evictions - shrunk - predicted);
    pass_->evictions_shrink += static_cast<int64_t>(shrunk);
    pass_->evictions_predicted += static_cast<int64_t>(predicted);
    pass_->rereads += static_cast<int64_t>(now.rereads - before.rereads);
    pass_->cache_resident = slots.n_resident();
}

// Computes the graph's node `at`, and with it what can only be computed together; `at` is then the last of these.
ggml_status MoeExecutor::mul_mat_id(ggml_cgraph* graph, int& at, const WeightRef& weight) {
    ggml_tensor* node = ggml_graph_node(graph, at);
    const ggml_tensor* ids = node->src[2];
    if (held_.active() && held_.weight->runtime == weight.runtime && held_.weight->set == weight.set &&
        held_.ids_data == ids->data && held_.n_ids == ids->ne[0] && held_.n_tokens == ids->ne[1]) {
        return compute_held(node, weight);
    }

    // Another block: finish the one before, whose leases end with it. The ids may be among what it computes.
    ggml_status status = flush();
    if (status != GGML_STATUS_SUCCESS) return status;
    end_block();
    let_go();
    if (stop_()) return GGML_STATUS_ABORTED;

    ModelRuntime& runtime = *weight.runtime;
    std::unique_lock lock(runtime.mutex, std::try_to_lock);
    if (!lock.owns_lock()) {
        const trace::During waiting(pass_->ledger, trace::Part::wait_lock);
        lock = claim(runtime.mutex, stop_);
        if (!lock.owns_lock()) return GGML_STATUS_ABORTED;
    }
    Turn turn(std::move(lock), runtime, cpu_);
    if (runtime.fetcher == nullptr) {
        auto made = runtime.make_fetcher();
        if (!made.ok()) return fail(made.status());
        runtime.fetcher = std::move(*made);
    }
    if (weight.set == earlier_set_ && !runtime.told.parts) {
        runtime.told.parts = true;
        log(LogLevel::debug,
            "layer {}: its experts come in several graphs, of which this one begins with {}: a pattern that Sluice "
            "does not know, or somebody looks at nodes in between. It is computed part by part, and less is read "
            "meanwhile",
            runtime.store->geometry().sets[weight.set].layer, node->name);
    }
    set_ = weight.set;
    last_block_ = weight.set + 1 == runtime.store->geometry().sets.size();
    layer_of_set_ = runtime.store->geometry().sets[weight.set].layer;
    pass_->ledger.at_layer(layer_of_set_);
    const uint32_t n_expert = runtime.store->geometry().sets[weight.set].n_expert;
    const bool first = visit(weight, ids);
    // What came meanwhile is there, for whoever looks.
    if (runtime.looks_ahead()) {
        accounted(runtime, weight.set, [&] {
            runtime.fetcher->settle(pass_);
            return true;
        });
    }
    if (runtime.follow_routers) follow_router(graph, at, weight, first);
    if (first && !pass_->warmup) {
        const RouteAhead::Block block{graph, at, &weight, decoding_};
        route_ahead_.decide(block, weight_of_, *routers_, *pass_);
        phase(runtime).route_ahead += route_ahead_.block();
    }
    choose_experts(graph, at, weight, first);
    if (Status s = route(ids, n_expert); !s.ok()) return fail(std::move(s));
    records_.clear();
    for (uint32_t e = 0; e < n_expert; ++e) {
        if (row_begin_[e + 1] > row_begin_[e]) records_.push_back(runtime.store->record(weight.set, e));
    }
    if (first) {
        count_lookups(weight, ids);
        tell_choices(weight, ids->ne[1]);
        prefetcher_.chose(weight, ids);
    }

    sched::Fetcher& fetcher = *runtime.fetcher;
    fetcher.enter(weight.set, decoding_ ? trace::Phase::decode : trace::Phase::prefill);
    plan_block(weight, ids);
    size_t leased = accounted(runtime, weight.set, [&] { return fetcher.lease(records_, seat_in(mode_)); });
    // Reads that were begun for another prompt may still hold every slot.
    while (leased == 0 && fetcher.wait_for_any(pass_, stop_)) leased = fetcher.lease(records_, seat_in(mode_));
    count_evictions(runtime);
    if (leased < records_.size()) {
        // With the block's first product. What comes after its others is placed when its turn is.
        if (runtime.overlap && early_placed_ == early_nodes_.at.size()) find_early(graph, at, runtime);
        const size_t rounds = leased == 0 ? records_.size() : (records_.size() + leased - 1) / leased;
        phase(runtime).waves += rounds;
        pass_->waves += static_cast<int64_t>(rounds);
        timed_ = nullptr;
        const bool by_rank = runtime.overlap && find_ranks(graph, at, weight, first);
        status = accounted(runtime, weight.set, [&] {
            return by_rank ? run_ranks_in_waves(weight, leased) : run_in_waves(node, weight, leased);
        });
        count_evictions(runtime);
        records_.clear();
        if (by_rank && status == GGML_STATUS_SUCCESS) end_ranks(at);
        return status;
    }
    held_.weight = &weight;
    held_.ids_data = ids->data;
    held_.n_ids = ids->ne[0];
    held_.n_tokens = ids->ne[1];
    held_.turn = std::move(turn);
    const bool all_there =
        std::all_of(records_.begin(), records_.end(), [&](RecordId r) { return fetcher.resident(r); });
    if (!all_there && !runtime.overlap) {
        if (Status loaded = load(runtime, weight.set, records_, UINT8_MAX); !loaded.ok())
            return fail(std::move(loaded));
    }
    if (all_there || !runtime.overlap) {
        accounted(runtime, weight.set, [&] {
            look_ahead(weight);
            return plan_next(weight);
        });
        held_.reading = next_is_ahead_;
        return compute_held(node, weight);
    }
    held_.reading = true;
    batch_.emplace();
    find_early(graph, at, runtime);
    if (!find_ranks(graph, at, weight, first)) {
        ask_for_all(weight);
        accounted(runtime, weight.set, [&] {
            look_ahead(weight);
            return plan_next(weight);
        });
        status = compute_early();
        return status == GGML_STATUS_SUCCESS ? compute_held(node, weight) : status;
    }
    status = accounted(runtime, weight.set, [&] { return run_ranks(weight); });
    if (status == GGML_STATUS_SUCCESS) end_ranks(at);
    return status;
}

// The node's experts are leased, and there or on their way.
ggml_status MoeExecutor::compute_held(ggml_tensor* node, const WeightRef& weight) {
    if (!held_.reading) return append_resident(node, weight);
    const auto which = cache::component_bit(weight.component);
    const sched::Fetcher& fetcher = *weight.runtime->fetcher;
    const bool all_there =
        std::all_of(records_.begin(), records_.end(), [&](RecordId r) { return fetcher.ready(r, which); });
    if (all_there && !(next_is_ahead_ && fetcher.reading())) return append_resident(node, weight);
    // The rows are taken from the node's input, so that has to be there.
    const ggml_status status = flush();
    if (status != GGML_STATUS_SUCCESS) return status;
    return accounted(*weight.runtime, weight.set, [&] { return run_as_they_come(node, weight); });
}

// In which mode the block is computed. That of a prompt's was chosen when the block before it was planned.
void MoeExecutor::plan_block(const WeightRef& weight, const ggml_tensor* ids) {
    ModelRuntime& runtime = *weight.runtime;
    const bool was_ahead = std::exchange(next_is_ahead_, false);
    if (decoding_) {
        mode_ = ids->ne[1] == 1 ? Mode::decode : Mode::verify;
    } else if (!pass_->told && pass_rows_ <= kVerifyRows) {
        mode_ = Mode::verify;
    } else {
        mode_ = was_ahead ? Mode::macro : Mode::micro;
    }
    // A block that does not fit is looked up for each of its products; it tells nothing of its pace.
    if (!is_prompt(mode_) || counting_component_[weight.set] != weight.component) return;
    ++(mode_ == Mode::macro ? phase(runtime).blocks_macro : phase(runtime).blocks_micro);
    ++(mode_ == Mode::macro ? pass_->blocks_macro : pass_->blocks_micro);
    if (!runtime.prompts) runtime.prompts.emplace(static_cast<uint32_t>(runtime.store->geometry().sets.size()));
    const double n_expert = runtime.store->geometry().sets[weight.set].n_expert;
    runtime.prompts->chose(weight.set, pass_rows_, static_cast<double>(records_.size()) / n_expert);
    const Nanos now = pass_->ledger.clock().now();
    if (block_ended_ >= 0) runtime.prompts->reached(weight.set, pass_rows_, now - block_ended_);
    timed_ = &runtime;
    block_began_ = now;
    block_waited_ = runtime.fetcher->counters().wait;
}

// All of this block is asked for: the drive's idle time until the next one is for what that may choose.
void MoeExecutor::look_ahead(const WeightRef& weight) {
    if (mode_ != Mode::decode || !weight.runtime->looks_ahead()) return;
    if (!weight.runtime->trial || token_.on) prefetcher_.look_ahead(weight, *routers_, *pass_);
    route_ahead_.look_ahead(weight, *pass_);
    weight.runtime->fetcher->look(pass_);
}

// Nobody is asked again before the next block: what has come makes room at the drive.
void MoeExecutor::look_again() {
    if (!held_.active() || mode_ != Mode::decode || !held_.weight->runtime->looks_ahead()) return;
    accounted(*held_.weight->runtime, set_, [&] {
        held_.weight->runtime->fetcher->look(pass_);
        return true;
    });
}

// All of this block is asked for: what about the next one's, while this one computes? True if they are read, too.
bool MoeExecutor::plan_next(const WeightRef& weight) {
    ModelRuntime& runtime = *weight.runtime;
    sched::Fetcher& fetcher = *runtime.fetcher;
    const model::Geometry& geometry = runtime.store->geometry();
    // What was read ahead for this block and not chosen need not come any more.
    if (mode_ == Mode::macro) fetcher.end_ahead();
    const uint32_t next = weight.set + 1;
    // Without overlap the next layer's reads begin with the next layer; decode reads nothing that no router chose.
    if (!is_prompt(mode_) || !runtime.overlap || !runtime.prompts || next == geometry.sets.size()) return false;
    const sched::Fetcher::Missing missing = fetcher.missing(next);
    const Forecast forecast{.missing = missing.experts,
                            .room = missing.room,
                            .bytes = record_bytes(geometry.sets[next]),
                            .chosen = runtime.prompts->expected(next, pass_rows_),
                            .bytes_per_ns = fetcher.bandwidth(),
                            .block = runtime.prompts->block(weight.set, pass_rows_),
                            .between = runtime.prompts->between(next, pass_rows_)};
    const uint32_t ahead = experts_ahead(forecast, runtime.prefill_mode);
    if (ahead == 0) return false;
    assert(!decoding_);
    next_is_ahead_ = true;
    fetcher.read_ahead(next, ahead);
    return true;
}

// The block is computed: how long that took, but for waiting.
void MoeExecutor::end_block() {
    if (timed_ == nullptr) return;
    const Nanos now = pass_->ledger.clock().now();
    const Nanos waited = timed_->fetcher->counters().wait - block_waited_;
    timed_->prompts->computed(set_, pass_rows_, std::max<Nanos>(0, now - block_began_ - waited));
    block_ended_ = now;
    timed_ = nullptr;
}

// All components of the block's experts are wanted: the first product's first, the last one's last.
void MoeExecutor::ask_for_all(const WeightRef& weight) {
    const auto first = cache::component_bit(weight.component);
    parts_.clear();
    for (const RecordId r : records_) parts_.push_back({r, first});
    for (uint32_t c = 0; c < weight.runtime->store->n_components(weight.set); ++c) {
        const auto which = cache::component_bit(c);
        if (which == first) continue;
        for (const RecordId r : records_) parts_.push_back({r, which});
    }
    accounted(*weight.runtime, weight.set, [&] {
        weight.runtime->fetcher->request(*batch_, parts_, pass_);
        return true;
    });
}

// One product with experts of which some are still being read: those that are there are computed, and so on.
ggml_status MoeExecutor::run_as_they_come(ggml_tensor* node, const WeightRef& weight) {
    sched::Fetcher& fetcher = *weight.runtime->fetcher;
    const auto which = cache::component_bit(weight.component);
    // A copy: in whose order the leases end does not depend on what comes first.
    group_ = records_;
    std::span<RecordId> left(group_);
    while (!left.empty()) {
        fetcher.look(pass_);
        const auto there =
            std::partition(left.begin(), left.end(), [&](RecordId r) { return fetcher.ready(r, which); });
        const auto n = static_cast<size_t>(there - left.begin());
        if (n < worth_a_launch(weight.runtime->wave, left.size())) {
            if (Status s = fetcher.wait_some(*batch_, pass_, stop_); !s.ok()) return fail(std::move(s));
            continue;
        }
        const ggml_status status = run_gathered(node, weight, left.first(n));
        if (status != GGML_STATUS_SUCCESS) return status;
        left = left.subspan(n);
    }
    return GGML_STATUS_SUCCESS;
}

// ---- rows of several experts, computed as these come

// Whether the block that begins here can be computed by ranks, at least as far as its pattern is known: block_ is it
// then. What becomes of it is counted where it is the layer's `first`.
bool MoeExecutor::find_ranks(ggml_cgraph* graph, int at, const WeightRef& weight, bool first) {
    ModelRuntime& runtime = *weight.runtime;
    find_rank_block(graph, at, weight_of_, early_nodes_, block_);
    const bool by_rank = !block_.empty() && block_.nodes.size() <= kMaxNodes &&
                         rows_.size() <= runtime.own_bytes / std::max<size_t>(1, block_.row_bytes);
    const bool whole = block_.all == (1U << runtime.store->n_components(weight.set)) - 1;
    if (first) ++(by_rank && whole ? runtime.blocks_by_rank : runtime.blocks_by_node);
    if (!whole && !runtime.told.pattern) tell_of_pattern(graph, weight);
    return by_rank;
}

// Says, once per model, which node keeps a block's products apart, if one does.
void MoeExecutor::tell_of_pattern(ggml_cgraph* graph, const WeightRef& weight) {
    if (block_.unknown < 0) return;
    const ggml_tensor* node = ggml_graph_node(graph, block_.unknown);
    for (int i = block_.unknown; i < ggml_graph_n_nodes(graph); ++i) {
        const ggml_tensor* other = ggml_graph_node(graph, i);
        const WeightRef* of = other->op == GGML_OP_MUL_MAT_ID ? weight_of_(other->src[0]) : nullptr;
        if (of == nullptr || of->runtime != weight.runtime || of->set != weight.set) continue;
        weight.runtime->told.pattern = true;
        log(LogLevel::debug,
            "layer {}: Sluice does not know what node {} ({}) does between products with experts. Such layers are "
            "computed product by product, and not each expert as it comes",
            weight.runtime->store->geometry().sets[weight.set].layer, node->name, ggml_op_name(node->op));
        return;
    }
}

// What is there is computed first, while the rest is read; then the rows of each expert when its matrices are there.
ggml_status MoeExecutor::run_ranks(const WeightRef& weight) {
    sched::Fetcher& fetcher = *weight.runtime->fetcher;
    const size_t rows = order_rows(weight);
    group_.clear();
    for (size_t i = 0; i < rows; i = end_of_expert(i)) group_.push_back(row_record_[i]);
    ask_for_ranks(fetcher, *batch_, group_, UINT8_MAX);
    plan_next(weight);
    look_ahead(weight);
    if (const ggml_status status = compute_early(); status != GGML_STATUS_SUCCESS) return status;
    fetcher.look(pass_);

    begin_ranks(rows);
    stage_.assign(rows, first_stage());
    for (size_t left = rows; left > 0;) {
        const size_t finished = append_ready_ranks(weight, kMaxNodes);
        if (ggml_graph_n_nodes(graph_) == 0) {
            if (Status s = fetcher.wait_some(*batch_, pass_, stop_); !s.ok()) return fail(std::move(s));
            continue;
        }
        left -= finished;
        const ggml_status status = flush();
        if (status != GGML_STATUS_SUCCESS) return status;
        fetcher.look(pass_);
    }
    return GGML_STATUS_SUCCESS;
}

// The first expert's matrices up to the last product, then the next one's before the first one's last, and so on; of
// all of them those in `which`.
void MoeExecutor::ask_for_ranks(sched::Fetcher& fetcher, sched::Batch& batch, std::span<const RecordId> records,
                                sched::ComponentMask which) {
    const auto early =
        static_cast<sched::ComponentMask>(which & (block_.before_last != 0 ? block_.before_last : block_.all));
    const auto late = static_cast<sched::ComponentMask>(which & ~early);
    parts_.clear();
    for (size_t i = 0; i < records.size(); ++i) {
        parts_.push_back({records[i], early});
        if (i > 0) parts_.push_back({records[i - 1], late});
    }
    if (!records.empty()) parts_.push_back({records.back(), late});
    fetcher.request(batch, parts_, pass_);
}

// Memory for these rows of all nodes.
void MoeExecutor::begin_ranks(size_t rows) {
    size_t bytes = 0;
    rank_begin_.clear();
    for (const ggml_tensor* node : block_.nodes) {
        rank_begin_.push_back(bytes);
        bytes = align_up(bytes + rows * node->nb[1], size_t{64});
    }
    if (rank_scratch_.size() < bytes) rank_scratch_.resize(bytes);
}

// All rows are computed: the graph's memory becomes what it would be had the nodes been computed one after the other.
// `at` is then the block's last node.
void MoeExecutor::end_ranks(int& at) {
    for (size_t n = 0; n < block_.nodes.size(); ++n) {
        while (is_early_before(block_.at[n])) place_early();
        ggml_tensor* node = block_.nodes[n];
        if (pass_->wants.routes) note_weights(node);
        for (size_t i = 0; i < order_.size(); ++i)
            std::memcpy(row_at(node, order_[i].k, order_[i].t), rank_row(n, i), node->nb[1]);
        clear_dropped_rows(node);
    }
    at = block_.end - 1;
}

// The block does not fit: its experts come, compute and go. Who is computed makes room at once for who has no slot yet,
// whoever came before and is still being read, so that a read that is stuck holds one slot and nothing else.
ggml_status MoeExecutor::run_ranks_in_waves(const WeightRef& weight, size_t leased) {
    sched::Fetcher& fetcher = *weight.runtime->fetcher;
    const store::RecordStore& store = *weight.runtime->store;
    const size_t rows = order_rows(weight);
    begin_ranks(rows);
    stage_.assign(rows, kNoSeat);
    sched::Batch batch;
    size_t asked = 0, held = 0;  // records_ before `asked` are or were leased and asked for; `held`: leased now
    const auto end = [&](ggml_status status) {
        fetcher.give_up(batch);
        for (size_t i = 0; i < rows; i = end_of_expert(i)) {
            if (stage_[i] != kNoSeat) fetcher.release({&row_record_[i], 1});
        }
        fetcher.release(std::span(records_).subspan(asked, leased - asked));
        return status;
    };
    const auto set_stage = [&](size_t place, uint8_t stage) {
        std::fill(stage_.begin() + static_cast<std::ptrdiff_t>(place),
                  stage_.begin() + static_cast<std::ptrdiff_t>(end_of_expert(place)), stage);
    };
    const size_t room = leased;
    for (size_t left = rows; left > 0;) {
        while (held == 0 && asked == leased) {
            if (!fetcher.wait_for_any(pass_, stop_)) {
                if (stop_()) return end(GGML_STATUS_ABORTED);
                return end(fail(error(Code::internal, "no slot is free although nothing is leased")));
            }
            leased += fetcher.lease(std::span(records_).subspan(leased), seat_in(mode_));
        }
        if (asked < leased) {
            ask_for_ranks(fetcher, batch, std::span(records_).subspan(asked, leased - asked), block_.all);
            held += leased - asked;
            for (; asked < leased; ++asked)
                set_stage(static_cast<size_t>(place_[store.expert_of(records_[asked])]), first_stage());
        }
        if (const ggml_status status = compute_early(); status != GGML_STATUS_SUCCESS) return end(status);
        fetcher.look(pass_);
        // Half of them at a time: while these compute, the others are read.
        const size_t half = std::max<size_t>({1, weight.runtime->wave, (room + 1) / 2});
        left -= append_ready_ranks(weight, leased < records_.size() ? half : kMaxNodes);
        if (ggml_graph_n_nodes(graph_) == 0) {
            if (Status s = fetcher.wait_some(batch, pass_, stop_); !s.ok()) return end(fail(std::move(s)));
            continue;
        }
        if (const ggml_status status = flush(); status != GGML_STATUS_SUCCESS) return end(status);
        for (size_t i = 0; i < rows; i = end_of_expert(i)) {
            if (stage_[i] != 2) continue;
            fetcher.release({&row_record_[i], 1});
            set_stage(i, kNoSeat);
            --held;
            leased += fetcher.lease(std::span(records_).subspan(leased), seat_in(mode_));
        }
    }
    return end(GGML_STATUS_SUCCESS);
}

// Rows of experts that are there come first, those of one expert lie side by side. Otherwise in the order in which the
// router chose; a prompt's in that of the file. place_ says where each expert's begin. Returns how many there are.
size_t MoeExecutor::order_rows(const WeightRef& weight) {
    const sched::Fetcher& fetcher = *weight.runtime->fetcher;
    const store::RecordStore& store = *weight.runtime->store;
    const ggml_tensor* ids = block_.nodes[0]->src[2];
    order_.clear();
    row_record_.clear();
    place_.assign(row_begin_.size() - 1, -1);  // where an expert's rows begin
    const auto add = [&](uint32_t e, bool resident) {
        const RecordId r = store.record(weight.set, e);
        if (place_[e] >= 0 || fetcher.resident(r) != resident) return;
        place_[e] = static_cast<int32_t>(order_.size());
        order_.insert(order_.end(), rows_.begin() + row_begin_[e], rows_.begin() + row_begin_[e + 1]);
        row_record_.resize(order_.size(), r);
    };
    for (const bool resident : {true, false}) {
        if (is_prompt(mode_)) {
            for (uint32_t e = 0; e + 1 < row_begin_.size(); ++e) {
                if (row_begin_[e + 1] > row_begin_[e]) add(e, resident);
            }
            continue;
        }
        for (int64_t t = 0; t < block_.tokens; ++t) {
            for (int64_t k = 0; k < block_.ranks; ++k) add(static_cast<uint32_t>(id_at(ids, k, t)), resident);
        }
    }
    return order_.size();
}

// One past the last row of the expert whose row is at this place.
size_t MoeExecutor::end_of_expert(size_t place) const {
    const RecordId r = row_record_[place];
    while (place < row_record_.size() && row_record_[place] == r) ++place;
    return place;
}

// Appends what can be computed now, or as much of it as is good for one launch, of `most_experts` at most; returns how
// many rows are done with that.
size_t MoeExecutor::append_ready_ranks(const WeightRef& weight, size_t most_experts) {
    const sched::Fetcher& fetcher = *weight.runtime->fetcher;
    const size_t rows = order_.size();
    const auto whole = [&](size_t i) { return fetcher.ready(row_record_[i], block_.all); };
    const auto can = [&](size_t i) {
        return stage_[i] < 2 && fetcher.ready(row_record_[i], stage_[i] == 0 ? block_.before_last : block_.all);
    };
    size_t able = 0, open = 0;
    for (size_t i = 0; i < rows; i = end_of_expert(i)) {
        able += can(i) ? 1 : 0;
        open += stage_[i] < 2 ? 1 : 0;
    }
    if (able < worth_a_launch(weight.runtime->wave, open)) return 0;
    size_t finished = 0, taken = 0, experts = 0;
    const size_t most_rows = std::max<size_t>(1, kLaunchBytes / block_.row_bytes);
    most_experts = std::min(most_experts, kMaxNodes / block_.nodes.size());
    const auto has_room = [&](size_t i) {
        return experts == 0 || (experts < most_experts && taken + end_of_expert(i) - i <= most_rows);
    };
    for (size_t begin = 0; begin < rows && has_room(begin);) {
        if (!can(begin)) {
            begin = end_of_expert(begin);
            continue;
        }
        const uint8_t stage = stage_[begin];
        const bool to_the_end = stage == 1 || whole(begin);
        size_t end = begin;
        while (end < rows && stage_[end] == stage && can(end) && (stage == 1 || whole(end) == to_the_end) &&
               has_room(end)) {
            taken += end_of_expert(end) - end;
            ++experts;
            end = end_of_expert(end);
        }
        append_ranks(weight, begin, end, stage == 0 ? 0 : block_.last_product,
                     to_the_end ? block_.nodes.size() : block_.last_product);
        std::fill(stage_.begin() + static_cast<std::ptrdiff_t>(begin),
                  stage_.begin() + static_cast<std::ptrdiff_t>(end), to_the_end ? 2 : 1);
        if (to_the_end) finished += end - begin;
        begin = end;
    }
    return finished;
}

// The block's nodes from `first_node` to before `last_node`, for the rows at places `begin` to before `end`.
void MoeExecutor::append_ranks(const WeightRef& weight, size_t begin, size_t end, size_t first_node, size_t last_node) {
    const auto n = static_cast<int64_t>(end - begin);
    for (size_t number = first_node; number < last_node; ++number) {
        ggml_tensor* node = block_.nodes[number];
        if (node->op == GGML_OP_MUL_MAT_ID) {
            append_rank_product(node, *weight_of_(node->src[0]), begin, end, number);
            continue;
        }
        ggml_tensor* out = new_tensor();
        *out = *node;
        out->data = rank_row(number, begin);
        set_rows(*out, n);
        for (int s = 0; s < GGML_MAX_SRC; ++s) {
            if (node->src[s] == nullptr) continue;
            if (node->op == GGML_OP_ADD_ID && s == 1) continue;  // the biases of all experts
            if (node->op == GGML_OP_ADD_ID && s == 2) {
                int32_t* experts = new_ints(end - begin);
                for (size_t i = begin; i < end; ++i)
                    experts[i - begin] = static_cast<int32_t>(weight.runtime->store->expert_of(row_record_[i]));
                out->src[s] = ids_of(node->src[s], experts, n, 1);
            } else {
                out->src[s] = rank_rows(node->src[s], begin, end);
            }
        }
        append(out);
    }
}

// A product for the rows of some experts: one launch where their slots lie in one window, else one per expert.
void MoeExecutor::append_rank_product(ggml_tensor* node, const WeightRef& weight, size_t begin, size_t end,
                                      size_t number) {
    const sched::Fetcher& fetcher = *weight.runtime->fetcher;
    const Window window = window_over(weight, std::span(row_record_).subspan(begin, end - begin));
    bool together = end_of_expert(begin) < end && window.slots <= kMaxWindow &&
                    weight.runtime->same_delta[weight.set][weight.component];
    for (size_t i = begin; together && has_panel_kernel(node->src[0]->type) && i < end; i = end_of_expert(i))
        together = end_of_expert(i) - i < static_cast<size_t>(kPanelRows);
    for (size_t i = begin; i < end;) {
        const size_t next = together ? end : end_of_expert(i);
        const auto n = static_cast<int64_t>(next - i);
        int32_t* places = new_ints(next - i);
        for (size_t j = i; j < next; ++j)
            places[j - i] = together ? static_cast<int32_t>(fetcher.cache().find(row_record_[j]) - window.first) : 0;

        ggml_tensor* out = new_tensor();
        *out = *node;
        out->data = rank_row(number, i);
        set_rows(*out, n);
        out->src[0] = together ? weight_view(node->src[0], weight, window.begin, window.slots, window.stride)
                               : weight_of_one(node->src[0], weight, row_record_[i]);
        out->src[1] = rank_rows(node->src[1], i, next);
        const bool apart = block_.tokens > 1;
        out->src[2] = ids_of(node->src[2], places, apart ? 1 : n, apart ? n : 1);
        if (apart) {
            // Kernels take it that no token chooses an expert twice: each row is one of a token of its own.
            stand_apart(*out);
            stand_apart(*out->src[1]);
        }
        append(out);
        i = next;
    }
}

// The rows of a source that belong to these places, one after the other.
ggml_tensor* MoeExecutor::rank_rows(const ggml_tensor* src, size_t begin, size_t end) {
    const size_t n = end - begin;
    const int made = block_.source(src);
    const int early = made < 0 ? early_nodes_.source(src) : -1;
    const bool for_all = made < 0 && src->ne[1] == 1 && src->ne[2] == 1;
    if (for_all && early < 0) return const_cast<ggml_tensor*>(src);
    ggml_tensor* rows = new_tensor();
    *rows = *src;
    rows->op = GGML_OP_NONE;
    rows->view_src = nullptr;
    if (early >= 0) rows->data = early_memory(src, static_cast<size_t>(early));
    if (for_all) return rows;
    if (made >= 0) {
        const ggml_tensor* from = block_.nodes[static_cast<size_t>(made)];
        rows->data = rank_row(static_cast<size_t>(made), begin) +
                     (static_cast<const char*>(src->data) - static_cast<const char*>(from->data));
    } else {
        const size_t bytes = static_cast<size_t>(src->ne[0]) * sizeof(float);
        std::byte* copy = new_bytes(n * bytes);
        for (size_t i = 0; i < n; ++i) {
            const Row row = order_[begin + i];
            std::memcpy(copy + i * bytes, row_at(rows, row.k % src->ne[1], row.t % src->ne[2]), bytes);
        }
        rows->data = copy;
        rows->nb[1] = bytes;
    }
    set_rows(*rows, static_cast<int64_t>(n));
    return rows;
}

// The same for one node of a block that cannot be computed by ranks: of its experts this node's component only.
ggml_status MoeExecutor::run_in_waves(ggml_tensor* node, const WeightRef& weight, size_t leased) {
    ModelRuntime& runtime = *weight.runtime;
    sched::Fetcher& fetcher = *runtime.fetcher;
    const auto which = cache::component_bit(weight.component);
    sched::Batch batch;
    // records_ before `leased` are or were leased, those before `asked` asked for; `done` are computed, and before
    // `first` all are.
    size_t asked = 0, done = 0, first = 0;
    stage_.assign(records_.size(), 0);  // 1: computed, and its lease has ended
    const auto ask = [&] {
        parts_.clear();
        for (; asked < leased; ++asked) parts_.push_back({records_[asked], which});
        if (!parts_.empty()) fetcher.request(batch, parts_, pass_);
    };
    const auto give_up = [&](ggml_status status) {
        fetcher.give_up(batch);
        for (size_t i = first; i < leased; ++i) {
            if (stage_[i] == 0) fetcher.release({&records_[i], 1});
        }
        return status;
    };
    const size_t room = leased;
    while (done < records_.size()) {
        while (done == leased) {
            if (!fetcher.wait_for_any(pass_, stop_)) {
                if (stop_()) return give_up(GGML_STATUS_ABORTED);
                return give_up(fail(error(Code::internal, "no slot is free although nothing is leased")));
            }
            leased += fetcher.lease(std::span(records_).subspan(leased), seat_in(mode_));
        }
        ask();
        if (const ggml_status status = compute_early(); status != GGML_STATUS_SUCCESS) return give_up(status);
        fetcher.look(pass_);
        while (first < leased && stage_[first] != 0) ++first;
        group_.clear();
        for (size_t i = first; i < leased; ++i) {
            if (stage_[i] == 0 && fetcher.ready(records_[i], which)) group_.push_back(records_[i]);
        }
        const size_t open = leased - done;
        const size_t least = runtime.overlap ? worth_a_launch(runtime.wave, open) : open;
        if (group_.size() < least) {
            if (Status s = fetcher.wait_some(batch, pass_, stop_); !s.ok()) return give_up(fail(std::move(s)));
            continue;
        }
        // Half of them at a time: while these compute, the others are read.
        if (runtime.overlap && leased < records_.size())
            group_.resize(std::min(group_.size(), std::max(least, (room + 1) / 2)));
        const ggml_status status = run_gathered(node, weight, group_);
        if (status != GGML_STATUS_SUCCESS) return give_up(status);
        for (size_t i = first, n = 0; n < group_.size(); ++i) {
            if (records_[i] != group_[n]) continue;
            ++n;
            ++done;
            stage_[i] = 1;
            fetcher.release({&records_[i], 1});
            leased += fetcher.lease(std::span(records_).subspan(leased), seat_in(mode_));
        }
    }
    return GGML_STATUS_SUCCESS;
}

// All experts of the node are leased and ready: choose how it is computed.
ggml_status MoeExecutor::append_resident(ggml_tensor* node, const WeightRef& weight) {
    const ModelRuntime& runtime = *weight.runtime;
    const sched::Fetcher& fetcher = *runtime.fetcher;
    const uint32_t n_expert = runtime.store->geometry().sets[weight.set].n_expert;
    const int64_t n_rows = node->src[2]->ne[0] * node->src[2]->ne[1];

    const Window window = window_over(weight, records_);
    int32_t most_rows = 0;
    for (const RecordId r : records_) {
        const uint32_t e = runtime.store->expert_of(r);
        most_rows = std::max(most_rows, row_begin_[e + 1] - row_begin_[e]);
    }
    const bool narrow = window.slots <= std::max<int64_t>(n_expert, kMaxWindow) &&
                        static_cast<uint64_t>(window.slots * n_rows) * 8 <= kMaxWindowWork;
    const bool panel = has_panel_kernel(node->src[0]->type) && most_rows >= kPanelRows;

    const bool one_token = node->src[2]->ne[1] == 1;
    ggml_status status = make_room(one_token ? static_cast<size_t>(n_rows) + 1 : 1);
    if (status != GGML_STATUS_SUCCESS) return status;

    // Tokens of which different numbers of ranks are computed are no node of the graph's shape.
    const bool whole = one_token || !edit_.active();
    if (narrow && !panel && whole && runtime.same_delta[weight.set][weight.component]) {
        place_.assign(n_expert, 0);
        for (const RecordId r : records_) {
            place_[runtime.store->expert_of(r)] = static_cast<int32_t>(fetcher.cache().find(r) - window.first);
        }
        append_strided(node, weight, window, place_);
        append_dropped_rows(node);
        return GGML_STATUS_SUCCESS;
    }
    if (one_token) {
        append_single_rows(node, weight);
        append_dropped_rows(node);
        return GGML_STATUS_SUCCESS;
    }
    // Gathering rows needs the node's input to be there.
    status = flush();
    if (status != GGML_STATUS_SUCCESS) return status;
    return accounted(*weight.runtime, weight.set, [&] { return run_gathered(node, weight, records_); });
}

// The slots of these experts, which are there and all equally deep in them, and what lies between.
MoeExecutor::Window MoeExecutor::window_over(const WeightRef& weight, std::span<const RecordId> records) const {
    const sched::Fetcher& fetcher = *weight.runtime->fetcher;
    const cache::Layout& layout = fetcher.layout();
    cache::SlotId low = UINT32_MAX, high = 0;
    for (const RecordId r : records) {
        const cache::SlotId s = fetcher.cache().find(r);
        low = std::min(low, s);
        high = std::max(high, s);
    }
    const size_t stride = layout.classes[layout.class_of_set[weight.set]].slot_bytes;
    const std::byte* begin =
        fetcher.data(records[0], weight.component) - (fetcher.cache().find(records[0]) - low) * stride;
    return {.begin = begin, .first = low, .slots = static_cast<int64_t>(high) - low + 1, .stride = stride};
}

// The weight tensor of one expert.
ggml_tensor* MoeExecutor::weight_of_one(const ggml_tensor* original, const WeightRef& weight, RecordId record) {
    return weight_view(original, weight, weight.runtime->fetcher->data(record, weight.component), 1,
                       static_cast<size_t>(original->ne[1]) * original->nb[1]);
}

// A weight tensor of `n_as` experts, `stride` bytes apart, over slots.
ggml_tensor* MoeExecutor::weight_view(const ggml_tensor* original, const WeightRef& weight, const std::byte* data,
                                      int64_t n_as, size_t stride) {
    const WeightForm& form = weight.runtime->forms[weight.set][weight.component];
    ggml_tensor* w = new_tensor();
    *w = *original;
    w->data = const_cast<std::byte*>(data);
    w->ne[2] = n_as;
    w->nb[2] = stride;
    w->nb[3] = stride * static_cast<size_t>(n_as);
    w->buffer = form.buffer;
    w->extra = form.extra;
    return w;
}

// Ids like the graph's, in memory of ours.
ggml_tensor* MoeExecutor::ids_of(const ggml_tensor* original, int32_t* values, int64_t n_ids, int64_t n_tokens) {
    ggml_tensor* ids = new_tensor();
    *ids = *original;
    ids->data = values;
    ids->op = GGML_OP_NONE;
    ids->view_src = nullptr;
    ids->ne[0] = n_ids;
    ids->ne[1] = n_tokens;
    ids->nb[0] = sizeof(int32_t);
    ids->nb[1] = sizeof(int32_t) * static_cast<size_t>(n_ids);
    ids->nb[2] = ids->nb[3] = ids->nb[1] * static_cast<size_t>(n_tokens);
    return ids;
}

// The same node over a window of slots: one launch, as stock has it; ids become slot numbers.
void MoeExecutor::append_strided(ggml_tensor* node, const WeightRef& weight, const Window& window,
                                 std::span<const int32_t> place_of_expert) {
    const ggml_tensor* ids = node->src[2];
    // Of one token the ranks that are computed may be fewer than the graph has.
    const int64_t ranks = edit_.kept(0, ids->ne[0]);
    int32_t* out = new_ints(static_cast<size_t>(ranks * ids->ne[1]));
    ggml_tensor* places = ids_of(ids, out, ranks, ids->ne[1]);
    for (int64_t t = 0; t < ids->ne[1]; ++t) {
        for (int64_t k = 0; k < ranks; ++k) *out++ = place_of_expert[static_cast<size_t>(id_at(ids, k, t))];
    }

    ggml_tensor* n = new_tensor();
    *n = *node;
    if (ranks < ids->ne[0]) {
        n->ne[1] = ranks;
        ggml_tensor* x = new_tensor();
        *x = *node->src[1];
        x->ne[1] = std::min(x->ne[1], ranks);
        n->src[1] = x;
    }
    n->src[0] = weight_view(node->src[0], weight, window.begin, window.slots, window.stride);
    n->src[2] = places;
    append(n);
}

// One node per expert, each over one row: decode with slots too far apart for one window.
void MoeExecutor::append_single_rows(ggml_tensor* node, const WeightRef& weight) {
    const ggml_tensor* src1 = node->src[1];
    for (const RecordId r : records_) {
        const uint32_t e = weight.runtime->store->expert_of(r);
        for (int32_t i = row_begin_[e]; i < row_begin_[e + 1]; ++i) {
            const Row row = rows_[static_cast<size_t>(i)];
            ggml_tensor* x = new_tensor();
            *x = *src1;
            x->data = row_at(src1, row.k % src1->ne[1], row.t);
            x->ne[1] = x->ne[2] = x->ne[3] = 1;
            x->nb[2] = x->nb[3] = x->nb[1];

            int32_t* zero = new_ints(1);
            *zero = 0;
            ggml_tensor* n = new_tensor();
            *n = *node;
            n->data = row_at(node, row.k, row.t);
            n->ne[1] = n->ne[2] = n->ne[3] = 1;
            n->nb[2] = n->nb[3] = n->nb[1];
            n->src[0] = weight_of_one(node->src[0], weight, r);
            n->src[1] = x;
            n->src[2] = ids_of(node->src[2], zero, 1, 1);
            append(n);
        }
    }
}

// Ranks of one token that no expert computes are zeros: whatever the weights after them are, they add nothing.
void MoeExecutor::append_dropped_rows(ggml_tensor* node) {
    const int64_t kept = edit_.kept(0, node->ne[1]);
    if (kept == node->ne[1]) return;
    ggml_tensor* rest = new_tensor();
    *rest = *node;
    rest->op = GGML_OP_FILL;
    rest->data = row_at(node, kept, 0);
    rest->ne[1] -= kept;
    std::fill(std::begin(rest->src), std::end(rest->src), nullptr);
    std::fill(std::begin(rest->op_params), std::end(rest->op_params), 0);
    rest->src[0] = node;
    append(rest);
}

// The same for all tokens, now.
void MoeExecutor::clear_dropped_rows(ggml_tensor* node) {
    if (!edit_.active()) return;
    for (int64_t t = 0; t < node->ne[2]; ++t) {
        for (int64_t k = edit_.kept(t, node->ne[1]); k < node->ne[1]; ++k)
            std::memset(row_at(node, k, t), 0, static_cast<size_t>(node->ne[0]) * sizeof(float));
    }
}

// Expert by expert over gathered rows; the node's input is computed and the graph empty. Groups of experts share a
// launch as long as their rows fit the scratch memory.
ggml_status MoeExecutor::run_gathered(ggml_tensor* node, const WeightRef& weight, std::span<const RecordId> records) {
    const store::RecordStore& store = *weight.runtime->store;
    const ggml_tensor* src1 = node->src[1];
    const size_t in_row = static_cast<size_t>(src1->ne[0]) * ggml_type_size(src1->type);
    const size_t out_row = static_cast<size_t>(node->ne[0]) * sizeof(float);
    const size_t per_row = in_row + out_row;
    sched::Fetcher& fetcher = *weight.runtime->fetcher;
    const auto n_rows = [&](RecordId r) {
        const uint32_t e = store.expert_of(r);
        return static_cast<size_t>(row_begin_[e + 1] - row_begin_[e]);
    };

    for (size_t begin = 0; begin < records.size();) {
        const bool reading = fetcher.reading();
        const size_t most = reading ? kGatherBytesReading : kGatherBytes;
        size_t end = begin;
        size_t rows = 0;
        while (end < records.size() && (end == begin || (rows + n_rows(records[end])) * per_row <= most) &&
               end - begin < kMaxNodes / 2) {
            rows += n_rows(records[end++]);
        }
        std::byte* in = scratch(rows * per_row);
        std::byte* out = in + rows * in_row;
        int32_t* zeros = new_ints(rows);
        std::fill(zeros, zeros + rows, 0);

        size_t at = 0;
        for (size_t i = begin; i < end; ++i) {
            const uint32_t e = store.expert_of(records[i]);
            const size_t n = n_rows(records[i]);
            for (size_t j = 0; j < n; ++j) {
                const Row row = rows_[static_cast<size_t>(row_begin_[e]) + j];
                std::memcpy(in + (at + j) * in_row, row_at(src1, row.k % src1->ne[1], row.t), in_row);
            }
            ggml_tensor* x = new_tensor();
            *x = *src1;
            x->data = in + at * in_row;
            x->op = GGML_OP_NONE;
            x->view_src = nullptr;
            x->ne[1] = x->ne[3] = 1;
            x->ne[2] = static_cast<int64_t>(n);
            x->nb[1] = x->nb[2] = in_row;
            x->nb[3] = in_row * n;

            ggml_tensor* y = new_tensor();
            *y = *node;
            y->data = out + at * out_row;
            y->view_src = nullptr;
            y->ne[1] = y->ne[3] = 1;
            y->ne[2] = static_cast<int64_t>(n);
            y->nb[1] = y->nb[2] = out_row;
            y->nb[3] = out_row * n;
            y->src[0] = weight_of_one(node->src[0], weight, records[i]);
            y->src[1] = x;
            y->src[2] = ids_of(node->src[2], zeros, 1, static_cast<int64_t>(n));
            append(y);
            at += n;
        }
        const ggml_status status = flush();
        if (status != GGML_STATUS_SUCCESS) return status;
        if (reading) fetcher.look(pass_);

        at = 0;
        for (size_t i = begin; i < end; ++i) {
            const uint32_t e = store.expert_of(records[i]);
            for (int32_t j = row_begin_[e]; j < row_begin_[e + 1]; ++j) {
                const Row row = rows_[static_cast<size_t>(j)];
                std::memcpy(row_at(node, row.k, row.t), out + at++ * out_row, out_row);
            }
        }
        begin = end;
    }
    clear_dropped_rows(node);
    return GGML_STATUS_SUCCESS;
}

}  // namespace sluice::exec
