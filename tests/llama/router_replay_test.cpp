// Every router of every generated architecture, run again from a copy, against the numbers of stock llama.cpp's graph.
#include "exec/router_replay.h"

#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <gtest/gtest.h>
#include <llama.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "exec/router_book.h"

// Sanitizers bring their own operator new.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#include "tests/count_allocations.h"
#define SLUICE_COUNTS_ALLOCATIONS
#endif

namespace sluice::exec {
namespace {

std::string directory() {
    return std::getenv("SLUICE_TEST_MODELS");
}

// One of each architecture and of each further form. A quantized model's router is the same as another one's, so one of
// these is enough.
std::vector<std::string> models() {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory())) {
        const std::string name = entry.path().stem().string();
        if (entry.path().extension() != ".gguf" || name.starts_with("dense") || name.starts_with("wide")) continue;
        if (!name.ends_with("-f16") && name != "qwen3moe-q4_k_m") continue;
        names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    return names;
}

// What the graph had for one block.
struct Block {
    std::string gate;
    std::vector<float> x, weights;
    std::vector<int32_t> ids;
};

// Looks at a context's graphs while they are computed.
class Watcher {
  public:
    Watcher() : cpu_(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr)) {
        const ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(cpu_));
        reinterpret_cast<ggml_backend_set_n_threads_t>(
            ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads"))(cpu_, 1);
    }
    ~Watcher() { ggml_backend_free(cpu_); }
    Watcher(const Watcher&) = delete;
    Watcher& operator=(const Watcher&) = delete;

    static bool call(ggml_tensor* t, bool ask, void* self) { return static_cast<Watcher*>(self)->look(t, ask); }
    [[nodiscard]] ggml_backend_t cpu() const { return cpu_; }

    bool decoding = false;
    size_t blocks = 0, from_tokens = 0, most_replays = 0;
    std::map<std::string, RouterReplay> replays;  // by gate and form
    std::vector<Block> of_token;                  // since somebody emptied it

  private:
    bool look(ggml_tensor* t, bool ask) {
        if (!decoding) return !ask;
        const bool product =
            t->op == GGML_OP_MUL_MAT && std::string_view(t->src[0]->name).ends_with("ffn_gate_inp.weight");
        const bool chosen = t->op == GGML_OP_MUL_MAT_ID && t->src[2] != last_ids_;
        const bool weighted = t->op == GGML_OP_MUL && std::string_view(t->name).starts_with("ffn_moe_weighted");
        if (ask) return product || chosen || weighted;
        if (product) {
            inputs_[t->src[0]->name].assign(static_cast<size_t>(t->src[1]->ne[0]), 0);
            EXPECT_TRUE(copy_row(t->src[1], 0, inputs_[t->src[0]->name]));
        } else if (weighted && t->src[1]->type == GGML_TYPE_F32) {
            weights_ = t->src[1];
            applied_.resize(static_cast<size_t>(ggml_nelements(weights_)));
            std::memcpy(applied_.data(), weights_->data, ggml_nbytes(weights_));
            if (pending_ids_ != nullptr) block();
        } else if (chosen) {
            last_ids_ = pending_ids_ = t->src[2];
            chosen_.resize(static_cast<size_t>(t->src[2]->ne[0]));
            std::memcpy(chosen_.data(), t->src[2]->data, chosen_.size() * sizeof(int32_t));
            if (weights_ != nullptr) block();  // llama4 applies them before
        }
        return true;
    }

    void block() {
        ++blocks;
        const ggml_tensor* ids = std::exchange(pending_ids_, nullptr);
        const ggml_tensor* weights = std::exchange(weights_, nullptr);
        const auto origin = find_router(ids, weights);
        if (!origin.ok()) {
            // deepseek4's first layers look their experts up by the token.
            EXPECT_NE(origin.status().message().find("an input of the graph"), std::string::npos)
                << origin.status().message();
            ++from_tokens;
            return;
        }
        // A layer of grovemoe has two blocks behind one product.
        const std::string gate =
            origin->gate->name + std::string(" ") + std::to_string(ids->ne[0]) + std::to_string(origin->form);
        if (!replays.contains(gate)) {
            auto made = RouterReplay::make(ids, weights);
            ASSERT_TRUE(made.ok()) << made.status().message();
            replays.emplace(gate, std::move(*made));
        }
        RouterReplay& replay = replays.at(gate);
        const std::vector<float>& x = inputs_.at(origin->gate->name);
        const Status ran = replay.run(cpu_, x);
        ASSERT_TRUE(ran.ok()) << ran.message();
        ASSERT_EQ(replay.ids().size(), chosen_.size()) << gate;
        EXPECT_TRUE(std::equal(chosen_.begin(), chosen_.end(), replay.ids().begin())) << gate << ": other experts";
        ASSERT_EQ(replay.weights().size(), applied_.size()) << gate;
        EXPECT_EQ(std::memcmp(replay.weights().data(), applied_.data(), applied_.size() * sizeof(float)), 0)
            << gate << ": other weights";
        of_token.push_back({gate, x, applied_, chosen_});
    }

