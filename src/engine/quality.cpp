#include "engine/quality.h"

#include <common.h>
#include <llama.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "backend/device.h"
#include "engine/decoder.h"
#include "engine/divergence.h"
#include "sluice/sluice.h"

namespace sluice::engine {
namespace {

constexpr size_t kMostTasks = 10000;
constexpr size_t kLongestTask = 1U << 16U;

Status failed(const Decoded& decoded) {
    if (decoded.code == 2) return error(Code::cancelled, "interrupted");
    if (decoded.code == 1) return error(Code::invalid_argument, "the context is too small: raise -c");
    const std::string why = last_error();
    return error(Code::io_error, "decoding failed: {}", why.empty() ? "llama.cpp gave no reason" : why);
}

std::string unescaped(std::string_view text) {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '\\' && i + 1 < text.size() && (text[i + 1] == 'n' || text[i + 1] == '\\')) {
            out += text[++i] == 'n' ? '\n' : '\\';
        } else {
            out += text[i];
        }
    }
    return out;
}

}  // namespace

std::vector<Task> built_in_battery() {
    return {
        {"1, 2, 3, 4, 5, 6,", {"7"}},
        {"10, 20, 30, 40,", {"50"}},
        {"A, B, C, D, E,", {"F"}},
        {"Monday, Tuesday, Wednesday,", {"Thursday"}},
        {"January, February, March,", {"April"}},
        {"red green blue red green blue red green", {"blue"}},
        {"one cat, two cats. one dog, two dogs. one bird, two", {"birds"}},
        {"2 + 2 = 4\n3 + 3 = 6\n4 + 4 =", {"8"}},
        {"Question: What is 7 + 5? Answer:", {"12", "twelve"}},
        {"The opposite of hot is cold. The opposite of up is", {"down"}},
        {"The capital of France is", {"Paris"}},
        {"The first man was Adam, and the first woman was", {"Eve"}},
        {"English: water, French: eau. English: yes, French:", {"oui"}},
        {"def add(a, b):\n    return a +", {"b"}},
        {"The key is 4711. Remember it. The key is", {"4711"}},
        {"In the beginning God created the heaven and the", {"earth"}},
    };
}

Result<std::vector<Task>> parse_battery(std::string_view text, const std::string& name) {
    std::vector<Task> tasks;
    for (size_t line = 1; !text.empty(); ++line) {
        const std::string_view row = text.substr(0, text.find('\n'));
        text.remove_prefix(std::min(text.size(), row.size() + 1));
        if (row.empty() || row.front() == '#' || row == "\r") continue;
        const size_t tab = row.find('\t');
        if (tab == std::string_view::npos || tab == 0 || row.size() > kLongestTask || tasks.size() == kMostTasks) {
            return error(Code::invalid_argument, "{}: line {} should be a prompt, a tab and its answers", name, line);
        }
        Task task{unescaped(row.substr(0, tab)), {}};
        std::string_view answers = row.substr(tab + 1);
        if (!answers.empty() && answers.back() == '\r') answers.remove_suffix(1);
        while (true) {
            const std::string_view answer = answers.substr(0, answers.find('|'));
            if (answer.empty()) return error(Code::invalid_argument, "{}: line {} has an empty answer", name, line);
            task.answers.push_back(unescaped(answer));
            if (answer.size() == answers.size()) break;
            answers.remove_prefix(answer.size() + 1);
        }
        tasks.push_back(std::move(task));
    }
    if (tasks.empty()) return error(Code::invalid_argument, "{}: there is no task in it", name);
    return tasks;
}

Status QualityRuns::step(const std::string& doing) {
    const double all = plan_.scored + static_cast<double>(plan_.battery.size());
    if (plan_.progress) plan_.progress(done_++ / std::max(1.0, all), doing);
    return plan_.stop() ? error(Code::cancelled, "interrupted") : Status();
}

