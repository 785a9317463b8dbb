// Owns: nodes that wait to be computed together, the memory that they take until then, and on whose behalf that is: the
// pass it is booked to, who may stop it, and what went wrong.
// Keeps: what it hands out stays where it is until the next flush(), and is made anew after it; memory is kept.
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/stop.h"
#include "trace/pass.h"

namespace sluice::exec {

// One per context; used by one thread at a time.
class Launch {
  public:
    // More nodes than any block appends between two flushes; a fuller graph is simply computed earlier.
    static constexpr size_t kMaxNodes = 2048;

    // `cpu` computes everything and outlives this.
    explicit Launch(ggml_backend_t cpu);

    // Another graph: nothing waits, nothing went wrong.
    void begin(trace::Pass& pass);
    // What is appended from here on belongs to the block of this set.
    void at_set(uint32_t set, int32_t layer) {
        set_ = set;
        layer_ = layer;
    }
    // Arithmetic, since the last call, that could not be booked to a layer, because the pass did not know its layers.
    Nanos take_unbooked() { return std::exchange(unbooked_, 0); }

    // Room for so many nodes. Called before nodes of our own are made: a flush in between would recycle them.
    ggml_status make_room(size_t nodes);
    void append(ggml_tensor* node);
    // Computes what waits.
    ggml_status flush();
    // Forgets it.
    void drop();
    // Nodes wait, if only such as show other ones' memory.
    [[nodiscard]] bool empty() const { return ggml_graph_n_nodes(graph_) == 0; }
    // Of those some compute.
    [[nodiscard]] bool has_work() const { return has_work_; }

    // Until the next flush: a tensor like `of`, ...
    ggml_tensor* copy_of(const ggml_tensor* of);
    // ... one like `of` that is there already, at `data`, ...
    ggml_tensor* leaf_like(const ggml_tensor* of, void* data);
    // ... and memory.
    int32_t* new_ints(size_t n);
    std::byte* new_bytes(size_t n);

    [[nodiscard]] trace::Pass& pass() const { return *pass_; }
    [[nodiscard]] ggml_backend_t cpu() const { return cpu_; }
    void set_stop(Stop stop) { stop_ = stop; }
    [[nodiscard]] Stop stop() const { return stop_; }
    // Keeps and logs what went wrong; being stopped is nothing wrong. Returns what compute() returns then.
    ggml_status fail(Status status);
    [[nodiscard]] const Status& error() const { return error_; }

  private:
    ggml_status run();

    struct FreeContext {
        void operator()(ggml_context* c) const { ggml_free(c); }
    };
    // Storage that grows and keeps addresses.
    template <typename T>
    struct Pool {
        std::deque<T> all;
        size_t used = 0;
        T& next() {
            if (used == all.size()) all.emplace_back();
            return all[used++];
        }
    };

    ggml_backend_t cpu_;
    std::unique_ptr<ggml_context, FreeContext> context_;
    ggml_cgraph* graph_ = nullptr;
    bool has_work_ = false;
    trace::Pass* pass_ = nullptr;
    uint32_t set_ = UINT32_MAX;
    int32_t layer_ = -1;
    Nanos unbooked_ = 0;
    Stop stop_;
    Status error_;
    Pool<ggml_tensor> tensors_;
    Pool<std::vector<int32_t>> ints_;
    Pool<std::vector<std::byte>> bytes_;
};

}  // namespace sluice::exec
