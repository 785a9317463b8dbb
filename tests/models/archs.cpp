// Owns: one plan per architecture, each after llama.cpp's src/models/ARCH.cpp.
#include "archs.h"

#include <fmt/core.h>
#include <gguf.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace sluice::fixture {

void Plan::key(std::string_view name, uint32_t value) {
    gguf_set_val_u32(gguf_, fmt::format("{}.{}", spec_.arch, name).c_str(), value);
}
void Plan::key(std::string_view name, float value) {
    gguf_set_val_f32(gguf_, fmt::format("{}.{}", spec_.arch, name).c_str(), value);
}
void Plan::key(std::string_view name, bool value) {
    gguf_set_val_bool(gguf_, fmt::format("{}.{}", spec_.arch, name).c_str(), value);
}
void Plan::key(std::string_view name, const std::vector<uint32_t>& values) {
    gguf_set_arr_data(gguf_, fmt::format("{}.{}", spec_.arch, name).c_str(), GGUF_TYPE_UINT32, values.data(),
                      values.size());
}
void Plan::key(std::string_view name, const std::vector<uint64_t>& values) {
    gguf_set_arr_data(gguf_, fmt::format("{}.{}", spec_.arch, name).c_str(), GGUF_TYPE_UINT64, values.data(),
                      values.size());
}
void Plan::key(std::string_view name, const std::vector<float>& values) {
    gguf_set_arr_data(gguf_, fmt::format("{}.{}", spec_.arch, name).c_str(), GGUF_TYPE_FLOAT32, values.data(),
                      values.size());
}
void Plan::key_flags(std::string_view name, const std::vector<bool>& values) {
    const std::vector<int8_t> bytes(values.begin(), values.end());
    gguf_set_arr_data(gguf_, fmt::format("{}.{}", spec_.arch, name).c_str(), GGUF_TYPE_BOOL, bytes.data(),
                      bytes.size());
}

void Plan::tensor(const std::string& name, std::vector<int64_t> shape, Fill fill, float scale, Role role,
                  uint32_t layer) {
    tensors_.push_back({name, std::move(shape), fill, scale, role, layer});
}

// With a gain of 1 a matrix keeps the deviation of what it is multiplied with.
void Plan::matrix(const std::string& name, std::vector<int64_t> shape, float gain) {
    const float scale = gain / std::sqrt(static_cast<float>(shape.front()));
    tensor(name, std::move(shape), Fill::normal, scale, Role::matrix);
}

void Plan::norm(const std::string& name, int64_t width, float gain) {
    tensor(name, {width}, Fill::norm, gain, Role::vector);
}

