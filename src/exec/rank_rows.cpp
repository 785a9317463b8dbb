#include "exec/rank_rows.h"

#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "exec/slot_weights.h"
#include "exec/views.h"

namespace sluice::exec {
namespace {

// Makes it `n` rows, as far apart as they are.
void set_rows(ggml_tensor& t, int64_t n) {
    t.ne[1] = n;
    t.ne[2] = t.ne[3] = 1;
    t.nb[2] = t.nb[3] = t.nb[1] * static_cast<size_t>(n);
}

// Rows of one tensor each, instead of rows of one.
void stand_apart(ggml_tensor& t) {
    t.ne[2] = std::exchange(t.ne[1], 1);
    t.nb[2] = t.nb[1];
    t.nb[3] = t.nb[1] * static_cast<size_t>(t.ne[2]);
}

}  // namespace

const RankBlock& RankRows::find(ggml_cgraph* graph, int at, WeightLookup weight_of) {
    find_rank_block(graph, at, weight_of, early_.nodes(), nodes_);
    return nodes_;
}

size_t RankRows::begin(const WeightRef& weight) {
    const sched::Fetcher& fetcher = *weight.runtime->fetcher;
    const store::RecordStore& store = *weight.runtime->store;
    const ggml_tensor* ids = nodes_.nodes[0]->src[2];
    order_.clear();
    record_.clear();
    place_.assign(block_.n_expert(), -1);
    const auto add = [&](uint32_t e, bool resident) {
        const RecordId r = store.record(weight.set, e);
        if (place_[e] >= 0 || fetcher.resident(r) != resident) return;
        const std::span<const Row> rows = block_.rows_of(e);
        place_[e] = static_cast<int32_t>(order_.size());
        order_.insert(order_.end(), rows.begin(), rows.end());
        record_.resize(order_.size(), r);
    };
    for (const bool resident : {true, false}) {
        if (is_prompt(block_.mode)) {
            for (uint32_t e = 0; e < block_.n_expert(); ++e) {
                if (block_.n_rows_of(e) > 0) add(e, resident);
            }
            continue;
        }
        for (int64_t t = 0; t < nodes_.tokens; ++t) {
            for (int64_t k = 0; k < nodes_.ranks; ++k) add(static_cast<uint32_t>(id_at(ids, k, t)), resident);
        }
    }

    size_t bytes = 0;
    begin_.clear();
    for (const ggml_tensor* node : nodes_.nodes) {
        begin_.push_back(bytes);
        bytes = align_up(bytes + order_.size() * node->nb[1], size_t{64});
    }
    if (numbers_.size() < bytes) numbers_.resize(bytes);
    return order_.size();
}

size_t RankRows::end_of_expert(size_t place) const {
    const RecordId r = record_[place];
    while (place < record_.size() && record_[place] == r) ++place;
    return place;
}

void RankRows::append(const WeightRef& weight, WeightLookup weight_of, size_t begin, size_t end, size_t first,
                      size_t last) {
    const auto n = static_cast<int64_t>(end - begin);
    for (size_t number = first; number < last; ++number) {
        const ggml_tensor* node = nodes_.nodes[number];
        if (node->op == GGML_OP_MUL_MAT_ID) {
            append_product(number, *weight_of(node->src[0]), begin, end);
            continue;
        }
        ggml_tensor* out = launch_.copy_of(node);
        out->data = row(number, begin);
        set_rows(*out, n);
        for (int s = 0; s < GGML_MAX_SRC; ++s) {
            if (node->src[s] == nullptr) continue;
            if (node->op == GGML_OP_ADD_ID && s == 1) continue;  // the biases of all experts
            if (node->op == GGML_OP_ADD_ID && s == 2) {
                int32_t* experts = launch_.new_ints(end - begin);
                for (size_t i = begin; i < end; ++i)
                    experts[i - begin] = static_cast<int32_t>(weight.runtime->store->expert_of(record_[i]));
                out->src[s] = ids_of(launch_, node->src[s], experts, n, 1);
            } else {
                out->src[s] = source_rows(node->src[s], begin, end);
            }
        }
        launch_.append(out);
    }
}

// A product for the rows of some experts: one node where their slots lie in one window, else one per expert.
void RankRows::append_product(size_t number, const WeightRef& weight, size_t begin, size_t end) {
    const ggml_tensor* node = nodes_.nodes[number];
    const sched::Fetcher& fetcher = *weight.runtime->fetcher;
    const Window window = window_over(weight, std::span(record_).subspan(begin, end - begin));
    bool together = end_of_expert(begin) < end && window.slots <= kMaxWindow &&
                    weight.runtime->same_delta[weight.set][weight.component];
    for (size_t i = begin; together && has_panel_kernel(node->src[0]->type) && i < end; i = end_of_expert(i))
        together = end_of_expert(i) - i < kPanelRows;
    for (size_t i = begin; i < end;) {
        const size_t next = together ? end : end_of_expert(i);
        const auto n = static_cast<int64_t>(next - i);
        int32_t* slots = launch_.new_ints(next - i);
        for (size_t j = i; j < next; ++j)
            slots[j - i] = together ? static_cast<int32_t>(fetcher.cache().find(record_[j]) - window.first) : 0;

        ggml_tensor* out = launch_.copy_of(node);
        out->data = row(number, i);
        set_rows(*out, n);
        out->src[0] = together ? slot_weight(launch_, node->src[0], weight, window)
                               : slot_weight(launch_, node->src[0], weight, record_[i]);
        out->src[1] = source_rows(node->src[1], i, next);
        const bool apart = nodes_.tokens > 1;
        out->src[2] = ids_of(launch_, node->src[2], slots, apart ? 1 : n, apart ? n : 1);
        if (apart) {
            // Kernels take it that no token chooses an expert twice: each row is one of a token of its own.
            stand_apart(*out);
            stand_apart(*out->src[1]);
        }
        launch_.append(out);
        i = next;
    }
}

// The rows of a source that belong to these places, one after the other.
ggml_tensor* RankRows::source_rows(const ggml_tensor* src, size_t begin, size_t end) {
    const size_t n = end - begin;
    const int made = nodes_.source(src);
    const int early = made < 0 ? early_.nodes().source(src) : -1;
    const bool for_all = made < 0 && src->ne[1] == 1 && src->ne[2] == 1;
    if (for_all && early < 0) return const_cast<ggml_tensor*>(src);
    ggml_tensor* rows = launch_.leaf_like(src, src->data);
    if (early >= 0) rows->data = early_.memory(src, static_cast<size_t>(early));
    if (for_all) return rows;
    if (made >= 0) {
        const ggml_tensor* from = nodes_.nodes[static_cast<size_t>(made)];
        rows->data = row(static_cast<size_t>(made), begin) +
                     (static_cast<const char*>(src->data) - static_cast<const char*>(from->data));
    } else {
        const size_t bytes = static_cast<size_t>(src->ne[0]) * sizeof(float);
        std::byte* copy = launch_.new_bytes(n * bytes);
        for (size_t i = 0; i < n; ++i) {
            const Row r = order_[begin + i];
            std::memcpy(copy + i * bytes, row_at(rows, r.k % src->ne[1], r.t % src->ne[2]), bytes);
        }
        rows->data = copy;
        rows->nb[1] = bytes;
    }
    set_rows(*rows, static_cast<int64_t>(n));
    return rows;
}

void RankRows::place(size_t n) {
    ggml_tensor* node = nodes_.nodes[n];
    for (size_t i = 0; i < order_.size(); ++i)
        std::memcpy(row_at(node, order_[i].k, order_[i].t), row(n, i), node->nb[1]);
}

}  // namespace sluice::exec
