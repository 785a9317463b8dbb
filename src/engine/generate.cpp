#include "engine/generate.h"

#include <chat.h>
#include <common.h>
#include <llama.h>
#include <sampling.h>
#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "backend/device.h"
#include "backend/recording.h"
#include "base/clock.h"
#include "engine/decoder.h"
#include "model/geometry.h"

namespace sluice::engine {
namespace {

struct FreeDigest {
    void operator()(XXH3_state_t* s) const { XXH3_freeState(s); }
};

void end_record(const Generation& g, const std::string& output_digest) {
    trace::Ending ending;
    ending.status = !g.status.ok() ? "failed" : g.interrupted ? "interrupted" : "ok";
    ending.error = g.status.ok() ? "" : g.status.message();
    ending.output_digest = output_digest;
    backend::end_recording(std::move(ending));
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
    Nanos loaded_in = 0;

    // What each step of the loop is counted in.
    std::shared_ptr<trace::Pass> pass = nullptr;
    XXH3_state_t* digest = nullptr;  // of the text
    std::vector<llama_token> token = std::vector<llama_token>(1);
    std::string held = {};   // the start of a character whose rest has not come yet
    std::string tail = {};   // for reverse prompts
    std::string shown = {};  // handed out since the last row
    // A run ends with its first failure, so nothing is copied to go back to.
    Decoder decoder{ctx, Decoder::Undo::if_free};

    [[nodiscard]] bool stopped() const { return options.stop != nullptr && options.stop->load(); }

    // Hands text on; the time that takes is the output's.
    void show(const std::string& text) {
        if (text.empty()) return;
        const trace::During output(pass->ledger, trace::Part::output);
        XXH3_64bits_update(digest, text.data(), text.size());
        shown += text;
        options.on_text(text);
    }

    void end_row(trace::Phase phase, trace::Measure output_tokens, bool last) {
        backend::recorder()->commit(*pass,
                                    {.phase = phase, .output_tokens = output_tokens, .text = shown, .last = last});
        shown.clear();
    }

    // True if decoding went well; otherwise the reason is in `out`. Adds what was decoded to `done`.
    bool decode(std::span<const llama_token> tokens, int& done) {
        const Decoded decoded = decoder.decode(tokens);
        done += static_cast<int>(decoded.committed);
        const int rc = decoded.code;
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

    // True if there is a token to go on with.
    bool prefill(std::vector<llama_token>& prompt) {
        const size_t batch = llama_n_batch(ctx);  // what the context made of -b and -c
        for (size_t i = 0; i < prompt.size(); i += batch) {
            if (stopped()) {
                out.interrupted = true;
                return false;
            }
            const size_t n = std::min(batch, prompt.size() - i);
            const bool decoded = decode(std::span(prompt).subspan(i, n), out.prompt_tokens_done);
            const bool last = out.prompt_tokens_done == out.prompt_tokens;
            const bool first_token = decoded && last && begin_text(prompt);
            end_row(trace::Phase::prefill, out.tokens, (last && !first_token) || !decoded);
            if (last || !decoded) return first_token;
        }
        return false;
    }

    // The first token comes out of the prompt's last batch, so its time is the prompt's. False when it is the last.
    bool begin_text(const std::vector<llama_token>& prompt) {
        {
            const trace::During sampling(pass->ledger, trace::Part::sample);
            for (const llama_token t : prompt) common_sampler_accept(sampler, t, false);
        }
        if (params.display_prompt && !options.chat) show(options.prompt);
        return params.n_predict != 0 && next_token();
    }

    // Chooses a token and shows it. False when none is to follow.
    bool next_token() {
        {
            const trace::During sampling(pass->ledger, trace::Part::sample);
            token[0] = common_sampler_sample(sampler, ctx, -1);
            common_sampler_accept(sampler, token[0], true);
        }
        if (llama_vocab_is_eog(llama_model_get_vocab(llama_get_model(ctx)), token[0])) return end_text();
        ++out.tokens;
        std::string whole;
        {
            const trace::During detokenising(pass->ledger, trace::Part::detokenise);
            held += common_token_to_piece(ctx, token[0], params.special);
            const size_t n = whole_utf8(held);
            whole = held.substr(0, n);
            held.erase(0, n);
        }
        show(whole);
        tail += whole;
        if (reverse_prompt()) return end_text();
        if (params.n_predict >= 0 && out.tokens >= params.n_predict) return end_text();
        if (stopped()) {
            out.interrupted = true;
            return end_text();
        }
        if (llama_memory_seq_pos_max(llama_get_memory(ctx), 0) + 1 >= static_cast<int>(llama_n_ctx(ctx))) {
            out.context_full = true;
            return end_text();
        }
        return true;
    }

    bool end_text() {
        show(std::exchange(held, ""));
        return false;
    }

    // Each row: the last token through the model, the next one out of it.
    void loop() {
        for (bool more = true; more;) {
            const int before = out.tokens;
            int decoded = 0;
            more = decode(token, decoded) ? next_token() : end_text();
            end_row(trace::Phase::decode, out.tokens - before, !more);
        }
    }

    bool reverse_prompt() {
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

// The seed that was drawn with, also where it was to be a random one. Greedy choice draws none.
trace::Json seed_json(const common_params& p, const common_sampler* sampler) {
    if (p.sampling.temp <= 0) return nullptr;
    return common_sampler_get_seed(sampler);
}

trace::Json host_json(const common_params& p, llama_context* ctx, const common_sampler* sampler) {
    return {{"n_ctx", llama_n_ctx(ctx)},
            {"n_batch", llama_n_batch(ctx)},
            {"n_ubatch", llama_n_ubatch(ctx)},
            {"threads", llama_n_threads(ctx)},
            {"threads_batch", llama_n_threads_batch(ctx)},
            {"flash_attention", llama_flash_attn_type_name(p.flash_attn_type)},
            {"cache_type_k", ggml_type_name(p.cache_type_k)},
            {"cache_type_v", ggml_type_name(p.cache_type_v)},
            {"repack", !p.no_extra_bufts},
            {"seed", seed_json(p, sampler)},
            {"temperature", p.sampling.temp},
            {"n_predict", p.n_predict}};
}

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
    trace::Recorder& recorder = *backend::recorder();
    recorder.load(run.loaded_in, stats().dense_bytes, host_json(params, run.ctx, run.sampler));
    run.pass = std::make_shared<trace::Pass>(recorder.clock(), recorder.watched());
    recorder.prepare(*run.pass);
    run.pass->told = trace::Phase::prefill;
    backend::use_pass(run.pass);
    run.pass->ledger.start();
    if (run.prefill(prompt)) {
        run.pass->told = trace::Phase::decode;
        run.loop();
    }
    backend::use_pass(nullptr);
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
    const Nanos loaded_in = clock.now() - start;
    if (init == nullptr || init->model() == nullptr || init->context() == nullptr) {
        if (options.stop != nullptr && options.stop->load()) {
            out.interrupted = true;
        } else {
            out.status = error(Code::io_error, "{} could not be loaded; the reason is above", params.model.path);
        }
        end_record(out, "");
        return out;
    }
    const std::unique_ptr<XXH3_state_t, FreeDigest> digest(XXH3_createState());
    XXH3_64bits_reset(digest.get());
    Run run{params, options, out, init->context(), init->sampler(0), loaded_in, nullptr, digest.get()};
    llama_set_abort_callback(
        run.ctx, [](void* self) { return static_cast<const Run*>(self)->stopped(); }, &run);
    run_loaded(run, init->model());
    if (options.on_end) options.on_end();
    end_record(out, fmt::format("{:016x}", XXH3_64bits_digest(digest.get())));
    // Freeing the model would wait for reads that are still on their way, and one may never come.
    if (out.interrupted) backend::stop_all();
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
