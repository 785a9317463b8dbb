// The executor on the simulated device: one expert block, computed by the CPU backend over weights that are there, and
// by the executor over weights that come from a device whose order, speed and faults the test decides. Not only results
// are compared: afterwards all memory of the graph must be the same.
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <future>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "base/bytes.h"
#include "base/log.h"
#include "exec/moe_executor.h"
#include "exec/pool_task.h"
#include "io/sim_engine.h"

namespace sluice::exec {
namespace {

constexpr int64_t kEmbd = 64, kFf = 96, kExperts = 12, kTopK = 5;

struct Shape {
    ggml_type type = GGML_TYPE_Q8_0;
    bool fused = false;  // gate and up in one tensor
    bool biased = false;
    int64_t tokens = 1;
    uint32_t align = 512;  // of the device; 1: experts lie equally deep in their slots
    bool router = false;   // the choice is part of the graph
    bool shared = false;   // an expert for every token, with a gate, comes after the chosen ones
    bool odd = false;      // between the products is a node that Sluice does not know
};

// The tensors and the graph of one block, and the memory that they live in.
struct Block {
    ggml_context* context = nullptr;
    ggml_tensor *x = nullptr, *ids = nullptr, *weights = nullptr;
    std::vector<ggml_tensor*> dense;    // leaves that are filled like x
    std::vector<ggml_tensor*> experts;  // by component
    ggml_tensor* out = nullptr;
    ggml_cgraph* graph = nullptr;
    ggml_gallocr_t allocator = nullptr;
    std::vector<std::vector<std::byte>> inputs;

    explicit Block(const Shape& s) {
        context = ggml_init({ggml_tensor_overhead() * 256 + ggml_graph_overhead(), nullptr, true});
        x = input(ggml_new_tensor_3d(context, GGML_TYPE_F32, kEmbd, 1, s.tokens));
        dense.push_back(x);
        graph = ggml_new_graph(context);
        ggml_tensor* row = ggml_reshape_2d(context, x, kEmbd, s.tokens);
        if (s.router) {
            ggml_tensor* logits = ggml_mul_mat(context, matrix(GGML_TYPE_F32, kEmbd, kExperts), row);
            ggml_tensor* probs = ggml_soft_max(context, logits);
            ids = ggml_argsort_top_k(context, probs, kTopK);
            weights = ggml_get_rows(context, ggml_reshape_3d(context, probs, 1, kExperts, s.tokens), ids);
            ggml_build_forward_expand(graph, weights);
        } else {
            ids = input(ggml_new_tensor_2d(context, GGML_TYPE_I32, kTopK, s.tokens));
            weights = input(ggml_new_tensor_3d(context, GGML_TYPE_F32, 1, kTopK, s.tokens));
            dense.push_back(weights);
        }
        ggml_tensor* bias = s.biased ? matrix(GGML_TYPE_F32, kFf * (s.fused ? 2 : 1), kExperts) : nullptr;
        ggml_tensor *up = nullptr, *gate = nullptr;
        if (s.fused) {
            expert_tensor(s.type, kEmbd, 2 * kFf);
            ggml_tensor* both = ggml_mul_mat_id(context, experts[0], x, ids);
            if (s.biased) both = ggml_add_id(context, both, bias, ids);
            gate = ggml_view_3d(context, both, kFf, kTopK, s.tokens, both->nb[1], both->nb[2], 0);
            up = ggml_view_3d(context, both, kFf, kTopK, s.tokens, both->nb[1], both->nb[2], kFf * sizeof(float));
        } else {
            expert_tensor(s.type, kEmbd, kFf);
            expert_tensor(s.type, kEmbd, kFf);
            up = ggml_mul_mat_id(context, experts[1], x, ids);
            if (s.biased) up = ggml_add_id(context, up, bias, ids);
            gate = ggml_mul_mat_id(context, experts[0], x, ids);
        }
        expert_tensor(s.type, kFf, kEmbd);
        ggml_tensor* act = ggml_swiglu_split(context, gate, up);
        if (s.odd) act = ggml_set_name(ggml_norm(context, act, 1e-6F), "odd-0");
        ggml_tensor* down = ggml_mul_mat_id(context, experts.back(), act, ids);
        ggml_tensor* weighted = ggml_mul(context, down, weights);
        ggml_set_name(weighted, "ffn_moe_weighted-0");
        for (int64_t k = 0; k < kTopK; ++k) {
            ggml_tensor* rank = ggml_view_2d(context, weighted, kEmbd, s.tokens, weighted->nb[2],
                                             static_cast<size_t>(k) * weighted->nb[1]);
            out = k == 0 ? rank : ggml_add(context, out, rank);
        }
        ggml_build_forward_expand(graph, out);
        if (s.shared) {
            ggml_tensor* wide = ggml_mul_mat(context, matrix(s.type, kEmbd, 2 * kFf), row);
            ggml_tensor* common = ggml_mul_mat(context, matrix(s.type, kFf, kEmbd), ggml_swiglu(context, wide));
            ggml_tensor* open = ggml_sigmoid(context, ggml_mul_mat(context, matrix(GGML_TYPE_F32, kEmbd, 1), row));
            out = ggml_add(context, out, ggml_mul(context, common, open));
            ggml_build_forward_expand(graph, out);
        }
        allocator = ggml_gallocr_new(ggml_backend_cpu_buffer_type());
    }
    ~Block() {
        ggml_gallocr_free(allocator);
        ggml_free(context);
    }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

    ggml_tensor* input(ggml_tensor* t) {
        inputs.emplace_back(ggml_nbytes(t));
        t->data = inputs.back().data();
        return t;
    }
    ggml_tensor* matrix(ggml_type type, int64_t ne0, int64_t ne1) {
        dense.push_back(input(ggml_new_tensor_2d(context, type, ne0, ne1)));
        return dense.back();
    }
    void expert_tensor(ggml_type type, int64_t ne0, int64_t ne1) {
        experts.push_back(input(ggml_new_tensor_3d(context, type, ne0, ne1, kExperts)));
    }
    // Results start from the same garbage on both sides.
    void allocate() {
        ASSERT_TRUE(ggml_gallocr_alloc_graph(allocator, graph));
        for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
            ggml_tensor* n = ggml_graph_node(graph, i);
            if (n->view_src == nullptr) std::memset(n->data, 0x7E, ggml_nbytes(n));
        }
    }
    // What the memory of all nodes holds at the end, also where nodes share it.
    [[nodiscard]] std::vector<std::byte> memory() const {
        std::vector<std::byte> all;
        for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
            const ggml_tensor* n = ggml_graph_node(graph, i);
            if (n->view_src != nullptr) continue;
            const auto* p = static_cast<const std::byte*>(n->data);
            all.insert(all.end(), p, p + ggml_nbytes(n));
        }
        return all;
    }
};

const WeightRef* weight_of(const ggml_tensor* t) {
    return static_cast<const WeightRef*>(t->extra);
}

// Every look at the clock takes a nanosecond, so that nothing takes none.
class Ticking final : public Clock {
  public:
    explicit Ticking(VirtualClock& clock, Nanos step = 1) : clock_(clock), step_(step) {}
    [[nodiscard]] Nanos now() const override {
        clock_.advance_to(clock_.now() + step_);
        return clock_.now();
    }

  private:
    VirtualClock& clock_;
    Nanos step_;
};

class ExecutorTest : public ::testing::Test {
  protected:
    ExecutorTest() {
        set_log_sink([](LogLevel, const std::string&) {});
        // Threads of their own for every graph would spin against each other.
        const ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(cpu_));
        reinterpret_cast<ggml_backend_set_n_threads_t>(
            ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads"))(cpu_, 1);
    }
    ~ExecutorTest() override {
        set_log_sink(nullptr);
        executor_.reset();
        runtime_.reset();
        ggml_backend_free(cpu_);
    }

    // Weights, choices and what stock makes of them, of `layers` blocks. Each row chooses among the first `choice`
    // experts.
    void start(const Shape& shape, uint64_t seed, uint32_t layers = 1, int32_t choice = kExperts) {
        shape_ = shape;
        random_.seed(static_cast<uint32_t>(seed));
        references_.clear();
        blocks_.clear();
        geometry_ = {};
        geometry_.n_expert_used = kTopK;
        contents_.assign(736, std::byte{0x55});
        for (uint32_t l = 0; l < layers; ++l) {
            references_.push_back(std::make_unique<Block>(shape));
            Block& reference = *references_.back();
            for (ggml_tensor* t : reference.dense) fill(t);
            for (ggml_tensor* t : reference.experts) fill(t);
            ASSERT_NO_FATAL_FAILURE(reference.allocate());
            ASSERT_NO_FATAL_FAILURE(choose(l, choice));
            add_set(reference, static_cast<int>(l));
        }
        file_ = io::File::simulated("model.gguf", contents_.size(), shape.align, shape.align);
    }
    void fill(ggml_tensor* t) {
        std::normal_distribution<float> normal;
        std::vector<float> values(static_cast<size_t>(ggml_nelements(t)));
        for (float& v : values) v = normal(random_);
        if (t->type == GGML_TYPE_F32) {
            std::memcpy(t->data, values.data(), ggml_nbytes(t));
        } else {
            ggml_quantize_chunk(t->type, values.data(), t->data, 0, ggml_nrows(t), t->ne[0], nullptr);
        }
    }
    // Other choices of a layer, among `choice` experts from `first` on, and what stock makes of them.
    void choose(uint32_t layer, int32_t choice, int32_t first = 0) {
        Block& reference = *references_[layer];
        for (int64_t t = 0; !shape_.router && t < shape_.tokens; ++t) {
            std::vector<int32_t> all(static_cast<size_t>(choice));
            for (int32_t e = 0; e < choice; ++e) all[static_cast<size_t>(e)] = first + e;
            std::shuffle(all.begin(), all.end(), random_);
            std::memcpy(static_cast<int32_t*>(reference.ids->data) + t * kTopK, all.data(), kTopK * sizeof(int32_t));
        }
        ASSERT_EQ(ggml_backend_graph_compute(cpu_, reference.graph), GGML_STATUS_SUCCESS);
        if (layer >= blocks_.size() || shape_.router) return;
        std::memcpy(blocks_[layer]->ids->data, reference.ids->data, ggml_nbytes(reference.ids));
    }
    // How many experts the rows of a layer chose.
    [[nodiscard]] size_t chosen(uint32_t layer) const {
        const auto* ids = static_cast<const int32_t*>(references_[layer]->ids->data);
        return std::set<int32_t>(ids, ids + kTopK * shape_.tokens).size();
    }
    void add_set(const Block& reference, int layer) {
        model::ExpertSet set;
        set.group = "exps";
        set.layer = layer;
        set.n_expert = kExperts;
        set.n_used = kTopK;
        using enum model::Component;
        const std::vector<model::Component> components =
            shape_.fused ? std::vector{gate_up, down} : std::vector{gate, up, down};
        for (size_t c = 0; c < reference.experts.size(); ++c) {
            const ggml_tensor* e = reference.experts[c];
            model::ExpertTensor t;
            t.component = components[c];
            t.offset = contents_.size();
            t.bytes_per_expert = e->nb[2];
            t.type = static_cast<model::TypeId>(e->type);
            t.ne0 = static_cast<uint64_t>(e->ne[0]);
            t.ne1 = static_cast<uint64_t>(e->ne[1]);
            const auto* bytes = static_cast<const std::byte*>(e->data);
            contents_.insert(contents_.end(), bytes, bytes + ggml_nbytes(e));
            contents_.resize(align_up(contents_.size(), size_t{32}) + 32);
            set.tensors.push_back(t);
        }
        geometry_.sets.push_back(set);
    }
    [[nodiscard]] uint64_t record_bytes() const {
        uint64_t bytes = 0;
        for (const model::ExpertTensor& t : geometry_.sets[0].tensors) bytes += t.bytes_per_expert;
        return bytes;
    }

