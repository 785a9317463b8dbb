// Owns: rows of a block's nodes, taken apart by rank, in memory of our own: in which order they lie, and stand-ins for
// the nodes that compute some of them.
// Keeps: rows of one expert lie side by side. Not in the graph's memory, because that may be shared by nodes that stock
// computes one after the other; it gets the numbers at the end, in node order.
#pragma once

#include <ggml.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "exec/block.h"
#include "exec/early_run.h"
#include "exec/launch.h"
#include "exec/rank_block.h"

namespace sluice::exec {

// One per context. A row is named by its place in the order.
class RankRows {
  public:
    RankRows(Launch& launch, EarlyRun& early, const Block& block) : launch_(launch), early_(early), block_(block) {}

    // Finds the nodes from `at` of the graph on, whose first is a product of the block.
    const RankBlock& find(ggml_cgraph* graph, int at, WeightLookup weight_of);
    [[nodiscard]] const RankBlock& nodes() const { return nodes_; }

    // Orders the block's rows and makes room for them: those of experts that are there come first; otherwise as the
    // router chose, a prompt's as in the file. Returns how many there are.
    size_t begin(const WeightRef& weight);
    [[nodiscard]] size_t size() const { return order_.size(); }
    [[nodiscard]] RecordId record(size_t place) const { return record_[place]; }
    // Where the rows of an expert that runs begin, and one past the last row of the expert whose row is at `place`.
    [[nodiscard]] size_t place_of(uint32_t expert) const { return static_cast<size_t>(place_[expert]); }
    [[nodiscard]] size_t end_of_expert(size_t place) const;

    // Appends stand-ins of the nodes from `first` to before `last`, for the rows from `begin` to before `end`, whose
    // experts' matrices are there.
    void append(const WeightRef& weight, WeightLookup weight_of, size_t begin, size_t end, size_t first, size_t last);

    // All rows of node `n` are computed: copies them to where they belong.
    void place(size_t n);

  private:
    void append_product(size_t number, const WeightRef& weight, size_t begin, size_t end);
    ggml_tensor* source_rows(const ggml_tensor* src, size_t begin, size_t end);
    std::byte* row(size_t node, size_t place) {
        return numbers_.data() + begin_[node] + place * nodes_.nodes[node]->nb[1];
    }

    Launch& launch_;
    EarlyRun& early_;
    const Block& block_;
    RankBlock nodes_;
    std::vector<Row> order_;
    std::vector<RecordId> record_;  // by place
    std::vector<int32_t> place_;    // by expert: where its rows begin; -1: nowhere
    std::vector<size_t> begin_;     // by node, into numbers_
    std::vector<std::byte> numbers_;
};

}  // namespace sluice::exec
