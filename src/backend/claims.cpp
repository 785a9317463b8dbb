#include "backend/claims.h"

#include <ggml-backend.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "exec/is_view.h"

namespace sluice::backend {
namespace {

// How llama.cpp's names of the nodes after the router's choice begin ("ffn_moe_up-3", "ffn_moe_down_biased-3",
// "ffn_moe_gate_up-3"). Nodes that an architecture leaves unnamed stay with the CPU backend: one more split, the same
// result.
constexpr std::array<std::string_view, 12> kBlockNodes{
    "ffn_moe_up",   "ffn_moe_gate", "ffn_moe_down", "ffn_moe_swiglu", "ffn_moe_geglu", "ffn_moe_reglu",
    "ffn_moe_silu", "ffn_moe_gelu", "ffn_moe_relu", "ffn_moe_situ",   "ffn_moe_out",   "ffn_moe_weighted"};
// Begins like the last of them, but belongs to the router.
constexpr std::string_view kRouterWeights = "ffn_moe_weights";

// Nobody named it: ggml numbers such nodes when it builds the graph.
bool is_unnamed(std::string_view name) {
    return name.empty() || name.starts_with("node_");
}

bool is_block_name(std::string_view name) {
    if (name.starts_with(kRouterWeights)) return false;
    return std::any_of(kBlockNodes.begin(), kBlockNodes.end(),
                       [&](std::string_view prefix) { return name.starts_with(prefix); });
}

// The sum over ranks is a chain of unnamed additions of views of "ffn_moe_weighted". Chains are as long as top-k.
constexpr int kMaxChain = 64;
bool is_sum_of_ranks(const ggml_tensor* t, int depth) {
    if (depth > kMaxChain) return false;
    while (t->view_src != nullptr) t = t->view_src;
    if (is_block_name(t->name)) return true;
    return t->op == GGML_OP_ADD && is_sum_of_ranks(t->src[1], depth + 1) && is_sum_of_ranks(t->src[0], depth + 1);
}

}  // namespace

bool is_ours(const ggml_tensor* node, bool (*on_us)(const ggml_tensor*)) {
    if (exec::is_view(node->op)) return true;
    if (node->op == GGML_OP_MUL_MAT_ID && on_us(node->src[0])) return node->src[1]->type == GGML_TYPE_F32;
    for (const ggml_tensor* src : node->src) {
        if (src != nullptr && on_us(src)) return false;
    }
    const bool claimed =
        is_block_name(node->name) || (node->op == GGML_OP_ADD && is_unnamed(node->name) && is_sum_of_ranks(node, 0));
    return claimed && ggml_backend_dev_supports_op(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), node);
}

}  // namespace sluice::backend