    ggml_backend_t cpu_;
    std::map<std::string, std::vector<float>> inputs_;
    const ggml_tensor* last_ids_ = nullptr;
    const ggml_tensor* pending_ids_ = nullptr;
    const ggml_tensor* weights_ = nullptr;
    std::vector<int32_t> chosen_;
    std::vector<float> applied_;
};

class RouterReplayTest : public ::testing::TestWithParam<std::string> {
  protected:
    // A prompt, then single tokens; `each` sees what the blocks of each token did.
    template <typename F>
    void decode(bool repack, int threads, F&& each) {
        const std::string path = directory() + "/" + GetParam() + ".gguf";
        llama_model_params mp = llama_model_default_params();
        mp.use_extra_bufts = repack;
        mp.n_gpu_layers = 0;
        llama_model* model = llama_model_load_from_file(path.c_str(), mp);
        ASSERT_NE(model, nullptr);
        llama_context_params cp = llama_context_default_params();
        cp.n_ctx = 64;
        cp.n_threads = cp.n_threads_batch = threads;
        cp.cb_eval = Watcher::call;
        cp.cb_eval_user_data = &watcher_;
        llama_context* context = llama_init_from_model(model, cp);
        ASSERT_NE(context, nullptr);
        const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
        std::vector<llama_token> prompt{3, 14, 15, 9, 2, 6};
        watcher_.decoding = false;
        EXPECT_EQ(llama_decode(context, llama_batch_get_one(prompt.data(), static_cast<int32_t>(prompt.size()))), 0);
        watcher_.decoding = true;
        for (int i = 0; i < 5; ++i) {
            llama_token token = static_cast<llama_token>((i * 7919 + 13) % n_vocab);
            watcher_.of_token.clear();
            EXPECT_EQ(llama_decode(context, llama_batch_get_one(&token, 1)), 0);
            each();
        }
        watcher_.most_replays = watcher_.replays.size();
        watcher_.replays.clear();
        llama_free(context);
        llama_model_free(model);
    }
    Watcher watcher_;
};

TEST_P(RouterReplayTest, OnItsOwnInputItIsTheRouter) {
    for (const int threads : {1, 2}) {
        SCOPED_TRACE(std::to_string(threads) + " threads");
        watcher_.blocks = watcher_.from_tokens = 0;
        decode(threads == 2, threads, [] {});
        EXPECT_GT(watcher_.blocks, watcher_.from_tokens);
        // Each router has the same form in every graph.
        EXPECT_EQ(watcher_.most_replays * 5, watcher_.blocks - watcher_.from_tokens);
        if (HasFailure()) return;
    }
}

TEST_P(RouterReplayTest, OnAnotherLayersInputItChooses) {
    decode(false, 1, [&] {
        for (size_t i = 0; i + 1 < watcher_.of_token.size(); ++i) {
            const Block& here = watcher_.of_token[i];
            const Block& there = watcher_.of_token[i + 1];
            RouterReplay& replay = watcher_.replays.at(there.gate);
            if (here.gate == there.gate) continue;
            ASSERT_TRUE(replay.run(watcher_.cpu(), here.x).ok());
            const std::set<int32_t> distinct(replay.ids().begin(), replay.ids().end());
            EXPECT_EQ(distinct.size(), replay.n_used());
            EXPECT_GE(*distinct.begin(), 0);
            EXPECT_LT(*distinct.rbegin(), static_cast<int32_t>(replay.n_expert()));
            // And back: nothing of the other input stays.
            ASSERT_TRUE(replay.run(watcher_.cpu(), there.x).ok());
            EXPECT_TRUE(std::equal(there.ids.begin(), there.ids.end(), replay.ids().begin()));
        }
    });
}

