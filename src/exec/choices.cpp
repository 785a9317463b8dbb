#include "exec/choices.h"

#include <mutex>
#include <utility>

namespace sluice::exec {

void Choices::begin_graph() {
    edited_set_ = UINT32_MAX;
    routers_->begin_graph();
    probe_.begin_graph();
    route_ahead_.begin_graph();
}

void Choices::begin_pass(ModelRuntime& runtime, int64_t rows) {
    log_.begin();
    shadowed_ = runtime.shadow ? &runtime : nullptr;
    begin_token(runtime, rows);
}

// Tells of the token before, if it was computed to its end, and asks about this one.
void Choices::begin_token(ModelRuntime& runtime, int64_t rows) {
    const Token last = std::exchange(token_, {});
    if (!runtime.trial) return;
    trace::Pass& pass = launch_.pass();
    const Prefetcher::Did did = prefetcher_.take_did();
    if (last.of == &runtime && last.ended >= 0) {
        runtime.trial->token({.cost = static_cast<double>(book_.waited() - last.waited + last.followed + did.spent),
                              .time = static_cast<double>(last.ended - last.began),
                              .acted = did.acted});
    }
    if (!book_.decoding() || pass.warmup) return;
    // As records count: a token that is not computed to its end, or beside others, is one too.
    const int64_t token = std::exchange(runtime.asked.tokens, runtime.asked.tokens + rows);
    pass.guess_on = pass.guess_on.value_or(0);
    if (rows != 1) return;
    const bool on = runtime.prefetch.acts ? runtime.prefetch.acts(token) : runtime.trial->on();
    token_ = {.of = &runtime, .began = pass.ledger.clock().now(), .waited = book_.waited(), .on = on};
    runtime.asked.on += on ? 1 : 0;
    *pass.guess_on += on ? 1 : 0;
}

void Choices::decide(ggml_cgraph* graph, int at, const WeightRef& weight, bool first) {
    ModelRuntime& runtime = *weight.runtime;
    trace::Pass& pass = launch_.pass();
    const bool follows = runtime.follows_routers(guesses(runtime));
    routers_->listen(follows);
    if (follows) {
        const ggml_tensor* ids = ggml_graph_node(graph, at)->src[2];
        // Beside tokens without guesses that is a part of what guessing takes.
        const Nanos began = token_.on ? pass.ledger.clock().now() : 0;
        routers_->reach(weight.set, graph, at);
        if (token_.on) token_.followed += pass.ledger.clock().now() - began;
        if (first && pass.wants.router_inputs) book_.note_router(weight, ids, routers_->input(weight.set));
        if (runtime.scores) probe_.at_block(weight.set, ids, book_.decoding(), *routers_, runtime, pass.ledger.clock());
    }
    if (first && !pass.warmup) {
        const RouteAhead::Block block{graph, at, &weight, book_.decoding()};
        route_ahead_.decide(block, weight_of_, *routers_, pass);
        book_.counters(runtime).route_ahead += route_ahead_.block();
    }
    edit(graph, at, weight, first);
}

// Which experts run: what the router chose, unless an option says otherwise.
void Choices::edit(ggml_cgraph* graph, int at, const WeightRef& weight, bool first) {
    if (first || edited_set_ != weight.set) block_.edit.clear();
    edited_set_ = weight.set;
    trace::Pass& pass = launch_.pass();
    if (!first || !book_.decoding() || pass.warmup || !weight.runtime->dials.any()) return;
    const int64_t routed = pass.routed, dropped = pass.dropped, substituted = pass.substituted;
    block_.edit.edit(graph, at, weight, {weight_of_, launch_.cpu(), *routers_, route_ahead_.read_early()}, pass);
    trace::PhaseCounters& counters = book_.counters(*weight.runtime);
    counters.routed += static_cast<uint64_t>(pass.routed - routed);
    counters.dropped += static_cast<uint64_t>(pass.dropped - dropped);
    counters.substituted += static_cast<uint64_t>(pass.substituted - substituted);
}

void Choices::learn(const WeightRef& weight, const ggml_tensor* ids) {
    sched::Fetcher& fetcher = *weight.runtime->fetcher;
    const store::RecordStore& store = *weight.runtime->store;
    const int64_t n_tokens = ids->ne[1];
    fetcher.visit(weight.set, static_cast<uint32_t>(n_tokens), book_.phase());
    const bool shadowed = shadowed_ != nullptr;
    if (shadowed) log_.block(weight.set, static_cast<uint32_t>(n_tokens), !book_.decoding());
    for (const RecordId r : block_.records) {
        for (const Row row : block_.rows_of(store.expert_of(r))) {
            const auto age = static_cast<uint32_t>(n_tokens - 1 - row.t);
            fetcher.chosen(r, age);
            if (shadowed) log_.use(r, age);
        }
    }
    prefetcher_.chose(weight, ids);
}

// Whether the token at hand acts on guesses. With `auto` few do, and the others are to cost next to nothing.
bool Choices::guesses(const ModelRuntime& runtime) const {
    return runtime.prefetch.on() && (!runtime.trial || token_.on);
}

bool Choices::looks_ahead(const ModelRuntime& runtime) const {
    if (runtime.route_ahead.depth > 0 || guesses(runtime)) return true;
    const sched::Scheduler& reads = runtime.fetcher->scheduler();
    return runtime.prefetch.on() && (reads.hinted() || reads.speculative_in_flight() > 0);
}

void Choices::look_ahead(const WeightRef& weight) {
    if (block_.mode != Mode::decode || !looks_ahead(*weight.runtime)) return;
    trace::Pass& pass = launch_.pass();
    if (guesses(*weight.runtime)) prefetcher_.look_ahead(weight, *routers_, pass);
    route_ahead_.look_ahead(weight, *routers_, pass);
    weight.runtime->fetcher->look(&pass);
}

void Choices::rank_ahead() {
    route_ahead_.rank(*routers_, launch_.pass());
}

void Choices::end_pass() {
    if (ModelRuntime* runtime = std::exchange(shadowed_, nullptr); runtime != nullptr) {
        const std::lock_guard lock(runtime->mutex);
        runtime->shadow->commit(log_);
        log_.begin();
    }
    if (token_.of != nullptr) token_.ended = launch_.pass().ledger.clock().now();
}

}  // namespace sluice::exec