    // The same graph without weights, over a fresh cache of `slots` experts.
    void stream(uint32_t slots, const io::SimOptions& sim, bool overlap = true, uint32_t wave = 0,
                bool by_node = false) {
        executor_.reset();
        runtime_ = std::make_unique<ModelRuntime>();
        engine_ = std::make_unique<io::SimEngine>(clock_, sim);
        engine_->set_contents(file_, contents_);
        const io::File* files[] = {&file_};
        store_ = std::make_unique<store::RecordStore>(store::RecordStore::over(geometry_, files));
        uint64_t record = 0;
        for (uint32_t l = 0; l < geometry_.sets.size(); ++l) {
            runtime_->same_delta.emplace_back();
            runtime_->forms.emplace_back();
            record = 0;
            for (uint32_t c = 0; c < store_->n_components(l); ++c) {
                record += align_up(store_->aligned_capacity(l, c), cache::kSlotAlign);
                bool same = true;
                for (uint32_t e = 1; e < kExperts; ++e) {
                    same = same && store::RecordStore::aligned(store_->extent(store_->record(l, e), c)).delta ==
                                       store::RecordStore::aligned(store_->extent(store_->record(l, 0), c)).delta;
                }
                runtime_->same_delta[l].push_back(same);
                runtime_->forms[l].emplace_back();
            }
        }
        runtime_->store = store_.get();
        runtime_->overlap = overlap;
        runtime_->wave = wave;
        if (by_node) runtime_->own_bytes = 0;
        sched::Fetcher::Options options;
        options.slots.budget = record * slots;
        options.slots.min_slots = 1;
        options.slots.policy = policy_;
        options.reads.device = device_;
        const Clock& clock = device_.measured() ? static_cast<const Clock&>(slow_) : clock_;
        auto fetcher = sched::Fetcher::create(*store_, *engine_, clock, std::move(options));
        ASSERT_TRUE(fetcher.ok()) << fetcher.status().message();
        runtime_->fetcher = std::move(*fetcher);
        executor_ = std::make_unique<MoeExecutor>(cpu_, weight_of);

        refs_.clear();
        blocks_.clear();
        for (uint32_t l = 0; l < geometry_.sets.size(); ++l) {
            blocks_.push_back(std::make_unique<Block>(shape_));
            for (uint32_t c = 0; c < blocks_[l]->experts.size(); ++c) {
                refs_.push_back(std::make_unique<WeightRef>(WeightRef{runtime_.get(), l, c}));
                ggml_tensor* weight = blocks_[l]->experts[c];
                weight->extra = refs_.back().get();
                std::memset(weight->data, 0xFF, ggml_nbytes(weight));  // not a number, if used
            }
            const Block& from = *references_[l];
            Block& to = *blocks_[l];
            for (size_t i = 0; i < to.dense.size(); ++i)
                std::memcpy(to.dense[i]->data, from.dense[i]->data, ggml_nbytes(to.dense[i]));
            if (!shape_.router) std::memcpy(to.ids->data, from.ids->data, ggml_nbytes(to.ids));
            ASSERT_NO_FATAL_FAILURE(to.allocate());
        }
    }

    // One pass through all layers.
    ggml_status compute(bool capture = false, std::optional<trace::Phase> told = {}) {
        pass_ = std::make_unique<trace::Pass>(ticking_, ~trace::PartMask{0});
        pass_->told = told;
        if (capture) pass_->ledger.keep_spans(&pass_->spans);
        pass_->ledger.start();
        executor_->begin_graph();
        for (const auto& block : blocks_) {
            const ggml_status status = executor_->compute(block->graph, *pass_);
            if (status != GGML_STATUS_SUCCESS) return status;
        }
        return GGML_STATUS_SUCCESS;
    }
    // New choices of all layers with weights that sum to 1, what the dials of the runtime make of them, and what stock
    // makes of that. Returns how many ranks are dropped.
    size_t choose_with_dials() {
        size_t n = 0;
        std::uniform_real_distribution<float> uniform(0.01F, 1.0F);
        for (uint32_t l = 0; l < blocks_.size(); ++l) {
            Block& reference = *references_[l];
            choose(l, kExperts);
            auto* ids = static_cast<int32_t*>(reference.ids->data);
            auto* weights = static_cast<float*>(reference.weights->data);
            for (int64_t t = 0; t < shape_.tokens; ++t) {
                const std::span<int32_t> experts(ids + t * kTopK, kTopK);
                const std::span<float> row(weights + t * kTopK, kTopK);
                float sum = 0;
                for (float& w : row) sum += w = uniform(random_);
                for (float& w : row) w /= sum;
                std::memcpy(static_cast<float*>(blocks_[l]->weights->data) + t * kTopK, row.data(), row.size_bytes());
                std::vector<uint8_t> resident, dropped(kTopK);
                for (const int32_t e : experts)
                    resident.push_back(runtime_->fetcher->resident(store_->record(l, static_cast<uint32_t>(e))) ? 1
                                                                                                                : 0);
                n += route::drop_cold({experts, row, resident}, runtime_->dials.drop_cold, dropped);
            }
            EXPECT_EQ(ggml_backend_graph_compute(cpu_, reference.graph), GGML_STATUS_SUCCESS);
        }
        return n;
    }
    void reallocate() {
        for (const auto& block : blocks_) ASSERT_NO_FATAL_FAILURE(block->allocate());
    }
    void expect_same(const std::string& what) const {
        for (size_t l = 0; l < blocks_.size(); ++l) {
            EXPECT_EQ(std::memcmp(blocks_[l]->out->data, references_[l]->out->data, ggml_nbytes(blocks_[l]->out)), 0)
                << what;
            EXPECT_EQ(blocks_[l]->memory(), references_[l]->memory()) << what;
        }
        if (!runtime_->fetcher->reading()) {
            EXPECT_EQ(runtime_->fetcher->cache().total_leases(), 0U) << what;
        }
    }

    Shape shape_;
    ggml_backend_t cpu_ = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
    VirtualClock clock_;
    Ticking ticking_{clock_};
    Ticking slow_{clock_, 1'000'000};  // the scheduler's: its layers take some milliseconds, and a read a tenth of one
    sched::DeviceModel device_;        // measured: reads may be speculative
    cache::Policy policy_ = cache::Policy::lru;
    model::Geometry geometry_;
    std::vector<std::byte> contents_;
    io::File file_;
    std::mt19937 random_;
    std::vector<std::unique_ptr<Block>> references_, blocks_;  // by layer
    std::unique_ptr<io::SimEngine> engine_;
    std::unique_ptr<store::RecordStore> store_;
    std::unique_ptr<ModelRuntime> runtime_;
    std::vector<std::unique_ptr<WeightRef>> refs_;
    std::unique_ptr<trace::Pass> pass_;
    std::unique_ptr<MoeExecutor> executor_;
};

// R34: in whatever order reads end, at every wave width, at every number of experts that are there already.
TEST_F(ExecutorTest, InWhateverOrderExpertsComeTheGraphEndsAsIfTheyHadBeenThere) {
    std::vector<Shape> shapes;
    for (const ggml_type type : {GGML_TYPE_Q8_0, GGML_TYPE_F16}) {
        for (const bool fused : {false, true}) {
            for (const int64_t tokens : {int64_t{1}, int64_t{3}, int64_t{40}})
                shapes.push_back({type, fused, fused, tokens, tokens == 3 ? 1U : 512U, fused, true});
        }
    }
    uint64_t seed = 1;
    for (const Shape& shape : shapes) {
        ASSERT_NO_FATAL_FAILURE(start(shape, ++seed));
        for (const uint32_t wave : {1U, 2U, 4U, 64U}) {
            for (const uint32_t slots : {1U, 4U, 7U, 12U}) {
                io::SimOptions sim;
                sim.seed = ++seed;
                sim.jitter = 5;
                sim.shuffle = true;
                sim.channels = 1 + static_cast<unsigned>(seed % 7);
                const bool by_node = seed % 3 == 0;
                ASSERT_NO_FATAL_FAILURE(stream(slots, sim, true, wave, by_node));
                for (int again = 0; again < 3; ++again) {
                    ASSERT_EQ(compute(), GGML_STATUS_SUCCESS) << executor_->last_error().message();
                    expect_same(fmt::format("tokens {} fused {} wave {} slots {} by node {} again {}", shape.tokens,
                                            shape.fused, wave, slots, by_node, again));
                    if (HasFailure()) return;
                }
            }
        }
    }
}

// ---- guesses