TEST_P(RouterReplayTest, ItsOwnChoiceWeighsWhatItWeighsAndOthersWeighWhatTheRouterGivesThem) {
    decode(false, 1, [&] {
        for (const Block& b : watcher_.of_token) {
            RouterReplay& replay = watcher_.replays.at(b.gate);
            ASSERT_TRUE(replay.run(watcher_.cpu(), b.x).ok());
            auto same = replay.weights_of(watcher_.cpu(), b.ids);
            ASSERT_TRUE(same.ok()) << same.status().message();
            ASSERT_EQ(same->size(), b.weights.size());
            EXPECT_EQ(std::memcmp(same->data(), b.weights.data(), b.weights.size() * sizeof(float)), 0) << b.gate;

            // In one go, from whatever was run before.
            const std::vector<float> none(b.x.size());
            ASSERT_TRUE(replay.run(watcher_.cpu(), none).ok());
            same = replay.weigh(watcher_.cpu(), b.x, b.ids);
            ASSERT_TRUE(same.ok()) << same.status().message();
            ASSERT_EQ(same->size(), b.weights.size());
            EXPECT_EQ(std::memcmp(same->data(), b.weights.data(), b.weights.size() * sizeof(float)), 0) << b.gate;
            EXPECT_FALSE(replay.weigh(watcher_.cpu(), std::vector<float>(b.x.size() + 1), b.ids).ok());
            EXPECT_FALSE(replay.weigh(watcher_.cpu(), b.x, std::vector<int32_t>(b.ids.size() + 1)).ok());
            ASSERT_TRUE(replay.run(watcher_.cpu(), b.x).ok());

            // The weights belong to experts, not to ranks.
            std::vector<int32_t> turned(b.ids.rbegin(), b.ids.rend());
            auto other = replay.weights_of(watcher_.cpu(), turned);
            ASSERT_TRUE(other.ok());
            for (size_t k = 0; k < turned.size(); ++k)
                EXPECT_NEAR((*other)[k], b.weights[turned.size() - 1 - k], 1e-5F * std::abs((*other)[k])) << b.gate;

            EXPECT_FALSE(replay.weights_of(watcher_.cpu(), std::vector<int32_t>(b.ids.size() + 1)).ok());
            std::vector<int32_t> wrong = b.ids;
            wrong[0] = static_cast<int32_t>(replay.n_expert());
            EXPECT_FALSE(replay.weights_of(watcher_.cpu(), wrong).ok());
            wrong[0] = -1;
            EXPECT_FALSE(replay.weights_of(watcher_.cpu(), wrong).ok());
        }
    });
}

TEST_P(RouterReplayTest, TheRankingBeginsWithTheChoiceAndFollowsTheScores) {
    decode(false, 1, [&] {
        for (const Block& b : watcher_.of_token) {
            RouterReplay& replay = watcher_.replays.at(b.gate);
            ASSERT_TRUE(replay.run(watcher_.cpu(), b.x).ok());
            const auto ranking = replay.ranking();
            const auto scores = replay.scores();
            if (ranking.empty()) {
                // The small experts of grovemoe: several of the ranked ones share each.
                EXPECT_TRUE(GetParam().starts_with("grovemoe")) << b.gate;
                continue;
            }
            ASSERT_EQ(ranking.size(), replay.n_expert());
            ASSERT_EQ(scores.size(), replay.n_expert());
            EXPECT_TRUE(std::equal(b.ids.begin(), b.ids.end(), ranking.begin()));
            for (size_t i = 1; i < ranking.size(); ++i)
                EXPECT_GE(scores[static_cast<size_t>(ranking[i - 1])], scores[static_cast<size_t>(ranking[i])]);
        }
    });
}

#ifdef SLUICE_COUNTS_ALLOCATIONS
TEST_P(RouterReplayTest, RunsWithoutAllocating) {
    decode(false, 1, [&] {
        for (const Block& b : watcher_.of_token) {
            RouterReplay& replay = watcher_.replays.at(b.gate);
            ASSERT_TRUE(replay.run(watcher_.cpu(), b.x).ok());
            ASSERT_TRUE(replay.weights_of(watcher_.cpu(), b.ids).ok());
        }
        const uint64_t before = allocations.load();
        for (const Block& b : watcher_.of_token) {
            RouterReplay& replay = watcher_.replays.at(b.gate);
            (void)replay.run(watcher_.cpu(), b.x);
            (void)replay.weights_of(watcher_.cpu(), b.ids);
        }
        EXPECT_EQ(allocations.load(), before);
    });
}
#endif

