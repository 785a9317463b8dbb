// Tests of the generator itself; that stock llama.cpp decodes every model is sluice-check-model's part.
#include "make_model.h"

#include <ggml.h>
#include <gguf.h>
#include <gtest/gtest.h>
#include <llama.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace sluice::fixture {
namespace {

using Bytes = std::vector<char>;

struct FreeGguf {
    void operator()(gguf_context* gguf) const { gguf_free(gguf); }
};
struct FreeModel {
    void operator()(llama_model* model) const { llama_model_free(model); }
};
struct FreeContext {
    void operator()(llama_context* context) const { llama_free(context); }
};
using GgufPtr = std::unique_ptr<gguf_context, FreeGguf>;

class MakeModel : public ::testing::Test {
  protected:
    void SetUp() override {
        directory_ = std::filesystem::temp_directory_path() / ("sluice-make-model-" + std::to_string(::getpid()));
        std::filesystem::create_directories(directory_);
    }
    void TearDown() override { std::filesystem::remove_all(directory_); }

    [[nodiscard]] std::string path(const std::string& name) const { return directory_ / name; }

    std::string make(const ModelSpec& spec, const std::string& name) {
        const std::string file = path(name);
        const Status status = write_model(spec, file);
        EXPECT_TRUE(status.ok()) << status.message();
        return file;
    }

  private:
    std::filesystem::path directory_;
};

ModelSpec spec_of(const std::string& arch) {
    const Result<ModelSpec> spec = default_spec(arch);
    EXPECT_TRUE(spec.ok()) << arch;
    return *spec;
}

Bytes read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

uint64_t hash_of(const Bytes& bytes) {
    uint64_t hash = 0xcbf29ce484222325ULL;
    for (const char c : bytes) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ULL;
    return hash;
}

GgufPtr open_gguf(const std::string& path) {
    return GgufPtr(gguf_init_from_file(path.c_str(), {.no_alloc = true, .ctx = nullptr}));
}

// Where one expert's part of a tensor lies in its file.
struct Slice {
    size_t offset;
    size_t size;
};

std::vector<Slice> slices(const gguf_context* gguf, int64_t tensor) {
    const auto experts = static_cast<size_t>(gguf_get_tensor_ne(gguf, tensor)[2]);
    const size_t size = gguf_get_tensor_size(gguf, tensor) / experts;
    const size_t start = gguf_get_data_offset(gguf) + gguf_get_tensor_offset(gguf, tensor);
    std::vector<Slice> out;
    for (size_t i = 0; i < experts; ++i) out.push_back({start + i * size, size});
    return out;
}

bool is_routed(const std::string& name) {
    return name.find("_exps.weight") != std::string::npos;
}

// The logits of every token of a fixed prompt, by stock llama.cpp.
std::vector<float> logits_of(const std::string& path) {
    llama_model_params model_params = llama_model_default_params();
    model_params.use_extra_bufts = false;
    const std::unique_ptr<llama_model, FreeModel> model(llama_model_load_from_file(path.c_str(), model_params));
    if (model == nullptr) return {};
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 256;
    params.n_threads = 1;
    params.n_threads_batch = 1;
    const std::unique_ptr<llama_context, FreeContext> context(llama_init_from_model(model.get(), params));
    if (context == nullptr) return {};
    constexpr int32_t n_tokens = 40;
    llama_batch batch = llama_batch_init(n_tokens, 0, 1);
    batch.n_tokens = n_tokens;
    for (int32_t i = 0; i < n_tokens; ++i) {
        batch.token[i] = 259 + i * 37 % 250;
        batch.pos[i] = i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    std::vector<float> out;
    if (llama_decode(context.get(), batch) == 0) {
        const int32_t n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model.get()));
        for (int32_t i = 0; i < n_tokens; ++i) {
            const float* logits = llama_get_logits_ith(context.get(), i);
            out.insert(out.end(), logits, logits + n_vocab);
        }
    }
    llama_batch_free(batch);
    return out;
}