class GuessTest : public ExecutorTest {
  protected:
    GuessTest() {
        device_ = {.bytes_per_ns = 1, .service = 105'000, .chunk = 64 * KiB, .window = 1 * MiB, .lanes = 16};
    }
    // What the test says that layers will choose.
    using Kind = int;
    static constexpr Kind kLast = 0, kRight = 1, kWrong = 2, kRandom = 3, kAdversarial = 4;
    void guess(Kind kind, uint32_t depth, uint32_t reads = UINT32_MAX) {
        runtime_->prefetch.depth = depth;
        runtime_->prefetch.reads = reads;
        if (kind == kLast) return;
        runtime_->prefetch.guesser = [this, kind](uint32_t, uint32_t to, route::LikelyExperts& out) {
            out.clear();
            const auto* chosen = static_cast<const int32_t*>(references_[to]->ids->data);
            const std::set<int32_t> right(chosen, chosen + kTopK);
            const auto n = static_cast<uint32_t>(kExperts);
            for (uint32_t e = 0; e < n; ++e) {
                const bool is_right = right.contains(static_cast<int32_t>(e));
                const bool named = kind == kRight    ? is_right
                                   : kind == kWrong  ? !is_right
                                   : kind == kRandom ? random_() % 2 == 0
                                                     : true;
                if (named) out.push_back({e, 1.0F / static_cast<float>(n)});
            }
        };
    }
    // Whatever is on its way is joined by whoever wants it, too.
    void expect_no_double_reads(const std::string& what) const {
        const sched::SchedCounters& c = runtime_->fetcher->counters();
        uint64_t asked = 0;
        std::vector<std::pair<Nanos, uint64_t>> ends;
        for (const io::SimRead& r : engine_->history()) {
            asked += r.op.length;
            for (const auto& [end, offset] : ends) {
                if (end > r.submitted || end < 0) {
                    EXPECT_NE(offset, r.op.offset) << what << ": asked for while it was on its way";
                }
            }
            ends.emplace_back(r.finished, r.op.offset);
        }
        EXPECT_EQ(c.exact_physical + c.predicted_physical, asked) << what;
    }
};

// R1, R2: right, wrong, random and adversarial guesses at every size of the cache change no byte of any result.
TEST_F(GuessTest, WhateverIsGuessedTheGraphEndsAsWithoutGuesses) {
    uint64_t seed = 900, predicted = 0;
    for (const bool fused : {false, true}) {
        for (const Kind kind : {kLast, kRight, kWrong, kRandom, kAdversarial}) {
            for (const uint32_t slots : {4U, 7U, 12U, 24U, 48U}) {
                const bool overlap = seed % 4 != 0;
                const auto depth = static_cast<uint32_t>(1 + seed % 5);
                ASSERT_NO_FATAL_FAILURE(start({.fused = fused, .router = false, .shared = true}, ++seed, 4));
                io::SimOptions sim;
                sim.seed = seed;
                sim.jitter = 3;
                sim.shuffle = true;
                sim.channels = 1 + static_cast<unsigned>(seed % 7);
                ASSERT_NO_FATAL_FAILURE(stream(slots, sim, overlap));
                guess(kind, depth, seed % 3 == 0 ? 2 : UINT32_MAX);
                const std::string what = fmt::format("kind {} slots {} depth {} fused {}", kind, slots, depth, fused);
                for (int token = 0; token < 6; ++token) {
                    for (uint32_t l = 0; l < 4; ++l) ASSERT_NO_FATAL_FAILURE(choose(l, kExperts));
                    ASSERT_NO_FATAL_FAILURE(reallocate());
                    for (const auto& r : references_) {
                        ASSERT_NO_FATAL_FAILURE(r->allocate());
                        ASSERT_EQ(ggml_backend_graph_compute(cpu_, r->graph), GGML_STATUS_SUCCESS);
                    }
                    ASSERT_EQ(compute(), GGML_STATUS_SUCCESS) << executor_->last_error().message();
                    expect_same(what);
                    if (HasFailure()) return;
                }
                expect_no_double_reads(what);
                predicted += runtime_->fetcher->counters().predicted_bytes;
            }
        }
    }
    // Not by each: where nothing waits for reads, no guess is worth one.
    EXPECT_GT(predicted, 0U);
}

// A right guess is used, whatever is guessed wrongly is not, and what both are is told.
TEST_F(GuessTest, WhatGuessesWereWorthIsCounted) {
    for (const bool right : {true, false}) {
        ASSERT_NO_FATAL_FAILURE(start({.shared = true}, 77, 4));
        ASSERT_NO_FATAL_FAILURE(stream(30, {}, false));  // each read is waited for, so guesses are worth some
        guess(right ? kRight : kWrong, 1, 2);
        int64_t hints = 0, predicted = 0, used = 0;
        for (int token = 0; token < 8; ++token) {
            for (uint32_t l = 0; l < 4; ++l) ASSERT_NO_FATAL_FAILURE(choose(l, kExperts));
            ASSERT_EQ(compute(), GGML_STATUS_SUCCESS);
            EXPECT_TRUE(pass_->predicts);
            hints += pass_->hints;
            predicted += pass_->predicted_bytes;
            used += pass_->predicted_used;
        }
        EXPECT_GT(hints, 0);
        EXPECT_LE(hints, 8 * 4 * 2) << "two reads for each layer at most";
        EXPECT_GT(predicted, 0);
        if (right) {
            EXPECT_GE(used, predicted * 8 / 10);
        } else {
            EXPECT_LE(used, predicted / 2) << "what a later token happens to choose";
        }
    }
}

// What was read for a guess and what a router chose are in time the same: fewer waits, and not one byte more.
TEST_F(GuessTest, RightGuessesHideReadsAndCostNoBytes) {
    Nanos waited[2] = {0, 0};
    uint64_t bytes[2] = {0, 0};
    for (const bool on : {false, true}) {
        ASSERT_NO_FATAL_FAILURE(start({.shared = true}, 78, 4));
        ASSERT_NO_FATAL_FAILURE(stream(20, {}));
        if (on) guess(kRight, 1);
        for (int token = 0; token < 10; ++token) {
            for (uint32_t l = 0; l < 4; ++l) ASSERT_NO_FATAL_FAILURE(choose(l, kExperts));
            ASSERT_EQ(compute(), GGML_STATUS_SUCCESS);
        }
        waited[on ? 1 : 0] = runtime_->fetcher->counters().wait;
        bytes[on ? 1 : 0] = engine_->counters().bytes;
    }
    EXPECT_LT(waited[1], waited[0]);
    EXPECT_LE(bytes[1], bytes[0] * 101 / 100);
}

// A prompt has no guesses, and one decode later they are back.
TEST_F(GuessTest, APromptIsNotGuessed) {
    ASSERT_NO_FATAL_FAILURE(start({.tokens = 3, .shared = true}, 79, 3));
    ASSERT_NO_FATAL_FAILURE(stream(20, {}));
    guess(kAdversarial, 2);
    for (int n = 0; n < 3; ++n) {
        ASSERT_EQ(compute(false, trace::Phase::prefill), GGML_STATUS_SUCCESS);
        EXPECT_EQ(pass_->hints, 0);
    }
    EXPECT_EQ(runtime_->fetcher->counters().hints, 0U);
}

// An unknown node between the products: they are computed one after the other, which is said once per model.
TEST_F(ExecutorTest, AnUnknownPatternIsComputedProductByProductAndSaidOnce) {
    static std::vector<std::string> said;
    for (const bool odd : {false, true}) {
        for (const uint32_t slots : {2U, 7U, 24U}) {
            said.clear();
            set_log_sink([](LogLevel level, const std::string& line) {
                EXPECT_EQ(level, LogLevel::debug);
                said.push_back(line);
            });
            set_log_level(LogLevel::debug);
            ASSERT_NO_FATAL_FAILURE(start({.tokens = 3, .shared = true, .odd = odd}, 21, 2));
            ASSERT_NO_FATAL_FAILURE(stream(slots, {.channels = 3, .jitter = 4, .shuffle = true}));
            ASSERT_EQ(compute(), GGML_STATUS_SUCCESS);
            expect_same("odd");
            EXPECT_EQ(runtime_->blocks_by_rank, odd ? 0U : 2U) << slots;
            EXPECT_EQ(runtime_->blocks_by_node, odd ? 2U : 0U) << slots;
            for (int again = 0; again < 2; ++again) {
                ASSERT_NO_FATAL_FAILURE(reallocate());
                ASSERT_EQ(compute(), GGML_STATUS_SUCCESS);
                expect_same("odd again");
            }
            set_log_level(LogLevel::warn);
            std::erase_if(said, [](const std::string& line) { return line.find("does not know") == line.npos; });
            ASSERT_EQ(said.size(), odd ? 1U : 0U) << slots;
            if (!odd) continue;
            for (const char* part : {"layer 0", "odd-0", "NORM"})
                EXPECT_NE(said[0].find(part), std::string::npos) << said[0];
        }
    }
}

TEST_F(ExecutorTest, WithoutOverlapItIsTheSame) {
    ASSERT_NO_FATAL_FAILURE(start({}, 3));
    for (const uint32_t slots : {1U, 7U, 12U}) {
        ASSERT_NO_FATAL_FAILURE(stream(slots, {}, false));
        ASSERT_EQ(compute(), GGML_STATUS_SUCCESS);
        expect_same("no overlap");
    }
}

// R35: one expert's read hangs; all others are read and computed meanwhile, for one token, for several and for a
// prompt, at every wave width, with as few slots as two: the stuck one has one, all others come and go in what is left.
// A block that cannot be computed by ranks gives its nodes' results one after the other, so there it holds for the node
// that waits: all others are read before that if they have slots, else when their nodes' turn is.
TEST_F(ExecutorTest, AStuckReadOfOneExpertDelaysNoOther) {
    constexpr Nanos kStall = 10'000'000'000, kSoon = kStall / 100;
    for (const int64_t tokens : {int64_t{1}, int64_t{3}, int64_t{40}}) {
        ASSERT_NO_FATAL_FAILURE(start({.tokens = tokens, .router = true, .shared = true}, 5));
        for (const uint32_t slots : {2U, 4U, 12U}) {
            for (const uint32_t wave : {0U, 1U, 2U, 4U, 64U}) {
                for (const uint64_t stuck : {0ULL, 4ULL, 14ULL}) {
                    for (const bool by_node : {false, true}) {
                        const std::string what = fmt::format("{} tokens, {} slots, wave {}, read {}, by node {}",
                                                             tokens, slots, wave, stuck, by_node);
                        ASSERT_NO_FATAL_FAILURE(stream(slots, {}, true, wave, by_node));
                        clock_ = VirtualClock();
                        engine_->fault_at(stuck, io::Fault::stall(kStall));
                        std::optional<trace::Phase> told;
                        if (tokens == 40) told = trace::Phase::prefill;
                        ASSERT_EQ(compute(true, told), GGML_STATUS_SUCCESS);
                        expect_same(what);
                        EXPECT_GE(clock_.now(), kStall);
                        const size_t reads = engine_->history().size();
                        const uint64_t stuck_at = engine_->history()[stuck].op.offset;
                        const auto& tensors = geometry_.sets[0].tensors;
                        const auto component = [&](uint64_t offset) {
                            size_t c = tensors.size();
                            while (c-- > 1 && offset + 1024 < tensors[c].offset) {
                            }
                            return c;
                        };
                        size_t soon = 0, beside = 0;
                        for (const io::SimRead& r : engine_->history()) {
                            if (r.fault != io::Fault::Kind::none) continue;
                            soon += r.finished < kSoon ? 1 : 0;
                            const bool same = component(r.op.offset) == component(stuck_at);
                            beside += r.finished < kSoon && same ? 1 : 0;
                        }
                        if (!by_node || slots == 12) {
                            EXPECT_EQ(soon, reads - 1) << what;
                        }
                        EXPECT_EQ(beside, reads / tensors.size() - 1) << what;
                        std::vector<Nanos> launches;
                        for (const trace::Span& s : pass_->spans) {
                            if (s.part == trace::Part::routed) launches.push_back(s.begin);
                        }
                        // Before: the router, the shared expert, and every expert but one. After: that one, and the
                        // sum.
                        ASSERT_GE(launches.size(), 3U);
                        const auto late =
                            std::count_if(launches.begin(), launches.end(), [&](Nanos t) { return t >= kStall; });
                        EXPECT_GE(late, 1) << what;
                        EXPECT_LT(launches.front(), kSoon) << what;
                        if (!by_node) {
                            EXPECT_LE(late, 3) << what << ": only what needs the stuck expert is left for the end";
                        } else if (slots == 12) {
                            EXPECT_LT(launches[1], kSoon) << what << ": the node's other experts";
                        }
                        EXPECT_EQ(runtime_->fetcher->cache().total_leases(), 0U) << what;
                        if (HasFailure()) return;
                    }
                }
            }
        }
        // One slot is one expert's, and whoever comes after waits for it.
        ASSERT_NO_FATAL_FAILURE(stream(1, {}));
        clock_ = VirtualClock();
        engine_->fault_at(4, io::Fault::stall(kStall));
        ASSERT_EQ(compute(), GGML_STATUS_SUCCESS);
        expect_same("one slot");
        for (size_t i = 6; i < engine_->history().size(); ++i) EXPECT_GE(engine_->history()[i].finished, kStall);
    }
}

// Whoever stops a block whose experts do not all have slots, and whatever fails in it: nothing stays leased, and the
// same block computes right afterwards.
TEST_F(ExecutorTest, ABlockThatComesInWavesCanStopAndFailAnywhere) {
    const auto drain = [&] {
        executor_->set_stop({});
        while (runtime_->fetcher->reading()) {
            clock_.advance_to(clock_.now() + 1'000'000'000);
            runtime_->fetcher->look();
        }
        EXPECT_EQ(runtime_->fetcher->cache().total_leases(), 0U);
        EXPECT_EQ(runtime_->fetcher->scheduler().live(), 0U);
        reallocate();
        ASSERT_EQ(compute(), GGML_STATUS_SUCCESS) << executor_->last_error().message();
        expect_same("afterwards");
    };
    for (const int64_t tokens : {int64_t{1}, int64_t{3}}) {
        ASSERT_NO_FATAL_FAILURE(start({.tokens = tokens, .shared = true}, 31));
        for (const uint32_t slots : {1U, 2U, 4U}) {
            for (const bool by_node : {false, true}) {
                const io::SimOptions sim{.seed = slots, .channels = 3, .jitter = 4, .shuffle = true};
                int asked = 0;
                for (ggml_status status = GGML_STATUS_ABORTED; status != GGML_STATUS_SUCCESS; ++asked) {
                    ASSERT_NO_FATAL_FAILURE(stream(slots, sim, true, 0, by_node));
                    int left = asked;
                    executor_->set_stop({[](void* n) { return --*static_cast<int*>(n) < 0; }, &left});
                    status = compute();
                    ASSERT_TRUE(status == GGML_STATUS_SUCCESS || status == GGML_STATUS_ABORTED);
                    ASSERT_NO_FATAL_FAILURE(drain());
                    ASSERT_LT(asked, 1000);
                    if (HasFailure()) return;
                }
                EXPECT_GT(asked, 3);
                const uint64_t reads = chosen(0) * 3;
                for (uint64_t k = 0; k < reads; ++k) {
                    ASSERT_NO_FATAL_FAILURE(stream(slots, sim, true, 0, by_node));
                    for (uint64_t n = k; n < 4 * reads; ++n) engine_->fault_at(n, io::Fault::error());
                    ASSERT_EQ(compute(), GGML_STATUS_FAILED) << k;
                    EXPECT_NE(executor_->last_error().message().find("layer 0, expert"), std::string::npos)
                        << executor_->last_error().message();
                    for (uint64_t n = 0; n < 4 * reads; ++n) engine_->fault_at(n, {});
                    ASSERT_NO_FATAL_FAILURE(drain());
                    if (HasFailure()) return;
                }
            }
        }
    }
}

// A block that does not fit reads each expert once and whole where it is computed by ranks, and leaves whole ones.
TEST_F(ExecutorTest, ABlockInWavesLeavesWholeExperts) {
    for (const uint32_t slots : {1U, 2U, 4U, 7U}) {
        ASSERT_NO_FATAL_FAILURE(start({.tokens = 40, .shared = true}, slots));
        ASSERT_NO_FATAL_FAILURE(stream(slots, {.seed = slots, .channels = 3, .jitter = 4, .shuffle = true}));
        ASSERT_EQ(compute(), GGML_STATUS_SUCCESS);
        expect_same("waves");
        EXPECT_EQ(static_cast<uint64_t>(pass_->exact_bytes), chosen(0) * record_bytes());
        EXPECT_GT(pass_->waves, 0);
        uint32_t there = 0;
        for (RecordId r = 0; r < kExperts; ++r) there += runtime_->fetcher->resident(r) ? 1 : 0;
        EXPECT_EQ(there, slots);
    }
}

// While all reads hang, the shared expert is computed, and nothing waits for it afterwards.
TEST_F(ExecutorTest, TheSharedExpertIsComputedWhileEverythingIsRead) {
    constexpr Nanos kStall = 10'000'000'000;
    for (const int64_t tokens : {int64_t{1}, int64_t{40}}) {
        for (const bool shared : {false, true}) {
            for (const uint32_t slots : {12U, 4U}) {  // with 4 the block comes in waves
                ASSERT_NO_FATAL_FAILURE(start({.tokens = tokens, .shared = shared}, 8));
                ASSERT_NO_FATAL_FAILURE(stream(slots, {}));
                clock_ = VirtualClock();
                for (uint64_t n = 0; n < 3 * kExperts; ++n) engine_->fault_at(n, io::Fault::stall(kStall));
                ASSERT_EQ(compute(true), GGML_STATUS_SUCCESS);
                expect_same(fmt::format("all stuck, {} slots", slots));
                const auto early = std::count_if(pass_->spans.begin(), pass_->spans.end(), [&](const trace::Span& s) {
                    return s.part == trace::Part::routed && s.begin < kStall / 100;
                });
                EXPECT_EQ(early, shared ? 1 : 0) << slots << " slots";
            }
        }
    }
}

TEST(OwnMemory, CoversABlocksRowsAndHasABound) {
    model::Geometry g;
    model::ExpertSet set;
    set.n_used = kTopK;
    for (const model::Component c : {model::Component::gate, model::Component::up, model::Component::down}) {
        model::ExpertTensor t;
        t.component = c;
        t.ne0 = c == model::Component::down ? kFf : kEmbd;
        t.ne1 = c == model::Component::down ? kEmbd : kFf;
        set.tensors.push_back(t);
    }
    g.sets.push_back(set);
    const model::GgufIndex index;
    // Gate, up, activation; down, weighted, sum.
    constexpr uint64_t kRow = (3 * kFf + 3 * kEmbd) * sizeof(float);
    EXPECT_GE(own_memory_need(index, g, 1), kTopK * kRow);
    EXPECT_EQ(own_memory_need(index, g, 7), 7 * own_memory_need(index, g, 1));
    EXPECT_EQ(own_memory_need(index, g, 1'000'000), kOwnBytes);
    g.sets[0].tensors[0].ne1 = UINT64_MAX / 2;
    EXPECT_EQ(own_memory_need(index, g, 512), kOwnBytes) << "of a file that says anything";
    EXPECT_EQ(own_memory_need(index, {}, 512), 0U);
}

// Early nodes are found by where their numbers come from, whatever they are for.
TEST_F(ExecutorTest, OnlyWhatNeedsNoExpertAndReadsWhatStaysAsItIsComesEarly) {
    ggml_context* context = ggml_init({ggml_tensor_overhead() * 64 + ggml_graph_overhead(), nullptr, true});
    const auto leaf = [&](const char* name) {
        ggml_tensor* t = ggml_new_tensor_3d(context, GGML_TYPE_F32, 32, 1, 1);
        return ggml_set_name(t, name);
    };
    WeightRef ref;
    ggml_tensor* experts = ggml_new_tensor_3d(context, GGML_TYPE_F32, 32, 32, 4);
    experts->extra = &ref;
    ggml_tensor* x = ggml_sqr(context, leaf("x"));
    ggml_tensor* state = leaf("state");
    ggml_tensor* chosen = ggml_mul_mat_id(context, experts, x, ggml_new_tensor_2d(context, GGML_TYPE_I32, 1, 1));
    ggml_tensor* free = ggml_sqr(context, x);
    ggml_tensor* after_free = ggml_neg(context, ggml_reshape_2d(context, free, 8, 4));
    ggml_tensor* reads_before = ggml_abs(context, state);
    ggml_tensor* writes = ggml_cpy(context, x, state);
    ggml_tensor* reads_after = ggml_neg(context, state);
    ggml_tensor* needs = ggml_add(context, free, chosen);
    ggml_cgraph* graph = ggml_new_graph(context);
    for (ggml_tensor* t : {chosen, free, after_free, reads_before, writes, reads_after, needs})
        ggml_build_forward_expand(graph, t);

    EarlyNodes early;
    int begin = 0;
    while (ggml_graph_node(graph, begin) != chosen) ++begin;
    find_early_nodes(graph, begin, weight_of, early);
    EXPECT_EQ(early.nodes, (std::vector<ggml_tensor*>{free, after_free, reads_before}));
    for (size_t i = 0; i < early.nodes.size(); ++i) EXPECT_EQ(ggml_graph_node(graph, early.at[i]), early.nodes[i]);
    EXPECT_EQ(early.source(after_free->src[0]), 0);
    EXPECT_EQ(early.source(needs), -1);
    EXPECT_EQ(early.bytes, 3 * 32 * sizeof(float));
    early.clear();
    EXPECT_TRUE(early.nodes.empty());
    ggml_free(context);
}

// R63: whatever fails, nothing stays leased, the error says what, and the next graph is right.
TEST_F(ExecutorTest, AReadThatFailsForGoodFailsTheGraphAndNothingAfterIt) {
    for (const int64_t tokens : {int64_t{1}, int64_t{3}}) {
        ASSERT_NO_FATAL_FAILURE(start({.tokens = tokens}, 7));
        ASSERT_NO_FATAL_FAILURE(stream(12, {}));
        ASSERT_EQ(compute(), GGML_STATUS_SUCCESS);
        const uint64_t reads = engine_->counters().reads;
        for (uint64_t k = 0; k < reads; ++k) {
            ASSERT_NO_FATAL_FAILURE(stream(12, {.seed = k, .jitter = 3, .shuffle = true}));
            engine_->fault_at(k, io::Fault::error());
            for (uint64_t n = 0; n < reads; ++n) engine_->fault_at(reads + n, io::Fault::error());
            ASSERT_NE(compute(), GGML_STATUS_SUCCESS) << k;
            EXPECT_NE(executor_->last_error().message().find("layer 0, expert"), std::string::npos)
                << executor_->last_error().message();
            EXPECT_EQ(runtime_->fetcher->cache().total_leases(),
                      runtime_->fetcher->scheduler().live() > 0 ? runtime_->fetcher->cache().total_leases() : 0U);
            for (uint64_t n = 0; n < 4 * reads; ++n) engine_->fault_at(n, {});
            ASSERT_NO_FATAL_FAILURE(reallocate());
            ASSERT_EQ(compute(), GGML_STATUS_SUCCESS) << executor_->last_error().message();
            expect_same(fmt::format("after read {}", k));
            EXPECT_EQ(runtime_->fetcher->scheduler().live(), 0U);
            if (HasFailure()) return;
        }
    }
}

// ---- prompts

constexpr uint32_t kLayers = 4;
constexpr trace::Phase kPrompt = trace::Phase::prefill;

class PrefillTest : public ExecutorTest {
  protected:
    // A cache that is full of what decode lives on: the first experts of every layer.
    void warm(uint32_t slots, const io::SimOptions& sim, PrefillMode mode) {
        ASSERT_NO_FATAL_FAILURE(stream(slots, sim));
        runtime_->prefill_mode = mode;
        std::vector<RecordId> all;
        for (uint32_t n = 0; n < slots; ++n) all.push_back(store_->record(n % kLayers, n / kLayers));
        for (uint32_t l = 0; l < kLayers; ++l) {
            std::vector<RecordId> of_layer;
            std::copy_if(all.begin(), all.end(), std::back_inserter(of_layer),
                         [&](RecordId r) { return store_->set_of(r) == l; });
            runtime_->fetcher->enter(l, trace::Phase::decode);
            ASSERT_EQ(runtime_->fetcher->lease(of_layer), of_layer.size());
            ASSERT_TRUE(runtime_->fetcher->load(of_layer, UINT8_MAX).ok());
            runtime_->fetcher->release(of_layer);
        }
        ASSERT_EQ(runtime_->fetcher->cache().n_resident(), slots);
    }
    [[nodiscard]] uint32_t there() const {
        uint32_t n = 0;
        for (RecordId r = 0; r < store_->n_records(); ++r) n += runtime_->fetcher->resident(r) ? 1 : 0;
        return n;
    }
    // Experts that some layer chose and that are not there.
    [[nodiscard]] uint64_t missing_union() const {
        uint64_t n = 0;
        for (uint32_t l = 0; l < kLayers; ++l) {
            const auto* ids = static_cast<const int32_t*>(references_[l]->ids->data);
            for (const int32_t e : std::set<int32_t>(ids, ids + kTopK * shape_.tokens))
                n += runtime_->fetcher->resident(store_->record(l, static_cast<uint32_t>(e))) ? 0 : 1;
        }
        return n;
    }
};

// R2, R39: in every mode and at every size of the cache, in whatever order reads end.
TEST_F(PrefillTest, EveryModeComputesTheSame) {
    uint64_t seed = 100;
    for (const bool fused : {false, true}) {
        ASSERT_NO_FATAL_FAILURE(
            start({.type = GGML_TYPE_Q8_0, .fused = fused, .biased = fused, .tokens = 40}, ++seed, kLayers));
        for (const PrefillMode mode : {PrefillMode::automatic, PrefillMode::macro, PrefillMode::micro}) {
            for (const uint32_t slots : {1U, 4U, 13U, 30U, 47U, 48U}) {
                const io::SimOptions sim{
                    .seed = ++seed, .channels = 1 + static_cast<unsigned>(seed % 7), .jitter = 5, .shuffle = true};
                ASSERT_NO_FATAL_FAILURE(stream(slots, sim));
                runtime_->prefill_mode = mode;
                for (int again = 0; again < 3; ++again) {
                    ASSERT_EQ(compute(false, kPrompt), GGML_STATUS_SUCCESS) << executor_->last_error().message();
                    expect_same(
                        fmt::format("fused {} mode {} slots {} again {}", fused, static_cast<int>(mode), slots, again));
                    ASSERT_EQ(compute(), GGML_STATUS_SUCCESS) << "the same as a batch that nobody called a prompt";
                    expect_same("no prompt");
                    if (HasFailure()) return;
                }
            }
        }
    }
}

// However small the part of the cache is that a prompt may use, it reads what its router chose once, and nothing else.
TEST_F(PrefillTest, MicroReadsEachChosenExpertOnce) {
    for (const uint32_t slots : {4U, 12U, 24U, 40U, 48U}) {
        ASSERT_NO_FATAL_FAILURE(start({.tokens = 6}, slots, kLayers));
        ASSERT_NO_FATAL_FAILURE(
            warm(slots, {.seed = slots, .channels = 3, .jitter = 4, .shuffle = true}, PrefillMode::micro));
        const uint64_t missing = missing_union();
        uint64_t in_all = 0;
        for (uint32_t l = 0; l < kLayers; ++l) in_all += chosen(l);
        ASSERT_EQ(compute(false, kPrompt), GGML_STATUS_SUCCESS);
        expect_same("micro");
        // What was there is not read, but for those whose slots the prompt took before it came to them.
        const uint64_t taken = slots == 48 ? 0 : runtime_->fetcher->cache().guest_limit(0);
        EXPECT_GE(static_cast<uint64_t>(pass_->exact_bytes), missing * record_bytes()) << slots;
        EXPECT_LE(static_cast<uint64_t>(pass_->exact_bytes), (missing + taken) * record_bytes()) << slots;
        EXPECT_LE(static_cast<uint64_t>(pass_->exact_bytes), in_all * record_bytes()) << slots;
        EXPECT_EQ(pass_->blocks_micro, kLayers);
        EXPECT_EQ(pass_->blocks_macro, 0);
        EXPECT_EQ(pass_->ahead_bytes, 0);
    }
}

// R41: from the second layer on all of a layer is read, whatever is chosen, if computing takes long enough; in the
// order of the file.
TEST_F(PrefillTest, MacroReadsWholeLayersWhileTheOneBeforeComputes) {
    ASSERT_NO_FATAL_FAILURE(start({.tokens = 40}, 9, kLayers));
    ASSERT_NO_FATAL_FAILURE(stream(48, {.channels = 4}));
    runtime_->prefill_mode = PrefillMode::macro;
    for (uint32_t l = 0; l < kLayers; ++l) ASSERT_NO_FATAL_FAILURE(choose(l, 6));
    pass_ = std::make_unique<trace::Pass>(ticking_, ~trace::PartMask{0});
    pass_->told = kPrompt;
    pass_->ledger.start();
    executor_->begin_graph();
    for (uint32_t l = 0; l < kLayers; ++l) {
        ASSERT_EQ(executor_->compute(blocks_[l]->graph, *pass_), GGML_STATUS_SUCCESS);
        // Attention, long enough for all reads to end.
        for (int i = 0; i < 50; ++i) {
            clock_.advance_to(clock_.now() + 1'000'000'000);
            runtime_->fetcher->look(pass_.get());
        }
    }
    expect_same("macro");
    EXPECT_EQ(pass_->blocks_micro, 1);
    EXPECT_EQ(pass_->blocks_macro, kLayers - 1);
    EXPECT_EQ(there(), 6 + (kLayers - 1) * kExperts);
    EXPECT_EQ(runtime_->fetcher->counters().exact_bytes, (6 + (kLayers - 1) * kExperts) * record_bytes());
    EXPECT_EQ(runtime_->fetcher->counters().ahead_bytes, (kLayers - 1) * kExperts * record_bytes());
    uint64_t last = 0;
    for (const io::SimRead& r : engine_->history()) {
        if (r.op.offset + r.op.length <= geometry_.sets[1].tensors[0].offset) continue;  // of the first layer
        EXPECT_GE(r.op.offset, last) << "one pass through the file, forwards";
        last = r.op.offset;
    }
    EXPECT_EQ(runtime_->fetcher->cache().total_leases(), 0U);
}

// R42: whatever is set, nothing is read in decode that no router chose; nor by a batch that is no prompt.
TEST_F(PrefillTest, DecodeReadsNoLayerAhead) {
    for (const int64_t tokens : {int64_t{1}, int64_t{3}}) {
        ASSERT_NO_FATAL_FAILURE(start({.tokens = tokens}, 11, kLayers));
        ASSERT_NO_FATAL_FAILURE(stream(48, {}));
        runtime_->prefill_mode = PrefillMode::macro;
        for (int again = 0; again < 3; ++again) {
            ASSERT_EQ(compute(), GGML_STATUS_SUCCESS);
            expect_same("decode");
            ASSERT_EQ(compute(false, trace::Phase::decode), GGML_STATUS_SUCCESS);
        }
        EXPECT_EQ(runtime_->fetcher->counters().ahead_bytes, 0U);
        EXPECT_EQ(
            runtime_->fetcher->counters().exact_bytes, record_bytes() * [&] {
                uint64_t n = 0;
                for (uint32_t l = 0; l < kLayers; ++l) n += chosen(l);
                return n;
            }());
        runtime_->fetcher->enter(0, trace::Phase::decode);
        runtime_->fetcher->read_ahead(1);
        EXPECT_EQ(runtime_->fetcher->counters().ahead_bytes, 0U);
    }
}

// R43: prompts with experts of their own, each as large as all of the cache and several of them, and then the tokens
// that decode would have gone on with.
TEST_F(PrefillTest, APromptLeavesTheWarmCacheToDecode) {
    for (const PrefillMode mode : {PrefillMode::macro, PrefillMode::micro}) {
        constexpr uint32_t kSlots = 24;  // half of all experts: the first six of each layer
        ASSERT_NO_FATAL_FAILURE(start({.tokens = 40}, 13, kLayers));
        ASSERT_NO_FATAL_FAILURE(warm(kSlots, {}, mode));
        const uint32_t limit = runtime_->fetcher->cache().guest_limit(0);
        EXPECT_EQ(limit, kSlots / 4);
        for (int turn = 0; turn < 3; ++turn) {
            for (uint32_t l = 0; l < kLayers; ++l) ASSERT_NO_FATAL_FAILURE(choose(l, 6, 6));
            ASSERT_EQ(compute(false, kPrompt), GGML_STATUS_SUCCESS);
            expect_same("foreign");
        }
        uint32_t kept = 0;
        for (uint32_t l = 0; l < kLayers; ++l) {
            for (uint32_t e = 0; e < 6; ++e) kept += runtime_->fetcher->resident(store_->record(l, e)) ? 1 : 0;
        }
        EXPECT_GE(kept, kSlots - limit) << "of what decode had";
        EXPECT_LE(runtime_->fetcher->cache().n_guests(0), limit);
    }
}

// A few rows that nobody called a prompt may be one, or several sequences that decode; what they bring in stays. The
// default policy keeps what decode uses often all the same: such a batch takes the slots of what is used least, and
// after that of what it brought itself. Sixteen rows that all choose the same experts would convince it.
TEST_F(PrefillTest, AFewRowsOfUnknownKindLeaveWhatDecodeUsesOften) {
    constexpr uint32_t kSlots = 24;
    for (const int64_t tokens : {int64_t{2}, int64_t{6}}) {
        policy_ = cache::Policy::reuse;
        ASSERT_NO_FATAL_FAILURE(start({.tokens = tokens}, 41, kLayers));
        ASSERT_NO_FATAL_FAILURE(warm(kSlots, {}, PrefillMode::automatic));
        sched::Fetcher& fetcher = *runtime_->fetcher;
        for (int token = 0; token < 20; ++token) {
            for (uint32_t l = 0; l < kLayers; ++l) {
                fetcher.visit(l, 1, trace::Phase::decode);
                for (uint32_t e = 0; e < 6; ++e) fetcher.chosen(store_->record(l, e), 0);
            }
        }
        for (uint32_t l = 0; l < kLayers; ++l) ASSERT_NO_FATAL_FAILURE(choose(l, 6, 6));
        ASSERT_EQ(compute(), GGML_STATUS_SUCCESS);
        expect_same("a few rows");
        EXPECT_EQ(pass_->blocks_micro + pass_->blocks_macro, 0) << "no prompt";
        uint32_t kept = 0;
        for (uint32_t l = 0; l < kLayers; ++l) {
            for (uint32_t e = 0; e < 6; ++e) kept += fetcher.resident(store_->record(l, e)) ? 1 : 0;
        }
        EXPECT_GE(kept, kSlots - 6) << tokens << " rows: the slots of one layer's experts are taken, not of all four";
        EXPECT_EQ(fetcher.cache().n_guests(0), 0U) << "what came stays if it is used again";
    }
}

// A read of the next layer that fails is nobody's failure until somebody wants it, and then it is read again.
TEST_F(PrefillTest, AReadAheadThatFailsIsReadAgain) {
    ASSERT_NO_FATAL_FAILURE(start({.tokens = 40}, 15, kLayers));
    ASSERT_NO_FATAL_FAILURE(stream(48, {}));
    runtime_->prefill_mode = PrefillMode::macro;
    ASSERT_EQ(compute(false, kPrompt), GGML_STATUS_SUCCESS);
    const uint64_t reads = engine_->counters().reads;
    for (uint64_t k = 0; k < reads; ++k) {
        ASSERT_NO_FATAL_FAILURE(stream(48, {.seed = k, .channels = 3, .jitter = 4, .shuffle = true}));
        runtime_->prefill_mode = PrefillMode::macro;
        engine_->fault_at(k, io::Fault::error());
        ASSERT_EQ(compute(false, kPrompt), GGML_STATUS_SUCCESS) << k << ": " << executor_->last_error().message();
        expect_same(fmt::format("fault at read {}", k));
        if (HasFailure()) return;
    }
}

// A prompt that is given up between two layers leaves nothing behind: the next one is right, and the slots are free.
TEST_F(PrefillTest, APromptGivenUpHalfwayLeavesNothing) {
    for (const uint32_t slots : {4U, 13U, 30U, 48U}) {
        for (uint32_t stop = 1; stop < kLayers; ++stop) {
            ASSERT_NO_FATAL_FAILURE(start({.tokens = 40}, 17 + stop, kLayers));
            ASSERT_NO_FATAL_FAILURE(stream(slots, {.seed = stop, .channels = 2, .jitter = 3, .shuffle = true}));
            runtime_->prefill_mode = PrefillMode::macro;
            pass_ = std::make_unique<trace::Pass>(ticking_, ~trace::PartMask{0});
            pass_->told = kPrompt;
            pass_->ledger.start();
            executor_->begin_graph();
            for (uint32_t l = 0; l < stop; ++l)
                ASSERT_EQ(executor_->compute(blocks_[l]->graph, *pass_), GGML_STATUS_SUCCESS);
            ASSERT_NO_FATAL_FAILURE(reallocate());
            ASSERT_EQ(compute(false, trace::Phase::decode), GGML_STATUS_SUCCESS) << executor_->last_error().message();
            expect_same("after a prompt that was given up");
            ASSERT_NO_FATAL_FAILURE(reallocate());
            ASSERT_EQ(compute(false, kPrompt), GGML_STATUS_SUCCESS);
            expect_same("once more");
            while (runtime_->fetcher->reading()) {
                clock_.advance_to(clock_.now() + 1'000'000'000);
                runtime_->fetcher->look();
            }
            EXPECT_EQ(runtime_->fetcher->cache().total_leases(), 0U);
            if (HasFailure()) return;
        }
    }
}

// No tax when everything is there: a block is one launch, as in stock, whatever the batch; products whose experts
// do not lie alike in their slots are computed from copied rows, one launch each when they are of several tokens.
TEST_F(ExecutorTest, WithAllExpertsThereABlockIsOneLaunch) {
    uint64_t seed = 40;
    // IQ4_NL has no kernel that wants an expert's rows by themselves, however many there are.
    for (const auto& [type, fused] :
         {std::pair(GGML_TYPE_Q8_0, false), std::pair(GGML_TYPE_Q8_0, true), std::pair(GGML_TYPE_IQ4_NL, false)}) {
        for (const int64_t tokens : {int64_t{1}, int64_t{3}, int64_t{40}}) {
            for (const uint32_t align : {1U, 512U}) {
                ASSERT_NO_FATAL_FAILURE(start({type, fused, fused, tokens, align}, ++seed));
                ASSERT_NO_FATAL_FAILURE(stream(kExperts, {}));
                std::vector<RecordId> all(kExperts);
                for (RecordId r = 0; r < kExperts; ++r) all[r] = r;
                ASSERT_EQ(runtime_->fetcher->lease(all), all.size());
                ASSERT_TRUE(runtime_->fetcher->load(all, UINT8_MAX).ok());
                runtime_->fetcher->release(all);
                ASSERT_EQ(compute(true), GGML_STATUS_SUCCESS) << executor_->last_error().message();
                EXPECT_EQ(pass_->reads, 0);
                size_t launches = 0;
                for (const trace::Span& s : pass_->spans) launches += s.part == trace::Part::routed ? 1 : 0;
                const size_t copied = tokens == 1 || align == 1 ? 0 : fused ? 2 : 3;
                EXPECT_LE(launches, 1 + 2 * copied) << "fused " << fused << " tokens " << tokens << " align " << align;
                if (copied == 0) {
                    EXPECT_EQ(launches, 1U) << "fused " << fused << " tokens " << tokens << " align " << align;
                }
                expect_same("resident");
            }
        }
    }
}

// ---- work on the threads that compute

struct Pool {
    explicit Pool(int n_threads) {
        const ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(cpu));
        const auto proc = [&](const char* name) { return ggml_backend_reg_get_proc_address(reg, name); };
        reinterpret_cast<ggml_backend_set_n_threads_t>(proc("ggml_backend_set_n_threads"))(cpu, n_threads);
        set_abort = reinterpret_cast<ggml_backend_set_abort_callback_t>(proc("ggml_backend_set_abort_callback"));
        extra = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(proc("ggml_backend_dev_get_extra_bufts"));
    }
    ~Pool() { ggml_backend_free(cpu); }
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;
    ggml_backend_t cpu = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
    ggml_backend_set_abort_callback_t set_abort = nullptr;
    ggml_backend_dev_get_extra_bufts_t extra = nullptr;
};

TEST(PoolTaskTest, EveryThreadTakesPartAndNoneWithoutABackend) {
    PoolTask task;
    for (const int n : {1, 2, 3}) {
        const Pool pool(n);
        for (int again = 0; again < 3; ++again) {
            std::vector<std::atomic<int>> calls(static_cast<size_t>(n));
            task.run(pool.cpu, [&](int thread, int n_threads) {
                EXPECT_EQ(n_threads, n);
                ++calls.at(static_cast<size_t>(thread));
            });
            for (const auto& c : calls) EXPECT_EQ(c, 1);
        }
    }
    int alone = 0;
    task.run(nullptr, [&](int thread, int n_threads) { alone += thread == 0 && n_threads == 1 ? 1 : 0; });
    EXPECT_EQ(alone, 1);
}

// Who wants the graph to stop gets the work that was begun for it done: half a conversion would be wrong weights.
TEST(PoolTaskTest, AnAbortLeavesNothingHalfDone) {
    const Pool pool(2);
    pool.set_abort(
        pool.cpu, [](void*) { return true; }, nullptr);
    std::atomic<int> calls = 0;
    PoolTask task;
    for (int again = 0; again < 3; ++again) task.run(pool.cpu, [&](int, int) { ++calls; });
    EXPECT_EQ(calls, 6);
}

// The repacked form is the same by groups of rows as in one go, on any number of threads.
TEST(PoolTaskTest, RowsConvertedInGroupsAreTheSame) {
    int repacked = 0;
    PoolTask task;
    std::mt19937 random(1);
    for (int type = 0; type < GGML_TYPE_COUNT; ++type) {
        const auto t = static_cast<ggml_type>(type);
        if (ggml_blck_size(t) < 2 || ggml_type_size(t) == 0) continue;
        for (const int64_t n_rows : {int64_t{16}, int64_t{112}, int64_t{768}}) {
            const std::unique_ptr<ggml_context, void (*)(ggml_context*)> context(
                ggml_init({8 * ggml_tensor_overhead(), nullptr, true}), ggml_free);
            ggml_tensor* w = ggml_new_tensor_3d(context.get(), t, 512, n_rows, 4);
            ggml_tensor* node =
                ggml_mul_mat_id(context.get(), w, ggml_new_tensor_3d(context.get(), GGML_TYPE_F32, 512, 1, 2),
                                ggml_new_tensor_2d(context.get(), GGML_TYPE_I32, 2, 2));
            const Pool alone(1);
            ggml_backend_dev_t const device = ggml_backend_get_device(alone.cpu);
            for (ggml_backend_buffer_type_t const* b = alone.extra(device); b != nullptr && *b != nullptr; ++b) {
                const std::unique_ptr<ggml_backend_buffer, void (*)(ggml_backend_buffer_t)> buffer(
                    ggml_backend_buft_alloc_buffer(*b, 256), ggml_backend_buffer_free);
                w->buffer = buffer.get();
                if (!ggml_backend_dev_supports_op(device, node)) continue;
                w->data = ggml_backend_buffer_get_base(buffer.get());
                ASSERT_EQ(ggml_backend_buffer_init_tensor(buffer.get(), w), GGML_STATUS_SUCCESS);
                ggml_tensor one = *w;
                one.ne[2] = 1;
                one.nb[3] = one.nb[2];
                std::vector<std::byte> raw(ggml_nbytes(&one)), whole(raw.size()), parts(raw.size());
                for (std::byte& x : raw) x = static_cast<std::byte>(random());
                one.data = whole.data();
                convert_rows(task, nullptr, one, raw.data());
                for (const int n : {1, 2, 3}) {
                    const Pool pool(n);
                    std::fill(parts.begin(), parts.end(), std::byte{0x33});
                    one.data = parts.data();
                    convert_rows(task, pool.cpu, one, raw.data());
                    EXPECT_EQ(parts, whole) << ggml_type_name(t) << ", " << n_rows << " rows, " << n << " threads";
                }
                ++repacked;
                w->data = nullptr;
            }
            w->buffer = nullptr;
        }
    }
    if (repacked == 0) GTEST_SKIP() << "this processor repacks nothing";
}

// ---- which experts run, with lossy options on

TEST_F(ExecutorTest, DroppedRanksCostNothingAndDisturbNoOtherNumber) {
    std::vector<Shape> shapes;
    for (const bool fused : {false, true}) {
        for (const int64_t tokens : {int64_t{1}, int64_t{3}}) {
            for (const uint32_t align : {1U, 512U})
                shapes.push_back({GGML_TYPE_Q8_0, fused, fused, tokens, align, false, fused});
        }
    }
    uint64_t seed = 1;
    for (const Shape& shape : shapes) {
        for (const uint32_t slots : {1U, 4U, 7U, 12U}) {
            for (const int way : {0, 1, 2}) {
                ASSERT_NO_FATAL_FAILURE(start(shape, ++seed));
                io::SimOptions sim;
                sim.seed = seed;
                sim.jitter = 5;
                sim.shuffle = true;
                ASSERT_NO_FATAL_FAILURE(stream(slots, sim, way != 1, 0, way == 2));
                runtime_->dials.drop_cold = 1.1;
                size_t all = 0;
                for (int token = 0; token < 12; ++token) {
                    const std::string what = fmt::format("tokens {} fused {} align {} slots {} way {} token {}",
                                                         shape.tokens, shape.fused, shape.align, slots, way, token);
                    const size_t dropped = choose_with_dials();
                    all += dropped;
                    // Not a number, where nobody writes.
                    for (const auto& block : blocks_) {
                        for (int i = 0; i < ggml_graph_n_nodes(block->graph); ++i) {
                            ggml_tensor* node = ggml_graph_node(block->graph, i);
                            if (node->view_src == nullptr) std::memset(node->data, 0xFF, ggml_nbytes(node));
                        }
                    }
                    const size_t read_before = engine_->history().size();
                    ASSERT_EQ(compute(false, trace::Phase::decode), GGML_STATUS_SUCCESS) << what;
                    EXPECT_EQ(pass_->dropped, static_cast<int64_t>(dropped)) << what;
                    EXPECT_EQ(pass_->routed, kTopK * shape.tokens) << what;
                    EXPECT_EQ(pass_->unedited, 0) << what;
                    const auto reads = static_cast<int64_t>(engine_->history().size() - read_before);
                    const auto components = static_cast<int64_t>(store_->n_components(0));
                    if (slots == 12) {
                        EXPECT_EQ(reads, (pass_->lookups - pass_->hits) * components) << what;
                    }
                    for (size_t l = 0; l < blocks_.size(); ++l) {
                        ASSERT_EQ(
                            std::memcmp(blocks_[l]->out->data, references_[l]->out->data, ggml_nbytes(blocks_[l]->out)),
                            0)
                            << what << " layer " << l;
                    }
                    EXPECT_EQ(runtime_->fetcher->cache().total_leases(), 0U) << what;
                }
                EXPECT_GT(all, 0U);
            }
        }
    }
}

// Three layers share the slots of four experts and a half each. Between tokens something brings other experts in, one
// token in three is stopped half-way and tried again, and reads end in drawn orders.
TEST_F(ExecutorTest, WithAShadowWhatIsDroppedFollowsFromTheTokensAlone) {
    constexpr uint32_t kSets = 3, kSlots = 13;
    std::vector<std::vector<std::byte>> first;
    std::vector<int64_t> first_dropped;
    std::set<std::vector<int64_t>> without_shadow;
    for (const bool shadow : {true, false}) {
        for (uint32_t run = 0; run < 6; ++run) {
            ASSERT_NO_FATAL_FAILURE(start({}, 11, kSets));
            io::SimOptions sim;
            sim.seed = run;
            sim.jitter = 1 + run;
            sim.shuffle = true;
            ASSERT_NO_FATAL_FAILURE(stream(kSlots, sim, run % 2 == 0));
            runtime_->dials.drop_cold = 1.2;
            const auto layout = runtime_->fetcher->layout();
            if (shadow) runtime_->shadow.emplace(*store_, layout, cache::Policy::lru, 1);
            std::mt19937 disturbance(run);
            random_.seed(77);
            std::vector<std::vector<std::byte>> outs;
            std::vector<int64_t> dropped;
            for (int token = 0; token < 20; ++token) {
                (void)choose_with_dials();
                std::vector<std::vector<std::byte>> ids, weights;
                for (const auto& block : blocks_) {
                    for (auto [keep, from] : {std::pair{&ids, block->ids}, std::pair{&weights, block->weights}}) {
                        const auto* p = static_cast<const std::byte*>(from->data);
                        keep->emplace_back(p, p + ggml_nbytes(from));
                    }
                }
                if (run > 0) {
                    auto other = static_cast<RecordId>(disturbance() % store_->n_records());
                    ASSERT_EQ(runtime_->fetcher->lease({&other, 1}), 1U);
                    ASSERT_TRUE(runtime_->fetcher->load({&other, 1}, UINT8_MAX).ok());
                    runtime_->fetcher->release({&other, 1});
                }
                if (run > 0 && disturbance() % 3 == 0) {
                    int left = static_cast<int>(disturbance() % 3);
                    executor_->set_stop({[](void* n) { return --*static_cast<int*>(n) < 0; }, &left});
                    ASSERT_EQ(compute(), GGML_STATUS_ABORTED);
                    executor_->set_stop({});
                    for (size_t l = 0; l < kSets; ++l) {
                        std::memcpy(blocks_[l]->ids->data, ids[l].data(), ids[l].size());
                        std::memcpy(blocks_[l]->weights->data, weights[l].data(), weights[l].size());
                    }
                }
                ASSERT_EQ(compute(), GGML_STATUS_SUCCESS) << executor_->last_error().message();
                dropped.push_back(pass_->dropped);
                for (const auto& block : blocks_) {
                    const auto* p = static_cast<const std::byte*>(block->out->data);
                    outs.emplace_back(p, p + ggml_nbytes(block->out));
                }
            }
            if (!shadow) {
                without_shadow.insert(dropped);
                continue;
            }
            if (run == 0) {
                first = outs;
                first_dropped = dropped;
                EXPECT_GT(std::accumulate(dropped.begin(), dropped.end(), int64_t{0}), 20);
            }
            EXPECT_EQ(outs, first) << "run " << run;
            EXPECT_EQ(dropped, first_dropped) << "run " << run;
        }
    }
    EXPECT_GT(without_shadow.size(), 1U) << "the disturbance is none";
}

TEST_F(ExecutorTest, ASubstituteIsTheNearestThatIsThereAndHasTheRoutersOwnWeight) {
    size_t all = 0;
    for (uint64_t seed = 1; seed <= 12; ++seed) {
        ASSERT_NO_FATAL_FAILURE(start({.router = true}, seed));
        Block& reference = *references_[0];
        auto* gate = static_cast<float*>(reference.dense[1]->data);
        const auto* x = static_cast<const float*>(reference.x->data);
        for (int64_t i = 0; i < kEmbd * kExperts; ++i) gate[i] *= 0.03F;
        ASSERT_NO_FATAL_FAILURE(stream(12, {}));
        ggml_tensor* router = blocks_[0]->dense[1];
        ggml_set_name(router, "blk.0.ffn_gate_inp.weight");
        const std::unique_ptr<ggml_backend_buffer, void (*)(ggml_backend_buffer_t)> weights_buffer(
            ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), ggml_nbytes(router)),
            ggml_backend_buffer_free);
        ggml_backend_buffer_set_usage(weights_buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        router->buffer = weights_buffer.get();
        runtime_->follow_routers = true;
        const double share = runtime_->dials.substitute = 0.3;
        // What the router thinks, by hand.
        std::vector<double> probability(kExperts);
        double sum = 0;
        for (size_t e = 0; e < kExperts; ++e) {
            double logit = 0;
            for (size_t i = 0; i < kEmbd; ++i) logit += static_cast<double>(gate[e * kEmbd + i]) * x[i];
            sum += probability[e] = std::exp(logit);
        }
        for (double& p : probability) p /= sum;
        std::vector<int32_t> order(kExperts);
        std::iota(order.begin(), order.end(), 0);
        std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
            return probability[static_cast<size_t>(a)] > probability[static_cast<size_t>(b)];
        });
        std::vector<RecordId> there;
        for (const size_t at : {0U, 2U, 5U, 7U}) there.push_back(store_->record(0, static_cast<uint32_t>(order[at])));
        ASSERT_EQ(runtime_->fetcher->lease(there), there.size());
        ASSERT_TRUE(runtime_->fetcher->load(there, UINT8_MAX).ok());
        runtime_->fetcher->release(there);

        std::vector<int32_t> experts(order.begin(), order.begin() + kTopK);
        std::vector<int32_t> candidates{order[5], order[7]};
        size_t expected = 0;
        for (size_t k = 0; k < kTopK && !candidates.empty(); ++k) {
            if (k == 0 || k == 2) continue;
            const auto p = [&](int32_t e) { return probability[static_cast<size_t>(e)]; };
            if (p(candidates[0]) < (1 - share) * p(experts[k])) continue;
            experts[k] = candidates[0];
            candidates.erase(candidates.begin());
            ++expected;
        }
        all += expected;
        ASSERT_EQ(compute(), GGML_STATUS_SUCCESS) << executor_->last_error().message();
        EXPECT_EQ(pass_->substituted, static_cast<int64_t>(expected)) << "seed " << seed;
        EXPECT_EQ(pass_->unedited, 0);
        EXPECT_EQ(pass_->lookups, kTopK);
        EXPECT_EQ(pass_->hits, 2 + static_cast<int64_t>(expected));

        Block by_hand({});
        for (size_t c = 0; c < by_hand.experts.size(); ++c)
            std::memcpy(by_hand.experts[c]->data, reference.experts[c]->data, ggml_nbytes(by_hand.experts[c]));
        std::memcpy(by_hand.x->data, reference.x->data, ggml_nbytes(by_hand.x));
        std::memcpy(by_hand.ids->data, experts.data(), sizeof(int32_t) * kTopK);
        for (size_t k = 0; k < kTopK; ++k) {
            static_cast<float*>(by_hand.weights->data)[k] =
                static_cast<float>(probability[static_cast<size_t>(experts[k])]);
        }
        ASSERT_NO_FATAL_FAILURE(by_hand.allocate());
        ASSERT_EQ(ggml_backend_graph_compute(cpu_, by_hand.graph), GGML_STATUS_SUCCESS);
        const auto* want = static_cast<const float*>(by_hand.out->data);
        const auto* got = static_cast<const float*>(blocks_[0]->out->data);
        for (size_t i = 0; i < kEmbd; ++i) ASSERT_NEAR(got[i], want[i], 1e-4 * (1 + std::abs(want[i]))) << seed;
    }
    EXPECT_GT(all, 6U);
}