INSTANTIATE_TEST_SUITE_P(Models, RouterReplayTest, ::testing::ValuesIn(models()), [](const auto& model) {
    std::string name = model.param;
    std::replace_if(
        name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; }, '_');
    return name;
});

// ---- graphs that no architecture has

class ForeignGraph : public ::testing::Test {
  protected:
    ForeignGraph() : context_(ggml_init({1 << 20, nullptr, true})) {}
    ~ForeignGraph() override {
        for (ggml_backend_buffer_t b : buffers_) ggml_backend_buffer_free(b);
        ggml_free(context_);
    }
    ggml_tensor* weight(const char* name, int64_t ne0, int64_t ne1) {
        ggml_tensor* t = ggml_new_tensor_2d(context_, GGML_TYPE_F32, ne0, ne1);
        ggml_set_name(t, name);
        ggml_backend_buffer_t b = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), ggml_nbytes(t));
        ggml_backend_buffer_set_usage(b, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        buffers_.push_back(b);
        t->buffer = b;
        t->data = ggml_backend_buffer_get_base(b);
        return t;
    }
    ggml_tensor* hidden() { return ggml_rms_norm(context_, ggml_new_tensor_2d(context_, GGML_TYPE_F32, 8, 1), 1e-6F); }
    ggml_context* context_;
    std::vector<ggml_backend_buffer_t> buffers_;
};

TEST_F(ForeignGraph, WhatComesFromTwoRoutersIsRefused) {
    ggml_tensor* a = ggml_mul_mat(context_, weight("blk.0.ffn_gate_inp.weight", 8, 4), hidden());
    ggml_tensor* b = ggml_mul_mat(context_, weight("blk.1.ffn_gate_inp.weight", 8, 4), hidden());
    ggml_tensor* ids = ggml_argsort_top_k(context_, ggml_add(context_, a, b), 2);
    const auto made = RouterReplay::make(ids, nullptr);
    ASSERT_FALSE(made.ok());
    EXPECT_NE(made.status().message().find("a second router"), std::string::npos) << made.status().message();
}

TEST_F(ForeignGraph, WhatAlsoTakesAnInputOfTheGraphIsRefused) {
    ggml_tensor* logits = ggml_mul_mat(context_, weight("blk.0.ffn_gate_inp.weight", 8, 4), hidden());
    ggml_tensor* mask = ggml_new_tensor_2d(context_, GGML_TYPE_F32, 4, 1);
    ggml_set_name(mask, "inp_mask");
    const auto made = RouterReplay::make(ggml_argsort_top_k(context_, ggml_add(context_, logits, mask), 2), nullptr);
    ASSERT_FALSE(made.ok());
    EXPECT_NE(made.status().message().find("inp_mask"), std::string::npos) << made.status().message();
}

TEST_F(ForeignGraph, AnAdapterOnTheRouterIsRefusedAndAnotherForm) {
    ggml_tensor* gate = weight("blk.0.ffn_gate_inp.weight", 8, 4);
    ggml_tensor* x = hidden();
    ggml_tensor* plain = ggml_argsort_top_k(context_, ggml_mul_mat(context_, gate, x), 2);
    const auto made = RouterReplay::make(plain, nullptr);
    ASSERT_TRUE(made.ok()) << made.status().message();
    ggml_tensor* a = weight("blk.0.ffn_gate_inp.weight.lora_a", 8, 2);
    ggml_tensor* b = weight("blk.0.ffn_gate_inp.weight.lora_b", 2, 4);
    ggml_tensor* both =
        ggml_add(context_, ggml_mul_mat(context_, gate, x), ggml_mul_mat(context_, b, ggml_mul_mat(context_, a, x)));
    EXPECT_FALSE(RouterReplay::make(ggml_argsort_top_k(context_, both, 2), nullptr).ok());
    // Another choice from the same product is another router.
    const auto scaled = find_router(
        ggml_argsort_top_k(context_, ggml_scale(context_, ggml_mul_mat(context_, gate, x), 0.5F), 2), nullptr);
    ASSERT_TRUE(scaled.ok());
    EXPECT_NE(scaled->form, made->origin().form);
}

