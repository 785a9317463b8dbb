// Owns: computing one product with experts, all or some of which are there: in one node over a window of slots where
// that is possible, else expert by expert.
// Keeps: bit identity: the CPU backend's own kernel over the same bytes, all rows of an expert in one call. Ranks that
// no expert computes are zeros.
#pragma once

#include <ggml.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "exec/block.h"
#include "exec/launch.h"
#include "exec/slot_weights.h"

namespace sluice::exec {

// One per context. Of the block at hand, whose experts are leased.
class Products {
  public:
    Products(Launch& launch, const Block& block) : launch_(launch), block_(block) {}

    // All experts are there: the window over which one node computes all rows, if there is one.
    [[nodiscard]] std::optional<Window> window_for(const ggml_tensor* node, const WeightRef& weight) const;
    // Appends that node, or for a single token one for each expert. Several tokens without a window are for gather().
    ggml_status append(ggml_tensor* node, const WeightRef& weight, const std::optional<Window>& window);

    // Computes the node's rows of these experts, which are there, over copies of its input's rows; that is computed,
    // and nothing waits for the launch. Groups of experts share a launch as long as their rows fit a scratch memory.
    ggml_status gather(ggml_tensor* node, const WeightRef& weight, std::span<const RecordId> records);

    // Ranks that no expert computes, of all tokens of the node, now.
    void clear_dropped_rows(ggml_tensor* node) const;

  private:
    void append_window(ggml_tensor* node, const WeightRef& weight, const Window& window);
    void append_single_rows(ggml_tensor* node, const WeightRef& weight);
    void append_dropped_rows(ggml_tensor* node);
    void append_gathered(ggml_tensor* node, const WeightRef& weight, std::span<const RecordId> records, size_t rows);

    Launch& launch_;
    const Block& block_;
    std::vector<int32_t> place_;   // by expert: its slot's in the window
    std::vector<std::byte> rows_;  // gathered, and what comes of them
};

}  // namespace sluice::exec
