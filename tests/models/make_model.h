// Owns: the making of small random mixture-of-experts GGUF files, one per graph shape of llama.cpp.
// Keeps: what write_model() writes loads and decodes in unmodified llama.cpp; one spec gives one file, byte for byte
// (quantised types: as far as ggml's own quantisers are the same); no two experts are alike; a file appears under its
// name only when it is complete.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace sluice::fixture {

// The type of the matrices. Norms, biases, routers and convolutions are F32 as in converted models; a matrix whose rows
// do not fit the blocks of the wanted type becomes F16.
enum class WeightType { f32, f16, q8_0, q4_0, q4_k, q6_k, mxfp4 };

struct ModelSpec {
    std::string arch;            // llama.cpp's name, one of known_archs()
    uint32_t n_layer = 2;        // dense layers included
    uint32_t n_embd = 256;       // a multiple of 64
    uint32_t n_ff = 256;         // width of one routed expert; a multiple of 32
    uint32_t n_ff_dense = 256;   // width of dense layers
    uint32_t n_ff_shared = 128;  // width of the shared expert, where its width is not fixed by n_ff
    uint32_t n_expert = 8;
    uint32_t n_expert_used = 2;
    uint32_t n_group = 0;       // expert groups (0: none) and
    uint32_t n_group_used = 0;  // how many of them a token may use
    uint32_t n_dense_lead = 0;  // leading dense layers, where the architecture has them
    uint32_t n_vocab = 512;
    uint32_t n_embd_per_layer = 0;  // gemma4: width of its per-layer embeddings (0: none)
    uint32_t head_dim = 32;
    uint32_t alignment = 32;     // of tensor data, a power of two, at least 32
    bool tied_output = false;    // no output matrix: the token embedding serves for both
    bool fused_gate_up = false;  // one gate_up tensor instead of two, where llama.cpp reads both forms
    bool mixed_types = false;    // another type per layer and component of the routed experts
    bool repeat_rows = false;    // big matrices draw their rows from a small pool: makes gigabytes in seconds
    WeightType type = WeightType::f16;
    uint64_t seed = 1;
};

std::vector<std::string> known_archs();

// What the architecture needs to be itself in less than 8 MB of F16.
Result<ModelSpec> default_spec(const std::string& arch);

// qwen3moe with 16 layers of 64 experts, of which 8 are used: 1.8 GB in Q8_0.
ModelSpec mid_spec();

Result<WeightType> parse_weight_type(std::string_view name);

// Refuses specs that llama.cpp could not load. Replaces `path`.
Status write_model(const ModelSpec& spec, const std::string& path);

}  // namespace sluice::fixture