TEST_F(ForeignGraph, NothingUpstreamIsNoRouter) {
    ggml_tensor* ids = ggml_new_tensor_2d(context_, GGML_TYPE_I32, 2, 1);
    EXPECT_FALSE(find_router(ids, nullptr).ok());
    EXPECT_FALSE(RouterReplay::make(ids, nullptr).ok());
    // A whole network is not walked through.
    ggml_tensor* deep = hidden();
    for (int i = 0; i < 500; ++i) deep = ggml_scale(context_, deep, 1.5F);
    EXPECT_FALSE(find_router(ggml_argsort_top_k(context_, deep, 2), nullptr).ok());
}

TEST_F(ForeignGraph, SeveralTokensAreRefused) {
    ggml_tensor* x = ggml_rms_norm(context_, ggml_new_tensor_2d(context_, GGML_TYPE_F32, 8, 3), 1e-6F);
    ggml_tensor* ids =
        ggml_argsort_top_k(context_, ggml_mul_mat(context_, weight("blk.0.ffn_gate_inp.weight", 8, 4), x), 2);
    EXPECT_TRUE(find_router(ids, nullptr).ok());
    EXPECT_FALSE(RouterReplay::make(ids, nullptr).ok());
}

TEST_F(ForeignGraph, AnInputOfAnotherSizeIsRefused) {
    ggml_tensor* ids =
        ggml_argsort_top_k(context_, ggml_mul_mat(context_, weight("blk.0.ffn_gate_inp.weight", 8, 4), hidden()), 2);
    auto made = RouterReplay::make(ids, nullptr);
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_FALSE(made->run(nullptr, std::vector<float>(7)).ok());
    EXPECT_FALSE(made->weights_of(nullptr, std::vector<int32_t>{0, 1}).ok());  // none are known
}

// A guess by a large router is made with a quarter of its bytes, with all that follows the product; the router
// itself stays what it is.
TEST_F(ForeignGraph, AGuessOfALargeRouterIsNearlyItsChoice) {
    constexpr int64_t kInput = 1024, kExpert = 64, kUsed = 8;
    constexpr int32_t kFavourite = 5;
    ggml_tensor* gate = weight("blk.0.ffn_gate_inp.weight", kInput, kExpert);
    uint32_t seed = 1;
    const auto draw = [&] { return static_cast<float>((seed = seed * 1664525U + 1013904223U) >> 8U) / 8388608.0F - 1; };
    for (int64_t i = 0; i < kInput * kExpert; ++i) static_cast<float*>(gate->data)[i] = draw();
    ggml_tensor* bias = weight("blk.0.exp_probs_b.bias", kExpert, 1);
    for (int32_t e = 0; e < kExpert; ++e) static_cast<float*>(bias->data)[e] = e == kFavourite ? 1000.0F : 0.0F;
    ggml_tensor* x = ggml_rms_norm(context_, ggml_new_tensor_2d(context_, GGML_TYPE_F32, kInput, 1), 1e-6F);
    ggml_tensor* ids = ggml_argsort_top_k(context_, ggml_add(context_, ggml_mul_mat(context_, gate, x), bias), kUsed);
    auto made = RouterReplay::make(ids, nullptr);
    ASSERT_TRUE(made.ok()) << made.status().message();
    RouterReplay replay = std::move(*made);
    EXPECT_TRUE(replay.has_small_copy());
    EXPECT_EQ(small_copy_bytes(GGML_TYPE_F32, kInput, kExpert), kInput * kExpert * 34 / 32);

    ggml_backend_t cpu = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
    size_t agreed = 0;
    constexpr size_t kStates = 20;
    for (size_t state = 0; state < kStates; ++state) {
        std::vector<float> numbers(kInput);
        for (float& n : numbers) n = draw();
        ASSERT_TRUE(replay.run(cpu, numbers).ok());
        const std::vector<int32_t> exact(replay.ids().begin(), replay.ids().end());
        const std::vector<float> scores(replay.scores().begin(), replay.scores().end());
        ASSERT_TRUE(replay.guess(cpu, numbers).ok());
        const std::vector<int32_t> guess(replay.ids().begin(), replay.ids().end());
        EXPECT_EQ(guess[0], kFavourite) << "the bias is in it";
        for (const int32_t e : exact) agreed += std::find(guess.begin(), guess.end(), e) != guess.end() ? 1 : 0;
        EXPECT_FALSE(std::equal(scores.begin(), scores.end(), replay.scores().begin())) << "it was not in 8 bits";
        ASSERT_TRUE(replay.run(cpu, numbers).ok());
        EXPECT_TRUE(std::equal(exact.begin(), exact.end(), replay.ids().begin()));
        EXPECT_EQ(std::memcmp(scores.data(), replay.scores().data(), scores.size() * sizeof(float)), 0);
    }
    EXPECT_GE(agreed, kStates * kUsed * 95 / 100);
    ggml_backend_free(cpu);
}

