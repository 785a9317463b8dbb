#include "engine/compute_speed.h"

#include <ggml-backend.h>
#include <ggml.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

namespace sluice::engine {
namespace {

// With every byte the same no type has a scale that is zero, infinite or denormal.
constexpr int kFill = 0x11;
constexpr int kNodes = 512;
constexpr int64_t kWidth = 2048;
constexpr size_t kLeastRounds = 3;
// Where others have the processor a round may take a hundred times as long: then one must do.
constexpr Nanos kPatience = 4;  // times what was asked for

struct Free {
    void operator()(ggml_context* c) const { ggml_free(c); }
    void operator()(ggml_backend* b) const { ggml_backend_free(b); }
    void operator()(ggml_backend_buffer* b) const { ggml_backend_buffer_free(b); }
};
using Context = std::unique_ptr<ggml_context, Free>;
using Backend = std::unique_ptr<ggml_backend, Free>;
using Buffer = std::unique_ptr<ggml_backend_buffer, Free>;

Context new_context(size_t tensors, size_t nodes) {
    return Context(
        ggml_init({ggml_tensor_overhead() * tensors + ggml_graph_overhead_custom(nodes, false), nullptr, true}));
}

// As the loader asks: the first extra buffer type with which the CPU backend runs the product.
ggml_backend_buffer_type_t form_of(ggml_backend_dev_t cpu, ggml_tensor* product, bool repack) {
    ggml_backend_buffer_type_t plain = ggml_backend_dev_buffer_type(cpu);
    const auto get = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
        ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu), "ggml_backend_dev_get_extra_bufts"));
    if (!repack || get == nullptr) return plain;
    for (const ggml_backend_buffer_type_t* t = get(cpu); t != nullptr && *t != nullptr; ++t) {
        const Buffer none(ggml_backend_buft_alloc_buffer(*t, 0));
        product->src[0]->buffer = none.get();
        const bool supported = ggml_backend_dev_supports_op(cpu, product);
        product->src[0]->buffer = nullptr;
        if (supported) return *t;
    }
    return plain;
}

struct Bench {
    ggml_backend_dev_t cpu = nullptr;
    Backend backend;
    bool repack = false;
    Nanos for_each = 0;

    // The fastest round: whatever else runs can only make one slower.
    Result<double> time(ggml_cgraph* graph) const {
        const SystemClock& clock = SystemClock::instance();
        const Nanos begin = clock.now();
        Nanos best = INT64_MAX;
        size_t rounds = 0;
        // The first one is not counted: it brings the memory into reach.
        const auto enough = [&](Nanos took) {
            return rounds > kLeastRounds ? took >= for_each : rounds > 1 && took >= kPatience * for_each;
        };
        for (Nanos now = begin; !enough(now - begin); ++rounds) {
            if (ggml_backend_graph_compute(backend.get(), graph) != GGML_STATUS_SUCCESS)
                return error(Code::internal, "ggml could not compute a product");
            const Nanos then = clock.now();
            if (rounds > 0) best = std::min(best, then - now);
            now = then;
        }
        return static_cast<double>(std::max<Nanos>(1, best));
    }

