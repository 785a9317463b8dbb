// Owns: one loaded model as Sluice sees it: its index, its experts' places, its slots.
// Keeps: it lives as long as any buffer of the model; everything but the runtime is fixed once the buffers are made.
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/process_memory.h"
#include "base/status.h"
#include "exec/model_runtime.h"
#include "exec/pool_task.h"
#include "io/engine.h"
#include "model/geometry.h"
#include "sched/profile.h"
#include "sluice/sluice.h"
#include "store/record_store.h"

namespace sluice::backend {

class ModelState {
  public:
    // `geometry` is that of `index`. `repack`: the model is loaded with the CPU backend's extra buffer
    // types, so slots hold what stock llama.cpp would compute from. Fails where the cache size cannot hold an expert.
    static Result<std::shared_ptr<ModelState>> open(model::GgufIndex index, model::Geometry geometry,
                                                    const Config& given, bool repack);
    ~ModelState();
    ModelState(const ModelState&) = delete;
    ModelState& operator=(const ModelState&) = delete;

    [[nodiscard]] const model::GgufIndex& index() const { return index_; }
    [[nodiscard]] const model::Geometry& geometry() const { return geometry_; }
    [[nodiscard]] exec::ModelRuntime& runtime() { return runtime_; }

    // Another way of running this model, for exec::exchange_ways(): with what `given` says of decode, and with slots of
    // its own, `given.cache_bytes` of them at most, which no budget of the process counts. For benchmarks in which
    // several take turns with the same weights. It does not outlive the model.
    Result<std::unique_ptr<exec::ModelRuntime>> make_way(const Config& given);

    [[nodiscard]] const Config& config() const { return config_; }
    [[nodiscard]] bool repack() const { return repack_; }
    [[nodiscard]] const char* engine_name() const { return engine_->name(); }
    // Whether every file of experts is read past the page cache.
    [[nodiscard]] bool reads_directly() const { return store_->direct(); }
    // Called when the last buffer of the model is freed, for what should outlive it.
    void (*on_end)(ModelState& model) = nullptr;
    // Reads a stretch of one of the model's files now, as io::read_exact does. Thread-safe: it waits for its turn with
    // the engine that experts are read by.
    Result<std::byte*> read(const io::File& file, uint64_t offset, uint64_t bytes, std::span<std::byte> region);
    // What a tensor of this name refers to; nullptr when it holds no experts.
    [[nodiscard]] const exec::WeightRef* weight(const std::string& tensor_name) const;

  private:
    ModelState() = default;
    // What experts may take at most, and need at least, by the configuration and the form of slots.
    [[nodiscard]] uint64_t most_bytes(const Config& config) const;
    [[nodiscard]] uint64_t least_bytes() const;
    Status use_experts(uint32_t n);
    Status choose_forms();
    [[nodiscard]] Result<std::optional<route::TrainedGate>> read_trained(const Config& config) const;
    void set_way(exec::ModelRuntime& runtime, const Config& config);
    void set_shadow(exec::ModelRuntime& runtime, const Config& config, const cache::Layout& layout) const;
    void set_prefetch(exec::ModelRuntime& runtime, const Config& config);
    void limit_prefetch(exec::ModelRuntime& runtime, uint64_t slots) const;
    sched::Fetcher::Options fetcher_options(const Config& config);
    Result<std::unique_ptr<sched::Fetcher>> make_fetcher();
    // The profile of past runs, as --profile says: into the policy, and back with what this run added.
    std::string warm(sched::Fetcher& fetcher);
    void keep_profile();
    [[nodiscard]] Result<sched::Profile> read_profile_at(const std::string& path) const;
    void convert(uint32_t set, uint32_t component, const std::byte* raw, std::byte* slot);

    Config config_;
    bool repack_ = false;
    model::GgufIndex index_;
    model::Geometry geometry_;
    std::unique_ptr<store::RecordStore> store_;
    std::unique_ptr<io::Engine> engine_;
    std::optional<StreamedModel> counted_;
    std::unique_ptr<cache::BudgetShare> share_;  // outlives the runtime's slots
    std::string digest_;                         // of the model; only with a profile
    std::string profile_path_;                   // empty: none is written
    std::optional<sched::Profile> profile_;      // of the runs before
    sched::DeviceModel device_;                  // of the drive that the first holder lies on
    exec::PoolTask convert_task_;
    exec::ModelRuntime runtime_;  // its fetcher converts
    std::vector<std::vector<bool>> converted_;
    std::vector<ggml_backend_buffer_t> form_buffers_;
    std::vector<std::pair<std::string, exec::WeightRef>> weights_;  // sorted by name
};

// For gates and tests: every engine made from now on is what `wrap` makes of it. Null: itself.
using WrapEngine = std::function<std::unique_ptr<io::Engine>(std::unique_ptr<io::Engine>)>;
void wrap_engines(WrapEngine wrap);

// For tests: of models that are opened from now on, the drive counts as measured so, and guesses are this predictor's.
struct Foresight {
    std::optional<sched::DeviceModel> device;
    route::Guesser guesser;
    std::function<bool(int64_t token)> acts;  // instead of what `auto` finds out
    bool no_early_reads = false;              // choices are committed early, but their experts wait for their layer
};
void set_foresight(Foresight given);

// The process is about to end: models that are freed from now on leave what their reads may still write to in memory,
// instead of waiting for reads that may never come.
void abandon_reads();

// The extra buffer types of the CPU backend (repacked layouts), in its order of preference.
std::vector<ggml_backend_buffer_type_t> extra_buffer_types();
// Which of them stock llama.cpp would choose for a weight used by `op` (whose src[0] is the weight), or nullptr.
ggml_backend_buffer_type_t extra_buffer_type_for(ggml_tensor* op);

// Which matrices of experts that backend computes from a form of its own, by set and component; with `repack` off none.
std::vector<std::vector<bool>> converted_matrices(const model::Geometry& geometry, bool repack);

uint32_t slots_wanted_at_once(const model::Geometry& geometry);

// Memory of ours beside the slots: what reads that are converted go through, and what blocks of graphs of at most so
// many tokens are computed in.
uint64_t own_buffers_need(const model::GgufIndex& index, const store::RecordStore& store,
                          const std::vector<std::vector<bool>>& converted, uint64_t tokens);

// What --predict-model names: corrections of this model's guesses. Nothing where the path is empty.
Result<std::optional<route::TrainedGate>> read_trained(const model::GgufIndex& index, const model::Geometry& geometry,
                                                       const std::string& path);
// Memory of ours for guesses: routers in 8 bits, and what was read by read_trained().
uint64_t guessing_need(const model::GgufIndex& index, const model::Geometry& geometry, const Config& config,
                       const std::optional<route::TrainedGate>& trained);

// A configuration as it acts on a model: options that would change answers, and change nothing in this one, are off, so
// that nobody says that they did. `said` gets what the user should know about that; empty: nothing.
Config acting_on(const model::GgufIndex& index, const model::Geometry& geometry, const Config& config,
                 std::string* said);

}  // namespace sluice::backend
