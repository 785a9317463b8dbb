// Owns: what a router's product for one token takes, in the number formats that a guess may use. The weights are as
// cold as in decode: between two layers a token reads its experts, so that nothing of a router is in a core's own
// cache. Keeps: only the product is timed, by the CPU backend's kernels with one thread as a guess runs it; `own_int8`
// is the same with a plain loop over int8 rows with one scale each, for comparison.
//
// router_bench --benchmark_enable_random_interleaving=true --benchmark_repetitions=10
// --benchmark_report_aggregates_only=true
#include <benchmark/benchmark.h>
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

namespace {

constexpr size_t kLayers = 16;
// Experts between two routers: 34 MiB, and 16 times as much before a layer's turn comes again.
constexpr int64_t kExpertInput = 1024, kExpertRows = 32768;

struct Free {
    void operator()(ggml_context* c) const { ggml_free(c); }
    void operator()(ggml_backend* b) const { ggml_backend_free(b); }
    void operator()(ggml_backend_buffer* b) const { ggml_backend_buffer_free(b); }
};

std::vector<float> drawn(size_t n, float scale, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, scale);
    std::vector<float> out(n);
    for (float& v : out) v = normal(random);
    return out;
}

// A graph of one product for each layer.
class Products {
  public:
    Products(ggml_type type, int64_t n_input, int64_t n_rows)
        : cpu_(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr)) {
        const ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(cpu_.get()));
        reinterpret_cast<ggml_backend_set_n_threads_t>(
            ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads"))(cpu_.get(), 1);
        context_.reset(ggml_init(
            {(1 + kLayers) * (4 * ggml_tensor_overhead() + ggml_graph_overhead_custom(4, false)), nullptr, true}));
        ggml_tensor* input = ggml_new_tensor_1d(context_.get(), GGML_TYPE_F32, n_input);
        for (size_t l = 0; l < kLayers; ++l) {
            weights_.push_back(ggml_new_tensor_2d(context_.get(), type, n_input, n_rows));
            graphs_.push_back(ggml_new_graph_custom(context_.get(), 4, false));
            ggml_build_forward_expand(graphs_.back(), ggml_mul_mat(context_.get(), weights_.back(), input));
        }
        buffer_.reset(ggml_backend_alloc_ctx_tensors(context_.get(), cpu_.get()));
        ggml_backend_buffer_clear(buffer_.get(), 1);
        const auto x = drawn(static_cast<size_t>(n_input), 1, 99);
        ggml_backend_tensor_set(input, x.data(), 0, ggml_nbytes(input));
    }
    void draw() {
        for (size_t l = 0; l < kLayers; ++l) {
            ggml_tensor* w = weights_[l];
            const auto numbers = drawn(static_cast<size_t>(ggml_nelements(w)), 0.02F, static_cast<uint32_t>(l));
            std::vector<std::byte> raw(ggml_nbytes(w));
            ggml_quantize_chunk(w->type, numbers.data(), raw.data(), 0, w->ne[1], w->ne[0], nullptr);
            ggml_backend_tensor_set(w, raw.data(), 0, raw.size());
        }
    }
    void run(size_t layer) { (void)ggml_backend_graph_compute(cpu_.get(), graphs_[layer]); }

  private:
    std::unique_ptr<ggml_backend, Free> cpu_;
    std::unique_ptr<ggml_context, Free> context_;
    std::unique_ptr<ggml_backend_buffer, Free> buffer_;
    std::vector<ggml_tensor*> weights_;
    std::vector<ggml_cgraph*> graphs_;
};

class OwnInt8 {
  public:
    OwnInt8(int64_t n_input, int64_t n_expert)
        : n_(static_cast<size_t>(n_input)), rows_(static_cast<size_t>(n_expert)), x_(drawn(n_, 1, 99)) {
        for (size_t l = 0; l < kLayers; ++l) {
            const auto weights = drawn(n_ * rows_, 0.02F, static_cast<uint32_t>(l));
            Layer& layer = layers_.emplace_back();
            layer.weights.resize(n_ * rows_);
            for (size_t r = 0; r < rows_; ++r)
                layer.scales.push_back(quantize(weights.data() + r * n_, layer.weights.data() + r * n_));
        }
        q_.resize(n_);
        out_.resize(rows_);
    }
    void run(size_t layer) {
        const float scale = quantize(x_.data(), q_.data());
        const Layer& l = layers_[layer];
        for (size_t r = 0; r < rows_; ++r) {
            const int8_t* w = l.weights.data() + r * n_;
            int32_t sum = 0;
            for (size_t i = 0; i < n_; ++i) sum += static_cast<int16_t>(w[i]) * static_cast<int16_t>(q_[i]);
            out_[r] = static_cast<float>(sum) * scale * l.scales[r];
        }
        benchmark::DoNotOptimize(out_.data());
    }

  private:
    float quantize(const float* from, int8_t* to) const {
        float most = 0;
        for (size_t i = 0; i < n_; ++i) most = std::max(most, std::fabs(from[i]));
        const float inverse = most > 0 ? 127 / most : 0;
        for (size_t i = 0; i < n_; ++i) to[i] = static_cast<int8_t>(std::lrintf(from[i] * inverse));
        return most / 127;
    }
    struct Layer {
        std::vector<int8_t> weights;
        std::vector<float> scales;
    };
    size_t n_, rows_;
    std::vector<float> x_, out_;
    std::vector<int8_t> q_;
    std::vector<Layer> layers_;
};

template <typename Form>
void measure(benchmark::State& state, Form& form) {
    static Products experts(GGML_TYPE_Q8_0, kExpertInput, kExpertRows);
    size_t layer = 0;
    std::vector<double> micros;
    for (auto _ : state) {
        experts.run(layer);
        const auto began = std::chrono::steady_clock::now();
        form.run(layer);
        const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
        state.SetIterationTime(took.count());
        micros.push_back(1e6 * took.count());
        layer = (layer + 1) % kLayers;
    }
    // Means are of whoever else the machine served meanwhile.
    std::sort(micros.begin(), micros.end());
    state.counters["median_us"] = micros[micros.size() / 2];
    state.counters["tenth_us"] = micros[micros.size() / 10];
}

void f32(benchmark::State& state) {
    Products form(GGML_TYPE_F32, state.range(1), state.range(0));
    form.draw();
    measure(state, form);
}
void q8_0(benchmark::State& state) {
    Products form(GGML_TYPE_Q8_0, state.range(1), state.range(0));
    form.draw();
    measure(state, form);
}
void own_int8(benchmark::State& state) {
    OwnInt8 form(state.range(1), state.range(0));
    measure(state, form);
}

// Experts, and numbers of a hidden state.
void shapes(benchmark::internal::Benchmark* b) {
    b->Args({64, 256})->Args({64, 1024})->Args({128, 2048})->Args({256, 2048});
    b->UseManualTime()->Unit(benchmark::kMicrosecond)->Iterations(64);
}
BENCHMARK(f32)->Apply(shapes);
BENCHMARK(q8_0)->Apply(shapes);
BENCHMARK(own_int8)->Apply(shapes);

}  // namespace

BENCHMARK_MAIN();
