#include "engine/workload.h"

#include <xxhash.h>

#include <algorithm>

#include "sluice/sluice.h"

namespace sluice::engine {
namespace {

// llama.cpp's complaints, while this lives, instead of its log.
class Complaints {
  public:
    Complaints() {
        llama_log_get(&before_, &before_data_);
        llama_log_set(collect, this);
    }
    ~Complaints() { llama_log_set(before_, before_data_); }
    Complaints(const Complaints&) = delete;
    Complaints& operator=(const Complaints&) = delete;
    // The last of them.
    [[nodiscard]] std::string text() const {
        std::string t = text_;
        while (!t.empty() && t.back() == '\n') t.pop_back();
        return t;
    }

  private:
    static void collect(ggml_log_level level, const char* text, void* self) {
        if (level == GGML_LOG_LEVEL_ERROR) static_cast<Complaints*>(self)->text_ = text;
    }
    ggml_log_callback before_ = nullptr;
    void* before_data_ = nullptr;
    std::string text_;
};

}  // namespace

Result<uint64_t> state_digest(llama_context* ctx, int n_seq) {
    llama_memory_t memory = llama_get_memory(ctx);
    std::vector<uint8_t> bytes;
    uint64_t digest = 0;
    for (llama_seq_id s = 0; s < n_seq; ++s) {
        bytes.resize(llama_state_seq_get_size(ctx, s));
        const size_t n = llama_state_seq_get_data(ctx, bytes.data(), bytes.size(), s);
        if (n != bytes.size()) return error(Code::internal, "the state of sequence {} cannot be read", s);
        digest = XXH3_64bits_withSeed(bytes.data(), n, digest);
        const llama_pos end = llama_memory_seq_pos_max(memory, s);
        digest = XXH3_64bits_withSeed(&end, sizeof end, digest);
    }
    return digest;
}

Result<Workload> Workload::load(const std::string& path, const WorkloadShape& shape) {
    Workload w(shape);
    const Complaints complaints;
    const auto failed = [&](const char* what) {
        const std::string why = complaints.text();
        return error(Code::io_error, "{}: {}: {}", path, what, why.empty() ? "llama.cpp gave no reason" : why);
    };
    llama_model_params mp = llama_model_default_params();
    mp.use_extra_bufts = shape.repack;
    mp.n_gpu_layers = 0;
    w.model_.reset(llama_model_load_from_file(path.c_str(), mp));
    if (w.model_ == nullptr) return failed("the model could not be loaded");
    llama_context_params cp = llama_context_default_params();
    cp.n_ctx = static_cast<uint32_t>(shape.prompt + shape.decode + 8);
    cp.n_batch = static_cast<uint32_t>(shape.prompt);
    cp.n_ubatch = static_cast<uint32_t>(std::min(shape.ubatch, shape.prompt));
    cp.n_threads = cp.n_threads_batch = shape.threads;
    cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    w.context_.reset(llama_init_from_model(w.model_.get(), cp));
    if (w.context_ == nullptr) return failed("no context could be made");
    w.decoder_ = std::make_unique<Decoder>(w.context_.get());
    return w;
}

void Workload::begin() {
    llama_memory_clear(llama_get_memory(context_.get()), true);
    // Tokens that no text would have in this order: they meet many experts.
    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model_.get()));
    tokens_.clear();
    for (int i = 0; i < shape_.prompt; ++i) tokens_.push_back((i * 7919 + 13) % n_vocab);
    so_far_ = {};
}

Decoded Workload::go_on() {
    const SystemClock& clock = SystemClock::instance();
    const auto n_vocab = static_cast<size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model_.get())));
    Decoded decoded;
    while (so_far_.logits.size() <= static_cast<size_t>(shape_.decode)) {
        if (before_decode) before_decode();
        const Nanos start = clock.now();
        decoded = decoder_->decode(tokens_);
        (so_far_.logits.empty() ? so_far_.prefill : so_far_.decode) += clock.now() - start;
        if (decoded.code != 0) {
            tokens_.erase(tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(decoded.committed));
            break;
        }
        const float* l = llama_get_logits_ith(context_.get(), -1);
        so_far_.logits.push_back(XXH3_64bits(l, n_vocab * sizeof *l));
        tokens_.assign(1, static_cast<llama_token>(std::max_element(l, l + n_vocab) - l));
    }
    return decoded;
}

Result<WorkloadResult> Workload::result() const {
    const auto state = state_digest(context_.get());
    if (!state.ok()) return state.status();
    WorkloadResult out = so_far_;
    out.state = *state;
    return out;
}

Result<WorkloadResult> Workload::run() {
    begin();
    const Decoded decoded = go_on();
    if (decoded.code == 2) return error(Code::cancelled, "interrupted");
    if (decoded.code != 0) {
        const std::string why = last_error();
        return error(Code::io_error, "decoding failed: {}", why.empty() ? "llama.cpp gave no reason" : why);
    }
    return result();
}

}  // namespace sluice::engine
