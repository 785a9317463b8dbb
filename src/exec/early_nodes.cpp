#include "exec/early_nodes.h"

#include <algorithm>

#include "base/bytes.h"
#include "exec/views.h"

namespace sluice::exec {
void EarlyNodes::clear() {
    at.clear();
    nodes.clear();
    begin.clear();
    late_.clear();
    bytes = 0;
}

int EarlyNodes::source(const ggml_tensor* t) const {
    const ggml_tensor* r = root(t);
    const auto found = std::find(nodes.begin(), nodes.end(), r);
    return found == nodes.end() ? -1 : static_cast<int>(found - nodes.begin());
}

void find_early_nodes(ggml_cgraph* graph, int begin, WeightLookup weight_of, EarlyNodes& early) {
    early.clear();
    const auto is_late = [&](const ggml_tensor* t) {
        return std::find(early.late_.begin(), early.late_.end(), t) != early.late_.end();
    };
    const int n = ggml_graph_n_nodes(graph);
    for (int i = begin; i < n; ++i) {
        ggml_tensor* node = ggml_graph_node(graph, i);
        if (is_view(node->op)) continue;  // only shows what its root is
        bool free = (node->flags & GGML_TENSOR_FLAG_COMPUTE) != 0 && !ggml_is_empty(node) &&
                    node->view_src == nullptr && ggml_is_contiguous(node);
        for (const ggml_tensor* src : node->src) {
            if (src != nullptr && (weight_of(src) != nullptr || is_late(root(src)))) free = false;
        }
        if (!free) {
            early.late_.push_back(root(node));  // of one that writes into another, the other
            continue;
        }
        early.at.push_back(i);
        early.nodes.push_back(node);
        early.begin.push_back(early.bytes);
        early.bytes += align_up(ggml_nbytes(node), size_t{64});
    }
}

}  // namespace sluice::exec
