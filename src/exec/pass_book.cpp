#include "exec/pass_book.h"

#include <algorithm>
#include <cstring>

#include "exec/views.h"

namespace sluice::exec {
namespace {

Nanos waited_for_reads(const trace::Ledger& ledger) {
    return ledger.spent(trace::Part::wait_read) + ledger.spent(trace::Part::wait_join) +
           ledger.spent(trace::Part::wait_late);
}

}  // namespace

PassBook::Visit PassBook::visit(const WeightRef& weight, const ggml_tensor* ids) {
    ModelRuntime& runtime = *weight.runtime;
    constexpr uint8_t kUnknown = UINT8_MAX;
    const model::Geometry& geometry = runtime.store->geometry();
    if (runtime_ != &runtime) {
        first_component_.assign(geometry.sets.size(), kUnknown);
        set_ = UINT32_MAX;
        runtime_ = &runtime;
    }
    uint8_t& first = first_component_[weight.set];
    if (first == kUnknown) first = static_cast<uint8_t>(weight.component);
    if (first != weight.component) return {};
    const bool new_pass = set_ == UINT32_MAX;
    set_ = weight.set;
    if (new_pass) {
        rows_ = ids->ne[1];
        decoding_ = pass().told ? *pass().told == trace::Phase::decode : ids->ne[1] == 1;
        pass().phase = phase();
        pass().model = runtime.number;
        // llama.cpp warms up with all experts. Fewer than all may be more than the model says, with --override-kv.
        pass().warmup = geometry.n_expert_used > 0 && ids->ne[0] > static_cast<int64_t>(geometry.n_expert_used) &&
                        ids->ne[0] == static_cast<int64_t>(geometry.sets[weight.set].n_expert);
        pass().tokens += rows_;
        counters(runtime).tokens += static_cast<uint64_t>(rows_);
    }
    return {.first = true, .new_pass = new_pass};
}

void PassBook::count_choice(const WeightRef& weight, const ggml_tensor* ids) {
    ModelRuntime& runtime = *weight.runtime;
    uint64_t hits = 0;
    for (const RecordId r : block_.records) hits += runtime.fetcher->resident(r) ? 1 : 0;
    counters(runtime).lookups += block_.records.size();
    counters(runtime).hits += hits;
    pass().lookups += static_cast<int64_t>(block_.records.size());
    pass().hits += static_cast<int64_t>(hits);
    if (!pass().wants.rows) return;
    pass().layers.resize(runtime.store->geometry().sets.size());
    trace::Row::Layer& layer = pass().layers[weight.set];
    layer.routed += launch_.take_unbooked();
    layer.lookups += static_cast<int64_t>(block_.records.size());
    layer.hits += static_cast<int64_t>(hits);
    count_routes(weight, ids);
}

// Who was chosen, for outputs that show experts.
void PassBook::count_routes(const WeightRef& weight, const ggml_tensor* ids) {
    const ModelRuntime& runtime = *weight.runtime;
    const store::RecordStore& store = *runtime.store;
    for (const RecordId r : block_.records) {
        const uint32_t e = store.expert_of(r);
        pass().uses.push_back({.set = weight.set,
                               .expert = e,
                               .rows = static_cast<uint32_t>(block_.n_rows_of(e)),
                               .miss = !runtime.fetcher->resident(r)});
    }
    routes_begin_ = pass().route_events.size();
    const model::ExpertSet& set = store.geometry().sets[weight.set];
    const uint64_t bytes = record_bytes(set);
    paid_for_.assign(set.n_expert, 0);
    for (int64_t t = 0; t < ids->ne[1]; ++t) {
        for (int64_t k = 0; k < ids->ne[0]; ++k) {
            const auto e = static_cast<uint32_t>(id_at(ids, k, t));
            pass().routes_digest = (pass().routes_digest ^ (uint64_t{weight.set} << 32U) ^ e) * 0x100000001b3ULL;
            if (!pass().wants.routes) continue;
            const RecordId r = store.record(weight.set, e);
            const bool hit = runtime.fetcher->resident(r);
            const RouteEdit::Was was = block_.edit.was(k, t, ids->ne[0]);
            const bool pays = !hit && !was.dropped && std::exchange(paid_for_[e], 1) == 0;
            pass().route_events.push_back({.record = r,
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
        if (block_.edit.active() && pass().wants.routes) {
            std::sort(pass().route_events.end() - ids->ne[0], pass().route_events.end(),
                      [](const auto& a, const auto& b) { return a.rank < b.rank; });
        }
    }
}

void PassBook::note_router(const WeightRef& weight, const ggml_tensor* ids, std::span<const float> input) {
    if (ids->ne[1] != 1 || input.empty()) return;
    pass().router_inputs.push_back({.set = weight.set,
                                    .numbers = static_cast<uint32_t>(input.size()),
                                    .chosen = static_cast<uint32_t>(ids->ne[0])});
    pass().router_numbers.insert(pass().router_numbers.end(), input.begin(), input.end());
    for (int64_t k = 0; k < ids->ne[0]; ++k) pass().router_chosen.push_back(id_at(ids, k, 0));
}

void PassBook::note_weights(const ggml_tensor* node) {
    if (!pass().wants.routes) return;
    if (node->op != GGML_OP_MUL || std::strncmp(node->name, "ffn_moe_weighted", 16) != 0) return;
    if (block_.edit.active()) return;  // told with the choice, as the router had them
    const ggml_tensor* w = node->src[1];
    if (w->type != GGML_TYPE_F32 || w->data == nullptr || w->ne[0] != 1) return;
    for (size_t i = routes_begin_; i < pass().route_events.size(); ++i) {
        trace::RouteEvent& e = pass().route_events[i];
        if (e.rank < w->ne[1] && e.token < w->ne[2])
            std::memcpy(&e.weight, row_at(w, e.rank, e.token), sizeof e.weight);
    }
}

PassBook::Before PassBook::look(const ModelRuntime& runtime) const {
    return {.sched = runtime.fetcher->counters(),
            .engine = runtime.fetcher->engine_totals(),
            .waited = waited_for_reads(pass().ledger)};
}

void PassBook::book(const WeightRef& weight, const Before& before) {
    const sched::SchedCounters& now = weight.runtime->fetcher->counters();
    const sched::SchedCounters& then = before.sched;
    const io::EngineTotals& engine = weight.runtime->fetcher->engine_totals();
    const auto since = [](uint64_t a, uint64_t b) { return static_cast<int64_t>(a - b); };

    trace::PhaseCounters& p = counters(*weight.runtime);
    p.reads += now.reads - then.reads;
    p.logical_bytes += now.exact_bytes - then.exact_bytes;
    p.physical_bytes += now.exact_physical - then.exact_physical;
    p.read_wait += now.wait - then.wait;
    waited_ += now.wait - then.wait;
    p.convert += now.convert - then.convert;

    const int64_t physical = since(now.exact_physical, then.exact_physical);
    pass().reads += since(now.reads, then.reads);
    pass().exact_bytes += since(now.exact_bytes, then.exact_bytes);
    pass().exact_physical += physical;
    pass().ahead_bytes += since(now.ahead_bytes, then.ahead_bytes);
    pass().joins += since(now.joins, then.joins);
    pass().read_busy += now.busy - then.busy;
    pass().engine_bytes += since(engine.bytes, before.engine.bytes);
    pass().retries += since(engine.retries, before.engine.retries) + since(now.retries, then.retries);
    pass().predicts = pass().predicts || now.hints > 0;
    pass().predicted_bytes += since(now.predicted_bytes, then.predicted_bytes);
    pass().predicted_physical += since(now.predicted_physical, then.predicted_physical);
    pass().predicted_used += since(now.used_bytes, then.used_bytes);
    pass().rejected_bytes += since(now.rejected_bytes, then.rejected_bytes);
    pass().late += since(now.late, then.late);
    if (weight.set < pass().layers.size()) {
        pass().layers[weight.set].wait += waited_for_reads(pass().ledger) - before.waited;
        pass().layers[weight.set].physical += physical;
    }
}

void PassBook::count_evictions(ModelRuntime& runtime) {
    const cache::SlotCache& slots = runtime.fetcher->cache();
    const cache::CacheCounters& now = slots.counters();
    const cache::CacheCounters before = std::exchange(runtime.counted, now);
    const uint64_t shrunk = now.shrunk - before.shrunk;
    const uint64_t predicted = now.predicted - before.predicted;
    pass().evictions += static_cast<int64_t>(now.evictions - before.evictions - shrunk - predicted);
    pass().evictions_shrink += static_cast<int64_t>(shrunk);
    pass().evictions_predicted += static_cast<int64_t>(predicted);
    pass().rereads += static_cast<int64_t>(now.rereads - before.rereads);
    pass().cache_resident = slots.n_resident();
}

}  // namespace sluice::exec
