// Owns: what is counted of the blocks of a pass through the model, in the pass, the model's counters and the record.
// Keeps: a block is counted once, however many of its nodes look its experts up and in however many pieces it comes;
// each read and each wait is in one block.
#pragma once

#include <ggml.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "exec/block.h"
#include "exec/launch.h"
#include "exec/model_runtime.h"
#include "trace/pass.h"

namespace sluice::exec {

// One per context; the runtime's lock is held during each call that is given one.
class PassBook {
  public:
    PassBook(Launch& launch, const Block& block) : launch_(launch), block_(block) {}

    // The next block is of a new pass, of which a graph may be only a part.
    void begin_graph() { set_ = UINT32_MAX; }

    // A product of a block that looks experts up.
    struct Visit {
        bool first = false;     // it is the block's first
        bool new_pass = false;  // and the pass's
    };
    Visit visit(const WeightRef& weight, const ggml_tensor* ids);
    // Of the pass. Its first block tells the phase: the last layer of a prompt may have a single row, since only
    // outputs that somebody asked for are computed there.
    [[nodiscard]] bool decoding() const { return decoding_; }
    [[nodiscard]] int64_t rows() const { return rows_; }
    [[nodiscard]] trace::Phase phase() const { return decoding_ ? trace::Phase::decode : trace::Phase::prefill; }
    [[nodiscard]] trace::PhaseCounters& counters(ModelRuntime& runtime) const {
        return decoding_ ? runtime.counters.decode : runtime.counters.prefill;
    }

    // Its router has chosen; nothing is leased. Once per block.
    void count_choice(const WeightRef& weight, const ggml_tensor* ids);
    // What the router chose for, for an output that keeps it.
    void note_router(const WeightRef& weight, const ggml_tensor* ids, std::span<const float> input);
    // The weights of the block's routings are an input of the node that applies them; this may be it.
    void note_weights(const ggml_tensor* node);

    // Runs `reading`, which waits for reads and may compute, and books what the scheduler did meanwhile.
    template <typename F>
    auto accounted(const WeightRef& weight, F&& reading) {
        const Before before = look(*weight.runtime);
        if constexpr (std::is_void_v<std::invoke_result_t<F>>) {
            std::forward<F>(reading)();
            book(weight, before);
        } else {
            auto result = std::forward<F>(reading)();
            book(weight, before);
            return result;
        }
    }
    // For reads that were booked so.
    [[nodiscard]] Nanos waited() const { return waited_; }
    // All that was not counted before: what went between blocks belongs to the next one.
    void count_evictions(ModelRuntime& runtime);

  private:
    struct Before {
        sched::SchedCounters sched;
        io::EngineTotals engine;
        Nanos waited = 0;
    };
    [[nodiscard]] Before look(const ModelRuntime& runtime) const;
    void book(const WeightRef& weight, const Before& before);
    void count_routes(const WeightRef& weight, const ggml_tensor* ids);
    [[nodiscard]] trace::Pass& pass() const { return launch_.pass(); }

    Launch& launch_;
    const Block& block_;
    const ModelRuntime* runtime_ = nullptr;
    uint32_t set_ = UINT32_MAX;             // visited last in this pass
    std::vector<uint8_t> first_component_;  // by set: the component whose node comes first, as once seen
    bool decoding_ = false;
    int64_t rows_ = 0;  // that the first set of the pass saw
    Nanos waited_ = 0;
    size_t routes_begin_ = 0;        // in the pass: the block's routings, whose weights are still to come
    std::vector<uint8_t> paid_for_;  // by expert: a row before has paid for the miss
};

}  // namespace sluice::exec