namespace {

// Deviation of router logits: wide enough that a token's choice is clear, narrow enough that all experts get chosen.
constexpr float router_spread = 2.0F;
// Experts speak louder than attention, so that a wrong expert shows in the logits.
constexpr float expert_gain = 3.0F;
constexpr float logit_spread = 2.0F;
// llama.cpp's numbers for expert gating functions.
constexpr uint32_t gating_sigmoid = 2;
constexpr uint32_t gating_sqrt_softplus = 4;

std::string block(uint32_t layer, std::string_view name) {
    return fmt::format("blk.{}.{}", layer, name);
}

// The sizes that the spec leaves to us, as int64_t like ggml's.
struct Sizes {
    explicit Sizes(const ModelSpec& s)
        : embd(s.n_embd),
          ff(s.n_ff),
          ff_dense(s.n_ff_dense),
          ff_shared(s.n_ff_shared),
          experts(s.n_expert),
          vocab(s.n_vocab),
          head_dim(s.head_dim),
          heads(s.n_embd / s.head_dim),
          heads_kv(std::max<int64_t>(1, heads / 4)) {}
    int64_t embd, ff, ff_dense, ff_shared, experts, vocab, head_dim, heads, heads_kv;
};

uint32_t u32(int64_t value) {
    return static_cast<uint32_t>(value);
}

// `values[i % n]` for every layer.
template <typename T>
std::vector<T> per_layer(const ModelSpec& spec, std::initializer_list<T> values) {
    std::vector<T> out;
    for (uint32_t i = 0; i < spec.n_layer; ++i) out.push_back(values.begin()[i % values.size()]);
    return out;
}

void common_keys(Plan& p) {
    const ModelSpec& s = p.spec();
    const Sizes n(s);
    p.key("vocab_size", s.n_vocab);
    p.key("context_length", uint32_t{4096});
    p.key("embedding_length", s.n_embd);
    p.key("block_count", s.n_layer);
    p.key("feed_forward_length", s.n_ff_dense);
    p.key("attention.head_count", u32(n.heads));
    p.key("attention.head_count_kv", u32(n.heads_kv));
    p.key("attention.key_length", u32(n.head_dim));
    p.key("attention.value_length", u32(n.head_dim));
    p.key("attention.layer_norm_rms_epsilon", 1e-6F);
    p.key("rope.freq_base", 10000.0F);
    p.key("rope.dimension_count", u32(n.head_dim));
    p.key("expert_count", s.n_expert);
    p.key("expert_used_count", s.n_expert_used);
    if (s.n_group > 0) {
        p.key("expert_group_count", s.n_group);
        p.key("expert_group_used_count", s.n_group_used);
    }
}

// `embedding_scale`: what llama.cpp multiplies embeddings with before the first layer.
void embeddings(Plan& p, float embedding_scale = 1.0F, std::string_view final_norm = "output_norm.weight") {
    const Sizes n(p.spec());
    const float width = std::sqrt(static_cast<float>(n.embd));
    // A tied matrix answers every token with itself unless embeddings are small beside what the layers add.
    const float deviation = (p.spec().tied_output ? 0.1F : 1.0F) / embedding_scale;
    p.tensor("token_embd.weight", {n.embd, n.vocab}, Fill::normal, deviation, Role::matrix);
    if (!final_norm.empty()) {
        p.norm(std::string(final_norm), n.embd, p.spec().tied_output ? logit_spread / (deviation * width) : 1.0F);
    }
    if (!p.spec().tied_output) {
        p.tensor("output.weight", {n.embd, n.vocab}, Fill::vocabulary, logit_spread / width, Role::matrix);
    }
}

void bias(Plan& p, const std::string& name, std::vector<int64_t> shape, float scale = 0.1F) {
    p.tensor(name, std::move(shape), Fill::normal, scale, Role::vector);
}

void attention(Plan& p, uint32_t i, int64_t q, int64_t kv, int64_t out) {
    const Sizes n(p.spec());
    p.matrix(block(i, "attn_q.weight"), {n.embd, q});
    p.matrix(block(i, "attn_k.weight"), {n.embd, kv});
    p.matrix(block(i, "attn_v.weight"), {n.embd, kv});
    p.matrix(block(i, "attn_output.weight"), {out, n.embd});
}

void attention(Plan& p, uint32_t i) {
    const Sizes n(p.spec());
    attention(p, i, n.heads * n.head_dim, n.heads_kv * n.head_dim, n.heads * n.head_dim);
}

void attention_biases(Plan& p, uint32_t i) {
    const Sizes n(p.spec());
    bias(p, block(i, "attn_q.bias"), {n.heads * n.head_dim});
    bias(p, block(i, "attn_k.bias"), {n.heads_kv * n.head_dim});
    bias(p, block(i, "attn_v.bias"), {n.heads_kv * n.head_dim});
}

void head_norms(Plan& p, uint32_t i, int64_t width, float gain = 1.0F) {
    p.norm(block(i, "attn_q_norm.weight"), width, gain);
    p.norm(block(i, "attn_k_norm.weight"), width, gain);
}

void router(Plan& p, uint32_t i, float scale) {
    const Sizes n(p.spec());
    p.tensor(block(i, "ffn_gate_inp.weight"), {n.embd, n.experts}, Fill::normal, scale, Role::vector);
}

void router(Plan& p, uint32_t i) {
    router(p, i, router_spread / std::sqrt(static_cast<float>(p.spec().n_embd)));
}

void selection_bias(Plan& p, uint32_t i) {
    bias(p, block(i, "exp_probs_b.bias"), {Sizes(p.spec()).experts}, 0.1F);
}

// The routed experts' matrices. Some architectures give them a narrower stream than the model's, or no gate.
void experts(Plan& p, uint32_t i, int64_t width, bool has_gate) {
    const Sizes n(p.spec());
    const float in = 1.0F / std::sqrt(static_cast<float>(width));
    const float out = expert_gain / std::sqrt(static_cast<float>(n.ff));
    if (p.spec().fused_gate_up) {
        p.tensor(block(i, "ffn_gate_up_exps.weight"), {width, 2 * n.ff, n.experts}, Fill::normal, in, Role::gate, i);
    } else {
        if (has_gate) {
            p.tensor(block(i, "ffn_gate_exps.weight"), {width, n.ff, n.experts}, Fill::normal, in, Role::gate, i);
        }
        p.tensor(block(i, "ffn_up_exps.weight"), {width, n.ff, n.experts}, Fill::normal, in, Role::up, i);
    }
    p.tensor(block(i, "ffn_down_exps.weight"), {n.ff, width, n.experts}, Fill::normal, out, Role::down, i);
}

void experts(Plan& p, uint32_t i) {
    experts(p, i, p.spec().n_embd, true);
}

void shared_expert(Plan& p, uint32_t i, int64_t width) {
    const Sizes n(p.spec());
    p.matrix(block(i, "ffn_gate_shexp.weight"), {n.embd, width});
    p.matrix(block(i, "ffn_up_shexp.weight"), {n.embd, width});
    p.matrix(block(i, "ffn_down_shexp.weight"), {width, n.embd});
}

// The shared expert's own gate: one number per token.
void shared_gate(Plan& p, uint32_t i) {
    const Sizes n(p.spec());
    p.tensor(block(i, "ffn_gate_inp_shexp.weight"), {n.embd}, Fill::normal,
             1.0F / std::sqrt(static_cast<float>(n.embd)), Role::vector);
}

void dense_ffn(Plan& p, uint32_t i) {
    const Sizes n(p.spec());
    p.matrix(block(i, "ffn_gate.weight"), {n.embd, n.ff_dense});
    p.matrix(block(i, "ffn_up.weight"), {n.embd, n.ff_dense});
    p.matrix(block(i, "ffn_down.weight"), {n.ff_dense, n.embd});
}

Status need_layers(const Plan& p, uint32_t least) {
    if (p.spec().n_layer >= least) return {};
    return error(Code::invalid_argument, "{} needs at least {} layers to have one of each kind", p.spec().arch, least);
}

// --- softmax routing, plain attention -------------------------------------------------------------------------------

ModelSpec plain_defaults() {
    return {};
}

Status plan_qwen3moe(Plan& p) {
    const ModelSpec& s = p.spec();
    common_keys(p);
    p.key("expert_feed_forward_length", s.n_ff);
    embeddings(p);
    for (uint32_t i = 0; i < s.n_layer; ++i) {
        p.norm(block(i, "attn_norm.weight"), s.n_embd);
        attention(p, i);
        head_norms(p, i, s.head_dim);
        p.norm(block(i, "ffn_norm.weight"), s.n_embd);
        router(p, i);
        experts(p, i);
    }
    return {};
}

// Mixtral: no norms of heads, and the expert's width is the model's feed_forward_length.
Status plan_llama(Plan& p) {
    const ModelSpec& s = p.spec();
    common_keys(p);
    p.key("feed_forward_length", s.n_ff);
    embeddings(p);
    for (uint32_t i = 0; i < s.n_layer; ++i) {
        p.norm(block(i, "attn_norm.weight"), s.n_embd);
        attention(p, i);
        p.norm(block(i, "ffn_norm.weight"), s.n_embd);
        router(p, i);
        experts(p, i);
    }
    return {};
}

// Weights of the chosen experts are not normalised; queries and keys are normed across all heads.
Status plan_olmoe(Plan& p) {
    const ModelSpec& s = p.spec();
    const Sizes n(s);
    common_keys(p);
    p.key("feed_forward_length", s.n_ff);
    p.key("attention.head_count_kv", u32(n.heads));
    embeddings(p);
    for (uint32_t i = 0; i < s.n_layer; ++i) {
        p.norm(block(i, "attn_norm.weight"), n.embd);
        attention(p, i, n.embd, n.embd, n.embd);
        head_norms(p, i, n.embd);
        p.norm(block(i, "ffn_norm.weight"), n.embd);
        router(p, i);
        experts(p, i);
    }
    return {};
}

// Not normalised either, and a shared expert behind its own gate.
Status plan_qwen2moe(Plan& p) {
    const ModelSpec& s = p.spec();
    common_keys(p);
    p.key("expert_feed_forward_length", s.n_ff);
    p.key("expert_shared_feed_forward_length", s.n_ff_shared);
    embeddings(p);
    for (uint32_t i = 0; i < s.n_layer; ++i) {
        p.norm(block(i, "attn_norm.weight"), s.n_embd);
        attention(p, i);
        attention_biases(p, i);
        p.norm(block(i, "ffn_norm.weight"), s.n_embd);
        router(p, i);
        experts(p, i);
        shared_gate(p, i);
        shared_expert(p, i, s.n_ff_shared);
    }
    return {};
}

// --- gpt-oss: biases everywhere, attention sinks, softmax after the choice ------------------------------------------

Status plan_gpt_oss(Plan& p) {
    const ModelSpec& s = p.spec();
    const Sizes n(s);
    common_keys(p);
    p.key("expert_feed_forward_length", s.n_ff);
    p.key("attention.sliding_window", uint32_t{16});
    embeddings(p);
    for (uint32_t i = 0; i < s.n_layer; ++i) {
        p.norm(block(i, "attn_norm.weight"), n.embd);
        p.norm(block(i, "post_attention_norm.weight"), n.embd);
        attention(p, i);
        attention_biases(p, i);
        bias(p, block(i, "attn_output.bias"), {n.embd});
        bias(p, block(i, "attn_sinks.weight"), {n.heads}, 1.0F);
        router(p, i);
        bias(p, block(i, "ffn_gate_inp.bias"), {n.experts}, 0.3F);
        experts(p, i);
        bias(p, block(i, "ffn_gate_exps.bias"), {n.ff, n.experts});
        bias(p, block(i, "ffn_up_exps.bias"), {n.ff, n.experts});
        bias(p, block(i, "ffn_down_exps.bias"), {n.embd, n.experts});
    }
    return {};
}

// --- gemma4: router beside the norm, fused gate_up, scales per expert, two kinds of attention -----------------------

ModelSpec gemma4_defaults() {
    ModelSpec s;
    s.n_layer = 4;
    s.n_ff = 96;
    s.n_ff_dense = 192;
    s.n_dense_lead = 1;
    s.fused_gate_up = true;
    return s;
}

Status plan_gemma4(Plan& p) {
    const ModelSpec& s = p.spec();
    const Sizes n(s);
    if (Status status = need_layers(p, 2); !status) return status;
    const int64_t head_full = 2 * n.head_dim;
    const int64_t per_layer_width = s.n_embd_per_layer;
    const auto is_local = [](uint32_t i) { return i % 2 == 0; };

    common_keys(p);
    p.key("expert_feed_forward_length", s.n_ff);
    p.key("attention.head_count_kv",
          per_layer<uint32_t>(s, {u32(n.heads_kv), u32(std::max<int64_t>(1, n.heads_kv / 2))}));
    p.key("attention.key_length", u32(head_full));
    p.key("attention.value_length", u32(head_full));
    p.key("attention.key_length_swa", u32(n.head_dim));
    p.key("attention.value_length_swa", u32(n.head_dim));
    p.key("attention.sliding_window", uint32_t{16});
    p.key_flags("attention.sliding_window_pattern", per_layer<bool>(s, {true, false}));
    p.key("attention.shared_kv_layers", uint32_t{0});
    p.key("rope.dimension_count", u32(head_full));
    p.key("rope.dimension_count_swa", u32(n.head_dim));
    p.key("rope.freq_base", 1000000.0F);
    p.key("rope.freq_base_swa", 10000.0F);
    p.key("embedding_length_per_layer_input", s.n_embd_per_layer);
    p.key("final_logit_softcapping", 30.0F);

    embeddings(p, std::sqrt(static_cast<float>(n.embd)));
    if (per_layer_width > 0) {
        // llama.cpp multiplies its rows with the root of their width.
        p.tensor("per_layer_token_embd.weight", {per_layer_width * s.n_layer, n.vocab}, Fill::normal,
                 1.0F / std::sqrt(static_cast<float>(per_layer_width)), Role::matrix);
        p.matrix("per_layer_model_proj.weight", {n.embd, per_layer_width * s.n_layer});
        p.norm("per_layer_proj_norm.weight", per_layer_width);
    }
    p.tensor("rope_freqs.weight", {head_full / 2}, Fill::positive, 1.0F, Role::vector);
    for (uint32_t i = 0; i < s.n_layer; ++i) {
        const int64_t head = is_local(i) ? n.head_dim : head_full;
        const int64_t kv = head * (is_local(i) ? n.heads_kv : std::max<int64_t>(1, n.heads_kv / 2));
        p.norm(block(i, "attn_norm.weight"), n.embd);
        p.matrix(block(i, "attn_q.weight"), {n.embd, head * n.heads});
        p.matrix(block(i, "attn_k.weight"), {n.embd, kv});
        // Full attention takes its keys for values.
        if (is_local(i)) p.matrix(block(i, "attn_v.weight"), {n.embd, kv});
        p.matrix(block(i, "attn_output.weight"), {head * n.heads, n.embd});
        // Attention is not scaled here, the gains of these norms do it.
        head_norms(p, i, head, 1.0F / std::sqrt(std::sqrt(static_cast<float>(head))));
        p.norm(block(i, "post_attention_norm.weight"), n.embd);
        p.norm(block(i, "ffn_norm.weight"), n.embd);
        dense_ffn(p, i);
        p.norm(block(i, "post_ffw_norm.weight"), n.embd);
        p.tensor(block(i, "layer_output_scale.weight"), {1}, Fill::norm, 0.9F, Role::vector);
        if (i >= s.n_dense_lead) {
            // The router's input is divided by the root of the width, so its matrix is not.
            router(p, i, router_spread);
            p.norm(block(i, "ffn_gate_inp.scale"), n.embd);
            p.norm(block(i, "pre_ffw_norm_2.weight"), n.embd);
            p.norm(block(i, "post_ffw_norm_1.weight"), n.embd, 0.5F);
            p.norm(block(i, "post_ffw_norm_2.weight"), n.embd);
            experts(p, i);
            p.tensor(block(i, "ffn_down_exps.scale"), {n.experts}, Fill::positive, 1.0F, Role::vector);
        }
        if (per_layer_width > 0) {
            p.matrix(block(i, "inp_gate.weight"), {n.embd, per_layer_width});
            p.matrix(block(i, "proj.weight"), {per_layer_width, n.embd});
            p.norm(block(i, "post_norm.weight"), n.embd);
        }
    }
    return {};
}

// --- sigmoid routing with a selection bias and leading dense layers -------------------------------------------------

ModelSpec dense_lead_defaults() {
    ModelSpec s;
    s.n_layer = 4;
    s.n_ff = 128;
    s.n_ff_shared = 128;
    s.n_dense_lead = 1;
    return s;
}

ModelSpec grouped_defaults() {
    ModelSpec s = dense_lead_defaults();
    s.n_ff = 96;
    s.n_group = 4;
    s.n_group_used = 2;
    return s;
}

void sigmoid_keys(Plan& p) {
    p.key("expert_feed_forward_length", p.spec().n_ff);
    p.key("leading_dense_block_count", p.spec().n_dense_lead);
    p.key("expert_gating_func", gating_sigmoid);
    p.key("expert_weights_norm", true);
    p.key("expert_weights_scale", 1.5F);
}

// Multi-head latent attention in its absorbed form: one key head, which is also the value.
// Neither the latent's nor the value's width is a multiple of 32: on processors with AMX llama.cpp v0.5.0 would put
// attn_k_b and attn_v_b into a buffer whose kernels then refuse the permuted activations, and abort.
struct Latent {
    explicit Latent(const ModelSpec& s)
        : nope(s.head_dim),
          rope(s.head_dim),
          value(s.head_dim % 32 == 0 ? s.head_dim + 16 : s.head_dim),
          rank_q(s.n_embd / 2),
          rank_kv(s.n_embd / 2 - 16) {}
    int64_t nope, rope, value, rank_q, rank_kv;
};

void latent_keys(Plan& p) {
    const Latent a(p.spec());
    p.key("attention.key_length", u32(a.rank_kv + a.rope));
    p.key("attention.value_length", u32(a.rank_kv));
    p.key("attention.key_length_mla", u32(a.nope + a.rope));
    p.key("attention.value_length_mla", u32(a.value));
    p.key("attention.q_lora_rank", u32(a.rank_q));
    p.key("attention.kv_lora_rank", u32(a.rank_kv));
    p.key("rope.dimension_count", u32(a.rope));
}

void latent_attention(Plan& p, uint32_t i) {
    const Sizes n(p.spec());
    const Latent a(p.spec());
    p.matrix(block(i, "attn_q_a.weight"), {n.embd, a.rank_q});
    p.norm(block(i, "attn_q_a_norm.weight"), a.rank_q);
    p.matrix(block(i, "attn_q_b.weight"), {a.rank_q, n.heads * (a.nope + a.rope)});
    p.matrix(block(i, "attn_kv_a_mqa.weight"), {n.embd, a.rank_kv + a.rope});
    p.norm(block(i, "attn_kv_a_norm.weight"), a.rank_kv);
    p.matrix(block(i, "attn_k_b.weight"), {a.nope, a.rank_kv, n.heads});
    p.matrix(block(i, "attn_v_b.weight"), {a.rank_kv, a.value, n.heads});
    p.matrix(block(i, "attn_output.weight"), {n.heads * a.value, n.embd});
}

Status plan_deepseek2(Plan& p) {
    const ModelSpec& s = p.spec();
    common_keys(p);
    sigmoid_keys(p);
    latent_keys(p);
    p.key("attention.head_count_kv", uint32_t{1});
    p.key("expert_shared_count", uint32_t{1});
    embeddings(p);
    for (uint32_t i = 0; i < s.n_layer; ++i) {
        p.norm(block(i, "attn_norm.weight"), s.n_embd);
        latent_attention(p, i);
        p.norm(block(i, "ffn_norm.weight"), s.n_embd);
        if (i < s.n_dense_lead) {
            dense_ffn(p, i);
        } else {
            router(p, i);
            selection_bias(p, i);
            experts(p, i);
            shared_expert(p, i, s.n_ff);
        }
    }
    return {};
}

Status plan_glm4moe(Plan& p) {
    const ModelSpec& s = p.spec();
    common_keys(p);
    sigmoid_keys(p);
    p.key("expert_shared_count", uint32_t{1});
    p.key("rope.dimension_count", s.head_dim / 2);
    embeddings(p);
    for (uint32_t i = 0; i < s.n_layer; ++i) {
        p.norm(block(i, "attn_norm.weight"), s.n_embd);
        attention(p, i);
        attention_biases(p, i);
        head_norms(p, i, s.head_dim);
        p.norm(block(i, "post_attention_norm.weight"), s.n_embd);
        if (i < s.n_dense_lead) {
            dense_ffn(p, i);
        } else {
            router(p, i);
            selection_bias(p, i);
            experts(p, i);
            shared_expert(p, i, s.n_ff);
        }
    }
    return {};
}

// Short convolutions in place of attention in every other layer.
Status plan_lfm2moe(Plan& p) {
    const ModelSpec& s = p.spec();
    const Sizes n(s);
    if (Status status = need_layers(p, 2); !status) return status;
    constexpr int64_t kernel = 3;
    const auto is_recurrent = [](uint32_t i) { return i % 2 == 0; };
    common_keys(p);
    p.key("attention.head_count_kv", per_layer<uint32_t>(s, {0, u32(n.heads_kv)}));
    p.key("shortconv.l_cache", u32(kernel));
    p.key("expert_feed_forward_length", s.n_ff);
    p.key("leading_dense_block_count", s.n_dense_lead);
    p.key("expert_gating_func", gating_sigmoid);
    embeddings(p, 1.0F, "token_embd_norm.weight");
    for (uint32_t i = 0; i < s.n_layer; ++i) {
        p.norm(block(i, "attn_norm.weight"), n.embd);
        if (is_recurrent(i)) {
            p.tensor(block(i, "shortconv.conv.weight"), {kernel, n.embd}, Fill::normal, 0.6F, Role::vector);
            p.matrix(block(i, "shortconv.in_proj.weight"), {n.embd, 3 * n.embd});
            p.matrix(block(i, "shortconv.out_proj.weight"), {n.embd, n.embd});
        } else {
            attention(p, i);
            head_norms(p, i, n.head_dim);
        }
        p.norm(block(i, "ffn_norm.weight"), n.embd);
        if (i < s.n_dense_lead) {
            dense_ffn(p, i);
        } else {
            router(p, i);
            selection_bias(p, i);
            experts(p, i);
        }
    }
    return {};
}

// Kimi delta attention alternating with latent attention; clamped activations.
Status plan_bailingmoe3(Plan& p) {
    const ModelSpec& s = p.spec();
    const Sizes n(s);
    if (Status status = need_layers(p, 2); !status) return status;
    constexpr int64_t kernel = 4;
    const int64_t inner = n.heads * n.head_dim;
    const auto is_recurrent = [](uint32_t i) { return i % 2 == 0; };
    common_keys(p);
    sigmoid_keys(p);
    latent_keys(p);
    p.key("attention.head_count_kv", per_layer<uint32_t>(s, {0, 1}));
    p.key("expert_shared_count", uint32_t{1});
    p.key("expert_shared_feed_forward_length", s.n_ff_shared);
    p.key("ssm.conv_kernel", u32(kernel));
    p.key("kda.head_dim", s.head_dim);
    p.key("kda.safe_gate", true);
    p.key("kda.gate_lower_bound", -5.0F);
    // Some layers clamp, some do not, as in the published models.
    p.key("swiglu_clamp_exp", per_layer<float>(s, {0.0F, 4.0F}));
    p.key("swiglu_clamp_shexp", per_layer<float>(s, {0.0F, 5.0F}));
    embeddings(p);
    for (uint32_t i = 0; i < s.n_layer; ++i) {
        p.norm(block(i, "attn_norm.weight"), n.embd);
        if (is_recurrent(i)) {
            for (const char* which : {"q", "k", "v"}) {
                p.tensor(block(i, fmt::format("ssm_conv1d_{}.weight", which)), {kernel, 1, inner}, Fill::normal, 0.5F,
                         Role::vector);
            }
            attention(p, i, inner, inner, inner);
            p.matrix(block(i, "ssm_f_a.weight"), {n.embd, inner});
            p.matrix(block(i, "ssm_beta.weight"), {n.embd, n.heads});
            p.tensor(block(i, "ssm_a"), {1, n.heads}, Fill::positive, 1.0F, Role::vector);
            bias(p, block(i, "ssm_dt.bias"), {inner}, 0.5F);
            p.matrix(block(i, "ssm_g_a.weight"), {n.embd, inner});
            p.norm(block(i, "ssm_norm.weight"), n.head_dim);
        } else {
            latent_attention(p, i);
            p.matrix(block(i, "attn_gate.weight"), {n.embd, n.heads});
        }
        p.norm(block(i, "ffn_norm.weight"), n.embd);
        if (i < s.n_dense_lead) {
            dense_ffn(p, i);
        } else {
            router(p, i);
            selection_bias(p, i);
            experts(p, i);
            shared_expert(p, i, n.ff_shared);
        }
    }
    return {};
}

// --- gated delta net: linear attention in every other layer ---------------------------------------------------------

ModelSpec delta_net_defaults() {
    ModelSpec s;
    s.n_layer = 4;
    s.n_ff = 96;
    s.n_ff_shared = 96;
    return s;
}

ModelSpec qwen4exp_defaults() {
    ModelSpec s = delta_net_defaults();
    s.n_ff = 64;
    s.n_ff_shared = 64;
    s.fused_gate_up = true;
    return s;
}

struct DeltaNet {
    explicit DeltaNet(const ModelSpec& s)
        : state(s.head_dim),
          key_heads(std::max<int64_t>(1, s.n_embd / s.head_dim / 4)),
          value_heads(2 * key_heads),
          inner(state * value_heads),
          channels(2 * state * key_heads + inner) {}
    static constexpr int64_t kernel = 4;
    static constexpr uint32_t interval = 2;  // every second layer has full attention
    int64_t state, key_heads, value_heads, inner, channels;
    static bool is_recurrent(uint32_t i) { return (i + 1) % interval != 0; }
};

void delta_net_keys(Plan& p) {
    const ModelSpec& s = p.spec();
    const DeltaNet d(s);
    p.key("expert_feed_forward_length", s.n_ff);
    p.key("expert_shared_feed_forward_length", s.n_ff_shared);
    p.key("full_attention_interval", DeltaNet::interval);
    p.key("ssm.conv_kernel", u32(DeltaNet::kernel));
    p.key("ssm.inner_size", u32(d.inner));
    p.key("ssm.state_size", u32(d.state));
    p.key("ssm.time_step_rank", u32(d.value_heads));
    p.key("ssm.group_count", u32(d.key_heads));
    const uint32_t pairs = s.head_dim / 2;
    p.key("rope.dimension_sections", std::vector<uint32_t>{pairs - 2 * (pairs / 3), pairs / 3, pairs / 3, 0});
}

void delta_net(Plan& p, uint32_t i) {
    const Sizes n(p.spec());
    const DeltaNet d(p.spec());
    p.matrix(block(i, "attn_qkv.weight"), {n.embd, d.channels});
    p.matrix(block(i, "attn_gate.weight"), {n.embd, d.inner});
    p.tensor(block(i, "ssm_conv1d.weight"), {DeltaNet::kernel, d.channels}, Fill::normal, 0.5F, Role::vector);
    bias(p, block(i, "ssm_dt.bias"), {d.value_heads}, 0.5F);
    p.tensor(block(i, "ssm_a"), {d.value_heads}, Fill::decay, 1.0F, Role::vector);
    p.matrix(block(i, "ssm_beta.weight"), {n.embd, d.value_heads});
    p.matrix(block(i, "ssm_alpha.weight"), {n.embd, d.value_heads});
    p.norm(block(i, "ssm_norm.weight"), d.state);
    p.matrix(block(i, "ssm_out.weight"), {d.inner, n.embd});
}

// The query's matrix carries a gate per head beside the query.
void gated_attention(Plan& p, uint32_t i) {
    const Sizes n(p.spec());
    attention(p, i, 2 * n.heads * n.head_dim, n.heads_kv * n.head_dim, n.heads * n.head_dim);
    head_norms(p, i, n.head_dim);
}

void gated_moe(Plan& p, uint32_t i) {
    router(p, i);
    experts(p, i);
    shared_gate(p, i);
    shared_expert(p, i, p.spec().n_ff_shared);
}

Status plan_qwen35moe(Plan& p) {
    const ModelSpec& s = p.spec();
    if (Status status = need_layers(p, DeltaNet::interval); !status) return status;
    common_keys(p);
    delta_net_keys(p);
    embeddings(p);
    for (uint32_t i = 0; i < s.n_layer; ++i) {
        p.norm(block(i, "attn_norm.weight"), s.n_embd);
        if (DeltaNet::is_recurrent(i)) {
            delta_net(p, i);
        } else {
            gated_attention(p, i);
        }
        p.norm(block(i, "post_attention_norm.weight"), s.n_embd);
        gated_moe(p, i);
    }
    return {};
}

// Hyper-connections in place of norms, sparse attention chosen by an indexer, and n-gram embeddings (PLE) in layer 0.
Status plan_qwen4exp(Plan& p) {
    const ModelSpec& s = p.spec();
    const Sizes n(s);
    if (Status status = need_layers(p, DeltaNet::interval); !status) return status;
    constexpr int64_t streams = 4;
    constexpr int64_t low_rank = 16;
    constexpr int64_t index_heads = 2;
    constexpr int64_t ngram = 3;
    constexpr int64_t heads_per_ngram = 2;
    constexpr int64_t ple_heads = (ngram - 1) * heads_per_ngram;
    constexpr int64_t ple_kernel = 4;
    const int64_t wide = streams * n.embd;

    common_keys(p);
    delta_net_keys(p);
    p.key("hyper_connection.count", u32(streams));
    p.key("hyper_connection.low_rank", u32(low_rank));
    p.key("attention.indexer.head_count", u32(index_heads));
    p.key("attention.indexer.key_length", s.head_dim);
    p.key("attention.indexer.top_k", uint32_t{16});
    p.key("attention.compress_ratios", per_layer<uint32_t>(s, {4}));
    p.key("ple.layers", std::vector<uint32_t>{0});
    p.key("ple.ngram_size", u32(ngram));
    p.key("ple.heads_per_ngram", u32(heads_per_ngram));
    p.key("ple.conv_kernel", u32(ple_kernel));
    p.key("ple.eos_token_id", uint32_t{2});
    p.key("ple.layer_multipliers", std::vector<uint64_t>{7919, 104729, 1299709});
    p.key("embedding_length_per_layer_input", u32(n.embd / ple_heads));
    // Vocabularies of unlike, odd sizes: the heads hash the same n-gram to different rows.
    std::vector<uint64_t> offsets;
    std::vector<uint64_t> sizes;
    uint64_t rows = 0;
    for (int64_t h = 0; h < ple_heads; ++h) {
        offsets.push_back(rows);
        sizes.push_back(static_cast<uint64_t>(n.vocab + 2 * h + 1));
        rows += sizes.back();
    }
    p.key("ple.head_offsets", offsets);
    p.key("ple.head_vocab_sizes", sizes);

    embeddings(p, 1.0F, "");
    const auto hyper = [&](const std::string& prefix, bool inject) {
        // The last mixer halves what it lets through, and has the work of a final norm to do.
        const float tied = s.tied_output ? logit_spread / (0.1F * std::sqrt(static_cast<float>(n.embd))) : 1.0F;
        p.norm(prefix + "_norm.weight", wide, inject ? 1.0F : 2.0F * tied);
        p.matrix(prefix + "_down.weight", {wide, low_rank}, static_cast<float>(streams));
        p.matrix(prefix + "_up.weight", {low_rank, wide});
        if (inject) p.matrix(prefix + "_inject.weight", {wide, streams}, static_cast<float>(streams));
    };
    hyper("output_hc", false);
    p.tensor("per_layer_token_embd.weight", {n.embd / ple_heads, static_cast<int64_t>(rows)}, Fill::normal, 1.0F,
             Role::matrix);
    for (uint32_t i = 0; i < s.n_layer; ++i) {
        hyper(block(i, "hc_attn"), true);
        hyper(block(i, "hc_ffn"), true);
        if (i == 0) {
            p.matrix(block(i, "ple_key.weight"), {n.embd, wide});
            p.matrix(block(i, "ple_value.weight"), {n.embd, n.embd});
            for (const char* which : {"key", "query", "conv"}) {
                p.norm(block(i, fmt::format("ple_norm_{}.weight", which)), wide);
            }
            p.tensor(block(i, "ple_conv1d.weight"), {ple_kernel, wide}, Fill::normal, 0.5F, Role::vector);
        }
        if (DeltaNet::is_recurrent(i)) {
            delta_net(p, i);
        } else {
            gated_attention(p, i);
            p.matrix(block(i, "indexer.q_proj.weight"), {n.embd, index_heads * n.head_dim});
            p.matrix(block(i, "indexer.k_proj.weight"), {n.embd, n.head_dim});
            p.norm(block(i, "indexer.q_norm.weight"), n.head_dim);
            p.norm(block(i, "indexer.k_norm.weight"), n.head_dim);
        }
        gated_moe(p, i);
    }
    return {};
}

// --- routing beside the usual place ---------------------------------------------------------------------------------

ModelSpec llama4_defaults() {
    ModelSpec s;
    s.n_layer = 4;
    s.n_ff = 96;
    s.n_expert = 16;
    s.n_expert_used = 1;
    return s;
}

// The chosen experts' inputs are weighted, not their outputs; every other layer is dense.
Status plan_llama4(Plan& p) {
    const ModelSpec& s = p.spec();
    if (Status status = need_layers(p, 2); !status) return status;
    common_keys(p);
    p.key("expert_feed_forward_length", s.n_ff);
    p.key("interleave_moe_layer_step", uint32_t{2});
    embeddings(p);
    for (uint32_t i = 0; i < s.n_layer; ++i) {
        p.norm(block(i, "attn_norm.weight"), s.n_embd);
        attention(p, i);
        p.norm(block(i, "ffn_norm.weight"), s.n_embd);
        if (i % 2 == 0) {
            dense_ffn(p, i);
        } else {
            router(p, i);
            experts(p, i);
            shared_expert(p, i, s.n_ff);
        }
    }
    return {};
}

ModelSpec smallthinker_defaults() {
    ModelSpec s;
    s.n_layer = 4;
    s.n_ff = 96;
    return s;
}

// The router sees the layer's input, before attention: its choice is known early.
Status plan_smallthinker(Plan& p) {
    const ModelSpec& s = p.spec();
    common_keys(p);
    p.key("expert_feed_forward_length", s.n_ff);
    p.key("expert_gating_func", gating_sigmoid);
    p.key("attention.sliding_window", uint32_t{4096});
    embeddings(p);
    for (uint32_t i = 0; i < s.n_layer; ++i) {
        p.norm(block(i, "attn_norm.weight"), s.n_embd);
        attention(p, i);
        p.norm(block(i, "ffn_norm.weight"), s.n_embd);
        router(p, i);
        experts(p, i);
    }
    return {};
}

ModelSpec grovemoe_defaults() {
    ModelSpec s;
    s.n_ff = 192;
    return s;
}

// Two routed networks per layer: neighbouring experts share an adjugate one, chosen by the same router.
Status plan_grovemoe(Plan& p) {
    const ModelSpec& s = p.spec();
    const Sizes n(s);
    constexpr uint32_t per_group = 2;
    constexpr int64_t width = 64;
    if (s.n_expert % per_group != 0) return error(Code::invalid_argument, "grovemoe needs an even number of experts");
    common_keys(p);
    p.key("expert_feed_forward_length", s.n_ff);
    p.key("expert_chunk_feed_forward_length", u32(width));
    p.key("expert_group_scale", 0.5F);
    p.key("experts_per_group", per_group);
    embeddings(p);
    const float in = 1.0F / std::sqrt(static_cast<float>(n.embd));
    const float out = expert_gain / std::sqrt(static_cast<float>(width));
    for (uint32_t i = 0; i < s.n_layer; ++i) {
        const int64_t groups = n.experts / per_group;
        p.norm(block(i, "attn_norm.weight"), n.embd);
        attention(p, i);
        head_norms(p, i, n.head_dim);
        p.norm(block(i, "ffn_norm.weight"), n.embd);
        router(p, i);
        experts(p, i);
        p.tensor(block(i, "ffn_gate_chexps.weight"), {n.embd, width, groups}, Fill::normal, in, Role::gate, i);
        p.tensor(block(i, "ffn_up_chexps.weight"), {n.embd, width, groups}, Fill::normal, in, Role::up, i);
        p.tensor(block(i, "ffn_down_chexps.weight"), {width, n.embd, groups}, Fill::normal, out, Role::down, i);
    }
    return {};
}

ModelSpec nemotron_defaults() {
    ModelSpec s;
    s.n_layer = 4;
    s.n_expert = 16;
    s.n_expert_used = 4;
    return s;
}

// Layers of one kind each: Mamba 2, experts, attention, experts. The experts have no gate and work on a latent stream
// of half the width.
Status plan_nemotron_h_moe(Plan& p) {
    const ModelSpec& s = p.spec();
    const Sizes n(s);
    if (Status status = need_layers(p, 3); !status) return status;
    constexpr int64_t kernel = 4;
    constexpr int64_t groups = 2;
    const int64_t state = n.head_dim;
    const int64_t inner = n.embd;
    const int64_t channels = inner + 2 * groups * state;
    const int64_t latent = n.embd / 2;
    common_keys(p);
    p.key("attention.layer_norm_epsilon", 1e-6F);
    p.key("feed_forward_length", per_layer<uint32_t>(s, {0, s.n_ff, 0, s.n_ff}));
    p.key("attention.head_count_kv", per_layer<uint32_t>(s, {0, 0, u32(n.heads_kv), 0}));
    p.key("ssm.conv_kernel", u32(kernel));
    p.key("ssm.inner_size", u32(inner));
    p.key("ssm.state_size", u32(state));
    p.key("ssm.time_step_rank", u32(n.heads));
    p.key("ssm.group_count", u32(groups));
    p.key("expert_feed_forward_length", s.n_ff);
    p.key("expert_shared_feed_forward_length", s.n_ff_shared);
    p.key("expert_shared_count", uint32_t{1});
    p.key("expert_weights_norm", true);
    p.key("expert_weights_scale", 1.5F);
    p.key("moe_latent_size", u32(latent));
    embeddings(p);
    for (uint32_t i = 0; i < s.n_layer; ++i) {
        p.norm(block(i, "attn_norm.weight"), n.embd);
        if (i % 2 == 1) {
            router(p, i);
            selection_bias(p, i);
            p.matrix(block(i, "ffn_latent_down.weight"), {n.embd, latent});
            experts(p, i, latent, false);
            p.matrix(block(i, "ffn_latent_up.weight"), {latent, n.embd});
            p.matrix(block(i, "ffn_up_shexp.weight"), {n.embd, n.ff_shared});
            p.matrix(block(i, "ffn_down_shexp.weight"), {n.ff_shared, n.embd});
        } else if (i % 4 == 2) {
            attention(p, i);
        } else {
            p.matrix(block(i, "ssm_in.weight"), {n.embd, inner + channels + n.heads});
            p.tensor(block(i, "ssm_conv1d.weight"), {kernel, channels}, Fill::normal, 0.5F, Role::vector);
            bias(p, block(i, "ssm_conv1d.bias"), {channels});
            bias(p, block(i, "ssm_dt.bias"), {n.heads}, 0.5F);
            p.tensor(block(i, "ssm_a"), {1, n.heads}, Fill::decay, 1.0F, Role::vector);
            p.tensor(block(i, "ssm_d"), {1, n.heads}, Fill::positive, 1.0F, Role::vector);
            p.tensor(block(i, "ssm_norm.weight"), {inner / groups, groups}, Fill::norm, 1.0F, Role::vector);
            p.matrix(block(i, "ssm_out.weight"), {inner, n.embd});
        }
    }
    return {};
}

ModelSpec deepseek4_defaults() {
    ModelSpec s;
    s.n_layer = 4;
    s.n_ff = 64;
    s.head_dim = 64;
    return s;
}

// The first layer's experts are a table's answer to the token, known before anything is computed; the others have
// square roots of softplus and a selection bias. Hyper-connections and compressed attention around them.
Status plan_deepseek4(Plan& p) {
    const ModelSpec& s = p.spec();
    const Sizes n(s);
    if (Status status = need_layers(p, 4); !status) return status;
    constexpr uint32_t hash_layers = 1;
    constexpr int64_t streams = 4;
    constexpr int64_t mixes = (2 + streams) * streams;
    constexpr int64_t index_heads = 4;
    constexpr int64_t out_rank = 48;  // no multiple of 32: see Latent
    const int64_t wide = streams * n.embd;
    const int64_t rank_q = n.embd / 4;
    const int64_t out_groups = n.heads;
    const std::vector<uint32_t> ratios = per_layer<uint32_t>(s, {0, 4, 128, 0});

    common_keys(p);
    sigmoid_keys(p);
    p.key("expert_gating_func", gating_sqrt_softplus);
    p.key("expert_shared_count", uint32_t{1});
    p.key("attention.head_count_kv", uint32_t{1});
    p.key("rope.dimension_count", s.head_dim / 2);
    p.key("attention.sliding_window", uint32_t{16});
    p.key("attention.q_lora_rank", u32(rank_q));
    p.key("attention.output_group_count", u32(out_groups));
    p.key("attention.output_lora_rank", u32(out_rank));
    p.key("attention.compress_ratios", ratios);
    p.key("attention.compress_rope_freq_base", 160000.0F);
    p.key("attention.indexer.head_count", u32(index_heads));
    p.key("attention.indexer.key_length", s.head_dim);
    p.key("attention.indexer.top_k", uint32_t{16});
    p.key("hyper_connection.count", u32(streams));
    p.key("hyper_connection.sinkhorn_iterations", uint32_t{2});
    p.key("hyper_connection.epsilon", 1e-6F);
    p.key("hash_layer_count", hash_layers);
    p.key("swiglu_clamp_exp", 10.0F);

    const float unit = 1.0F / std::sqrt(static_cast<float>(wide));
    embeddings(p);
    p.tensor("output_hc_fn.weight", {wide, streams}, Fill::normal, unit, Role::vector);
    bias(p, "output_hc_base.weight", {streams}, 0.3F);
    p.tensor("output_hc_scale.weight", {1}, Fill::positive, 1.0F, Role::vector);
    for (uint32_t i = 0; i < s.n_layer; ++i) {
        p.norm(block(i, "attn_norm.weight"), n.embd);
        bias(p, block(i, "attn_sinks.weight"), {n.heads}, 1.0F);
        p.matrix(block(i, "attn_q_a.weight"), {n.embd, rank_q});
        p.norm(block(i, "attn_q_a_norm.weight"), rank_q);
        p.matrix(block(i, "attn_q_b.weight"), {rank_q, n.heads * n.head_dim});
        p.matrix(block(i, "attn_kv.weight"), {n.embd, n.head_dim});
        p.norm(block(i, "attn_kv_a_norm.weight"), n.head_dim);
        p.matrix(block(i, "attn_output_a.weight"), {n.heads * n.head_dim / out_groups, out_rank * out_groups});
        p.matrix(block(i, "attn_output_b.weight"), {out_groups * out_rank, n.embd});
        for (const char* which : {"attn", "ffn"}) {
            p.tensor(block(i, fmt::format("hc_{}_fn.weight", which)), {wide, mixes}, Fill::normal, unit, Role::vector);
            bias(p, block(i, fmt::format("hc_{}_base.weight", which)), {mixes}, 0.3F);
            p.tensor(block(i, fmt::format("hc_{}_scale.weight", which)), {3}, Fill::positive, 1.0F, Role::vector);
        }
        if (ratios[i] != 0) {
            const int64_t ratio = ratios[i];
            const int64_t overlap = ratio == 4 ? 2 : 1;
            p.matrix(block(i, "attn_compressor_kv.weight"), {n.embd, overlap * n.head_dim});
            p.matrix(block(i, "attn_compressor_gate.weight"), {n.embd, overlap * n.head_dim});
            bias(p, block(i, "attn_compressor_ape.weight"), {overlap * n.head_dim, ratio}, 0.3F);
            p.norm(block(i, "attn_compressor_norm.weight"), n.head_dim);
            if (ratio == 4) {
                p.matrix(block(i, "indexer.proj.weight"), {n.embd, index_heads});
                p.matrix(block(i, "indexer.attn_q_b.weight"), {rank_q, index_heads * n.head_dim});
                p.matrix(block(i, "indexer_compressor_kv.weight"), {n.embd, 2 * n.head_dim});
                p.matrix(block(i, "indexer_compressor_gate.weight"), {n.embd, 2 * n.head_dim});
                bias(p, block(i, "indexer_compressor_ape.weight"), {2 * n.head_dim, ratio}, 0.3F);
                p.norm(block(i, "indexer_compressor_norm.weight"), n.head_dim);
            }
        }
        router(p, i);
        if (i < hash_layers) {
            p.tensor(block(i, "ffn_gate_tid2eid.weight"), {s.n_expert_used, n.vocab}, Fill::expert_ids, 1.0F,
                     Role::vector);
        } else {
            selection_bias(p, i);
        }
        p.norm(block(i, "ffn_norm.weight"), n.embd);
        experts(p, i);
        shared_expert(p, i, n.ff);
    }
    return {};
}

}  // namespace

