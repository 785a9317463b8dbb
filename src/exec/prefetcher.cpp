#include "exec/prefetcher.h"

#include <algorithm>
#include <utility>

#include "exec/views.h"

namespace sluice::exec {

void Prefetcher::chose(const WeightRef& weight, const ggml_tensor* ids) {
    const ModelRuntime& runtime = *weight.runtime;
    if (!runtime.prefetch.on()) return;
    if (runtime_ != &runtime) {
        last_.emplace(runtime.store->geometry().sets.size());
        pending_.assign(runtime.store->geometry().sets.size(), {});
        calibration_ = {};
        runtime_ = &runtime;
    }
    experts_.clear();
    for (int64_t k = 0; k < ids->ne[0]; ++k) experts_.push_back(static_cast<uint32_t>(id_at(ids, k, ids->ne[1] - 1)));
    last_->note(weight.set, experts_);
    Pending& guess = pending_[weight.set];
    if (!std::exchange(guess.made, false) || ids->ne[1] != 1) return;
    for (size_t i = 0; i < guess.experts.size(); ++i) {
        if (guess.absent[i] == 0) continue;
        const auto at = std::find(experts_.begin(), experts_.end(), guess.experts[i]);
        calibration_.note(i, at != experts_.end());
    }
}

// What the runtime's predictor says that set `to` will choose, into guesses_.
void Prefetcher::guess(uint32_t from, uint32_t to, RouterBook& routers) {
    const PrefetchOptions& options = runtime_->prefetch;
    guesses_.clear();
    if (options.guesser) {
        options.guesser(from, to, guesses_);
        return;
    }
    if (!options.stale_gate) {
        last_->guess(to, guesses_);
        return;
    }
    // The next token's hidden state has nothing to do with this one's.
    const RouterReplay* router = to > from ? stale_gate_.guess(*runtime_, routers, from, to, true) : nullptr;
    if (router != nullptr) route::rank_by_share(router->ids(), router->weights(), guesses_);
}

void Prefetcher::look_ahead(const WeightRef& weight, RouterBook& routers, trace::Pass& pass) {
    ModelRuntime& runtime = *weight.runtime;
    if (!runtime.prefetch.on() || runtime_ != &runtime) return;
    sched::Fetcher& fetcher = *runtime.fetcher;
    const store::RecordStore& store = *runtime.store;
    const auto n_sets = static_cast<uint32_t>(store.geometry().sets.size());
    pass.predicts = true;
    const trace::Ledger* timed = runtime.prefetch.automatic ? &pass.ledger : nullptr;
    const Nanos began = timed != nullptr ? timed->clock().now() : 0;
    const uint64_t spared = fetcher.spared();
    const int64_t hints = pass.hints;
    route::for_sets_ahead(weight.set, runtime.prefetch.depth, n_sets, [&](uint32_t to) {
        guess(weight.set, to, routers);
        // What would be dropped unread is left where it is.
        const route::Limits limits{.reads = runtime.prefetch.reads,
                                   .drop_below = runtime.dials.drop_below(guesses_.size())};
        const auto resident = [&](uint32_t e) { return fetcher.resident(store.record(to, e)); };
        route::choose_prefetch(guesses_, limits, resident, chosen_);
        Pending& pending = pending_[to];
        pending.made = !guesses_.empty();
        pending.experts.clear();
        pending.absent.clear();
        for (const route::Likely& g : guesses_) {
            pending.experts.push_back(g.expert);
            pending.absent.push_back(resident(g.expert) ? 0 : 1);
        }
        foreseen_.clear();
        size_t rank = 0;  // chosen_ is a part of guesses_, in its order
        for (const route::Likely& g : chosen_) {
            while (pending.experts[rank] != g.expert) ++rank;
            // A test's guesser is given half a chance, so that what it says is acted on at all.
            const float sure = runtime.prefetch.guesser ? calibration_.sure(rank) : calibration_.proven(rank);
            foreseen_.push_back({store.record(to, g.expert), sure});
        }
        pass.hints += fetcher.foresee(foreseen_);
    });
    if (timed == nullptr) return;
    spent_ += timed->clock().now() - began;
    acted_ = acted_ || pass.hints > hints || fetcher.spared() > spared;
}

}  // namespace sluice::exec
