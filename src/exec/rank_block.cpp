#include "exec/rank_block.h"

#include "exec/early_nodes.h"
#include "exec/views.h"

namespace sluice::exec {
namespace {

// One row per rank of each token.
bool has_rows(const ggml_tensor* t, const RankBlock& block) {
    return t->ne[1] == block.ranks && t->ne[2] == block.tokens && t->ne[3] == 1;
}

// The same row for every rank, or for every rank of every token.
bool is_shared(const ggml_tensor* t, const RankBlock& block) {
    return t->ne[1] == 1 && (t->ne[2] == block.tokens || t->ne[2] == 1) && t->ne[3] == 1;
}

// Every number of the result comes from numbers in the same row of the sources.
bool is_row_by_row(ggml_op op) {
    switch (op) {
        case GGML_OP_UNARY:
        case GGML_OP_GLU:
        case GGML_OP_ADD:
        case GGML_OP_SUB:
        case GGML_OP_MUL:
        case GGML_OP_DIV:
        case GGML_OP_SCALE:
        case GGML_OP_CLAMP:
        case GGML_OP_SQR:
            return true;
        default:
            return false;
    }
}

}  // namespace

int RankBlock::source(const ggml_tensor* t) const {
    const ggml_tensor* r = root(t);
    for (size_t i = nodes.size(); i-- > 0;) {
        if (nodes[i] == r) return static_cast<int>(i);
    }
    return -1;
}

namespace {

// A source that is of the block shows whole rows of it, or the same part of each row; one from outside has a row per
// rank or one for all.
bool source_fits(const RankBlock& block, const ggml_tensor* src) {
    if (const int made = block.source(src); made >= 0) {
        const ggml_tensor* from = block.nodes[static_cast<size_t>(made)];
        const auto offset =
            static_cast<size_t>(static_cast<const char*>(src->data) - static_cast<const char*>(from->data));
        return has_rows(src, block) && src->nb[1] == from->nb[1] && src->nb[2] == from->nb[2] && offset < from->nb[1];
    }
    return src->type == GGML_TYPE_F32 && src->nb[0] == sizeof(float) && (has_rows(src, block) || is_shared(src, block));
}

bool fits(const RankBlock& block, const ggml_tensor* node, const ggml_tensor* ids, const WeightRef& first,
          WeightLookup weight_of) {
    if (node->view_src != nullptr || node->type != GGML_TYPE_F32 || !has_rows(node, block) ||
        !ggml_is_contiguous(node)) {
        return false;
    }
    if (node->op == GGML_OP_MUL_MAT_ID) {
        const WeightRef* weight = weight_of(node->src[0]);
        return weight != nullptr && weight->runtime == first.runtime && weight->set == first.set &&
               node->src[2]->data == ids->data && source_fits(block, node->src[1]);
    }
    if (node->op == GGML_OP_ADD_ID) {
        return weight_of(node->src[1]) == nullptr && node->src[2]->data == ids->data &&
               block.source(node->src[1]) < 0 && source_fits(block, node->src[0]);
    }
    if (!is_row_by_row(node->op)) return false;
    for (const ggml_tensor* src : node->src) {
        if (src != nullptr && (weight_of(src) != nullptr || !source_fits(block, src))) return false;
    }
    return true;
}

}  // namespace

void find_rank_block(ggml_cgraph* graph, int begin, WeightLookup weight_of, const EarlyNodes& early, RankBlock& block) {
    block.nodes.clear();
    block.at.clear();
    block.end = begin;
    block.row_bytes = 0;
    block.last_product = 0;
    block.before_last = block.all = 0;
    block.unknown = -1;
    const ggml_tensor* first = ggml_graph_node(graph, begin);
    const ggml_tensor* ids = first->src[2];
    block.ranks = ids->ne[0];
    block.tokens = ids->ne[1];
    if (block.ranks * block.tokens < 2) return;
    const WeightRef& weight = *weight_of(first->src[0]);
    const int n = ggml_graph_n_nodes(graph);
    for (int i = begin; i < n; ++i) {
        ggml_tensor* node = ggml_graph_node(graph, i);
        // Views: whose end they are, the next node that computes tells.
        if (is_view(node->op) || early.source(node) >= 0) continue;
        const bool wanted = (node->flags & GGML_TENSOR_FLAG_COMPUTE) != 0;
        if (!wanted || !fits(block, node, ids, weight, weight_of)) {
            block.unknown = i;
            break;
        }
        if (node->op == GGML_OP_MUL_MAT_ID) {
            block.last_product = block.nodes.size();
            block.before_last = block.all;
            block.all = static_cast<uint8_t>(block.all | cache::component_bit(weight_of(node->src[0])->component));
        }
        block.nodes.push_back(node);
        block.at.push_back(i);
        block.row_bytes += node->nb[1];
        block.end = i + 1;
    }
}

}  // namespace sluice::exec
