#include "exec/pace.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "cache/policy.h"

namespace sluice::exec {

static_assert(kVerifyRows <= cache::kUnclearRows, "rows that may be of several sequences are not listened to");

void Pace::begin_pass() {
    next_is_ahead_ = false;
    ended_ = -1;
}

void Pace::plan(const WeightRef& weight, const ggml_tensor* ids, bool first) {
    ModelRuntime& runtime = *weight.runtime;
    trace::Pass& pass = launch_.pass();
    const bool was_ahead = std::exchange(next_is_ahead_, false);
    if (book_.decoding()) {
        block_.mode = ids->ne[1] == 1 ? Mode::decode : Mode::verify;
    } else if (!pass.told && book_.rows() <= kVerifyRows) {
        block_.mode = Mode::verify;
    } else {
        block_.mode = was_ahead ? Mode::macro : Mode::micro;
    }
    // A block that does not fit is looked up for each of its products; it tells nothing of its pace.
    if (!is_prompt(block_.mode) || !first) return;
    ++(block_.mode == Mode::macro ? book_.counters(runtime).blocks_macro : book_.counters(runtime).blocks_micro);
    ++(block_.mode == Mode::macro ? pass.blocks_macro : pass.blocks_micro);
    if (!runtime.prompts) runtime.prompts.emplace(static_cast<uint32_t>(runtime.store->geometry().sets.size()));
    const double n_expert = runtime.store->geometry().sets[weight.set].n_expert;
    runtime.prompts->chose(weight.set, book_.rows(), static_cast<double>(block_.records.size()) / n_expert);
    const Nanos now = pass.ledger.clock().now();
    if (ended_ >= 0) runtime.prompts->reached(weight.set, book_.rows(), now - ended_);
    timed_ = &runtime;
    timed_set_ = weight.set;
    began_ = now;
    waited_ = runtime.fetcher->counters().wait;
}

void Pace::plan_next(const WeightRef& weight) {
    ModelRuntime& runtime = *weight.runtime;
    sched::Fetcher& fetcher = *runtime.fetcher;
    const model::Geometry& geometry = runtime.store->geometry();
    // What was read ahead for this block and not chosen need not come any more.
    if (block_.mode == Mode::macro) fetcher.end_ahead();
    const uint32_t next = weight.set + 1;
    // Without overlap the next layer's reads begin with the next layer; decode reads nothing that no router chose.
    if (!is_prompt(block_.mode) || !runtime.overlap || !runtime.prompts || next == geometry.sets.size()) return;
    const sched::Fetcher::Missing missing = fetcher.missing(next);
    const Forecast forecast{.missing = missing.experts,
                            .room = missing.room,
                            .bytes = record_bytes(geometry.sets[next]),
                            .chosen = runtime.prompts->expected(next, book_.rows()),
                            .bytes_per_ns = fetcher.bandwidth(),
                            .block = runtime.prompts->block(weight.set, book_.rows()),
                            .between = runtime.prompts->between(next, book_.rows())};
    const uint32_t ahead = experts_ahead(forecast, runtime.prefill_mode);
    if (ahead == 0) return;
    assert(!book_.decoding());
    next_is_ahead_ = true;
    fetcher.read_ahead(next, ahead);
}

void Pace::end_block() {
    if (timed_ == nullptr) return;
    const Nanos now = launch_.pass().ledger.clock().now();
    const Nanos waited = timed_->fetcher->counters().wait - waited_;
    timed_->prompts->computed(timed_set_, book_.rows(), std::max<Nanos>(0, now - began_ - waited));
    ended_ = now;
    timed_ = nullptr;
}

}  // namespace sluice::exec
