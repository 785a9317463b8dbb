// Owns: a layer's router as the graph has it, copied so that it can be run again: on the hidden state of another layer,
// or to learn what weights it gives to experts that it did not choose.
// Keeps: every number comes from the CPU backend's own kernels for nodes of the same form, so on the router's own input
// a replay chooses what the graph chose, bit for bit. Weights are the model's own memory, all else is the replay's.
// Where only a guess or an early ranking is wanted, a large router is run on a copy of its weight in 8 bits, which
// takes less of the memory's time.
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"

namespace sluice::exec {

// Where a block's choice of experts comes from.
struct RouterOrigin {
    const ggml_tensor* gate = nullptr;   // the weight "blk.N.ffn_gate_inp.weight"
    const ggml_tensor* input = nullptr;  // that it is multiplied with: a hidden state for each token
    // Of all nodes between the input and the choice with its weights: another one is another router, to which a replay
    // made earlier does not belong (an adapter was attached).
    uint64_t form = 0;
};

// Follows a block's `ids` (and the `weights` that it applies, if any) up the graph to the router's product. Fails where
// they come from anything else than one product of a hidden state.
Result<RouterOrigin> find_router(const ggml_tensor* ids, const ggml_tensor* weights);

// The tensor that the block in `graph` multiplies its experts' results (or, where the architecture has it so, their
// input) with. nullptr where there is none.
const ggml_tensor* applied_weights(ggml_cgraph* graph);

// Whether `t` is sure to hold its numbers when all nodes of `graph` before `at` are computed: a later one reads them,
// and none of the graph's writes them.
bool is_read_by(ggml_cgraph* graph, int at, const ggml_tensor* t);

// The numbers of one token. False where the tensor has no such row of floats in memory of this process.
bool copy_row(const ggml_tensor* input, int64_t token, std::span<float> row);

// What the copy in 8 bits of a router's weight takes that has so many numbers; 0: there is none.
uint64_t small_copy_bytes(ggml_type type, uint64_t n_input, uint64_t n_expert);

class RouterReplay {
  public:
    // From a graph over one token. `weights` may be null: then there are none to ask for.
    static Result<RouterReplay> make(const ggml_tensor* ids, const ggml_tensor* weights);

    [[nodiscard]] const RouterOrigin& origin() const { return origin_; }  // its input is of the graph that made this
    [[nodiscard]] size_t n_input() const { return input_.size(); }
    [[nodiscard]] size_t n_used() const { return static_cast<size_t>(ids_->ne[0]); }
    [[nodiscard]] size_t n_expert() const { return n_expert_; }

    // Chooses for the hidden state `x` (n_input() numbers). On threads of `cpu`; nothing is allocated, but for memory
    // that the backend itself keeps for its next graphs.
    Status run(ggml_backend_t cpu, std::span<const float> x);
    // The same for a guess, or for a choice that is declared to be made so: with the copy in 8 bits where
    // has_small_copy(), which is made at the first call. Near ties may fall otherwise.
    Status guess(ggml_backend_t cpu, std::span<const float> x);
    [[nodiscard]] bool has_small_copy() const { return small_ != nullptr; }
    // What the last run chose, best first, and the weights with which the block would apply it.
    [[nodiscard]] std::span<const int32_t> ids() const;
    [[nodiscard]] std::span<const float> weights() const;
    // The weights that the router of the last run gives to other experts (n_used() of them), normalised and scaled over
    // these.
    Result<std::span<const float>> weights_of(ggml_backend_t cpu, std::span<const int32_t> ids);
    // Bit for bit what run() and weights_of() say, in one go: without what only a choice needs. What was chosen and
    // ranked before is stale then.
    Result<std::span<const float>> weigh(ggml_backend_t cpu, std::span<const float> x, std::span<const int32_t> ids);

    // All experts of the last run, best first, and by expert the numbers that ranked them. Empty where the choice is
    // more than the head of one ranking.
    [[nodiscard]] std::span<const int32_t> ranking() const;
    [[nodiscard]] std::span<const float> scores() const;

  private:
    RouterReplay() = default;
    friend class RouterCopy;

    Status take_input(std::span<const float> x);
    Result<std::span<const float>> weigh_by(ggml_cgraph* graph, ggml_backend_t cpu, std::span<const int32_t> ids);

    struct FreeContext {
        void operator()(ggml_context* c) const { ggml_free(c); }
    };

    RouterOrigin origin_;
    size_t n_expert_ = 0;
    std::vector<ggml_tensor> tensors_;  // never grows after make(): they point to each other
    std::vector<std::byte> memory_, small_memory_;
    std::span<float> input_;
    std::span<int32_t> other_ids_;    // that weights_of() was asked for
    ggml_tensor* product_ = nullptr;  // of the router
    ggml_tensor* small_ = nullptr;    // its weight's copy in 8 bits
    const ggml_tensor* ids_ = nullptr;
    const ggml_tensor* weights_ = nullptr;
    const ggml_tensor* other_weights_ = nullptr;
    const ggml_tensor* ranking_ = nullptr;
    const ggml_tensor* scores_ = nullptr;
    std::unique_ptr<ggml_context, FreeContext> context_;  // of the graphs
    ggml_cgraph* choose_ = nullptr;
    ggml_cgraph* weigh_ = nullptr;      // after choose_
    ggml_cgraph* weigh_all_ = nullptr;  // by itself
};

}  // namespace sluice::exec
