// Owns: how weights that lie in slots look to a kernel: one expert's, or a window over neighbouring slots.
// Keeps: the kernel reads the bytes that stock would read, in the same form.
#pragma once

#include <ggml.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/ids.h"
#include "exec/launch.h"
#include "exec/model_runtime.h"

namespace sluice::exec {

// Widest range of slots that one node may span. The kernel's bookkeeping grows with it (72 bytes written per slot and
// call, plus 8 per slot and row reserved), and at this width it still costs less than one more node per expert.
inline constexpr int64_t kMaxWindow = 2048;

// From kPanelRows rows of one expert on, ggml computes these types with other arithmetic, but only over contiguous
// weights, and only on x86 (its iqp.cpp; IQ4_NL is none of them).
bool has_panel_kernel(ggml_type type);
inline constexpr size_t kPanelRows = 8;

// Neighbouring slots, seen as one tensor.
struct Window {
    const std::byte* begin = nullptr;  // of the component in the first slot
    cache::SlotId first = 0;
    int64_t slots = 0;
    size_t stride = 0;
};
// The slots of these records, which are there and all equally deep in them, and what lies between.
Window window_over(const WeightRef& weight, std::span<const RecordId> records);

// In the place of the weight tensor `original`, until the next flush: the experts in a window, ...
ggml_tensor* slot_weight(Launch& launch, const ggml_tensor* original, const WeightRef& weight, const Window& window);
// ... or one expert.
ggml_tensor* slot_weight(Launch& launch, const ggml_tensor* original, const WeightRef& weight, RecordId record);

// Ids like the graph's, in memory of ours.
ggml_tensor* ids_of(Launch& launch, const ggml_tensor* original, int32_t* values, int64_t n_ids, int64_t n_tokens);

}  // namespace sluice::exec