// With `auto` most tokens act on no guess. Beside a run without guesses they cost a look at the clock at their
// beginning and their end: no router is followed, and nobody asks the drive for more.
TEST_F(ExecutorTest, ATokenThatActsOnNoGuessCostsTwoLooksAtTheClock) {
    constexpr uint32_t kThree = 3;
    ASSERT_NO_FATAL_FAILURE(start({.router = true}, 3, kThree));
    ASSERT_NO_FATAL_FAILURE(stream(kThree * kExperts, {}));
    const std::unique_ptr<ggml_backend_buffer, void (*)(ggml_backend_buffer_t)> weights_buffer(
        ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), ggml_nbytes(blocks_[0]->dense[1])),
        ggml_backend_buffer_free);
    ggml_backend_buffer_set_usage(weights_buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    for (uint32_t l = 0; l < kThree; ++l) {
        ggml_tensor* router = blocks_[l]->dense[1];
        ggml_set_name(router, fmt::format("blk.{}.ffn_gate_inp.weight", l).c_str());
        router->buffer = weights_buffer.get();
    }
    const auto looks = [&] {
        const Nanos before = clock_.now();
        EXPECT_EQ(compute(), GGML_STATUS_SUCCESS) << executor_->last_error().message();
        return clock_.now() - before;
    };
    const auto followed = [&](uint32_t l) { return !executor_->routers()->input(l).empty(); };
    looks();  // everything is read
    const Nanos without = looks();
    bool acts = false;
    runtime_->prefetch.depth = 1;
    runtime_->prefetch.stale_gate = runtime_->prefetch.automatic = true;
    runtime_->prefetch.acts = [&](int64_t) { return acts; };
    runtime_->trial.emplace();
    looks();
    EXPECT_EQ(looks(), without + 2);
    for (uint32_t l = 0; l < kThree; ++l) EXPECT_FALSE(followed(l)) << l;
    acts = true;
    EXPECT_GT(looks(), without + 2);
    for (uint32_t l = 0; l < kThree; ++l) EXPECT_TRUE(followed(l)) << l;
    acts = false;
    EXPECT_EQ(looks(), without + 2);
    for (uint32_t l = 0; l < kThree; ++l) EXPECT_FALSE(followed(l)) << l;
    runtime_->prefetch.stale_gate = false;
    EXPECT_EQ(looks(), without + 2);

    // In a trial, guessing and following routers are what a token with guesses costs: all else is there.
    runtime_->prefetch.stale_gate = true;
    runtime_->prefetch.acts = nullptr;
    runtime_->trial.emplace();
    for (int token = 0; token < 70; ++token) looks();
    EXPECT_GT(runtime_->trial->told().tokens_on, 0U);
    EXPECT_EQ(runtime_->trial->cost_on(), 2 * kThree);
}

