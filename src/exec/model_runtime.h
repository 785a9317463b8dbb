// Owns: what all contexts of one loaded model share while computing: its slots and the right to use them.
// Keeps: one MoE block at a time touches the slots; whoever holds the lock holds all leases.
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "base/stop.h"
#include "exec/own_memory.h"
#include "exec/prefill_plan.h"
#include "exec/shadow_cache.h"
#include "route/dials.h"
#include "route/likely.h"
#include "route/scores.h"
#include "route/trained_gate.h"
#include "route/trial.h"
#include "sched/fetcher.h"
#include "store/record_store.h"
#include "trace/counters.h"

namespace sluice::exec {

// How the slots of one expert tensor look to ggml.
struct WeightForm {
    // Set where slots hold a form of the CPU backend's own (repacked rows): nodes over them carry this buffer and
    // extra. Both null: slots hold the file's bytes.
    ggml_backend_buffer_t buffer = nullptr;
    void* extra = nullptr;
};

// What is done in decode for layers whose routers have not chosen yet.
struct PrefetchOptions {
    uint32_t depth = 0;           // layers ahead; 0: nothing
    uint32_t reads = UINT32_MAX;  // of a layer's experts, at most
    route::Guesser guesser;       // whose guesses; empty: what the last token chose
    bool stale_gate = false;      // or those of the layers' own routers on the hidden state of the layer at hand
    bool automatic = false;       // only while ModelRuntime::trial says so
    std::function<bool(int64_t token)> acts;  // for tests, in the trial's place
    [[nodiscard]] bool on() const { return depth > 0; }
};

// Choices of experts that are taken from early rankings (exec/route_ahead). Changes results.
struct RouteAheadOptions {
    uint32_t depth = 0;  // layers; 0: off
    bool predicted_weights = false;
    bool small_routers = true;  // rank with a large router's copy in 8 bits
    bool early_reads = true;
};

struct ModelRuntime {
    std::timed_mutex mutex;  // held for a whole block: who may be stopped does not wait for it blindly (claim)
    ggml_backend_t computing = nullptr;  // of whoever holds the lock: its threads may help with what comes meanwhile
    const store::RecordStore* store = nullptr;
    // Made at the first block that needs it, when the context's own memory is already there to be counted.
    std::function<Result<std::unique_ptr<sched::Fetcher>>()> make_fetcher;
    std::unique_ptr<sched::Fetcher> fetcher;
    std::vector<std::vector<WeightForm>> forms;  // [set][component]
    std::vector<std::vector<bool>> same_delta;   // [set][component]: all experts sit equally deep in their slots
    bool overlap = true;                         // compute with what is there while the rest is read
    uint32_t wave = 0;                           // experts per launch while others are read, at least; 0: as they come
    size_t own_bytes = kOwnBytes;                // as there
    PrefillMode prefill_mode = PrefillMode::automatic;
    bool follow_routers = false;        // in every token; each context keeps a RouterBook
    route::Dials dials;                 // what may change which experts run in decode
    std::optional<ShadowCache> shadow;  // where "in memory" is to follow from the tokens alone; guarded by mutex
    PrefetchOptions prefetch;
    std::optional<route::TrainedGate> trained;  // what the stale gate is corrected by, where the user has it
    RouteAheadOptions route_ahead;
    // In a token that acts on guesses, or not.
    [[nodiscard]] bool follows_routers(bool acts) const {
        return follow_routers || (prefetch.on() && prefetch.stale_gate && acts);
    }
    std::optional<route::Trial> trial;  // whether guesses are acted on, with PrefetchOptions::automatic
    struct Asked {
        int64_t tokens = 0, on = 0;       // of decode; those for which it said yes
    } asked;                              // the trial; guarded by mutex
    std::optional<PromptBook> prompts;    // made with the first prompt; guarded by mutex
    std::optional<route::Scores> scores;  // of guesses, where the user wants them; guarded by mutex
    trace::Counters counters;             // guarded by mutex
    // Which ways of computing less well than known graphs allow the user was told of; guarded by mutex.
    struct Told {
        bool parts = false;    // a block comes in several graphs
        bool pattern = false;  // a node between its products is not known
    };
    Told told;
    // Layers of which experts were read while others computed, by how: each expert by itself, and product by product.
    uint64_t blocks_by_rank = 0, blocks_by_node = 0;  // guarded by mutex
    cache::CacheCounters counted;                     // of the cache, as far as passes were told; guarded by mutex
    int32_t number = -1;                              // of the model in the run record; -1: there is none
};

// Two ways of running one model change places: its slots, what its options make of decode, and what was learned for
// those. What is the model's own stays, and so do the counters. Both locks are held, and neither has a lease.
void exchange_ways(ModelRuntime& a, ModelRuntime& b);

// Waits for the lock, and asks meanwhile whether to stop. What was not got is not held.
std::unique_lock<std::timed_mutex> claim(std::timed_mutex& mutex, Stop stop);

// The right to use a model's slots.
class Turn {
  public:
    Turn() = default;
    // `lock` is held, on the runtime's mutex.
    Turn(std::unique_lock<std::timed_mutex> lock, ModelRuntime& runtime, ggml_backend_t computing)
        : runtime_(&runtime), lock_(std::move(lock)) {
        runtime.computing = computing;
    }
    Turn(Turn&& other) noexcept : runtime_(std::exchange(other.runtime_, nullptr)), lock_(std::move(other.lock_)) {}
    Turn& operator=(Turn&& other) noexcept {
        end();
        runtime_ = std::exchange(other.runtime_, nullptr);
        lock_ = std::move(other.lock_);
        return *this;
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() { end(); }

  private:
    void end() {
        if (runtime_ == nullptr) return;
        runtime_->computing = nullptr;
        runtime_ = nullptr;
        lock_.unlock();
    }
    ModelRuntime* runtime_ = nullptr;
    std::unique_lock<std::timed_mutex> lock_;
};

// What an expert tensor of the graph refers to (ggml_tensor::extra of the weight points here).
struct WeightRef {
    ModelRuntime* runtime = nullptr;
    uint32_t set = 0;
    uint32_t component = 0;
};

}  // namespace sluice::exec
