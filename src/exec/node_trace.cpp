#include "exec/node_trace.h"

#include <sys/resource.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string_view>

#include "exec/views.h"

namespace sluice::exec {
namespace {

int64_t major_faults() {
    rusage usage{};
    return getrusage(RUSAGE_SELF, &usage) == 0 ? usage.ru_majflt : 0;
}

bool is_of_shared(const ggml_tensor* t) {
    return t != nullptr && std::string_view(t->name).find("shexp") != std::string_view::npos;
}

// Which part a node belongs to, by the names that llama.cpp gives nodes and weights: its own, its sources', and those
// of the weights of products that it uses. `routed`: of a graph with experts of ours.
trace::Part part_of(const ggml_tensor* node, bool routed) {
    const std::string_view name = node->name;
    if (is_of_shared(node)) return trace::Part::shared;
    for (const ggml_tensor* src : node->src) {
        if (is_of_shared(src) || (src != nullptr && is_of_shared(src->src[0]))) return trace::Part::shared;
    }
    if (routed) return trace::Part::routed;
    return name.starts_with("ffn_moe_") ? trace::Part::router : trace::Part::dense;
}

struct FreeContext {
    void operator()(ggml_context* c) const { ggml_free(c); }
};

}  // namespace

int32_t layer_in_name(const char* name) {
    const char* dash = std::strrchr(name, '-');
    if (dash == nullptr || dash[1] < '0' || dash[1] > '9') return -1;
    char* end = nullptr;
    const long n = std::strtol(dash + 1, &end, 10);
    return (*end == '\0' || *end == ' ') && n < 1'000'000 ? static_cast<int32_t>(n) : -1;
}

ggml_status compute_traced(ggml_backend_t backend, GraphCompute compute, ggml_cgraph* graph, trace::Pass& pass,
                           bool routed, int32_t& layer) {
    const int n = ggml_graph_n_nodes(graph);
    if (n == 0) return GGML_STATUS_SUCCESS;
    const std::unique_ptr<ggml_context, FreeContext> context(
        ggml_init({ggml_graph_overhead_custom(static_cast<size_t>(n), false) + ggml_tensor_overhead(), nullptr, true}));
    ggml_cgraph* piece = ggml_new_graph_custom(context.get(), static_cast<size_t>(n), false);
    const bool single = pass.wants.nodes;

    for (int i = 0; i < n;) {
        ggml_tensor* first = ggml_graph_node(graph, i);
        if (const int32_t named = layer_in_name(first->name); named >= 0) layer = named;
        ggml_graph_clear(piece);
        bool work = false;
        int32_t next_layer = layer;
        do {
            ggml_tensor* node = ggml_graph_node(graph, i);
            ggml_graph_add_node(piece, node);
            work = work || !is_view(node->op);
            if (++i == n) break;
            const int32_t named = layer_in_name(ggml_graph_node(graph, i)->name);
            next_layer = named >= 0 ? named : layer;
        } while (!single && next_layer == layer);
        if (!work) continue;

        const trace::During part(pass.ledger, part_of(first, routed));
        const int64_t faults = major_faults();
        const Nanos begin = pass.ledger.clock().now();
        const ggml_status status = compute(backend, piece);
        pass.node_events.push_back({.layer = layer,
                                    .op = single ? ggml_op_name(first->op) : "LAYER",
                                    .name = single ? first->name : "",
                                    .wall = pass.ledger.clock().now() - begin,
                                    .major_faults = major_faults() - faults,
                                    .routed = routed});
        if (status != GGML_STATUS_SUCCESS) return status;
    }
    return GGML_STATUS_SUCCESS;
}

}  // namespace sluice::exec
