#include "exec/products.h"

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "exec/views.h"

namespace sluice::exec {
namespace {

// What a node over a window may make the kernel write down, at most.
constexpr uint64_t kMaxWindowWork = 64 * MiB;
// Rows gathered for computing experts one by one: enough to keep launches rare, small enough to stay in cache and
// budget.
constexpr size_t kGatherBytes = 4 * MiB;
// While reads are on their way: nobody but us gives the device more, so launches are short beside what it has queued.
constexpr size_t kGatherBytesReading = 1 * MiB;

// One row of a tensor, alone.
void show_row(ggml_tensor& t, char* row) {
    t.data = row;
    t.ne[1] = t.ne[2] = t.ne[3] = 1;
    t.nb[2] = t.nb[3] = t.nb[1];
}

// `n` rows side by side, each of a token of its own.
void show_rows(ggml_tensor& t, size_t n, size_t row_bytes) {
    t.ne[1] = t.ne[3] = 1;
    t.ne[2] = static_cast<int64_t>(n);
    t.nb[1] = t.nb[2] = row_bytes;
    t.nb[3] = row_bytes * n;
}

}  // namespace

std::optional<Window> Products::window_for(const ggml_tensor* node, const WeightRef& weight) const {
    const ModelRuntime& runtime = *weight.runtime;
    const int64_t n_tokens = node->src[2]->ne[1];
    const int64_t n_rows = node->src[2]->ne[0] * n_tokens;
    if (!runtime.same_delta[weight.set][weight.component]) return std::nullopt;
    // Tokens of which different numbers of ranks are computed are no node of the graph's shape.
    if (n_tokens > 1 && block_.edit.active()) return std::nullopt;
    if (has_panel_kernel(node->src[0]->type)) {
        for (const RecordId r : block_.records) {
            if (block_.n_rows_of(runtime.store->expert_of(r)) >= kPanelRows) return std::nullopt;
        }
    }
    const Window window = window_over(weight, block_.records);
    const bool narrow = window.slots <= std::max<int64_t>(block_.n_expert(), kMaxWindow) &&
                        static_cast<uint64_t>(window.slots * n_rows) * 8 <= kMaxWindowWork;
    return narrow ? std::optional(window) : std::nullopt;
}

ggml_status Products::append(ggml_tensor* node, const WeightRef& weight, const std::optional<Window>& window) {
    const size_t most = window ? 1 : static_cast<size_t>(node->src[2]->ne[0]);
    const ggml_status status = launch_.make_room(most + 1);  // and that of ranks that no expert computes
    if (status != GGML_STATUS_SUCCESS) return status;
    if (window) {
        append_window(node, weight, *window);
    } else {
        append_single_rows(node, weight);
    }
    append_dropped_rows(node);
    return GGML_STATUS_SUCCESS;
}

// The same node over a window of slots: one launch, as stock has it; ids become slot numbers.
void Products::append_window(ggml_tensor* node, const WeightRef& weight, const Window& window) {
    const ModelRuntime& runtime = *weight.runtime;
    place_.assign(block_.n_expert(), 0);
    for (const RecordId r : block_.records) {
        place_[runtime.store->expert_of(r)] = static_cast<int32_t>(runtime.fetcher->cache().find(r) - window.first);
    }
    const ggml_tensor* ids = node->src[2];
    // Of one token the ranks that are computed may be fewer than the graph has.
    const int64_t ranks = block_.edit.kept(0, ids->ne[0]);
    int32_t* out = launch_.new_ints(static_cast<size_t>(ranks * ids->ne[1]));
    ggml_tensor* places = ids_of(launch_, ids, out, ranks, ids->ne[1]);
    for (int64_t t = 0; t < ids->ne[1]; ++t) {
        for (int64_t k = 0; k < ranks; ++k) *out++ = place_[static_cast<size_t>(id_at(ids, k, t))];
    }

    ggml_tensor* n = launch_.copy_of(node);
    if (ranks < ids->ne[0]) {
        n->ne[1] = ranks;
        n->src[1] = launch_.copy_of(node->src[1]);
        n->src[1]->ne[1] = std::min(n->src[1]->ne[1], ranks);
    }
    n->src[0] = slot_weight(launch_, node->src[0], weight, window);
    n->src[2] = places;
    launch_.append(n);
}

// One node per expert, each over one row: decode with slots too far apart for one window.
void Products::append_single_rows(ggml_tensor* node, const WeightRef& weight) {
    const ggml_tensor* src1 = node->src[1];
    for (const RecordId r : block_.records) {
        for (const Row row : block_.rows_of(weight.runtime->store->expert_of(r))) {
            ggml_tensor* x = launch_.copy_of(src1);
            show_row(*x, row_at(src1, row.k % src1->ne[1], row.t));
            int32_t* zero = launch_.new_ints(1);
            *zero = 0;
            ggml_tensor* n = launch_.copy_of(node);
            show_row(*n, row_at(node, row.k, row.t));
            n->src[0] = slot_weight(launch_, node->src[0], weight, r);
            n->src[1] = x;
            n->src[2] = ids_of(launch_, node->src[2], zero, 1, 1);
            launch_.append(n);
        }
    }
}

// Ranks of one token that no expert computes are zeros: whatever the weights after them are, they add nothing.
void Products::append_dropped_rows(ggml_tensor* node) {
    const int64_t kept = block_.edit.kept(0, node->ne[1]);
    if (kept == node->ne[1]) return;
    ggml_tensor* rest = launch_.copy_of(node);
    rest->op = GGML_OP_FILL;
    rest->data = row_at(node, kept, 0);
    rest->ne[1] -= kept;
    std::fill(std::begin(rest->src), std::end(rest->src), nullptr);
    std::fill(std::begin(rest->op_params), std::end(rest->op_params), 0);
    rest->src[0] = node;
    launch_.append(rest);
}

void Products::clear_dropped_rows(ggml_tensor* node) const {
    if (!block_.edit.active()) return;
    for (int64_t t = 0; t < node->ne[2]; ++t) {
        for (int64_t k = block_.edit.kept(t, node->ne[1]); k < node->ne[1]; ++k)
            std::memset(row_at(node, k, t), 0, static_cast<size_t>(node->ne[0]) * sizeof(float));
    }
}

ggml_status Products::gather(ggml_tensor* node, const WeightRef& weight, std::span<const RecordId> records) {
    const store::RecordStore& store = *weight.runtime->store;
    sched::Fetcher& fetcher = *weight.runtime->fetcher;
    const size_t in_row = static_cast<size_t>(node->src[1]->ne[0]) * ggml_type_size(node->src[1]->type);
    const size_t out_row = static_cast<size_t>(node->ne[0]) * sizeof(float);
    const auto n_rows = [&](RecordId r) { return block_.n_rows_of(store.expert_of(r)); };

    for (size_t begin = 0; begin < records.size();) {
        const bool reading = fetcher.reading();
        const size_t most = reading ? kGatherBytesReading : kGatherBytes;
        size_t end = begin;
        size_t rows = 0;
        while (end < records.size() && (end == begin || (rows + n_rows(records[end])) * (in_row + out_row) <= most) &&
               end - begin < Launch::kMaxNodes / 2) {
            rows += n_rows(records[end++]);
        }
        const std::span<const RecordId> group = records.subspan(begin, end - begin);
        if (rows_.size() < rows * (in_row + out_row)) rows_.resize(rows * (in_row + out_row));
        append_gathered(node, weight, group, rows);
        const ggml_status status = launch_.flush();
        if (status != GGML_STATUS_SUCCESS) return status;
        if (reading) fetcher.look(&launch_.pass());

        const std::byte* out = rows_.data() + rows * in_row;
        for (const RecordId r : group) {
            for (const Row row : block_.rows_of(store.expert_of(r))) {
                std::memcpy(row_at(node, row.k, row.t), out, out_row);
                out += out_row;
            }
        }
        begin = end;
    }
    clear_dropped_rows(node);
    return GGML_STATUS_SUCCESS;
}

// One node per expert. The first of the `rows` gathered rows, then of what comes of them, is that of the first one.
void Products::append_gathered(ggml_tensor* node, const WeightRef& weight, std::span<const RecordId> records,
                               size_t rows) {
    const ggml_tensor* src1 = node->src[1];
    const size_t in_row = static_cast<size_t>(src1->ne[0]) * ggml_type_size(src1->type);
    const size_t out_row = static_cast<size_t>(node->ne[0]) * sizeof(float);
    std::byte* in = rows_.data();
    std::byte* out = in + rows * in_row;
    int32_t* zeros = launch_.new_ints(rows);
    std::fill(zeros, zeros + rows, 0);
    for (const RecordId r : records) {
        const std::span<const Row> of = block_.rows_of(weight.runtime->store->expert_of(r));
        for (size_t i = 0; i < of.size(); ++i)
            std::memcpy(in + i * in_row, row_at(src1, of[i].k % src1->ne[1], of[i].t), in_row);
        ggml_tensor* x = launch_.leaf_like(src1, in);
        show_rows(*x, of.size(), in_row);
        ggml_tensor* y = launch_.copy_of(node);
        y->data = out;
        y->view_src = nullptr;
        show_rows(*y, of.size(), out_row);
        y->src[0] = slot_weight(launch_, node->src[0], weight, r);
        y->src[1] = x;
        y->src[2] = ids_of(launch_, node->src[2], zeros, 1, static_cast<int64_t>(of.size()));
        launch_.append(y);
        in += of.size() * in_row;
        out += of.size() * out_row;
    }
}

}  // namespace sluice::exec