TEST_F(ExecutorTest, WithoutItsRouterABlockHasNoSubstitutes) {
    ASSERT_NO_FATAL_FAILURE(start({}, 3));
    ASSERT_NO_FATAL_FAILURE(stream(12, {}));
    runtime_->follow_routers = true;
    runtime_->dials.substitute = 1;
    std::fill_n(static_cast<float*>(blocks_[0]->weights->data), kTopK, 0.2F);
    ASSERT_EQ(compute(), GGML_STATUS_SUCCESS);
    EXPECT_EQ(pass_->substituted, 0);
    EXPECT_EQ(pass_->unedited, 1);
    EXPECT_EQ(pass_->lookups, kTopK);
}

TEST_F(ExecutorTest, TheTraceOfADroppedRankSaysWhatTheRouterHad) {
    ASSERT_NO_FATAL_FAILURE(start({}, 3));
    ASSERT_NO_FATAL_FAILURE(stream(12, {}));
    runtime_->dials.drop_cold = 1e9;
    ASSERT_EQ(choose_with_dials(), static_cast<size_t>(kTopK - 1));
    std::vector<int32_t> ids(kTopK);
    std::vector<float> weights(kTopK);
    std::memcpy(ids.data(), blocks_[0]->ids->data, sizeof(int32_t) * kTopK);
    std::memcpy(weights.data(), blocks_[0]->weights->data, sizeof(float) * kTopK);
    const auto best = std::max_element(weights.begin(), weights.end()) - weights.begin();
    pass_ = std::make_unique<trace::Pass>(ticking_, ~trace::PartMask{0});
    pass_->wants.rows = pass_->wants.routes = true;
    pass_->ledger.start();
    executor_->begin_graph();
    ASSERT_EQ(executor_->compute(blocks_[0]->graph, *pass_), GGML_STATUS_SUCCESS);
    ASSERT_EQ(pass_->route_events.size(), static_cast<size_t>(kTopK));
    std::set<int32_t> ranks;
    for (const trace::RouteEvent& e : pass_->route_events) {
        ranks.insert(e.rank);
        EXPECT_EQ(e.expert, static_cast<uint32_t>(ids[static_cast<size_t>(e.rank)]));
        EXPECT_EQ(e.weight, weights[static_cast<size_t>(e.rank)]);
        EXPECT_EQ(e.dropped, e.rank != best);
        EXPECT_EQ(e.bytes == 0, e.dropped);
    }
    EXPECT_EQ(ranks.size(), static_cast<size_t>(kTopK));
    EXPECT_EQ(pass_->lookups, 1);
}

