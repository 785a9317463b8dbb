#include "engine/generate.h"

#include <chat.h>
#include <common.h>
#include <llama.h>
#include <sampling.h>

#include <algorithm>
#include <vector>

#include "base/clock.h"
#include "model/geometry.h"

namespace sluice::engine {
namespace {

double seconds(Nanos from, Nanos to) {
    return static_cast<double>(to - from) / 1e9;
}

// The last thing llama.cpp complained about, for a sentence of our own.
struct LastError {
    std::string text;
    static void collect(ggml_log_level level, const char* text, void* self) {
        if (level == GGML_LOG_LEVEL_ERROR) static_cast<LastError*>(self)->text = text;
    }
};

// How many of the first bytes of `s` are whole UTF-8 characters. Bytes that can never become one count as whole, so
// that nothing is held back for ever.
size_t whole_utf8(const std::string& s) {
    const size_t n = s.size();
    for (size_t back = 1; back <= std::min<size_t>(3, n); ++back) {
        const auto c = static_cast<unsigned char>(s[n - back]);
        if ((c & 0xC0U) == 0x80U) continue;  // inside a character
        const size_t length = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC0 ? 2 : 1;
        return length > back ? n - back : n;
    }
    return n;
}

Result<std::string> with_template(const llama_model* model, const common_params& params, const std::string& prompt) {
    // The template engine throws on templates it cannot run.
    try {
        const common_chat_templates_ptr templates = common_chat_templates_init(model, params.chat_template);
        common_chat_templates_inputs inputs;
        inputs.use_jinja = params.use_jinja;
        inputs.add_generation_prompt = true;
        if (!params.system_prompt.empty()) {
            common_chat_msg system;
            system.role = "system";
            system.content = params.system_prompt;
            inputs.messages.push_back(system);
        }
        common_chat_msg user;
        user.role = "user";
        user.content = prompt;
        inputs.messages.push_back(user);
        return common_chat_templates_apply(templates.get(), inputs).prompt;
    } catch (const std::exception& e) {
        return error(Code::unsupported, "the chat template of this model cannot be used: {}", e.what());
    }
}

struct Run {
    common_params& params;
    const GenerateOptions& options;
    Generation& out;
    llama_context* ctx = nullptr;
    common_sampler* sampler = nullptr;

    [[nodiscard]] bool stopped() const { return options.stop != nullptr && options.stop->load(); }

    // True if decoding went well; otherwise the reason is in `out`.
    bool decode(std::vector<llama_token>& tokens, size_t begin, size_t n) {
        const int rc = llama_decode(ctx, llama_batch_get_one(tokens.data() + begin, static_cast<int32_t>(n)));
        if (rc == 0) return true;
        if (rc == 2 || stopped()) {
            out.interrupted = true;
        } else if (rc == 1) {
            out.context_full = true;
        } else {
            const std::string why = last_error();
            out.status = error(Code::io_error, "decoding failed: {}", why.empty() ? "llama.cpp gave no reason" : why);
        }
        return false;
    }

    bool prefill(std::vector<llama_token>& prompt) {
        const size_t batch = llama_n_batch(ctx);  // what the context made of -b and -c
        for (size_t i = 0; i < prompt.size(); i += batch) {
            if (stopped()) {
                out.interrupted = true;
                return false;
            }
            const size_t n = std::min(batch, prompt.size() - i);
            if (!decode(prompt, i, n)) return false;
            out.prompt_tokens_done += static_cast<int>(n);
        }
        for (const llama_token t : prompt) common_sampler_accept(sampler, t, false);
        return true;
    }

    void loop() {
        const llama_vocab* vocab = llama_model_get_vocab(llama_get_model(ctx));
        std::string held;  // the start of a character whose rest has not come yet
        std::string tail;  // for reverse prompts
        std::vector<llama_token> token(1);
        while (params.n_predict < 0 || out.tokens < params.n_predict) {
            if (stopped()) {
                out.interrupted = true;
                break;
            }
            token[0] = common_sampler_sample(sampler, ctx, -1);
            common_sampler_accept(sampler, token[0], true);
            if (llama_vocab_is_eog(vocab, token[0])) break;
            ++out.tokens;
            held += common_token_to_piece(ctx, token[0], params.special);
            const size_t whole = whole_utf8(held);
            options.on_text(held.substr(0, whole));
            tail += held.substr(0, whole);
            held.erase(0, whole);
            if (reverse_prompt(tail)) break;
            if (params.n_predict >= 0 && out.tokens >= params.n_predict) break;
            if (llama_memory_seq_pos_max(llama_get_memory(ctx), 0) + 1 >= static_cast<int>(llama_n_ctx(ctx))) {
                out.context_full = true;
                break;
            }
            if (!decode(token, 0, 1)) break;
        }
        options.on_text(held);
    }

