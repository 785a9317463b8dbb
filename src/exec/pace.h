// Owns: in which mode each block is computed, how long those of a prompt take, and what of the next layer is read
// before its router has chosen. Keeps: decode reads nothing that no router chose; the time of a block is counted
// without waiting, once.
#pragma once

#include <ggml.h>

#include <cstdint>

#include "exec/block.h"
#include "exec/launch.h"
#include "exec/model_runtime.h"
#include "exec/pass_book.h"

namespace sluice::exec {

// One per context; the runtime's lock is held from plan() to end_block() or forget().
class Pace {
  public:
    Pace(Launch& launch, PassBook& book, Block& block) : launch_(launch), book_(book), block_(block) {}

    // A new pass through the model.
    void begin_pass();
    // Chooses the mode of the block, whose router has chosen. That of a prompt's was chosen when the block before it
    // was planned. `first`: of its products, as the book has it.
    void plan(const WeightRef& weight, const ggml_tensor* ids, bool first);
    // All of this block is asked for: what about the next one's, while this one computes?
    void plan_next(const WeightRef& weight);
    // They are read, too.
    [[nodiscard]] bool next_is_ahead() const { return next_is_ahead_; }
    // The block is computed.
    void end_block();
    // It tells nothing of how long such blocks take.
    void forget() { timed_ = nullptr; }

  private:
    Launch& launch_;
    PassBook& book_;
    Block& block_;
    bool next_is_ahead_ = false;
    ModelRuntime* timed_ = nullptr;  // of the prompt's block whose time is being taken
    uint32_t timed_set_ = 0;
    Nanos began_ = 0, waited_ = 0;
    Nanos ended_ = -1;  // of the prompt's block before; -1: there is none
};

}  // namespace sluice::exec
