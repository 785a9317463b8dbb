#include "exec/route_ahead.h"

#include <cstring>
#include <utility>

#include "base/log.h"
#include "exec/route_edit.h"
#include "exec/views.h"
#include "route/prefetch.h"

namespace sluice::exec {
namespace {

// Adds what passes until it ends.
class Timed {
  public:
    Timed(const Clock& clock, Nanos& sum) : clock_(clock), sum_(sum), began_(clock.now()) {}
    ~Timed() { sum_ += clock_.now() - began_; }
    Timed(const Timed&) = delete;
    Timed& operator=(const Timed&) = delete;

  private:
    const Clock& clock_;
    Nanos& sum_;
    Nanos began_;
};

}  // namespace

void RouteAhead::begin_graph() {
    for (Ranking& r : rankings_) r.known = false;
    ranked_.clear();
    rank_from_.reset();
    read_early_ = {};
    if (std::exchange(decoded_, false)) {
        first_decode_ = false;
        ++token_;
    }
}

void RouteAhead::start(const ModelRuntime& runtime) {
    if (runtime_ == &runtime) return;
    runtime_ = &runtime;
    const auto& sets = runtime.store->geometry().sets;
    layer_of_.clear();
    sets_of_.clear();
    for (uint32_t s = 0; s < sets.size(); ++s) {
        if (s == 0 || sets[s].layer != sets[s - 1].layer) sets_of_.emplace_back();
        sets_of_.back().push_back(s);
        layer_of_.push_back(static_cast<uint32_t>(sets_of_.size() - 1));
    }
    rankings_.assign(sets.size(), {});
    able_.assign(sets.size(), Able::unknown);
}

void RouteAhead::decide(const Block& block, WeightLookup weight_of, RouterBook& routers, trace::Pass& pass) {
    const ModelRuntime& runtime = *block.weight->runtime;
    ranked_.clear();
    rank_from_.reset();
    read_early_ = {};
    block_ = {};
    if (runtime.route_ahead.depth == 0) return;
    start(runtime);
    if (!pass.route_ahead) pass.route_ahead.emplace();
    if (!block.decode) first_decode_ = true;
    decoded_ = decoded_ || block.decode;
    const uint32_t set = block.weight->set;
    const bool one_token = ggml_graph_node(block.graph, block.at)->src[2]->ne[1] == 1;
    const bool may = block.decode && one_token && !disarmed_ && set < rankings_.size();
    if (may && able_[set] == Able::unknown) learn(block, weight_of, routers);
    const bool committed = may && !first_decode_ && commit(block, weight_of, routers, pass);
    const uint32_t layer = layer_of_[set];
    ++(committed ? block_.committed : block_.passed);
    if (block.decode && first_decode_) {
        ++block_.first;
    } else if (block.decode && layer < runtime.route_ahead.depth) {
        ++block_.below;
    }
    pass.route_ahead->counts += block_;
    if (committed) read_early_ = rankings_[set].read;
    // The layers of a token that takes no choice are not ranked either. A layer's sets share its hidden state.
    if (!may || first_decode_ || disarmed_) return;
    if (sets_of_[layer].front() != set || layer + runtime.route_ahead.depth >= sets_of_.size()) return;
    rank_from_ = set;
}

void RouteAhead::rank(RouterBook& routers, trace::Pass& pass) {
    if (!rank_from_ || !pass.route_ahead) return;
    const Timed ranking(pass.ledger.clock(), pass.route_ahead->rank);
    const uint32_t from = *std::exchange(rank_from_, std::nullopt);
    for (const uint32_t to : sets_of_[layer_of_[from] + runtime_->route_ahead.depth]) rank_one(to, from, routers);
}

void RouteAhead::rank_one(uint32_t to, uint32_t from, RouterBook& routers) {
    RouterReplay* replay = able_[to] == Able::yes ? routers.replay_on(to, from) : nullptr;
    if (replay == nullptr) return;
    const auto run = runtime_->route_ahead.small_routers ? &RouterReplay::guess : &RouterReplay::run;
    if (!(replay->*run)(routers.cpu(), routers.input(from)).ok()) return;
    Ranking& r = rankings_[to];
    r.known = true;
    r.ids.assign(replay->ids().begin(), replay->ids().end());
    r.weights.assign(replay->weights().begin(), replay->weights().end());
    route::rank_by_share(r.ids, r.weights, r.shares);
    const float cold = runtime_->dials.drop_below(r.ids.size());
    r.read.assign(r.ids.size(), 0);
    for (size_t k = 0; k < r.ids.size(); ++k) {
        for (size_t i = 0; i < r.shares.size(); ++i) {
            if (r.shares[i].expert == static_cast<uint32_t>(r.ids[k]))
                r.read[k] = route::is_kept(i, r.shares[i].weight, cold) ? 1 : 0;
        }
    }
    ranked_.push_back(to);
}

// Finds out what commit() would need, so that nothing is ranked and read for a choice that nobody can take. Graphs over
// one token are alike, but that some hidden states are had from the second one on only.
void RouteAhead::learn(const Block& block, WeightLookup weight_of, RouterBook& routers) {
    const WeightRef& weight = *block.weight;
    if (const BlockWeights applied = find_block_weights(block.graph, block.at, weight_of); applied.tensor == nullptr) {
        refuse(weight, applied.why_not);
        return;
    }
    RouterReplay* replay = routers.replay_on(weight.set, weight.set);
    if (replay == nullptr) {
        if (!first_decode_) tell(weight, routers.why(weight.set));
        return;
    }
    if (!runtime_->route_ahead.predicted_weights) {
        Status s = replay->run(routers.cpu(), routers.input(weight.set));
        if (s.ok()) s = replay->weights_of(routers.cpu(), replay->ids()).status();
        if (!s.ok()) {
            refuse(weight, s.message());
            return;
        }
    }
    able_[weight.set] = Able::yes;
}

bool RouteAhead::commit(const Block& block, WeightLookup weight_of, RouterBook& routers, trace::Pass& pass) {
    const WeightRef& weight = *block.weight;
    const Ranking& ranking = rankings_[weight.set];
    ggml_tensor* ids = ggml_graph_node(block.graph, block.at)->src[2];
    const auto n = static_cast<size_t>(ids->ne[0]);
    if (!ranking.known || ids->ne[1] != 1 || ranking.ids.size() != n) return false;
    const BlockWeights applied = find_block_weights(block.graph, block.at, weight_of);
    if (applied.tensor == nullptr) {
        refuse(weight, applied.why_not);
        return false;
    }
    RouterReplay* replay = routers.replay_on(weight.set, weight.set);
    if (replay == nullptr) {
        refuse(weight, routers.why(weight.set));
        return false;
    }
    const bool true_weights = !runtime_->route_ahead.predicted_weights;
    std::span<const float> weights = ranking.weights;
    const auto router_id = [&](size_t k) { return id_at(ids, static_cast<int64_t>(k), 0); };
    const Timed watching(pass.ledger.clock(), pass.route_ahead->watch);
    if ((token_ + weight.set) % kCheckEvery == 0) {
        if (const Status s = replay->run(routers.cpu(), routers.input(weight.set)); !s.ok()) {
            refuse(weight, s.message());
            return false;
        }
        for (size_t k = 0; k < n; ++k) {
            if (replay->ids()[k] == router_id(k)) continue;
            disarm(weight, fmt::format("for rank {} the router chose expert {}, its copy {}", k, router_id(k),
                                       replay->ids()[k]));
            return false;
        }
    }
    if (true_weights) {
        const auto given = replay->weigh(routers.cpu(), routers.input(weight.set), ranking.ids);
        if (!given.ok()) {
            refuse(weight, given.status().message());
            return false;
        }
        weights = *given;
    }
    if (weights.size() != n) return false;
    block_.slots = n;
    for (const int32_t e : ranking.ids) {
        for (size_t k = 0; k < n; ++k) block_.agreed += router_id(k) == e ? 1 : 0;
    }
    for (size_t k = 0; k < n; ++k) {
        std::memcpy(static_cast<char*>(ids->data) + k * ids->nb[0], &ranking.ids[k], sizeof(int32_t));
        std::memcpy(static_cast<char*>(applied.tensor->data) + k * applied.tensor->nb[1], &weights[k], sizeof(float));
    }
    return true;
}

void RouteAhead::look_ahead(const WeightRef& weight, RouterBook& routers, trace::Pass& pass) {
    rank(routers, pass);
    if (runtime_ != weight.runtime || ranked_.empty() || !runtime_->route_ahead.early_reads) return;
    const Timed issuing(pass.ledger.clock(), pass.route_ahead->issue);
    sched::Fetcher& fetcher = *weight.runtime->fetcher;
    const store::RecordStore& store = *weight.runtime->store;
    for (const uint32_t to : std::exchange(ranked_, {})) {
        const Ranking& r = rankings_[to];
        // What would be dropped unread is left where it is.
        const float cold = runtime_->dials.drop_below(r.ids.size());
        const auto resident = [&](uint32_t e) { return fetcher.resident(store.record(to, e)); };
        route::choose_prefetch(r.shares, {.drop_below = cold}, resident, chosen_);
        early_.clear();
        for (const route::Likely& c : chosen_) early_.push_back({store.record(to, c.expert), c.weight});
        fetcher.commit(early_);
    }
}

void RouteAhead::disarm(const WeightRef& weight, const std::string& why) {
    disarmed_ = true;
    log(LogLevel::error,
        "--route-ahead is off from now on: in layer {} {}. Experts run as the routers choose; please report the model",
        weight.runtime->store->geometry().sets[weight.set].layer, why);
}

void RouteAhead::refuse(const WeightRef& weight, const std::string& why) {
    able_[weight.set] = Able::no;
    tell(weight, why);
}

void RouteAhead::tell(const WeightRef& weight, const std::string& why) {
    if (std::exchange(told_, true)) return;
    log(LogLevel::warn, "--route-ahead leaves layer {} to its router: {}",
        weight.runtime->store->geometry().sets[weight.set].layer, why);
}

}  // namespace sluice::exec
