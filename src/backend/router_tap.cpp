#include "backend/router_tap.h"

#include <ggml-impl.h>

namespace sluice::backend {

ggml_status compute_with_taps(ggml_cgraph* graph, exec::RouterBook& book, const ComputePiece& compute) {
    const int n = ggml_graph_n_nodes(graph);
    int begin = 0;
    for (int i = 0; i < n; ++i) {
        const ggml_tensor* node = ggml_graph_node(graph, i);
        if (!book.is_tapped(node)) continue;
        ggml_cgraph piece = ggml_graph_view(graph, begin, i + 1);
        const ggml_status status = compute(&piece);
        if (status != GGML_STATUS_SUCCESS) return status;
        book.tapped(node);
        begin = i + 1;
    }
    if (begin == 0) return compute(graph);
    if (begin == n) return GGML_STATUS_SUCCESS;
    ggml_cgraph rest = ggml_graph_view(graph, begin, n);
    return compute(&rest);
}

}  // namespace sluice::backend