Status QualityRuns::text(void* context, Quality& out) {
    auto* ctx = static_cast<llama_context*>(context);
    const llama_vocab* vocab = llama_model_get_vocab(llama_get_model(ctx));
    const auto n_vocab = static_cast<size_t>(llama_vocab_n_tokens(vocab));
    std::vector<llama_token> tokens = common_tokenize(ctx, plan_.text, true, false);
    const auto wanted = static_cast<size_t>(plan_.prompt + plan_.scored) + 1;
    if (tokens.size() < wanted) {
        return error(Code::invalid_argument,
                     "the text has {} tokens, but {} are needed: give a longer one, or --tokens", tokens.size(),
                     wanted);
    }
    Decoder decoder(ctx, Decoder::Undo::if_free);
    const auto n_batch = static_cast<size_t>(llama_n_batch(ctx));
    for (size_t i = 0; i < static_cast<size_t>(plan_.prompt);) {
        const size_t n = std::min(n_batch, static_cast<size_t>(plan_.prompt) - i);
        if (const Decoded d = decoder.decode(std::span(tokens).subspan(i, n)); d.code != 0) return failed(d);
        i += n;
    }
    if (!compares_) {
        distributions_.reset(std::tmpfile());
        if (distributions_ == nullptr)
            return error(Code::io_error, "no temporary file can be made; TMPDIR names another place");
    } else {
        std::rewind(distributions_.get());
    }
    std::vector<float> now(n_vocab), first(n_vocab);
    double surprise = 0, apart = 0;
    int same = 0;
    reset_stats();
    const SystemClock& clock = SystemClock::instance();
    for (int i = 0; i < plan_.scored; ++i) {
        if (Status s = step("text"); !s.ok()) return s;
        const size_t at = static_cast<size_t>(plan_.prompt) + static_cast<size_t>(i);
        const Nanos before = clock.now();
        if (const Decoded d = decoder.decode(std::span(tokens).subspan(at, 1)); d.code != 0) return failed(d);
        const float* logits = llama_get_logits_ith(ctx, -1);
        out.time += clock.now() - before;
        if (logits == nullptr) return error(Code::internal, "llama.cpp has no logits");
        log_softmax({logits, n_vocab}, now);
        surprise -= now[static_cast<size_t>(tokens[at + 1])];
        std::FILE* file = distributions_.get();
        if (!compares_) {
            if (std::fwrite(now.data(), sizeof(float), n_vocab, file) != n_vocab)
                return error(Code::io_error, "the temporary file is full; TMPDIR names another place");
            ++same;
            continue;
        }
        if (std::fread(first.data(), sizeof(float), n_vocab, file) != n_vocab)
            return error(Code::io_error, "the temporary file cannot be read back");
        const double d = divergence(first, now);
        apart += d;
        out.divergence_max = std::max(out.divergence_max, d);
        same += most_likely(first) == most_likely(now) ? 1 : 0;
    }
    const Stats all = stats();
    const PhaseStats& s = all.decode;
    out.slots = all.slots;
    out.experts = all.experts;
    out.tokens = s.tokens;
    out.bytes = s.bytes_physical;
    out.routed = s.routed;
    out.dropped = s.dropped;
    out.substituted = s.substituted;
    out.scored = plan_.scored;
    if (plan_.scored > 0) {
        out.perplexity = std::exp(surprise / plan_.scored);
        out.divergence = apart / plan_.scored;
        out.same_top = static_cast<double>(same) / plan_.scored;
    }
    return {};
}

Status QualityRuns::battery(void* context, Quality& out) {
    auto* ctx = static_cast<llama_context*>(context);
    const llama_vocab* vocab = llama_model_get_vocab(llama_get_model(ctx));
    const auto n_vocab = static_cast<size_t>(llama_vocab_n_tokens(vocab));
    for (size_t t = 0; t < plan_.battery.size(); ++t) {
        if (Status s = step("battery"); !s.ok()) return s;
        const Task& task = plan_.battery[t];
        llama_memory_clear(llama_get_memory(ctx), true);
        std::vector<llama_token> tokens = common_tokenize(ctx, task.prompt, true, false);
        if (tokens.empty()) return error(Code::invalid_argument, "a prompt of the battery is empty");
        Decoder decoder(ctx, Decoder::Undo::if_free);
        std::string answer;
        for (int i = 0; i < plan_.answer_tokens; ++i) {
            if (const Decoded d = decoder.decode(tokens); d.code != 0) return failed(d);
            const float* logits = llama_get_logits_ith(ctx, -1);
            if (logits == nullptr) return error(Code::internal, "llama.cpp has no logits");
            const auto next = static_cast<llama_token>(most_likely({logits, n_vocab}));
            if (llama_vocab_is_eog(vocab, next)) break;
            answer += common_token_to_piece(ctx, next, false);
            tokens.assign(1, next);
        }
        const auto right = [&](const std::string& a) { return answer.find(a) != std::string::npos; };
        out.right += std::any_of(task.answers.begin(), task.answers.end(), right) ? 1 : 0;
        if (!compares_) answers_.push_back(answer);
        out.same_answer += answer == answers_[t] ? 1 : 0;
        ++out.tasks;
    }
    return {};
}

Result<Quality> QualityRuns::run(common_params& params) {
    Quality out;
    done_ = 0;
    params.warmup = false;  // it would read experts that nobody asked for
    if (plan_.progress) plan_.progress(0, "loading");
    const common_init_result_ptr init = common_init_from_params(params);
    if (init == nullptr || init->model() == nullptr || init->context() == nullptr)
        return error(Code::io_error, "{} could not be loaded; the reason is above", params.model.path);
    llama_context* ctx = init->context();
    llama_set_abort_callback(
        ctx, [](void* self) { return static_cast<const QualityRuns*>(self)->plan_.stop(); }, this);
    if (Status s = text(ctx, out); !s.ok()) return s;
    if (Status s = battery(ctx, out); !s.ok()) return s;
    compares_ = true;
    return out;
}

}  // namespace sluice::engine
