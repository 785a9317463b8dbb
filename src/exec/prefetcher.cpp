#include "exec/prefetcher.h"

#include "exec/corrected_state.h"
#include "exec/views.h"

namespace sluice::exec {

void Prefetcher::chose(const WeightRef& weight, const ggml_tensor* ids) {
    const ModelRuntime& runtime = *weight.runtime;
    if (!runtime.prefetch.on()) return;
    if (runtime_ != &runtime) {
        last_.emplace(runtime.store->geometry().sets.size());
        runtime_ = &runtime;
    }
    experts_.clear();
    for (int64_t k = 0; k < ids->ne[0]; ++k) experts_.push_back(static_cast<uint32_t>(id_at(ids, k, ids->ne[1] - 1)));
    last_->note(weight.set, experts_);
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
    RouterReplay* replay = to > from ? routers.replay_on(to, from) : nullptr;
    if (replay == nullptr) return;
    const auto state = corrected_state(*runtime_, to, from, routers.input(from), corrected_);
    if (!replay->run(routers.cpu(), state).ok()) return;
    route::rank_by_share(replay->ids(), replay->weights(), guesses_);
}

void Prefetcher::look_ahead(const WeightRef& weight, RouterBook& routers, trace::Pass& pass) {
    ModelRuntime& runtime = *weight.runtime;
    if (!runtime.prefetch.on() || runtime_ != &runtime) return;
    sched::Fetcher& fetcher = *runtime.fetcher;
    const store::RecordStore& store = *runtime.store;
    const auto n_sets = static_cast<uint32_t>(store.geometry().sets.size());
    pass.predicts = true;
    route::for_sets_ahead(weight.set, runtime.prefetch.depth, n_sets, [&](uint32_t to) {
        guess(weight.set, to, routers);
        // What would be dropped unread is left where it is.
        const route::Limits limits{.reads = runtime.prefetch.reads,
                                   .drop_below = runtime.dials.drop_below(guesses_.size())};
        const auto resident = [&](uint32_t e) { return fetcher.resident(store.record(to, e)); };
        route::choose_prefetch(guesses_, limits, resident, chosen_);
        foreseen_.clear();
        for (const route::Likely& g : chosen_) foreseen_.push_back({store.record(to, g.expert), g.weight});
        pass.hints += fetcher.foresee(foreseen_);
    });
}

}  // namespace sluice::exec