// After a guess, weights are the router's own again.
TEST_F(ForeignGraph, WeightsAreNeverOfTheCopy) {
    constexpr int64_t kInput = 1024, kExpert = 64, kUsed = 8;
    ggml_tensor* gate = weight("blk.0.ffn_gate_inp.weight", kInput, kExpert);
    uint32_t seed = 1;
    const auto draw = [&] { return static_cast<float>((seed = seed * 1664525U + 1013904223U) >> 8U) / 8388608.0F - 1; };
    for (int64_t i = 0; i < kInput * kExpert; ++i) static_cast<float*>(gate->data)[i] = 0.1F * draw();
    ggml_tensor* x = ggml_rms_norm(context_, ggml_new_tensor_2d(context_, GGML_TYPE_F32, kInput, 1), 1e-6F);
    ggml_tensor* shares = ggml_soft_max(context_, ggml_mul_mat(context_, gate, x));
    ggml_tensor* ids = ggml_argsort_top_k(context_, shares, kUsed);
    ggml_tensor* weights = ggml_get_rows(context_, ggml_reshape_3d(context_, shares, 1, kExpert, 1), ids);
    auto made = RouterReplay::make(ids, weights);
    ASSERT_TRUE(made.ok()) << made.status().message();
    RouterReplay replay = std::move(*made);
    ASSERT_TRUE(replay.has_small_copy());
    ggml_backend_t cpu = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
    for (int state = 0; state < 8; ++state) {
        std::vector<float> numbers(kInput);
        for (float& n : numbers) n = draw();
        ASSERT_TRUE(replay.run(cpu, numbers).ok());
        const std::vector<int32_t> chosen(replay.ids().begin(), replay.ids().end());
        const std::vector<float> want(replay.weights().begin(), replay.weights().end());
        ASSERT_TRUE(replay.guess(cpu, numbers).ok());
        EXPECT_FALSE(std::equal(want.begin(), want.end(), replay.weights().begin())) << "it was not in 8 bits";
        const auto got = replay.weigh(cpu, numbers, chosen);
        ASSERT_TRUE(got.ok()) << got.status().message();
        ASSERT_EQ(got->size(), want.size());
        EXPECT_EQ(std::memcmp(got->data(), want.data(), want.size() * sizeof(float)), 0);
    }
    ggml_backend_free(cpu);
}

TEST_F(ForeignGraph, AGuessOfASmallRouterIsItsChoice) {
    ggml_tensor* ids =
        ggml_argsort_top_k(context_, ggml_mul_mat(context_, weight("blk.0.ffn_gate_inp.weight", 8, 4), hidden()), 2);
    auto made = RouterReplay::make(ids, nullptr);
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_FALSE(made->has_small_copy());
    for (const auto& [type, n] : {std::pair{GGML_TYPE_BF16, 1024}, {GGML_TYPE_F32, 1000}, {GGML_TYPE_F32, 64}})
        EXPECT_EQ(small_copy_bytes(type, static_cast<uint64_t>(n), 64), 0U) << n;
    EXPECT_EQ(small_copy_bytes(GGML_TYPE_F32, UINT64_MAX, 64), 0U);
}

TEST_F(ForeignGraph, WhoIsReadLivesUntilThen) {
    ggml_tensor* x = hidden();
    ggml_tensor* view = ggml_reshape_3d(context_, x, 8, 1, 1);
    ggml_tensor* dead = hidden();
    ggml_tensor* first = ggml_scale(context_, view, 2.0F);
    ggml_tensor* own = ggml_scale(context_, first, 2.0F);
    ggml_cgraph* graph = ggml_new_graph(context_);
    ggml_graph_add_node(graph, ggml_reshape_3d(context_, dead, 8, 1, 1));  // only shows it
    ggml_graph_add_node(graph, first);
    ggml_graph_add_node(graph, own);
    EXPECT_TRUE(is_read_by(graph, 0, x));
    EXPECT_TRUE(is_read_by(graph, 0, view));
    EXPECT_TRUE(is_read_by(graph, 1, x));
    EXPECT_FALSE(is_read_by(graph, 2, x)) << "who reads it is over, and may have let others write there";
    EXPECT_FALSE(is_read_by(graph, 0, dead));
    EXPECT_FALSE(is_read_by(graph, 0, first)) << "it is not there yet when the graph begins";
    EXPECT_FALSE(is_read_by(graph, 0, own));
}

