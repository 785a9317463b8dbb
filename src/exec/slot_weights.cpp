#include "exec/slot_weights.h"

#include <algorithm>

namespace sluice::exec {
namespace {

// A weight tensor of `n_as` experts, `stride` bytes apart.
ggml_tensor* weight_view(Launch& launch, const ggml_tensor* original, const WeightRef& weight, const std::byte* data,
                         int64_t n_as, size_t stride) {
    const WeightForm& form = weight.runtime->forms[weight.set][weight.component];
    ggml_tensor* w = launch.copy_of(original);
    w->data = const_cast<std::byte*>(data);
    w->ne[2] = n_as;
    w->nb[2] = stride;
    w->nb[3] = stride * static_cast<size_t>(n_as);
    w->buffer = form.buffer;
    w->extra = form.extra;
    return w;
}

}  // namespace

bool has_panel_kernel(ggml_type type) {
#if defined(__x86_64__)
    switch (type) {
        case GGML_TYPE_IQ1_S:
        case GGML_TYPE_IQ1_M:
        case GGML_TYPE_IQ2_XXS:
        case GGML_TYPE_IQ2_XS:
        case GGML_TYPE_IQ2_S:
        case GGML_TYPE_IQ3_XXS:
        case GGML_TYPE_IQ3_S:
        case GGML_TYPE_IQ4_XS:
            return true;
        default:
            return false;
    }
#else
    (void)type;
    return false;
#endif
}

Window window_over(const WeightRef& weight, std::span<const RecordId> records) {
    const sched::Fetcher& fetcher = *weight.runtime->fetcher;
    const cache::Layout& layout = fetcher.layout();
    cache::SlotId low = UINT32_MAX, high = 0;
    for (const RecordId r : records) {
        const cache::SlotId s = fetcher.cache().find(r);
        low = std::min(low, s);
        high = std::max(high, s);
    }
    const size_t stride = layout.classes[layout.class_of_set[weight.set]].slot_bytes;
    const std::byte* begin =
        fetcher.data(records[0], weight.component) - (fetcher.cache().find(records[0]) - low) * stride;
    return {.begin = begin, .first = low, .slots = static_cast<int64_t>(high) - low + 1, .stride = stride};
}

ggml_tensor* slot_weight(Launch& launch, const ggml_tensor* original, const WeightRef& weight, const Window& window) {
    return weight_view(launch, original, weight, window.begin, window.slots, window.stride);
}

ggml_tensor* slot_weight(Launch& launch, const ggml_tensor* original, const WeightRef& weight, RecordId record) {
    return weight_view(launch, original, weight, weight.runtime->fetcher->data(record, weight.component), 1,
                       static_cast<size_t>(original->ne[1]) * original->nb[1]);
}

ggml_tensor* ids_of(Launch& launch, const ggml_tensor* original, int32_t* values, int64_t n_ids, int64_t n_tokens) {
    ggml_tensor* ids = launch.leaf_like(original, values);
    ids->ne[0] = n_ids;
    ids->ne[1] = n_tokens;
    ids->nb[0] = sizeof(int32_t);
    ids->nb[1] = sizeof(int32_t) * static_cast<size_t>(n_ids);
    ids->nb[2] = ids->nb[3] = ids->nb[1] * static_cast<size_t>(n_tokens);
    return ids;
}

}  // namespace sluice::exec
