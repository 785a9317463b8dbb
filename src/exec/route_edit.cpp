#include "exec/route_edit.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "base/log.h"
#include "exec/views.h"

namespace sluice::exec {
namespace {

constexpr std::string_view kWeighted = "ffn_moe_weighted";

template <typename T>
T get(const ggml_tensor* t, size_t offset) {
    T value{};
    std::memcpy(&value, static_cast<const char*>(t->data) + offset, sizeof value);
    return value;
}
template <typename T>
void set(ggml_tensor* t, size_t offset, T value) {
    std::memcpy(static_cast<char*>(t->data) + offset, &value, sizeof value);
}

// Of rank k of token t: in the router's choice, and in the weights.
size_t id_offset(const ggml_tensor* ids, int64_t k, int64_t t) {
    return static_cast<size_t>(t) * ids->nb[1] + static_cast<size_t>(k) * ids->nb[0];
}
size_t weight_offset(const ggml_tensor* weights, int64_t k, int64_t t) {
    return static_cast<size_t>(t) * weights->nb[2] + static_cast<size_t>(k) * weights->nb[1];
}

bool is_there(const ModelRuntime& runtime, RecordId record) {
    return runtime.shadow ? runtime.shadow->holds(record) : runtime.fetcher->resident(record);
}

}  // namespace

BlockWeights find_block_weights(ggml_cgraph* graph, int at, WeightLookup weight_of) {
    const ggml_tensor* first = ggml_graph_node(graph, at);
    const ggml_tensor* ids = first->src[2];
    const WeightRef& block = *weight_of(first->src[0]);
    const int n = ggml_graph_n_nodes(graph);
    for (int i = at; i < n; ++i) {
        const ggml_tensor* node = ggml_graph_node(graph, i);
        const WeightRef* other = node->op == GGML_OP_MUL_MAT_ID ? weight_of(node->src[0]) : nullptr;
        if (other != nullptr && (other->runtime != block.runtime || other->set != block.set)) break;
        if (node->op != GGML_OP_MUL || !std::string_view(node->name).starts_with(kWeighted)) continue;
        ggml_tensor* w = node->src[1];
        if (w->type != GGML_TYPE_F32 || w->ne[0] != 1 || w->ne[1] != ids->ne[0] || w->ne[2] != ids->ne[1] ||
            w->ne[3] != 1 || w->data == nullptr) {
            return {nullptr, "its weights have a shape that is not known"};
        }
        for (int j = at; j < n; ++j) {
            if (root(ggml_graph_node(graph, j)) == root(w) && !is_view(ggml_graph_node(graph, j)->op))
                return {nullptr, "its weights are not known before its experts are computed"};
        }
        return {w, ""};
    }
    return {nullptr, "its weights are applied before the experts, or in another graph"};
}

void RouteEdit::refuse(const WeightRef& weight, std::string_view why, trace::Pass& pass) {
    ++pass.unedited;
    if (told_) return;
    told_ = true;
    log(LogLevel::warn, "layer {} cannot be changed as the lossy options say: {}",
        weight.runtime->store->geometry().sets[weight.set].layer, why);
}

// Puts experts that are there in the place of some that are not, with the weights that the router has for them.
Result<size_t> RouteEdit::substitute(const WeightRef& weight, const EditTools& tools) {
    const ModelRuntime& runtime = *weight.runtime;
    const size_t n = experts_.size();
    // One expert's weight has nothing to be measured by.
    if (n < 2 || std::find(resident_.begin(), resident_.end(), 0) == resident_.end()) return size_t{0};
    RouterReplay* router = tools.routers.replay(weight.set);
    const std::span<const float> input = tools.routers.input(weight.set);
    if (router == nullptr || input.empty()) return error(Code::unsupported, "{}", tools.routers.why(weight.set));
    if (Status s = router->run(tools.cpu, input); !s.ok()) return s;
    if (!std::equal(experts_.begin(), experts_.end(), router->ids().begin(), router->ids().end()))
        return error(Code::unsupported, "its router, run again, does not choose what it chose");
    const std::span<const int32_t> ranking = router->ranking();
    const std::span<const float> scores = router->scores();
    if (ranking.empty()) return error(Code::unsupported, "its choice is more than the best of one ranking");

    // The best ones that were not chosen and are there, beside the heaviest that was: so their weights can be compared.
    const auto best = static_cast<size_t>(std::max_element(weights_.begin(), weights_.end()) - weights_.begin());
    asked_.assign(1, experts_[best]);
    for (size_t i = n; i < ranking.size() && asked_.size() < n; ++i) {
        const auto e = static_cast<size_t>(ranking[i]);
        if (!std::isfinite(scores[e])) continue;  // of a group that was not chosen
        if (is_there(runtime, runtime.store->record(weight.set, static_cast<uint32_t>(e))))
            asked_.push_back(ranking[i]);
    }
    const size_t asked = asked_.size();
    for (size_t k = 0; k < n && asked_.size() < n; ++k) {
        if (k != best) asked_.push_back(experts_[k]);
    }
    const auto theirs = router->weights_of(tools.cpu, asked_);
    if (!theirs.ok()) return theirs.status();
    if (!((*theirs)[0] > 0)) return size_t{0};
    const float measure = weights_[best] / (*theirs)[0];
    candidates_.clear();
    for (size_t i = 1; i < asked; ++i) candidates_.push_back({asked_[i], (*theirs)[i] * measure});
    const size_t changed = route::substitute({experts_, weights_, resident_}, runtime.dials.substitute, candidates_);
    if (changed == 0) return changed;
    const auto own = router->weights_of(tools.cpu, experts_);
    if (!own.ok()) return own.status();
    if (!route::weights_tell(*own)) return error(Code::unsupported, "its router has no weights for other experts");
    std::copy(own->begin(), own->end(), weights_.begin());
    return changed;
}

void RouteEdit::edit(ggml_cgraph* graph, int at, const WeightRef& weight, const EditTools& tools, trace::Pass& pass) {
    clear();
    const ModelRuntime& runtime = *weight.runtime;
    const route::Dials& dials = runtime.dials;
    if (!dials.any()) return;
    ggml_tensor* ids = ggml_graph_node(graph, at)->src[2];
    const int64_t ranks = ids->ne[0], tokens = ids->ne[1];
    pass.dials = true;
    pass.routed += ranks * tokens;
    const BlockWeights found = find_block_weights(graph, at, tools.weight_of);
    if (found.tensor == nullptr) {
        pass.unedited += tokens - 1;
        refuse(weight, found.why_not, pass);
        return;
    }
    ggml_tensor* weights = found.tensor;
    const uint32_t n_expert = runtime.store->geometry().sets[weight.set].n_expert;
    const auto n = static_cast<size_t>(ranks);
    experts_.resize(n);
    weights_.resize(n);
    resident_.resize(n);
    dropped_.resize(n);
    kept_.assign(static_cast<size_t>(tokens), static_cast<int32_t>(ranks));
    was_.resize(n * static_cast<size_t>(tokens));
    bool changed = false;
    for (int64_t t = 0; t < tokens; ++t) {
        const std::span<Was> was = std::span(was_).subspan(static_cast<size_t>(t) * n, n);
        for (int64_t k = 0; k < ranks; ++k) {
            const auto i = static_cast<size_t>(k);
            experts_[i] = get<int32_t>(ids, id_offset(ids, k, t));
            weights_[i] = get<float>(weights, weight_offset(weights, k, t));
            was[i] = {.rank = static_cast<int32_t>(k), .weight = weights_[i]};
            // What is no expert is an error, of which the plan of the block speaks.
            if (experts_[i] < 0 || static_cast<uint32_t>(experts_[i]) >= n_expert) {
                clear();
                return;
            }
            const RecordId record = runtime.store->record(weight.set, static_cast<uint32_t>(experts_[i]));
            const bool early = i < tools.read_early.size() && tools.read_early[i] != 0;
            resident_[i] = early || is_there(runtime, record) ? 1 : 0;
        }
        if (!route::weights_tell(weights_)) {
            refuse(weight, "its weights are no numbers to go by", pass);
            continue;
        }
        size_t substituted = 0;
        if (dials.substitute > 0) {
            router_experts_ = experts_;
            router_resident_ = resident_;
            auto done = tokens == 1 ? substitute(weight, tools)
                                    : error(Code::unsupported, "several tokens are computed at once");
            if (done.ok()) {
                substituted = *done;
            } else {
                // Without substitutes what is not there may still be dropped.
                refuse(weight, done.status().within("no substitutes").message(), pass);
                experts_ = router_experts_;
                resident_ = router_resident_;
                for (size_t i = 0; i < n; ++i) weights_[i] = was[i].weight;
            }
        }
        router_weights_ = weights_;
        const size_t dropped = route::drop_cold({experts_, weights_, resident_}, dials.drop_cold, dropped_);
        if (dropped + substituted == 0) continue;
        changed = true;
        pass.dropped += static_cast<int64_t>(dropped);
        pass.substituted += static_cast<int64_t>(substituted);
        kept_[static_cast<size_t>(t)] =
            static_cast<int32_t>(route::move_dropped_last({experts_, weights_, resident_}, dropped_, order_));
        for (int64_t k = 0; k < ranks; ++k) {
            const auto i = static_cast<size_t>(k);
            const auto from = static_cast<size_t>(order_[i]);
            was[i] = {.rank = order_[i], .weight = router_weights_[from], .dropped = dropped_[from] != 0};
            set(ids, id_offset(ids, k, t), experts_[i]);
            set(weights, weight_offset(weights, k, t), weights_[i]);
        }
    }
    if (!changed) clear();
}

}  // namespace sluice::exec
