// Owns: what the block at hand is once its router has chosen: which experts run, for which rows, in which mode.
// Keeps: `records` are distinct and of one set. Rows of an expert are in the order of their tokens, as the kernels
// themselves would group them.
#pragma once

#include <ggml.h>

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "cache/slot_cache.h"
#include "exec/model_runtime.h"
#include "exec/prefill_plan.h"
#include "exec/route_edit.h"

namespace sluice::exec {

// What one expert computes for one token.
struct Row {
    int32_t k = 0;  // rank in the router's choice
    int32_t t = 0;  // token
};

inline bool is_prompt(Mode mode) {
    return mode == Mode::micro || mode == Mode::macro;
}

// What a prompt brings in passes through; what decode lives on stays.
inline cache::Seat seat_in(Mode mode) {
    return is_prompt(mode) ? cache::Seat::guest : cache::Seat::member;
}

// Of one record.
uint64_t record_bytes(const model::ExpertSet& set);

class Block {
  public:
    Mode mode = Mode::decode;
    RouteEdit edit;                 // what an option has made of the router's choice
    std::vector<RecordId> records;  // of the experts that run; whoever leases them may change their order

    // Groups the rows of the graph's choice, as far as it is computed, by expert.
    Status group(const WeightRef& weight, const ggml_tensor* ids);
    [[nodiscard]] uint32_t n_expert() const { return static_cast<uint32_t>(row_begin_.size() - 1); }
    [[nodiscard]] std::span<const Row> rows_of(uint32_t expert) const {
        return std::span(rows_).subspan(static_cast<size_t>(row_begin_[expert]), n_rows_of(expert));
    }
    [[nodiscard]] size_t n_rows_of(uint32_t expert) const {
        return static_cast<size_t>(row_begin_[expert + 1] - row_begin_[expert]);
    }
    [[nodiscard]] size_t n_rows() const { return rows_.size(); }

  private:
    std::vector<int32_t> row_begin_;  // [n_expert + 1] into rows_
    std::vector<Row> rows_;           // by expert
    std::vector<int32_t> next_;       // by expert: where its next row goes
};

}  // namespace sluice::exec
