#include "exec/block.h"

#include "exec/views.h"

namespace sluice::exec {

uint64_t record_bytes(const model::ExpertSet& set) {
    uint64_t bytes = 0;
    for (const model::ExpertTensor& t : set.tensors) bytes += t.bytes_per_expert;
    return bytes;
}

Status Block::group(const WeightRef& weight, const ggml_tensor* ids) {
    const store::RecordStore& store = *weight.runtime->store;
    const uint32_t n = store.geometry().sets[weight.set].n_expert;
    const int64_t n_ids = ids->ne[0];
    const int64_t n_tokens = ids->ne[1];
    row_begin_.assign(n + 1, 0);
    for (int64_t t = 0; t < n_tokens; ++t) {
        for (int64_t k = 0; k < edit.kept(t, n_ids); ++k) {
            const int32_t id = id_at(ids, k, t);
            if (id < 0 || static_cast<uint32_t>(id) >= n) {
                return error(Code::corrupt, "the router chose expert {} of {} ({})", id, n, ids->name);
            }
            ++row_begin_[static_cast<size_t>(id) + 1];
        }
    }
    for (size_t e = 0; e < n; ++e) row_begin_[e + 1] += row_begin_[e];
    rows_.resize(static_cast<size_t>(row_begin_.back()));
    next_.assign(row_begin_.begin(), row_begin_.end() - 1);
    for (int64_t t = 0; t < n_tokens; ++t) {
        for (int64_t k = 0; k < edit.kept(t, n_ids); ++k) {
            const auto id = static_cast<size_t>(id_at(ids, k, t));
            rows_[static_cast<size_t>(next_[id]++)] = {static_cast<int32_t>(k), static_cast<int32_t>(t)};
        }
    }
    records.clear();
    for (uint32_t e = 0; e < n; ++e) {
        if (n_rows_of(e) > 0) records.push_back(store.record(weight.set, e));
    }
    return {};
}

}  // namespace sluice::exec