    // Nanoseconds per byte of weights. `n_used`: 0 for plain products.
    Result<double> product(ggml_type type, const plan::Work::Matrix& m, uint32_t n_expert, uint32_t n_used) const {
        const uint64_t row = ggml_row_size(type, static_cast<int64_t>(m.ne0));
        if (row == 0 || row > kMostWeights) return error(Code::unsupported, "a row of {} bytes", row);
        // As many rows, or experts, as there is room for.
        const auto rows = static_cast<int64_t>(std::min(m.ne1, kMostWeights / row));
        const auto experts = static_cast<int64_t>(
            n_used == 0 ? 1 : std::clamp<uint64_t>(kMostWeights / (row * static_cast<uint64_t>(rows)), 1, n_expert));
        const int64_t used = std::min<int64_t>(n_used, experts);
        const int64_t launches = n_used == 0 ? 1 : experts / used;

        const Context weights = new_context(1, 0);
        ggml_tensor* w = ggml_new_tensor_3d(weights.get(), type, static_cast<int64_t>(m.ne0), rows, experts);
        const Context context = new_context(2 * static_cast<size_t>(launches) + 2, static_cast<size_t>(launches) + 8);
        ggml_tensor* x = ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, static_cast<int64_t>(m.ne0), 1, 1);
        ggml_cgraph* graph = ggml_new_graph_custom(context.get(), static_cast<size_t>(launches) + 8, false);
        std::vector<ggml_tensor*> chosen;
        for (int64_t i = 0; i < launches; ++i) {
            ggml_tensor* y = nullptr;
            if (n_used == 0) {
                y = ggml_mul_mat(context.get(), w, x);
            } else {
                chosen.push_back(ggml_new_tensor_2d(context.get(), GGML_TYPE_I32, used, 1));
                y = ggml_mul_mat_id(context.get(), w, x, chosen.back());
            }
            ggml_build_forward_expand(graph, y);
        }
        ggml_tensor* first = ggml_graph_node(graph, 0);
        const Buffer memory(ggml_backend_alloc_ctx_tensors_from_buft(weights.get(), form_of(cpu, first, repack)));
        const Buffer rest(ggml_backend_alloc_ctx_tensors(context.get(), backend.get()));
        if (memory == nullptr || rest == nullptr) return error(Code::no_memory, "no memory to measure with");
        // Also in another form only whole bytes of the weights are moved.
        std::memset(ggml_backend_buffer_get_base(memory.get()), kFill, ggml_backend_buffer_get_size(memory.get()));
        const std::vector<float> ones(m.ne0, 1.0F);
        ggml_backend_tensor_set(x, ones.data(), 0, ones.size() * sizeof(float));
        for (int64_t i = 0; i < static_cast<int64_t>(chosen.size()); ++i) {
            std::vector<int32_t> ids;
            for (int64_t k = 0; k < used; ++k) ids.push_back(static_cast<int32_t>(i * used + k));
            ggml_backend_tensor_set(chosen[static_cast<size_t>(i)], ids.data(), 0, ids.size() * sizeof(int32_t));
        }
        const auto took = time(graph);
        if (!took.ok()) return took;
        const uint64_t bytes =
            row * static_cast<uint64_t>(rows) * static_cast<uint64_t>(n_used == 0 ? 1 : used * launches);
        return *took / static_cast<double>(bytes);
    }

    // Nanoseconds per node that does next to nothing.
    Result<double> node() const {
        const Context context = new_context(kNodes + 2, kNodes + 8);
        ggml_tensor* x = ggml_new_tensor_1d(context.get(), GGML_TYPE_F32, kWidth);
        ggml_tensor* y = x;
        for (int i = 0; i < kNodes; ++i) y = ggml_scale(context.get(), y, 0.5F);
        ggml_cgraph* graph = ggml_new_graph_custom(context.get(), kNodes + 8, false);
        ggml_build_forward_expand(graph, y);
        const Buffer memory(ggml_backend_alloc_ctx_tensors(context.get(), backend.get()));
        if (memory == nullptr) return error(Code::no_memory, "no memory to measure with");
        const std::vector<float> ones(kWidth, 1.0F);
        ggml_backend_tensor_set(x, ones.data(), 0, ones.size() * sizeof(float));
        const auto took = time(graph);
        if (!took.ok()) return took;
        return *took / kNodes;
    }
};

std::optional<ggml_type> type_named(const std::string& name) {
    for (int t = 0; t < GGML_TYPE_COUNT; ++t) {
        const char* known = ggml_type_name(static_cast<ggml_type>(t));
        if (known != nullptr && name == known) return static_cast<ggml_type>(t);
    }
    return std::nullopt;
}

}  // namespace

Result<plan::Speeds> measure_speeds(const plan::Work& work, unsigned threads, bool repack, const std::string& machine,
                                    Nanos for_each) {
    Bench bench;
    bench.cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (bench.cpu == nullptr) return error(Code::unsupported, "ggml has no CPU backend here");
    bench.backend.reset(ggml_backend_dev_init(bench.cpu, nullptr));
    const auto set_threads = reinterpret_cast<ggml_backend_set_n_threads_t>(
        ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(bench.cpu), "ggml_backend_set_n_threads"));
    if (bench.backend == nullptr || set_threads == nullptr)
        return error(Code::unsupported, "ggml's CPU backend cannot be started");
    set_threads(bench.backend.get(), static_cast<int>(threads));
    bench.repack = repack;
    bench.for_each = for_each;

    uint32_t n_expert = 1;
    uint32_t n_used = 1;
    for (const plan::Work::Set& s : work.sets) {
        n_expert = std::max(n_expert, s.n_expert);
        n_used = std::max(n_used, s.n_used);
    }
    plan::Speeds out;
    out.machine = machine;
    out.threads = threads;
    for (const bool experts : {true, false}) {
        for (const auto& [name, matrix] : experts ? work.expert_matrices : work.dense_matrices) {
            const auto type = type_named(name);
            if (!type) return error(Code::unsupported, "ggml does not know the type {}", name);
            // It would not refuse, it would call a kernel that is not there.
            if (*type != GGML_TYPE_F32 && ggml_get_type_traits(*type)->to_float == nullptr)
                return error(Code::unsupported, "ggml has no product with weights of type {}", name);
            const auto ns = bench.product(*type, matrix, n_expert, experts ? n_used : 0);
            if (!ns.ok()) return ns.status();
            (experts ? out.experts : out.dense)[name] = *ns;
        }
    }
    const auto node = bench.node();
    if (!node.ok()) return node.status();
    out.node = *node;
    return out;
}

}  // namespace sluice::engine