TEST_F(ForeignGraph, RowsAreCopiedOnlyWhereTheyAreRowsOfFloats) {
    ggml_tensor* x = weight("x", 4, 3);
    auto* numbers = static_cast<float*>(x->data);
    for (int i = 0; i < 12; ++i) numbers[i] = static_cast<float>(i);
    std::vector<float> row(4);
    ASSERT_TRUE(copy_row(x, 2, row));
    EXPECT_EQ(row, (std::vector<float>{8, 9, 10, 11}));
    EXPECT_FALSE(copy_row(x, 3, row));
    EXPECT_FALSE(copy_row(x, -1, row));
    std::vector<float> wide(5);
    EXPECT_FALSE(copy_row(x, 0, wide));
    ggml_tensor* nowhere = ggml_new_tensor_2d(context_, GGML_TYPE_F32, 4, 3);
    EXPECT_FALSE(copy_row(nowhere, 0, row));
}

// One layer's block of one token behind a router, with experts that nobody computes.
struct BlockGraph {
    ggml_tensor *x, *product, *ids, *first;
    ggml_cgraph* graph;
};

class Book : public ForeignGraph {
  protected:
    // `kept`: the experts read what the router reads.
    BlockGraph block(ggml_tensor* gate, bool kept, float first_number, int64_t tokens = 1) {
        BlockGraph b{};
        b.x = weight("hidden", 8, tokens);
        static_cast<float*>(b.x->data)[0] = first_number;
        b.product = ggml_mul_mat(context_, gate, b.x);
        return over(b.product, b.x, kept ? b.x : weight("other", 8, tokens));
    }
    BlockGraph over(ggml_tensor* product, ggml_tensor* x, ggml_tensor* read) {
        BlockGraph b{.x = x, .product = product, .ids = nullptr, .first = nullptr, .graph = ggml_new_graph(context_)};
        b.ids = ggml_argsort_top_k(context_, product, 2);
        ggml_tensor* experts = ggml_new_tensor_3d(context_, GGML_TYPE_F32, 8, 8, 4);
        b.first = ggml_mul_mat_id(context_, experts, ggml_reshape_3d(context_, read, 8, 1, read->ne[1]), b.ids);
        ggml_graph_add_node(b.graph, b.first);
        return b;
    }
    RouterBook book_;
};

TEST_F(Book, WhatLivesUntilTheBlockIsTakenThere) {
    ggml_tensor* gate = weight("blk.0.ffn_gate_inp.weight", 8, 4);
    EXPECT_TRUE(book_.input(0).empty());
    EXPECT_EQ(book_.replay(0), nullptr);
    EXPECT_FALSE(book_.why(0).empty());
    const BlockGraph b = block(gate, true, 7);
    book_.reach(0, b.graph, 0);
    ASSERT_EQ(book_.input(0).size(), 8U);
    EXPECT_EQ(book_.input(0)[0], 7);
    EXPECT_NE(book_.replay(0), nullptr);
    EXPECT_TRUE(book_.why(0).empty());
    EXPECT_FALSE(book_.has_taps());
    book_.begin_graph();
    EXPECT_TRUE(book_.input(0).empty()) << "it was another graph's";
    EXPECT_NE(book_.replay(0), nullptr) << "the router is the same";
}

TEST_F(Book, WhatDoesNotIsTappedFromTheNextGraphOn) {
    ggml_tensor* gate = weight("blk.1.ffn_gate_inp.weight", 8, 4);
    const BlockGraph first = block(gate, false, 7);
    book_.reach(1, first.graph, 0);
    EXPECT_TRUE(book_.input(1).empty());
    EXPECT_NE(book_.why(1).find("blk.1.ffn_gate_inp.weight"), std::string::npos);
    EXPECT_NE(book_.replay(1), nullptr);
    ASSERT_TRUE(book_.has_taps());
    book_.listen(false);
    EXPECT_FALSE(book_.has_taps()) << "nobody asks, so graphs stay whole";
    book_.listen(true);
    ASSERT_TRUE(book_.has_taps());

    const BlockGraph next = block(gate, false, 9);
    book_.begin_graph();
    EXPECT_TRUE(book_.is_tapped(next.product));
    EXPECT_FALSE(book_.is_tapped(next.first));
    EXPECT_FALSE(book_.is_tapped(block(gate, false, 1, 3).product)) << "of several tokens";
    book_.tapped(next.product);
    static_cast<float*>(next.x->data)[0] = -1;  // somebody else's by now
    book_.reach(1, next.graph, 0);
    ASSERT_FALSE(book_.input(1).empty());
    EXPECT_EQ(book_.input(1)[0], 9);
    EXPECT_TRUE(book_.why(1).empty());
}