    [[nodiscard]] bool reverse_prompt(std::string& tail) const {
        size_t longest = 1;
        for (const std::string& stop : params.antiprompt) {
            longest = std::max(longest, stop.size());
            if (tail.size() >= stop.size() && tail.compare(tail.size() - stop.size(), stop.size(), stop) == 0)
                return true;
        }
        if (tail.size() > 4 * longest + 256) tail.erase(0, tail.size() - longest);
        return false;
    }
};

void run_loaded(Run& run, llama_model* model) {
    common_params& params = run.params;
    Generation& out = run.out;
    std::string text = run.options.prompt;
    if (run.options.chat) {
        auto templated = with_template(model, params, text);
        if (!templated.ok()) {
            out.status = templated.status();
            return;
        }
        text = std::move(*templated);
    }
    std::vector<llama_token> prompt = common_tokenize(run.ctx, text, true, true);
    if (prompt.empty()) {
        out.status = error(Code::invalid_argument, "the prompt is empty");
        return;
    }
    out.prompt_tokens = static_cast<int>(prompt.size());
    const auto n_ctx = static_cast<int>(llama_n_ctx(run.ctx));
    if (out.prompt_tokens >= n_ctx) {
        out.status = error(Code::invalid_argument, "the prompt has {} tokens, but the context holds {}: raise -c",
                           out.prompt_tokens, n_ctx);
        return;
    }
    const SystemClock& clock = SystemClock::instance();
    reset_stats();
    const Nanos start = clock.now();
    const bool filled = run.prefill(prompt);
    const Nanos first = clock.now();
    out.prefill_seconds = seconds(start, first);
    out.after_prefill = stats();
    reset_stats();
    if (filled) {
        if (params.display_prompt && !run.options.chat) run.options.on_text(run.options.prompt);
        run.loop();
    }
    out.decode_seconds = seconds(first, clock.now());
    out.at_end = stats();
    out.memory = machine::usage();
}

}  // namespace

Generation generate(common_params& params, const GenerateOptions& options) {
    Generation out;
    params.warmup = false;  // it would read experts that nobody asked for
    struct Progress {
        const GenerateOptions& options;
    } progress{options};
    if (options.on_load) {
        params.load_progress_callback_user_data = &progress;
        params.load_progress_callback = [](float p, void* self) {
            const GenerateOptions& o = static_cast<Progress*>(self)->options;
            return !(o.stop != nullptr && o.stop->load()) && o.on_load(p);
        };
    }
    const SystemClock& clock = SystemClock::instance();
    const Nanos start = clock.now();
    const common_init_result_ptr init = common_init_from_params(params);
    out.load_seconds = seconds(start, clock.now());
    if (init == nullptr || init->model() == nullptr || init->context() == nullptr) {
        if (options.stop != nullptr && options.stop->load()) {
            out.interrupted = true;
        } else {
            out.status = error(Code::io_error, "{} could not be loaded; the reason is above", params.model.path);
        }
        return out;
    }
    Run run{params, options, out, init->context(), init->sampler(0)};
    llama_set_abort_callback(
        run.ctx, [](void* self) { return static_cast<const Run*>(self)->stopped(); }, &run);
    run_loaded(run, init->model());
    return out;
}

Status check_model(const std::string& path) {
    LastError last;
    ggml_log_callback before = nullptr;
    void* before_data = nullptr;
    llama_log_get(&before, &before_data);
    llama_log_set(LastError::collect, &last);
    llama_model_params params = llama_model_default_params();
    params.vocab_only = true;
    llama_model* model = llama_model_load_from_file(path.c_str(), params);
    llama_log_set(before, before_data);
    if (model != nullptr) {
        llama_model_free(model);
        return {};
    }
    const auto index = model::GgufIndex::open(path);
    const std::string arch = index.ok() ? index->architecture() : "";
    while (!last.text.empty() && last.text.back() == '\n') last.text.pop_back();
    if (last.text.find("unknown model architecture") != std::string::npos || last.text.empty()) {
        return error(Code::unsupported, "{}: {} does not know the architecture \"{}\"", path, llama_version_needed(),
                     arch);
    }
    return error(Code::corrupt, "{}: llama.cpp cannot read this model: {}", path, last.text);
}

}  // namespace sluice::engine