TEST_F(MakeModel, OneSpecIsOneFile) {
    for (const std::string& arch : known_archs()) {
        ModelSpec spec = spec_of(arch);
        const Bytes first = read_file(make(spec, "first.gguf"));
        EXPECT_EQ(first, read_file(make(spec, "second.gguf"))) << arch;
        EXPECT_GT(first.size(), 1'000'000U) << arch;
        EXPECT_LT(first.size(), 8'000'000U) << arch;
        spec.seed = 2;
        EXPECT_NE(first, read_file(make(spec, "other.gguf"))) << arch;
    }
}

// Written down once: the same on every machine, compiler and build type.
TEST_F(MakeModel, BytesAreTheSameEverywhere) {
    EXPECT_EQ(hash_of(read_file(make(spec_of("qwen3moe"), "model.gguf"))), 0x97983374f65e444bULL);
}

TEST_F(MakeModel, NoTwoExpertsAreAlike) {
    std::vector<ModelSpec> specs;
    for (const std::string& arch : known_archs()) specs.push_back(spec_of(arch));
    // Drawn from a pool of rows, experts must still differ.
    ModelSpec pooled = spec_of("qwen3moe");
    pooled.repeat_rows = true;
    pooled.n_expert = 64;
    specs.push_back(pooled);
    for (const ModelSpec& spec : specs) {
        const std::string file = make(spec, "model.gguf");
        const Bytes bytes = read_file(file);
        const GgufPtr gguf = open_gguf(file);
        ASSERT_NE(gguf, nullptr);
        std::set<Bytes> seen;
        size_t count = 0;
        for (int64_t t = 0; t < gguf_get_n_tensors(gguf.get()); ++t) {
            if (!is_routed(gguf_get_tensor_name(gguf.get(), t))) continue;
            for (const Slice& slice : slices(gguf.get(), t)) {
                const auto start = bytes.begin() + static_cast<std::ptrdiff_t>(slice.offset);
                seen.emplace(start, start + static_cast<std::ptrdiff_t>(slice.size));
                ++count;
            }
        }
        EXPECT_EQ(seen.size(), count) << spec.arch;
        EXPECT_GE(count, spec.n_expert * 4) << spec.arch;
    }
}

// A wrong or missing expert must be seen in the logits, or comparisons of logits would prove nothing.
TEST_F(MakeModel, OneExpertMatters) {
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    for (const std::string& arch : known_archs()) {
        const std::string file = make(spec_of(arch), "model.gguf");
        const std::vector<float> reference = logits_of(file);
        ASSERT_FALSE(reference.empty()) << arch;
        const GgufPtr gguf = open_gguf(file);
        for (int64_t t = 0; t < gguf_get_n_tensors(gguf.get()); ++t) {
            const std::string name = gguf_get_tensor_name(gguf.get(), t);
            if (!is_routed(name) || name.find("down") == std::string::npos) continue;
            const Bytes bytes = read_file(file);
            float difference = 0.0F;
            // The first expert that the prompt uses.
            for (const Slice& slice : slices(gguf.get(), t)) {
                Bytes changed = bytes;
                // Another sign for every weight.
                for (size_t i = 1; i < slice.size; i += 2) {
                    char& high = changed[slice.offset + i];
                    high = static_cast<char>(static_cast<uint8_t>(high) ^ 0x80);
                }
                const std::string other = path("changed.gguf");
                std::ofstream(other, std::ios::binary)
                    .write(changed.data(), static_cast<std::streamsize>(changed.size()));
                const std::vector<float> logits = logits_of(other);
                ASSERT_EQ(logits.size(), reference.size()) << arch;
                for (size_t i = 0; i < logits.size(); ++i) {
                    difference = std::max(difference, std::abs(logits[i] - reference[i]));
                }
                if (difference > 0.0F) break;
            }
            EXPECT_GT(difference, 0.2F) << arch << " " << name;
        }
    }
    llama_log_set(nullptr, nullptr);
}

