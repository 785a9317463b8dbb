#include "exec/early_run.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

namespace sluice::exec {

void EarlyRun::clear() {
    nodes_.clear();
    placed_ = 0;
    computed_ = true;
}

void EarlyRun::find(ggml_cgraph* graph, int at, WeightLookup weight_of, size_t most_bytes) {
    find_early_nodes(graph, at, weight_of, nodes_);
    if (nodes_.bytes > most_bytes || nodes_.nodes.size() > Launch::kMaxNodes) nodes_.clear();
    placed_ = 0;
    computed_ = nodes_.nodes.empty();
}

ggml_status EarlyRun::compute() {
    if (std::exchange(computed_, true)) return GGML_STATUS_SUCCESS;
    if (numbers_.size() < nodes_.bytes) numbers_.resize(nodes_.bytes);
    for (size_t i = 0; i < nodes_.nodes.size(); ++i) {
        ggml_tensor* out = launch_.copy_of(nodes_.nodes[i]);
        out->data = numbers_.data() + nodes_.begin[i];
        for (ggml_tensor*& src : out->src) {
            const int made = src != nullptr ? nodes_.source(src) : -1;
            if (made >= 0) src = launch_.leaf_like(src, memory(src, static_cast<size_t>(made)));
        }
        launch_.append(out);
    }
    return launch_.flush();
}

std::byte* EarlyRun::memory(const ggml_tensor* t, size_t made) {
    return numbers_.data() + nodes_.begin[made] +
           (static_cast<const char*>(t->data) - static_cast<const char*>(nodes_.nodes[made]->data));
}

bool EarlyRun::is_next(int at) const {
    assert(!is_before(at));
    return !all_placed() && nodes_.at[placed_] == at;
}

void EarlyRun::place() {
    ggml_tensor* node = nodes_.nodes[placed_];
    std::byte* numbers = numbers_.data() + nodes_.begin[placed_++];
    if (!launch_.has_work()) {
        std::memcpy(node->data, numbers, ggml_nbytes(node));
        return;
    }
    ggml_tensor* from = launch_.leaf_like(node, numbers);
    ggml_tensor* copy = launch_.copy_of(node);
    copy->op = GGML_OP_DUP;
    std::fill(std::begin(copy->src), std::end(copy->src), nullptr);
    std::fill(std::begin(copy->op_params), std::end(copy->op_params), 0);
    copy->src[0] = from;
    launch_.append(copy);
}

}  // namespace sluice::exec