TEST_F(ExecutorTest, APromptIsNeverEditedAndNeitherIsABlockWhoseWeightsCannotBeFound) {
    ASSERT_NO_FATAL_FAILURE(start({.tokens = 20}, 3));
    ASSERT_NO_FATAL_FAILURE(stream(7, {}));
    runtime_->dials.drop_cold = 1e9;
    ASSERT_EQ(compute(), GGML_STATUS_SUCCESS);
    expect_same("a prompt");
    EXPECT_FALSE(pass_->dials);

    static std::vector<std::string> said;
    said.clear();
    set_log_sink([](LogLevel, const std::string& line) { said.push_back(line); });
    ASSERT_NO_FATAL_FAILURE(start({}, 4));
    ASSERT_NO_FATAL_FAILURE(stream(7, {}));
    runtime_->dials.drop_cold = 1e9;
    for (int i = 0; i < ggml_graph_n_nodes(blocks_[0]->graph); ++i) {
        ggml_tensor* node = ggml_graph_node(blocks_[0]->graph, i);
        if (node->op == GGML_OP_MUL) ggml_set_name(node, "something else");
    }
    for (int again = 0; again < 2; ++again) {
        ASSERT_EQ(compute(), GGML_STATUS_SUCCESS);
        expect_same("no weights");
        EXPECT_EQ(pass_->unedited, 1);
        EXPECT_EQ(pass_->dropped, 0);
    }
    ASSERT_EQ(said.size(), 1U) << "the reason is said once";
    EXPECT_NE(said[0].find("cannot be changed"), std::string::npos) << said[0];
}