const std::vector<Arch>& archs() {
    static const std::vector<Arch> table = {
        {"qwen3moe", plain_defaults, plan_qwen3moe, true, false},
        {"qwen2moe", plain_defaults, plan_qwen2moe, false, false},
        {"gpt-oss", plain_defaults, plan_gpt_oss, false, false},
        {"gemma4", gemma4_defaults, plan_gemma4, true, true},
        {"deepseek2", grouped_defaults, plan_deepseek2, true, true},
        {"glm4moe", dense_lead_defaults, plan_glm4moe, true, false},
        {"llama", plain_defaults, plan_llama, true, false},
        {"olmoe", plain_defaults, plan_olmoe, false, false},
        {"qwen35moe", delta_net_defaults, plan_qwen35moe, true, true},
        {"lfm2moe", dense_lead_defaults, plan_lfm2moe, true, false},
        {"bailingmoe3", grouped_defaults, plan_bailingmoe3, true, false},
        {"qwen4exp", qwen4exp_defaults, plan_qwen4exp, true, true},
        {"llama4", llama4_defaults, plan_llama4, true, false},
        {"smallthinker", smallthinker_defaults, plan_smallthinker, true, false},
        {"grovemoe", grovemoe_defaults, plan_grovemoe, true, false},
        {"nemotron_h_moe", nemotron_defaults, plan_nemotron_h_moe, true, false},
        {"deepseek4", deepseek4_defaults, plan_deepseek4, false, false},
    };
    return table;
}

}  // namespace sluice::fixture