TEST_F(Book, StatesBeforeAttentionAreKeptForWhoWantsThem) {
    ggml_tensor* state = weight("attn_norm-3", 8, 1);
    static_cast<float*>(state->data)[0] = 4;
    EXPECT_FALSE(book_.is_tapped(state));
    EXPECT_EQ(book_.before_attention(3), nullptr);
    book_.keep_states();
    EXPECT_TRUE(book_.has_taps());
    EXPECT_TRUE(book_.is_tapped(state));
    EXPECT_FALSE(book_.is_tapped(weight("attn_norm-3", 8, 2))) << "of several tokens";
    EXPECT_FALSE(book_.is_tapped(weight("attn_normed-3", 8, 1)));
    book_.tapped(state);
    ASSERT_NE(book_.before_attention(3), nullptr);
    EXPECT_EQ(book_.before_attention(3)->numbers[0], 4);
    EXPECT_EQ(book_.before_attention(2), nullptr);
    EXPECT_EQ(book_.before_attention(-1), nullptr);
    book_.begin_graph();
    EXPECT_EQ(book_.before_attention(3), nullptr) << "it was another graph's";
    book_.tapped(weight("attn_norm-999999", 8, 1));
    EXPECT_EQ(book_.before_attention(999999), nullptr);
}

TEST_F(Book, TwoBlocksBehindOneProductShareItsInput) {
    ggml_tensor* gate = weight("blk.0.ffn_gate_inp.weight", 8, 4);
    const BlockGraph first = block(gate, true, 5);
    const BlockGraph second = over(first.product, first.x, weight("other", 8, 1));
    book_.reach(0, first.graph, 0);
    book_.reach(1, second.graph, 0);
    ASSERT_FALSE(book_.input(1).empty());
    EXPECT_EQ(book_.input(1)[0], 5);
    EXPECT_FALSE(book_.has_taps());
}

TEST_F(Book, SeveralTokensTellNothing) {
    const BlockGraph b = block(weight("blk.0.ffn_gate_inp.weight", 8, 4), true, 5, 3);
    book_.reach(0, b.graph, 0);
    EXPECT_TRUE(book_.input(0).empty());
    EXPECT_EQ(book_.replay(0), nullptr);
    EXPECT_FALSE(book_.has_taps());
}

TEST_F(Book, AnotherRouterUnderTheSameNameReplacesTheCopy) {
    ggml_tensor* gate = weight("blk.0.ffn_gate_inp.weight", 8, 4);
    const BlockGraph plain = block(gate, true, 5);
    book_.reach(0, plain.graph, 0);
    const uint64_t form = book_.replay(0)->origin().form;
    book_.begin_graph();
    ggml_tensor* scaled = ggml_scale(context_, ggml_mul_mat(context_, gate, plain.x), 0.5F);
    const BlockGraph other = over(scaled, plain.x, plain.x);
    book_.reach(0, other.graph, 0);
    ASSERT_NE(book_.replay(0), nullptr);
    EXPECT_NE(book_.replay(0)->origin().form, form);
    // And one that cannot be followed leaves none.
    book_.begin_graph();
    const BlockGraph lost = over(ggml_new_tensor_2d(context_, GGML_TYPE_F32, 4, 1), plain.x, plain.x);
    book_.reach(0, lost.graph, 0);
    EXPECT_EQ(book_.replay(0), nullptr);
    EXPECT_TRUE(book_.input(0).empty());
    EXPECT_FALSE(book_.why(0).empty());
}

}  // namespace
}  // namespace sluice::exec

int main(int argc, char** argv) {
    if (std::getenv("SLUICE_TEST_MODELS") == nullptr) {
        std::fprintf(stderr, "SLUICE_TEST_MODELS names the directory of the generated models\n");
        return 2;
    }
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    llama_backend_init();
    ::testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
