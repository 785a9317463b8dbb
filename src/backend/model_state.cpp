#include "backend/model_state.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "backend/cpu_hooks.h"
#include "backend/feature_output.h"
#include "backend/options.h"
#include "backend/recording.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "exec/router_replay.h"
#include "io/read_all.h"
#include "machine/drive.h"
#include "machine/verdict.h"
#include "model/digest.h"

namespace sluice::backend {
namespace {

cache::Policy policy_of(CachePolicy policy) {
    switch (policy) {
        case CachePolicy::reuse:
            return cache::Policy::reuse;
        case CachePolicy::frequency:
            return cache::Policy::frequency;
        case CachePolicy::lru:
            return cache::Policy::lru;
    }
    return cache::Policy::reuse;
}

// Tokens of one graph at most, where the program has not said: llama.cpp's default (-ub).
constexpr uint64_t kUsualBatch = 512;

ggml_backend_dev_t cpu_device() {
    return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
}

// A MUL_MAT_ID as a layer of this set would run it, for asking what the CPU backend does with such a weight.
struct SampleNode {
    SampleNode(const model::Geometry& geometry, const model::ExpertSet& set, const model::ExpertTensor& t)
        : SampleNode(t, set.n_expert, std::min(slots_wanted_at_once(geometry), set.n_expert)) {}
    SampleNode(const model::ExpertTensor& t, uint32_t n_expert, uint32_t top_k) {
        const ggml_init_params params{8 * ggml_tensor_overhead(), nullptr, true};
        context = ggml_init(params);
        weight = ggml_new_tensor_3d(context, static_cast<ggml_type>(t.type), static_cast<int64_t>(t.ne0),
                                    static_cast<int64_t>(t.ne1), n_expert);
        constexpr int64_t kTokens = 4;
        ggml_tensor* x = ggml_new_tensor_3d(context, GGML_TYPE_F32, static_cast<int64_t>(t.ne0), top_k, kTokens);
        ggml_tensor* ids = ggml_new_tensor_2d(context, GGML_TYPE_I32, top_k, kTokens);
        node = ggml_mul_mat_id(context, weight, x, ids);
    }
    ~SampleNode() { ggml_free(context); }
    SampleNode(const SampleNode&) = delete;
    SampleNode& operator=(const SampleNode&) = delete;
    ggml_context* context = nullptr;
    ggml_tensor* weight = nullptr;
    ggml_tensor* node = nullptr;
};

// What `sluice probe` found out about the drive. Without it reads that nobody waits for stay away from the device.
sched::DeviceModel measured_device(const machine::DriveFacts& drive) {
    const auto verdict = machine::find_verdict(drive);
    if (!verdict.ok()) {
        const bool absent = verdict.status().code() == Code::not_found;
        log(absent ? LogLevel::debug : LogLevel::warn, "the drive counts as not measured: {}",
            verdict.status().message());
        return {};
    }
    return verdict->derived ? sched::device_model(*verdict->derived) : sched::DeviceModel{};
}

sched::Verify verify_policy(VerifyReads verify) {
    switch (verify) {
        case VerifyReads::always:
            return sched::Verify::always;
        case VerifyReads::once:
            return sched::Verify::once;
        case VerifyReads::never:
            break;
    }
    return sched::Verify::never;
}

exec::PrefillMode prefill_mode(PrefillMode mode) {
    switch (mode) {
        case PrefillMode::macro:
            return exec::PrefillMode::macro;
        case PrefillMode::micro:
            return exec::PrefillMode::micro;
        case PrefillMode::automatic:
            break;
    }
    return exec::PrefillMode::automatic;
}

// Of reading a profile: what is no profile, or another model's, is somebody's, and stays.
bool may_not_replace(Code code) {
    return code != Code::not_found && code != Code::corrupt && code != Code::unsupported;
}

// Each drive that takes its part of the reads has as many of them in flight.
io::EngineOptions engine_options(const Config& config, const store::RecordStore& store, bool priorities) {
    io::EngineOptions options;
    unsigned drives = 0;
    for (size_t h = 0; h < store.n_holders(); ++h) drives += store.holder(static_cast<store::HolderId>(h)).shares;
    options.lanes = std::min(config.io_threads * std::max(1U, drives), 64U);
    options.priorities = priorities;
    switch (config.io_engine) {
        case IoEngine::automatic:
            options.kind = io::EngineKind::automatic;
            break;
        case IoEngine::io_uring:
            options.kind = io::EngineKind::io_uring;
            break;
        case IoEngine::pread:
            options.kind = io::EngineKind::pread;
            break;
        case IoEngine::mmap:
            options.kind = io::EngineKind::mmap;
            break;
    }
    return options;
}

WrapEngine& engine_wrap() {
    static WrapEngine wrap;
    return wrap;
}

Foresight& foresight() {
    static Foresight given;
    return given;
}

std::atomic<bool> g_reads_abandoned{false};

}  // namespace

void set_foresight(Foresight given) {
    foresight() = std::move(given);
}

void abandon_reads() {
    g_reads_abandoned = true;
}

void wrap_engines(WrapEngine wrap) {
    engine_wrap() = std::move(wrap);
}

std::vector<ggml_backend_buffer_type_t> extra_buffer_types() {
    std::vector<ggml_backend_buffer_type_t> types;
    const auto get = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(cpu_proc("ggml_backend_dev_get_extra_bufts"));
    if (get == nullptr) return types;
    for (const ggml_backend_buffer_type_t* t = get(cpu_device()); t != nullptr && *t != nullptr; ++t)
        types.push_back(*t);
    return types;
}

ggml_backend_buffer_type_t extra_buffer_type_for(ggml_tensor* op) {
    // The loader asks in the same way: a buffer without memory of the type in question, then supports_op.
    ggml_tensor* weight = op->src[0];
    ggml_backend_buffer_t const saved = weight->buffer;
    ggml_backend_buffer_type_t chosen = nullptr;
    for (const ggml_backend_buffer_type_t type : extra_buffer_types()) {
        weight->buffer = ggml_backend_buft_alloc_buffer(type, 0);
        const bool supported = ggml_backend_dev_supports_op(cpu_device(), op);
        ggml_backend_buffer_free(weight->buffer);
        if (supported) {
            chosen = type;
            break;
        }
    }
    weight->buffer = saved;
    return chosen;
}

std::vector<std::vector<bool>> converted_matrices(const model::Geometry& geometry, bool repack) {
    std::vector<std::vector<bool>> converted;
    for (const model::ExpertSet& set : geometry.sets) {
        converted.emplace_back();
        for (const model::ExpertTensor& t : set.tensors)
            converted.back().push_back(repack && extra_buffer_type_for(SampleNode(geometry, set, t).node) != nullptr);
    }
    return converted;
}

uint32_t slots_wanted_at_once(const model::Geometry& geometry) {
    return std::max(1U, geometry.n_expert_used);
}

uint64_t own_buffers_need(const model::GgufIndex& index, const store::RecordStore& store,
                          const std::vector<std::vector<bool>>& converted, uint64_t tokens) {
    return add_capped(sched::Slots::staging_bytes(store, converted),
                      exec::own_memory_need(index, store.geometry(), tokens));
}

namespace {

// What the copies in 8 bits of all routers take that have one.
uint64_t small_routers(const model::GgufIndex& index, const model::Geometry& geometry) {
    uint64_t bytes = 0;
    for (const model::ExpertSet& set : geometry.sets) {
        const auto* gate = index.find(fmt::format("blk.{}.ffn_gate_inp.weight", set.layer));
        if (gate == nullptr) continue;
        bytes += exec::small_copy_bytes(static_cast<ggml_type>(gate->type), gate->ne[0], gate->ne[1]);
    }
    return bytes;
}

}  // namespace

uint64_t guessing_need(const model::GgufIndex& index, const model::Geometry& geometry, const Config& config,
                       const std::optional<route::TrainedGate>& trained) {
    const bool ranks = config.route_ahead > 0 && config.route_ahead_router == RouteAheadRouter::small;
    const bool guesses = config.predict_log || config.predict_prefetch || ranks;
    return (trained ? trained->bytes() : 0) + (guesses ? small_routers(index, geometry) : 0);
}

Result<std::optional<route::TrainedGate>> read_trained(const model::GgufIndex& index, const model::Geometry& geometry,
                                                       const std::string& path) {
    if (path.empty()) return std::optional<route::TrainedGate>();
    const auto failed = [&](const Status& s) {
        return Status(s.code(), fmt::format("--predict-model {}: {} (sluice predict train makes such a file for {})",
                                            path, s.message(), index.files()[0].path));
    };
    const auto bytes = store::read_whole(path, route::kMostTrainedBytes);
    if (!bytes.ok()) return failed(bytes.status());
    auto trained = route::parse_trained(*bytes);
    if (!trained.ok()) return failed(trained.status());
    auto digest = model::dense_digest(index, geometry);
    if (!digest.ok()) return digest.status();
    if (Status s = route::check_trained(*trained, feature_shape(index, geometry, std::move(*digest))); !s.ok())
        return failed(s);
    return std::optional<route::TrainedGate>(std::move(*trained));
}

Config acting_on(const model::GgufIndex& index, const model::Geometry& geometry, const Config& config,
                 std::string* said) {
    Config out = config;
    said->clear();
    // The model's own number is no change.
    if (out.n_expert_used == index.arch_number("expert_used_count").value_or(0)) out.n_expert_used = 0;
    const uint32_t layers = geometry.n_expert_layers();
    if (out.route_ahead > 0 && out.route_ahead >= layers) {
        *said = fmt::format(
            "--route-ahead {} acts on no layer of {}, which has {} with experts: all experts are those that the "
            "routers choose",
            out.route_ahead, index.files()[0].path, layers);
        out.route_ahead = 0;
        out.route_ahead_router = Config().route_ahead_router;
        out.route_ahead_weights = Config().route_ahead_weights;
    }
    if (out.route_ahead > 0 && small_routers(index, geometry) == 0) out.route_ahead_router = RouteAheadRouter::full;
    return out;
}

Result<std::shared_ptr<ModelState>> ModelState::open(model::GgufIndex index, model::Geometry geometry,
                                                     const Config& given, bool repack) {
    std::shared_ptr<ModelState> state(new ModelState());
    std::string idle;
    state->config_ = acting_on(index, geometry, given, &idle);
    if (!idle.empty()) log(LogLevel::warn, "{}", idle);
    const Config& config = state->config_;
    state->repack_ = repack;
    state->index_ = std::move(index);
    state->geometry_ = std::move(geometry);

    if (config.n_expert_used != 0) {
        if (Status s = state->use_experts(config.n_expert_used); !s.ok()) return s;
    }

    std::string note;
    auto store = store::RecordStore::open(state->index_, state->geometry_,
                                          {.access = config.direct_io ? io::Access::direct : io::Access::buffered,
                                           .store = config.store,
                                           .mirrors = config.mirrors},
                                          &note);
    if (!store.ok()) return store.status();
    state->store_ = std::make_unique<store::RecordStore>(std::move(*store));
    if (!note.empty()) log(LogLevel::warn, "{}", note);
    if (const std::string& used = state->store_->holder(0).name; used != state->index_.files()[0].path)
        log(LogLevel::info, "experts are read from {}", used);
    if (config.verify_reads != VerifyReads::once && !state->store_->has_checksums()) {
        return error(Code::invalid_argument,
                     "--verify-reads has no effect: {0} has no checksums (sluice verify --write {0} makes them)",
                     state->index_.files()[0].path);
    }

    const auto drive = machine::read_drive(state->store_->extent(0, 0).file->path());
    if (drive.ok()) state->device_ = measured_device(*drive);
    auto engine = io::make_engine(engine_options(config, *state->store_, drive.ok() && drive->honours_priorities()));
    if (!engine.ok()) return engine.status();
    state->engine_ = std::move(engine->engine);
    if (engine_wrap()) state->engine_ = engine_wrap()(std::move(state->engine_));
    if (!engine->note.empty()) log(LogLevel::warn, "{}", engine->note);

    if (Status s = state->choose_forms(); !s.ok()) return s;

    // A cache that cannot hold one expert is refused here, before anything is read.
    const auto shapes = sched::Slots::shapes(*state->store_, state->converted_);
    if (config.cache_bytes) {
        const uint32_t at_once = slots_wanted_at_once(state->geometry_);
        const auto layout = cache::plan_layout(shapes, *config.cache_bytes, at_once);
        if (!layout.ok()) return layout.status();
        state->set_shadow(state->runtime_, config, *layout);
    }

    const uint64_t full = cache::full_budget(shapes);
    if (const uint64_t one = cache::minimum_budget(shapes); config.cache_ceil_bytes.value_or(one) < one) {
        return error(Code::no_memory, "--cache-ceil-mb {}: one expert takes {}; give at least {:.2f} MiB",
                     human_bytes(*config.cache_ceil_bytes), human_bytes(one), to_mib(align_up(one, MiB / 100)));
    }
    if (config.cache_floor_bytes.value_or(0) > full) {
        log(LogLevel::warn, "--cache-floor-mb {} is more than all experts of {} take: they keep {}",
            human_bytes(*config.cache_floor_bytes), state->index_.files()[0].path, human_bytes(full));
    }
    auto trained = state->read_trained(config);
    if (!trained.ok()) return trained.status();
    state->runtime_.trained = std::move(*trained);
    const uint64_t least = state->least_bytes();
    const uint64_t batch = planned_context().value_or(ContextPlan{.batch = kUsualBatch}).batch;
    if (Status s = check_model_fits(
            config, {.dense = state->geometry_.dense_bytes,
                     .header_bytes = state->index_.header_bytes(),
                     .own_buffers = own_buffers_need(state->index_, *state->store_, state->converted_, batch) +
                                    guessing_need(state->index_, state->geometry_, config, state->runtime_.trained),
                     .least = least,
                     .full = full});
        !s.ok())
        return s;
    state->counted_.emplace(config, least);

    exec::ModelRuntime& runtime = state->runtime_;
    runtime.store = state->store_.get();
    if (const auto lossy = lossy_options(config); !lossy.empty()) {
        log(LogLevel::warn, "{}: what this model answers is not what it would answer without {}",
            state->index_.files()[0].path, fmt::join(lossy, ", "));
    }
    state->set_way(runtime, config);
    runtime.make_fetcher = [s = state.get()] { return s->make_fetcher(); };
    runtime.counters.records = state->store_->n_records();
    for (uint32_t set = 0; set < state->geometry_.sets.size(); ++set) {
        const model::ExpertSet& es = state->geometry_.sets[set];
        runtime.same_delta.emplace_back();
        for (uint32_t c = 0; c < es.tensors.size(); ++c) {
            const auto delta = [&](uint32_t e) {
                return store::RecordStore::aligned(state->store_->extent(state->store_->record(set, e), c)).delta;
            };
            bool same = true;
            for (uint32_t e = 1; e < es.n_expert; ++e) same = same && delta(e) == delta(0);
            runtime.same_delta.back().push_back(same || state->converted_[set][c]);
            state->weights_.emplace_back(state->index_.tensors()[es.tensors[c].tensor].name,
                                         exec::WeightRef{&runtime, set, c});
        }
    }
    std::sort(state->weights_.begin(), state->weights_.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    return state;
}

Result<std::unique_ptr<exec::ModelRuntime>> ModelState::make_way(const Config& given) {
    std::string idle;
    const Config config = acting_on(index_, geometry_, given, &idle);
    if (!idle.empty()) log(LogLevel::warn, "{}", idle);
    auto way = std::make_unique<exec::ModelRuntime>();
    way->store = store_.get();
    auto trained = read_trained(config);
    if (!trained.ok()) return trained.status();
    way->trained = std::move(*trained);
    set_way(*way, config);
    auto fetcher = sched::Fetcher::create(*store_, *engine_, SystemClock::instance(), fetcher_options(config));
    if (!fetcher.ok()) return fetcher.status();
    set_shadow(*way, config, (*fetcher)->layout());
    limit_prefetch(*way, (*fetcher)->slots_within_limit());
    way->fetcher = std::move(*fetcher);
    return way;
}

// What the configuration says of decode.
void ModelState::set_way(exec::ModelRuntime& runtime, const Config& config) {
    runtime.overlap = config.overlap;
    runtime.wave = config.wave;
    runtime.prefill_mode = prefill_mode(config.prefill_mode);
    runtime.follow_routers = config.predict_log || !config.route_features.empty();
    if (config.predict_log) runtime.scores.emplace(geometry_.sets.size());
    runtime.dials = {.substitute = config.expert_substitute, .drop_cold = config.drop_cold_experts};
    runtime.follow_routers = runtime.follow_routers || runtime.dials.substitute > 0;
    set_prefetch(runtime, config);
}

void ModelState::set_shadow(exec::ModelRuntime& runtime, const Config& config, const cache::Layout& layout) const {
    if (!config.deterministic) return;
    runtime.shadow.emplace(*store_, layout, policy_of(config.cache_policy), slots_wanted_at_once(geometry_));
}

// The corrections that guesses are made with, and how good they are.
Result<std::optional<route::TrainedGate>> ModelState::read_trained(const Config& config) const {
    auto trained = backend::read_trained(index_, geometry_, config.predict_model);
    if (!trained.ok() || !*trained) return trained;
    const route::HeldOut h = (*trained)->held_out();
    const auto share = [&](uint64_t n) {
        return h.slots == 0 ? 0 : 100 * static_cast<double>(n) / static_cast<double>(h.slots);
    };
    log(h.trained > h.stale ? LogLevel::info : LogLevel::warn,
        "guesses are corrected by {}: of the experts of tokens it had not seen it named {:.1f} %, the stale gate "
        "{:.1f} %",
        config.predict_model, share(h.trained), share(h.stale));
    return trained;
}

// A wish that cannot be fulfilled is said.
void ModelState::set_prefetch(exec::ModelRuntime& runtime, const Config& config) {
    exec::PrefetchOptions& prefetch = runtime.prefetch;
    prefetch.depth = config.predict_prefetch ? 1 : config.prefetch;
    prefetch.stale_gate = config.predict_prefetch;
    if (prefetch.stale_gate) prefetch.reads = config.predict_spec_max;
    runtime.route_ahead = {.depth = config.route_ahead,
                           .predicted_weights = config.route_ahead_weights == RouteAheadWeights::predicted,
                           .small_routers = config.route_ahead_router == RouteAheadRouter::small};
    runtime.follow_routers = runtime.follow_routers || runtime.route_ahead.depth > 0;
    const Foresight& given = foresight();
    if (given.device) device_ = *given.device;
    prefetch.guesser = given.guesser;
    prefetch.acts = given.acts;
    runtime.route_ahead.early_reads = !given.no_early_reads;
    if (!prefetch.on()) return;
    prefetch.automatic = config.prefetch_auto;
    if (prefetch.automatic) runtime.trial.emplace();
    const char* flag = prefetch.stale_gate ? "--predict-prefetch" : "--prefetch";
    if (geometry_.sets.size() < 2) {
        log(LogLevel::warn, "{} has no effect: the model has one layer with experts", flag);
        prefetch.depth = 0;
    } else if (!device_.measured() && prefetch.reads > 0) {
        const std::string& file = index_.files()[0].path;
        log(LogLevel::warn, "{} reads nothing early, but keeps what is there: {}", flag,
            device_.bytes_per_ns > 0
                ? fmt::format("as sluice probe found the drive of {}, a read in vain would hold up others too long",
                              file)
                : fmt::format("the drive of {} was not measured yet (sluice probe {})", file, file));
    }
}

// Of so many slots none is left for guesses.
void ModelState::limit_prefetch(exec::ModelRuntime& runtime, uint64_t slots) const {
    exec::PrefetchOptions& prefetch = runtime.prefetch;
    if (!prefetch.on() || slots > 2ULL * slots_wanted_at_once(geometry_)) return;
    log(LogLevel::warn, "--{} has no effect: {} slots are no more than two layers need at once",
        prefetch.stale_gate ? "predict-prefetch" : "prefetch", slots);
    prefetch.depth = 0;
}

ModelState::~ModelState() {
    if (on_end != nullptr) on_end(*this);
    keep_profile();
    if (g_reads_abandoned && runtime_.fetcher != nullptr && runtime_.fetcher->scheduler().live() > 0) {
        (void)runtime_.fetcher.release();
        (void)engine_.release();
        (void)store_.release();
    }
    for (ggml_backend_buffer_t b : form_buffers_) ggml_backend_buffer_free(b);
}

Result<std::byte*> ModelState::read(const io::File& file, uint64_t offset, uint64_t bytes,
                                    std::span<std::byte> region) {
    const std::lock_guard lock(runtime_.mutex);
    return io::read_exact(*engine_, file, offset, bytes, region);
}

const exec::WeightRef* ModelState::weight(const std::string& tensor_name) const {
    const auto it = std::lower_bound(weights_.begin(), weights_.end(), tensor_name,
                                     [](const auto& w, const std::string& name) { return w.first < name; });
    return it != weights_.end() && it->first == tensor_name ? &it->second : nullptr;
}

// The file's top-k is not the one that is computed with. Who loads the model has to tell llama.cpp, too.
Status ModelState::use_experts(uint32_t n) {
    const std::string& path = index_.files()[0].path;
    const std::string key = fmt::format("{}.expert_used_count", index_.architecture());
    if (host().place == Place::library) {
        return error(
            Code::invalid_argument,
            "SLUICE_N_EXPERT_USED: this program loads the model itself, and only it can say how many experts a "
            "token uses: give it --override-kv {}=int:{} instead",
            key, n);
    }
    const uint64_t most = index_.arch_number("expert_count").value_or(0);
    if (n > most)
        return error(Code::invalid_argument, "--n-expert-used {}: {} has {} experts in a layer", n, path, most);
    geometry_.n_expert_used = n;
    geometry_.cycle_bytes = 0;
    for (model::ExpertSet& set : geometry_.sets) {
        set.n_used = std::min(n, set.n_expert);
        geometry_.cycle_bytes += set.n_used * set.record_bytes();
    }
    return {};
}

// Slots hold exactly what stock would compute from: the file's bytes, or with repacking on the CPU backend's form.
Status ModelState::choose_forms() {
    for (const model::ExpertSet& set : geometry_.sets) {
        runtime_.forms.emplace_back();
        converted_.emplace_back();
        for (const model::ExpertTensor& t : set.tensors) {
            exec::WeightForm form;
            if (repack_) {
                const SampleNode sample(geometry_, set, t);
                if (ggml_backend_buffer_type_t type = extra_buffer_type_for(sample.node)) {
                    // One buffer per tensor, only to say of what type its data is and to give it its extra.
                    form.buffer = ggml_backend_buft_alloc_buffer(type, ggml_backend_buft_get_alignment(type));
                    if (form.buffer == nullptr) return error(Code::no_memory, "no memory for a repacking buffer");
                    form_buffers_.push_back(form.buffer);
                    sample.weight->buffer = form.buffer;
                    sample.weight->data = ggml_backend_buffer_get_base(form.buffer);
                    if (ggml_backend_buffer_init_tensor(form.buffer, sample.weight) != GGML_STATUS_SUCCESS) {
                        return error(Code::unsupported, "the CPU backend refuses to repack {}",
                                     index_.tensors()[t.tensor].name);
                    }
                    form.extra = sample.weight->extra;
                }
            }
            runtime_.forms.back().push_back(form);
            converted_.back().push_back(form.buffer != nullptr);
        }
    }
    return {};
}

// Lets the CPU backend write its own form of one expert into a slot.
void ModelState::convert(uint32_t set, uint32_t component, const std::byte* raw, std::byte* slot) {
    const model::ExpertTensor& t = geometry_.sets[set].tensors[component];
    ggml_tensor w{};
    w.type = static_cast<ggml_type>(t.type);
    w.ne[0] = static_cast<int64_t>(t.ne0);
    w.ne[1] = static_cast<int64_t>(t.ne1);
    w.ne[2] = w.ne[3] = 1;
    w.nb[0] = ggml_type_size(w.type);
    w.nb[1] = ggml_row_size(w.type, w.ne[0]);
    w.nb[2] = w.nb[3] = w.nb[1] * static_cast<size_t>(w.ne[1]);
    w.buffer = runtime_.forms[set][component].buffer;
    w.extra = runtime_.forms[set][component].extra;
    w.data = slot;
    exec::convert_rows(convert_task_, runtime_.computing, w, raw);
}

uint64_t ModelState::most_bytes(const Config& config) const {
    const uint64_t full = cache::full_budget(sched::Slots::shapes(*store_, converted_));
    return std::min(full, config.cache_bytes.value_or(full));
}

uint64_t ModelState::least_bytes() const {
    const uint64_t least = cache::minimum_budget(sched::Slots::shapes(*store_, converted_));
    if (config_.cache_bytes) return most_bytes(config_);
    return std::max(least, std::min(most_bytes(config_), config_.cache_floor_bytes.value_or(0)));
}

Result<sched::Profile> ModelState::read_profile_at(const std::string& path) const {
    std::vector<uint32_t> experts;
    for (const model::ExpertSet& s : geometry_.sets) experts.push_back(s.n_expert);
    return sched::read_profile(path, digest_, experts);
}

// What the run record says of it, after why the cache is as large as it is.
std::string ModelState::warm(sched::Fetcher& fetcher) {
    if (config_.profile == "off" || config_.cache_policy == CachePolicy::lru) return "";
    const auto failed = [](const Status& s) {
        log(LogLevel::warn, "without a profile: {}", s.message());
        return "";
    };
    auto digest = model::dense_digest(index_, geometry_);
    if (!digest.ok()) return failed(digest.status());
    digest_ = std::move(*digest);
    auto path = sched::profile_path(config_.profile, digest_);
    if (!path.ok()) return failed(path.status());
    auto profile = read_profile_at(*path);
    if (profile.ok() || !may_not_replace(profile.status().code())) profile_path_ = std::move(*path);
    if (!profile.ok()) return profile.status().code() == Code::not_found ? "" : failed(profile.status());
    sched::expect(fetcher.order(), *profile);
    profile_ = std::move(*profile);
    return fmt::format(", with a profile of {} tokens", profile_->most_tokens());
}

void ModelState::keep_profile() {
    if (profile_path_.empty() || runtime_.fetcher == nullptr) return;
    // Another process may have added to it meanwhile.
    auto there = read_profile_at(profile_path_);
    if (there.ok()) {
        profile_ = std::move(*there);
    } else if (may_not_replace(there.status().code())) {
        log(LogLevel::warn, "the profile was not kept: {}", there.status().message());
        return;
    }
    const auto now = sched::learned(runtime_.fetcher->order(), digest_, profile_);
    if (!now) return;
    if (Status s = sched::write_profile(store::Files::system(), profile_path_, *now); !s.ok())
        log(LogLevel::warn, "the profile was not kept: {}", s.message());
}

sched::Fetcher::Options ModelState::fetcher_options(const Config& config) {
    sched::Fetcher::Options options;
    options.slots.budget = most_bytes(config);
    options.slots.min_slots = slots_wanted_at_once(geometry_);
    options.slots.policy = policy_of(config.cache_policy);
    options.slots.converted = converted_;
    options.slots.convert = [this](uint32_t set, uint32_t component, const std::byte* raw, std::byte* slot, uint64_t) {
        convert(set, component, raw, slot);
    };
    options.reads.verify = verify_policy(config.verify_reads);
    options.reads.device = device_;
    return options;
}

Result<std::unique_ptr<sched::Fetcher>> ModelState::make_fetcher() {
    const auto shapes = sched::Slots::shapes(*store_, converted_);
    auto joined =
        join_budget(config_, cache::minimum_budget(shapes), most_bytes(config_), config_.cache_bytes.has_value());
    if (!joined.ok()) return joined.status();
    share_ = std::move(joined->share);
    sched::Fetcher::Options options = fetcher_options(config_);
    options.slots.share = share_.get();
    // What the run says of its cache is what it has.
    options.slots.on_limit = [this](const sched::Slots& slots) {
        record_cache(runtime_.number, slots.limit(), slots.within_limit(), store_->n_records(),
                     "changed while running");
    };
    auto fetcher = sched::Fetcher::create(*store_, *engine_, SystemClock::instance(), std::move(options));
    if (!fetcher.ok()) return fetcher;
    const cache::Layout& layout = (*fetcher)->layout();
    const uint64_t bytes = (*fetcher)->limit();
    const uint64_t slots = (*fetcher)->slots_within_limit();
    joined->why += warm(**fetcher);
    record_cache(runtime_.number, bytes, slots, store_->n_records(), joined->why);
    log(LogLevel::info, "expert cache {} for {} of {} experts ({}); a token needs {} of expert weights",
        human_bytes(bytes), slots, store_->n_records(), joined->why, human_bytes(geometry_.cycle_bytes));
    log(LogLevel::debug, "reads by {}, {} at a time; {} size class(es)", engine_->name(), config_.io_threads,
        layout.classes.size());
    for (const cache::SizeClass& c : layout.classes) {
        log(LogLevel::debug, "{} slots of {} for {} experts", c.n_slots, human_bytes(c.slot_bytes), c.n_records);
    }
    for (size_t set = 0; set < geometry_.sets.size(); ++set) {
        std::string forms;
        for (size_t c = 0; c < geometry_.sets[set].tensors.size(); ++c) {
            const model::ExpertTensor& t = geometry_.sets[set].tensors[c];
            forms += fmt::format(" {} {}{}", model::component_name(t.component), model::type_traits(t.type)->name,
                                 converted_[set][c] ? " (repacked)" : "");
        }
        log(LogLevel::debug, "layer {}: {} experts:{}", geometry_.sets[set].layer, geometry_.sets[set].n_expert, forms);
    }
    limit_prefetch(runtime_, slots);
    if (bytes < geometry_.cycle_bytes) {
        log(LogLevel::warn,
            "the cache is smaller than the {} that one token needs, so most experts are read again for every token",
            human_bytes(geometry_.cycle_bytes));
    }
    return fetcher;
}

}  // namespace sluice::backend
