#include "exec/launch.h"

#include <cassert>
#include <utility>

#include "base/log.h"
#include "exec/node_trace.h"
#include "exec/views.h"

namespace sluice::exec {

Launch::Launch(ggml_backend_t cpu) : cpu_(cpu) {
    context_.reset(ggml_init({ggml_graph_overhead_custom(kMaxNodes, false) + ggml_tensor_overhead(), nullptr, true}));
    graph_ = ggml_new_graph_custom(context_.get(), kMaxNodes, false);
}

void Launch::begin(trace::Pass& pass) {
    pass_ = &pass;
    error_ = Status();
    drop();
}

ggml_status Launch::make_room(size_t nodes) {
    assert(nodes <= kMaxNodes);
    if (static_cast<size_t>(ggml_graph_n_nodes(graph_)) + nodes <= kMaxNodes) return GGML_STATUS_SUCCESS;
    return flush();
}

void Launch::append(ggml_tensor* node) {
    ggml_graph_add_node(graph_, node);
    has_work_ = has_work_ || !is_view(node->op);
}

ggml_status Launch::flush() {
    const ggml_status status = has_work_ ? run() : GGML_STATUS_SUCCESS;
    drop();
    return status;
}

void Launch::drop() {
    ggml_graph_clear(graph_);
    has_work_ = false;
    tensors_.used = ints_.used = bytes_.used = 0;
}

ggml_status Launch::run() {
    const Nanos before = pass_->ledger.spent(trace::Part::routed);
    ggml_status status = GGML_STATUS_SUCCESS;
    {
        const trace::During computing(pass_->ledger, trace::Part::routed);
        if (pass_->wants.nodes || pass_->wants.node_layers) {
            int32_t layer = layer_;
            status = compute_traced(cpu_, ggml_backend_graph_compute, graph_, *pass_, true, layer);
        } else {
            status = ggml_backend_graph_compute(cpu_, graph_);
        }
    }
    const Nanos took = pass_->ledger.spent(trace::Part::routed) - before;
    if (set_ < pass_->layers.size()) {
        pass_->layers[set_].routed += took;
    } else {
        unbooked_ += took;
    }
    return status;
}

ggml_tensor* Launch::copy_of(const ggml_tensor* of) {
    ggml_tensor* t = &tensors_.next();
    *t = *of;
    return t;
}

ggml_tensor* Launch::leaf_like(const ggml_tensor* of, void* data) {
    ggml_tensor* t = copy_of(of);
    t->op = GGML_OP_NONE;
    t->view_src = nullptr;
    t->data = data;
    return t;
}

int32_t* Launch::new_ints(size_t n) {
    std::vector<int32_t>& v = ints_.next();
    if (v.size() < n) v.resize(n);
    return v.data();
}

std::byte* Launch::new_bytes(size_t n) {
    std::vector<std::byte>& v = bytes_.next();
    if (v.size() < n) v.resize(n);
    return v.data();
}

ggml_status Launch::fail(Status status) {
    if (status.code() == Code::cancelled) return GGML_STATUS_ABORTED;
    error_ = std::move(status);
    log(LogLevel::error, "{}", error_.message());
    return GGML_STATUS_FAILED;
}

}  // namespace sluice::exec
