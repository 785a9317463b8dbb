#include "exec/route_probe.h"

#include <algorithm>

#include "exec/views.h"

namespace sluice::exec {
namespace {

using route::Predictor;
using route::Unranked;

bool is_resident(const ModelRuntime& runtime, uint32_t set, int32_t expert) {
    return runtime.fetcher->resident(runtime.store->record(set, static_cast<uint32_t>(expert)));
}

}  // namespace

// Which sets follow each other: an architecture may have two kinds in each layer.
void RouteProbe::learn_model(const ModelRuntime& runtime) {
    const auto& sets = runtime.store->geometry().sets;
    model_ = &runtime;
    sets_.clear();
    sets_.resize(sets.size());
    for (Set& s : sets_) s.before.fill(kNoSet);
    for (uint32_t s = 0; s < sets.size(); ++s) {
        sets_[s].popularity.emplace(sets[s].n_expert, kHalfLife);
        uint32_t at = s;
        for (size_t d = 1; d < sets_[s].ahead.size(); ++d) {
            if (at != kNoSet) {
                uint32_t next = at + 1;
                while (next < sets.size() && sets[next].group != sets[s].group) ++next;
                at = next < sets.size() ? next : kNoSet;
            }
            sets_[s].ahead[d] = at;
            if (at != kNoSet) sets_[at].before[d] = s;
        }
    }
}

// Guesses for the next token, where the next one is not what they were made for.
void RouteProbe::forget() {
    for (Set& s : sets_) {
        for (Pending& p : s.pending) p.made = false;
    }
}

void RouteProbe::at_block(uint32_t set, const ggml_tensor* ids, bool decoding, RouterBook& routers,
                          ModelRuntime& runtime, const Clock& clock) {
    if (set == last_set_) return;  // a block may come in pieces
    last_set_ = set;
    if (model_ != &runtime) {
        learn_model(runtime);
        routers.keep_states();
    }
    const auto n_expert = static_cast<int32_t>(runtime.store->geometry().sets[set].n_expert);
    const int64_t last = ids->ne[1] - 1;
    chosen_.resize(static_cast<size_t>(ids->ne[0]));
    for (size_t k = 0; k < chosen_.size(); ++k) {
        chosen_[k] = id_at(ids, static_cast<int64_t>(k), last);
        if (chosen_[k] < 0 || chosen_[k] >= n_expert) return;  // the executor says what is wrong with it
    }
    const Nanos begin = clock.now();
    const bool scored = decoding && ids->ne[1] == 1;
    if (scored) {
        score(set, routers, runtime, clock);
    } else {
        forget();
    }
    sets_[set].previous = chosen_;
    sets_[set].popularity->see(chosen_);
    if (scored) guess_ahead(set, routers, runtime, clock);
    spent_ += clock.now() - begin;
}

// Why there is no guess.
Unranked RouteProbe::reason(Predictor p, uint32_t set, RouterBook& routers) const {
    const auto depth = static_cast<size_t>(route::depth(p));
    if (depth == 0) return Unranked::first_token;
    const uint32_t from = sets_[set].before[depth];
    if (from == kNoSet) return Unranked::first_layers;
    return routers.replay(set) == nullptr || routers.input(from).empty() ? Unranked::no_router : Unranked::first_token;
}

void RouteProbe::score(uint32_t set, RouterBook& routers, ModelRuntime& runtime, const Clock& clock) {
    route::Scores& scores = *runtime.scores;
    Set& here = sets_[set];
    const Nanos now = clock.now();
    const Nanos busy = runtime.fetcher->counters().busy;
    missing_.resize(chosen_.size());
    for (size_t k = 0; k < chosen_.size(); ++k) missing_[k] = is_resident(runtime, set, chosen_[k]) ? 0 : 1;
    const double speed = runtime.fetcher->bandwidth();
    const auto bytes = static_cast<double>(runtime.store->geometry().sets[set].record_bytes());
    const route::Chosen choice{
        .experts = chosen_, .missing = missing_, .read = speed > 0 ? static_cast<Nanos>(bytes / speed) : 0};

    for (const Predictor p : route::kAllPredictors) {
        if (p == Predictor::control || p == Predictor::attention) continue;
        if (p == Predictor::trained && !runtime.trained) continue;
        Pending& pending = here.pending[static_cast<size_t>(p)];
        if (!std::exchange(pending.made, false)) {
            scores.not_ranked(p, set, reason(p, set, routers));
            continue;
        }
        const Nanos idle = (now - pending.at) - (spent_ - pending.spent) - (busy - pending.busy);
        scores.score(p, set,
                     {.experts = pending.experts,
                      .confidence = pending.confidence,
                      .absent = pending.absent,
                      .idle = std::max<Nanos>(0, idle)},
                     choice);
    }

    RouterReplay* own = routers.replay(set);
    score_attention(set, own, routers, runtime, choice, clock);
    const std::span<const float> x = routers.input(set);
    if (own == nullptr || x.empty()) {
        scores.not_ranked(Predictor::control, set, own != nullptr ? Unranked::first_token : Unranked::no_router);
        return;
    }
    const Nanos begin = clock.now();
    if (!own->run(routers.cpu(), x).ok()) return;  // stopped
    scores.spent(Predictor::control, clock.now() - begin);
    scores.score(Predictor::control, set, {.experts = own->ids(), .confidence = {}, .absent = {}}, choice);
}

// The guess could have been made when attention began; it is made now, and its time is counted from then.
void RouteProbe::score_attention(uint32_t set, RouterReplay* own, RouterBook& routers, ModelRuntime& runtime,
                                 const route::Chosen& choice, const Clock& clock) {
    route::Scores& scores = *runtime.scores;
    const RouterBook::State* state = routers.before_attention(runtime.store->geometry().sets[set].layer);
    if (own == nullptr || state == nullptr || state->numbers.size() != own->n_input()) {
        scores.not_ranked(Predictor::attention, set, Unranked::no_router);
        return;
    }
    const Nanos begin = clock.now();
    if (!own->run(routers.cpu(), state->numbers).ok()) return;
    put(Predictor::attention, set, own->ids(), runtime, begin);
    scores.spent(Predictor::attention, clock.now() - begin);
    Pending& guess = sets_[set].pending[static_cast<size_t>(Predictor::attention)];
    guess.made = false;
    scores.score(Predictor::attention, set,
                 {.experts = guess.experts,
                  .confidence = guess.confidence,
                  .absent = guess.absent,
                  .idle = std::max<Nanos>(0, begin - state->at)},
                 choice);
}

void RouteProbe::guess_ahead(uint32_t set, RouterBook& routers, ModelRuntime& runtime, const Clock& clock) {
    route::Scores& scores = *runtime.scores;
    const auto next = static_cast<uint32_t>((set + 1) % sets_.size());
    Set& there = sets_[next];
    Nanos begin = clock.now();
    if (!there.previous.empty()) {
        put(Predictor::previous, next, there.previous, runtime, begin);
        scores.spent(Predictor::previous, clock.now() - begin);
        begin = clock.now();
        guess_.resize(there.previous.size());
        there.popularity->best(guess_);
        put(Predictor::popular, next, guess_, runtime, begin);
        scores.spent(Predictor::popular, clock.now() - begin);
    }
    for (const Predictor p : {Predictor::stale1, Predictor::stale2, Predictor::stale4, Predictor::trained}) {
        const bool trained = p == Predictor::trained;
        if (trained && !runtime.trained) continue;
        const uint32_t target = sets_[set].ahead[static_cast<size_t>(route::depth(p))];
        if (target == kNoSet) continue;
        begin = clock.now();
        const RouterReplay* router = stale_gate_.guess(runtime, routers, set, target, trained);
        if (router == nullptr) continue;
        const Nanos end = clock.now();
        put(p, target, router->ids(), runtime, begin);
        scores.spent(p, end - begin);
        if (p == Predictor::stale1 && router->has_small_copy()) compare_exact(set, target, routers, runtime, clock);
    }
}

// What the router in full says of the state that the stale gate has just been given.
void RouteProbe::compare_exact(uint32_t set, uint32_t target, RouterBook& routers, ModelRuntime& runtime,
                               const Clock& clock) {
    RouterReplay* router = routers.replay_on(target, set);
    if (router == nullptr) return;
    guess_.assign(router->ids().begin(), router->ids().end());
    const Nanos begin = clock.now();
    if (!router->run(routers.cpu(), routers.input(set)).ok()) return;
    const Nanos time = clock.now() - begin;
    runtime.scores->compared(guess_, router->ids(), time);
}

void RouteProbe::put(Predictor p, uint32_t target, std::span<const int32_t> experts, const ModelRuntime& runtime,
                     Nanos now) {
    Pending& pending = sets_[target].pending[static_cast<size_t>(p)];
    pending.made = true;
    pending.experts.assign(experts.begin(), experts.end());
    pending.confidence.resize(experts.size());
    pending.absent.resize(experts.size());
    for (size_t i = 0; i < experts.size(); ++i) {
        pending.confidence[i] = runtime.scores->confidence(p, i);
        pending.absent[i] = is_resident(runtime, target, experts[i]) ? 0 : 1;
    }
    pending.at = now;
    pending.busy = runtime.fetcher->counters().busy;
    pending.spent = spent_;
}

}  // namespace sluice::exec
