// Owns: sluice-check-model, the proof that stock llama.cpp takes a generated model: it loads each file, decodes a
// prompt of forty tokens and eight more greedily, and looks at logits and routing.
// Keeps: nothing of Sluice takes part, so a failure here is the model's fault.
#include <fmt/core.h>
#include <ggml-backend.h>
#include <ggml.h>
#include <llama.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace {

using sluice::Code;
using sluice::error;
using sluice::Status;

constexpr size_t prompt_tokens = 40;
constexpr int generated_tokens = 8;
constexpr std::string_view prompt_text =
    "The water in the river is flowing to the gate, and that is what all of the stones have told me: \xc3\xa9t\xc3\xa9 "
    "2026.";

struct FreeModel {
    void operator()(llama_model* model) const { llama_model_free(model); }
};
struct FreeContext {
    void operator()(llama_context* context) const { llama_free(context); }
};

// Which experts each layer used, as "ffn_moe_topk-LAYER" tells.
using Usage = std::map<std::string, std::set<int32_t>>;

bool watch_routing(ggml_tensor* tensor, bool ask, void* user_data) {
    constexpr std::string_view wanted = "ffn_moe_topk-";
    const std::string_view name = tensor->name;
    if (name.substr(0, wanted.size()) != wanted) return !ask;
    if (ask) return true;
    std::vector<std::byte> bytes(ggml_nbytes(tensor));
    ggml_backend_tensor_get(tensor, bytes.data(), 0, bytes.size());
    std::set<int32_t>& used = (*static_cast<Usage*>(user_data))[std::string(name.substr(wanted.size()))];
    for (int64_t row = 0; row < tensor->ne[1]; ++row) {
        for (int64_t i = 0; i < tensor->ne[0]; ++i) {
            int32_t expert = 0;
            std::memcpy(
                &expert,
                bytes.data() + static_cast<size_t>(row) * tensor->nb[1] + static_cast<size_t>(i) * tensor->nb[0],
                sizeof expert);
            used.insert(expert);
        }
    }
    return true;
}

std::string piece_of(const llama_vocab* vocab, llama_token token) {
    std::string piece(64, '\0');
    const int32_t length =
        llama_token_to_piece(vocab, token, piece.data(), static_cast<int32_t>(piece.size()), 0, true);
    piece.resize(static_cast<size_t>(std::max(0, length)));
    return piece;
}

// What a terminal can show of it.
std::string printable(const std::string& text) {
    std::string out;
    for (const char c : text) {
        if (c >= ' ' && c <= '~') {
            out += c;
        } else {
            out += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
        }
    }
    return out;
}

Status check(const std::string& path) {
    llama_model_params model_params = llama_model_default_params();
    model_params.n_gpu_layers = 0;
    // Repacked weights are the machine's business (and AMX's kernels that of the compiler), not the model's.
    model_params.use_extra_bufts = false;
    const std::unique_ptr<llama_model, FreeModel> model(llama_model_load_from_file(path.c_str(), model_params));
    if (model == nullptr) return error(Code::corrupt, "{}: llama.cpp does not load it", path);
    const llama_vocab* vocab = llama_model_get_vocab(model.get());

    std::vector<llama_token> tokens(256);
    const int32_t encoded = llama_tokenize(vocab, prompt_text.data(), static_cast<int32_t>(prompt_text.size()),
                                           tokens.data(), static_cast<int32_t>(tokens.size()), true, false);
    if (encoded < static_cast<int32_t>(prompt_tokens)) {
        return error(Code::corrupt, "{}: the prompt has only {} tokens", path, encoded);
    }
    tokens.resize(static_cast<size_t>(encoded));
    std::string decoded;
    for (size_t i = 1; i < tokens.size(); ++i) decoded += piece_of(vocab, tokens[i]);
    if (decoded != " " + std::string(prompt_text)) return error(Code::corrupt, "{}: text became '{}'", path, decoded);
    tokens.resize(prompt_tokens);

    Usage usage;
    llama_context_params params = llama_context_default_params();
    params.n_ctx = 256;
    // Without a pool of ours llama.cpp starts threads anew for every piece of the graph that the callback cuts out.
    params.n_threads = 1;
    params.n_threads_batch = 1;
    params.cb_eval = watch_routing;
    params.cb_eval_user_data = &usage;
    const std::unique_ptr<llama_context, FreeContext> context(llama_init_from_model(model.get(), params));
    if (context == nullptr) return error(Code::corrupt, "{}: llama.cpp makes no context for it", path);

    const auto n_vocab = static_cast<size_t>(llama_vocab_n_tokens(vocab));
    std::string answer;
    std::set<llama_token> said;
    double deviation = 0.0;
    llama_batch batch = llama_batch_get_one(tokens.data(), static_cast<int32_t>(tokens.size()));
    llama_token next = 0;
    for (int i = 0; i <= generated_tokens; ++i) {
        if (llama_decode(context.get(), batch) != 0) return error(Code::corrupt, "{}: decoding failed", path);
        const float* logits = llama_get_logits_ith(context.get(), -1);
        double sum = 0.0;
        double squares = 0.0;
        for (size_t t = 0; t < n_vocab; ++t) {
            if (!std::isfinite(logits[t])) return error(Code::corrupt, "{}: logit {} is not finite", path, t);
            sum += logits[t];
            squares += double{logits[t]} * logits[t];
        }
        const double count = static_cast<double>(n_vocab);
        deviation = std::sqrt(squares / count - sum / count * (sum / count));
        if (deviation < 0.1) return error(Code::corrupt, "{}: the logits are nearly equal", path);
        next = static_cast<llama_token>(std::max_element(logits, logits + n_vocab) - logits);
        if (i < generated_tokens) {
            answer += piece_of(vocab, next);
            said.insert(next);
        }
        batch = llama_batch_get_one(&next, 1);
    }
    if (usage.empty()) return error(Code::corrupt, "{}: no layer has experts", path);
    std::string routing;
    for (const auto& [layer, experts] : usage) {
        routing += fmt::format(" {}:{}", layer, experts.size());
        // A router that always says the same would let a wrong cache go unnoticed.
        if (experts.size() < 3)
            return error(Code::corrupt, "{}: layer {} uses {} experts", path, layer, experts.size());
    }
    fmt::print("{}: logit deviation {:.2f}, {} tokens said \"{}\", experts used by layer{}\n", path, deviation,
               said.size(), printable(answer), routing);
    return {};
}

// A continuation belongs to the message before it.
void only_problems(ggml_log_level level, const char* text, void* /*user_data*/) {
    static ggml_log_level last = GGML_LOG_LEVEL_NONE;
    if (level != GGML_LOG_LEVEL_CONT) last = level;
    if (last >= GGML_LOG_LEVEL_WARN) fmt::print(stderr, "{}", text);
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        fmt::print(stderr, "usage: {} MODEL.gguf...\n", argv[0]);
        return 2;
    }
    llama_log_set(only_problems, nullptr);
    llama_backend_init();
    int failures = 0;
    for (int i = 1; i < argc; ++i) {
        if (const Status status = check(argv[i]); !status) {
            fmt::print(stderr, "sluice-check-model: {}\n", status.message());
            ++failures;
        }
    }
    llama_backend_free();
    return failures == 0 ? 0 : 1;
}