TEST_F(ExecutorTest, WeightsThatAreNoneAreLeftAlone) {
    ASSERT_NO_FATAL_FAILURE(start({}, 3));
    ASSERT_NO_FATAL_FAILURE(stream(7, {}));
    runtime_->dials.drop_cold = 1e9;
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(blocks_[0]->weights->data, &nan, sizeof nan);
    ASSERT_EQ(compute(), GGML_STATUS_SUCCESS);
    EXPECT_EQ(pass_->unedited, 1);
    EXPECT_EQ(pass_->lookups, kTopK);
}

TEST_F(ExecutorTest, AThresholdNearZeroIsNoThreshold) {
    ASSERT_NO_FATAL_FAILURE(start({}, 3));
    ASSERT_NO_FATAL_FAILURE(stream(4, {}));
    runtime_->dials.drop_cold = 1e-30;
    for (int token = 0; token < 4; ++token) {
        ASSERT_EQ(choose_with_dials(), 0U);
        ASSERT_EQ(compute(), GGML_STATUS_SUCCESS);
        expect_same("not dropped");
    }
}

// Who waits for a block of another context is asked meanwhile whether to stop; who cannot be stopped just waits.
TEST(Claim, IsGivenUpWhenToldAndHadWhenFree) {
    struct Asked {
        int questions = 0;
        static bool third(void* self) { return ++static_cast<Asked*>(self)->questions == 3; }
    } asked;
    std::timed_mutex mutex;
    std::promise<void> held, release;
    std::thread other([&] {
        const std::lock_guard lock(mutex);
        held.set_value();
        release.get_future().wait();
    });
    held.get_future().wait();
    EXPECT_FALSE(claim(mutex, {Asked::third, &asked}).owns_lock());
    EXPECT_EQ(asked.questions, 3);
    release.set_value();
    EXPECT_TRUE(claim(mutex, {}).owns_lock());
    other.join();
    EXPECT_TRUE(claim(mutex, {Asked::third, &asked}).owns_lock());
    EXPECT_EQ(asked.questions, 3) << "nobody asks where nobody waits";
}

}  // namespace
}  // namespace sluice::exec
