#include "exec/route_edit.h"

#include <algorithm>
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

void RouteEdit::refuse(const WeightRef& weight, const char* why) {
    if (told_) return;
    told_ = true;
    log(LogLevel::warn, "layer {} is computed as its router chose, whatever the lossy options say: {}",
        weight.runtime->store->geometry().sets[weight.set].layer, why);
}

void RouteEdit::edit(ggml_cgraph* graph, int at, const WeightRef& weight, WeightLookup weight_of, trace::Pass& pass) {
    clear();
    const ModelRuntime& runtime = *weight.runtime;
    if (!runtime.dials.any()) return;
    ggml_tensor* ids = ggml_graph_node(graph, at)->src[2];
    const int64_t ranks = ids->ne[0], tokens = ids->ne[1];
    pass.dials = true;
    pass.routed += ranks * tokens;
    const BlockWeights found = find_block_weights(graph, at, weight_of);
    if (found.tensor == nullptr) {
        pass.unedited += tokens;
        refuse(weight, found.why_not);
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
        bool sound = true;
        for (int64_t k = 0; k < ranks; ++k) {
            const auto i = static_cast<size_t>(k);
            experts_[i] = get<int32_t>(ids, id_offset(ids, k, t));
            weights_[i] = get<float>(weights, weight_offset(weights, k, t));
            was[i] = {.rank = static_cast<int32_t>(k), .weight = weights_[i]};
            // What is no expert is an error, of which the plan of the block speaks.
            sound = sound && experts_[i] >= 0 && static_cast<uint32_t>(experts_[i]) < n_expert;
            if (!sound) break;
            const RecordId record = runtime.store->record(weight.set, static_cast<uint32_t>(experts_[i]));
            resident_[i] = runtime.fetcher->resident(record) ? 1 : 0;
        }
        if (!sound) {
            clear();
            return;
        }
        const route::Choice choice{experts_, weights_, resident_};
        if (!route::weights_tell(weights_)) {
            ++pass.unedited;
            continue;
        }
        router_weights_ = weights_;
        const size_t dropped = route::drop_cold(choice, runtime.dials.drop_cold, dropped_);
        if (dropped == 0) continue;
        changed = true;
        pass.dropped += static_cast<int64_t>(dropped);
        kept_[static_cast<size_t>(t)] = static_cast<int32_t>(route::move_dropped_last(choice, dropped_, order_));
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
