#include "backend/claims.h"

#include <ggml-backend.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "exec/views.h"

namespace sluice::backend {
namespace {

// How llama.cpp's names of the nodes after the router's choice begin ("ffn_moe_up-3", "ffn_moe_down_biased-3",
// "ffn_moe_gate_up-3"). What an architecture leaves unnamed is told by where its numbers come from.
constexpr std::array<std::string_view, 13> kBlockNodes{
    "ffn_moe_up",    "ffn_moe_gate",  "ffn_moe_down",    "ffn_moe_swiglu", "ffn_moe_geglu",
    "ffn_moe_reglu", "ffn_moe_silu",  "ffn_moe_gelu",    "ffn_moe_relu",   "ffn_moe_situ",
    "ffn_moe_out",   "ffn_moe_shexp", "ffn_moe_weighted"};
// Begins like the last of them, but belongs to the router.
constexpr std::string_view kRouterWeights = "ffn_moe_weights";

bool is_block_name(std::string_view name) {
    if (name.starts_with(kRouterWeights)) return false;
    return std::any_of(kBlockNodes.begin(), kBlockNodes.end(),
                       [&](std::string_view prefix) { return name.starts_with(prefix); });
}

bool contains(std::string_view text, std::string_view part) {
    return text.find(part) != std::string_view::npos;
}

// A tensor that no node computes: a weight, or an input of the graph.
bool is_leaf(const ggml_tensor* t) {
    return t->op == GGML_OP_NONE;
}

// What every token uses: the shared expert with its gate, scales and biases of experts.
bool is_block_weight(const ggml_tensor* t) {
    return is_leaf(t) && (contains(t->name, "_shexp.") || contains(t->name, "_exps."));
}

// With its norm a block is over: what follows may be another branch of the graph, and the norm would be a part of its
// own.
bool is_norm(ggml_op op) {
    return op == GGML_OP_RMS_NORM || op == GGML_OP_NORM || op == GGML_OP_L2_NORM || op == GGML_OP_GROUP_NORM;
}

// Looks at sources of sources until a name tells. The sum over ranks is a chain as long as top-k.
class Origin {
  public:
    Origin(WeightTest on_us, bool dense_weights) : on_us_(on_us), dense_weights_(dense_weights) {}

    bool in_block(const ggml_tensor* node) {
        if (--steps_ < 0) return false;
        if (node->op == GGML_OP_MUL_MAT_ID && on_us_(node->src[0])) return true;
        if (is_block_name(node->name)) return true;
        if (is_norm(node->op)) return false;
        bool from_block = false, has_dense = false;
        for (const ggml_tensor* src : node->src) {
            if (src == nullptr) continue;
            const ggml_tensor* r = exec::root(src);
            if (is_leaf(r)) {
                from_block = from_block || is_block_weight(r);
                has_dense = true;
            }
        }
        if (has_dense && !dense_weights_) return false;
        if (from_block) return true;
        // All that is not a weight or the router's choice comes from the block, and something does.
        for (const ggml_tensor* src : node->src) {
            if (src == nullptr || src->type == GGML_TYPE_I32) continue;
            const ggml_tensor* r = exec::root(src);
            if (is_leaf(r)) continue;
            if (!in_block(r)) return false;
            from_block = true;
        }
        return from_block;
    }

  private:
    WeightTest on_us_;
    bool dense_weights_;
    int steps_ = 512;
};

}  // namespace

bool is_ours(const ggml_tensor* node, WeightTest on_us, bool dense_weights) {
    if (exec::is_view(node->op)) return true;
    if (node->op == GGML_OP_MUL_MAT_ID && on_us(node->src[0])) return node->src[1]->type == GGML_TYPE_F32;
    for (const ggml_tensor* src : node->src) {
        if (src != nullptr && on_us(src)) return false;
    }
    return Origin(on_us, dense_weights).in_block(node) &&
           ggml_backend_dev_supports_op(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), node);
}

}  // namespace sluice::backend