TEST_F(MakeModel, AlignmentIsKept) {
    for (const uint32_t alignment : {32U, 64U, 4096U}) {
        ModelSpec spec = spec_of("qwen3moe");
        spec.alignment = alignment;
        spec.n_ff = 96;
        const GgufPtr gguf = open_gguf(make(spec, "model.gguf"));
        ASSERT_NE(gguf, nullptr);
        EXPECT_EQ(gguf_get_alignment(gguf.get()), alignment);
        EXPECT_EQ(gguf_get_data_offset(gguf.get()) % alignment, 0U);
        for (int64_t t = 0; t < gguf_get_n_tensors(gguf.get()); ++t) {
            EXPECT_EQ(gguf_get_tensor_offset(gguf.get(), t) % alignment, 0U);
        }
    }
}

TEST_F(MakeModel, MixedTypesDifferByLayerAndComponent) {
    ModelSpec spec = spec_of("qwen3moe");
    spec.mixed_types = true;
    const GgufPtr gguf = open_gguf(make(spec, "model.gguf"));
    ASSERT_NE(gguf, nullptr);
    const auto type_of = [&](const char* name) {
        return gguf_get_tensor_type(gguf.get(), gguf_find_tensor(gguf.get(), name));
    };
    EXPECT_NE(type_of("blk.0.ffn_gate_exps.weight"), type_of("blk.0.ffn_up_exps.weight"));
    EXPECT_NE(type_of("blk.0.ffn_up_exps.weight"), type_of("blk.0.ffn_down_exps.weight"));
    EXPECT_NE(type_of("blk.0.ffn_down_exps.weight"), type_of("blk.1.ffn_down_exps.weight"));
    EXPECT_EQ(type_of("blk.0.attn_q.weight"), GGML_TYPE_F16);
}

TEST_F(MakeModel, RefusesWhatCouldNotLoad) {
    const auto refused = [&](const std::string& arch, auto&& change) {
        ModelSpec spec = spec_of(arch);
        change(spec);
        const Status status = write_model(spec, path("refused.gguf"));
        EXPECT_EQ(status.code(), Code::invalid_argument) << status.message();
        EXPECT_FALSE(std::filesystem::exists(path("refused.gguf")));
        EXPECT_FALSE(std::filesystem::exists(path("refused.gguf.partial")));
    };
    refused("qwen3moe", [](ModelSpec& s) { s.arch = "no-such"; });
    refused("qwen3moe", [](ModelSpec& s) { s.n_layer = 0; });
    refused("qwen3moe", [](ModelSpec& s) { s.n_embd = 100; });
    refused("qwen3moe", [](ModelSpec& s) { s.n_ff = 100; });
    refused("qwen3moe", [](ModelSpec& s) { s.n_expert_used = s.n_expert + 1; });
    refused("qwen3moe", [](ModelSpec& s) { s.alignment = 48; });
    refused("qwen3moe", [](ModelSpec& s) { s.n_vocab = 100; });
    refused("qwen3moe", [](ModelSpec& s) { s.fused_gate_up = true; });
    refused("gpt-oss", [](ModelSpec& s) { s.tied_output = true; });
    refused("deepseek2", [](ModelSpec& s) { s.n_group = 3; });
    refused("deepseek2", [](ModelSpec& s) { s.n_expert_used = 5; });
    refused("glm4moe", [](ModelSpec& s) { s.n_dense_lead = s.n_layer + 1; });
    refused("qwen35moe", [](ModelSpec& s) { s.n_layer = 1; });
    EXPECT_EQ(default_spec("no-such").status().code(), Code::invalid_argument);
    EXPECT_EQ(parse_weight_type("q3").status().code(), Code::invalid_argument);
    EXPECT_EQ(write_model(spec_of("qwen3moe"), path("no/such/directory.gguf")).code(), Code::io_error);
}

}  // namespace
}  // namespace sluice::fixture
