// Owns: `sluice run`: one prompt, its text, an honest summary.
#include <arg.h>
#include <common.h>
#include <log.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>

#include "backend/process_memory.h"
#include "backend/recording.h"
#include "base/bytes.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/plan_subject.h"
#include "cli/progress_bar.h"
#include "engine/context_memory.h"
#include "engine/generate.h"
#include "model/gguf.h"
#include "trace/live.h"
#include "trace/progress.h"
#include "trace/summary.h"

namespace sluice::cli {
namespace {

std::atomic<bool> g_stop{false};

// The first Ctrl-C ends the run with its summary, a second one ends the program.
void on_interrupt(int) {
    if (g_stop.exchange(true)) _exit(kInterrupted);
}

// Context for a run whose user named none: what large models were trained for would reserve gigabytes of KV cache.
constexpr uint64_t kDefaultContext = 4096;

bool has_flag(const std::vector<std::string>& arguments, std::initializer_list<std::string_view> flags) {
    return std::any_of(arguments.begin(), arguments.end(),
                       [&](const std::string& a) { return std::find(flags.begin(), flags.end(), a) != flags.end(); });
}

// The view that owns the terminal, if there is one: lines for people go above it.
std::atomic<trace::LiveView*> g_live{nullptr};

void log_above_view(LogLevel, const std::string& line) {
    trace::LiveView* view = g_live.load();
    const std::string text = "sluice: " + line;
    if (view == nullptr || !view->line(text)) std::fprintf(stderr, "%s\n", text.c_str());
}

// Errors that llama.cpp logs because we stopped it are none.
void log_until_stopped(ggml_log_level level, const char* text, void* data) {
    if (!g_stop.load()) common_log_default_callback(level, text, data);
}

void print_summary(const engine::Generation& g, bool output_broken) {
    trace::SummaryExtras extras;
    if (g.memory.peak) extras.peak_bytes = static_cast<int64_t>(*g.memory.peak);
    std::string out;
    backend::recorder()->with_book([&](const trace::Book& book) { out = trace::summary_text(book, extras); });
    if (g.context_full) out += "stopped:  the context is full (-c sets its size)\n";
    if (output_broken) {
        out += "stopped:  standard output is closed or full\n";
    } else if (g.interrupted) {
        out += g.prompt_tokens_done < g.prompt_tokens
                   ? fmt::format("stopped:  interrupted after {} tokens of the prompt\n", g.prompt_tokens_done)
                   : "stopped:  interrupted\n";
    }
    std::fputs(out.c_str(), stderr);
}

// Options of llama-completion that mean nothing to a run of one prompt.
Status refuse_without_effect(const common_params& params) {
    const char* flag = params.interactive || params.interactive_first ? "-i"
                       : params.conversation_mode == COMMON_CONVERSATION_MODE_ENABLED
                           ? "-cnv (use --chat, or sluice chat)"
                       : !params.path_prompt_cache.empty()                            ? "--prompt-cache"
                       : !params.input_prefix.empty() || !params.input_suffix.empty() ? "--in-prefix/--in-suffix"
                       : params.embedding                                             ? "--embedding"
                                                                                      : nullptr;
    return flag == nullptr ? Status() : error(Code::invalid_argument, "{} has no effect in sluice run", flag);
}

}  // namespace

Result<backend::ContextPlan> context_plan(const common_params& params, bool wrapped) {
    const auto memory = engine::context_memory(params);
    if (!memory.ok()) return memory.status();
    // A token is a byte at least, but for what the vocabulary puts around the prompt.
    constexpr uint64_t kAround = 8;
    uint64_t batch = largest_batch(params);
    if (!params.prompt.empty() && !wrapped) batch = std::min<uint64_t>(batch, params.prompt.size() + kAround);
    return backend::ContextPlan{.context = memory->context, .compute = memory->compute, .batch = batch};
}

void choose_context(const std::vector<std::string>& arguments, common_params& params) {
    if (has_flag(arguments, {"-c", "--ctx-size"}) || std::getenv("LLAMA_ARG_CTX_SIZE") != nullptr) return;
    const auto index = model::GgufIndex::open(params.model.path);
    const uint64_t trained =
        index.ok() ? index->arch_number("context_length").value_or(kDefaultContext) : kDefaultContext;
    params.n_ctx = static_cast<int>(std::min(kDefaultContext, trained));
}

uint64_t largest_batch(const common_params& params) {
    const auto most = static_cast<uint64_t>(std::max(1, params.n_ubatch));
    return params.n_ctx > 0 ? std::min<uint64_t>(most, static_cast<uint64_t>(params.n_ctx)) : most;
}

int run_command(std::vector<std::string> arguments) {
    Config config;
    engine::GenerateOptions options;
    options.chat = take_switch(arguments, "--chat");
    if (asks_help(arguments)) {
        const std::string own =
            help_text(*find_command("run")) +
            "\n  --chat\n        Put the prompt into the model's chat template as the user's message.\n\n";
        if (const int code = print_help(own); code != kOk) return code;
    } else {
        if (Status s = start_streaming(arguments, config, "run"); !s.ok()) return fail(s, kUsage);
        if (const int code = refuse_arguments(arguments); code != kOk) return code;
        if (!names_model(arguments)) {
            return fail(error(Code::invalid_argument, "which model? give it with -m"), kUsage);
        }
        if (Status s = pass_on_experts_used(config, "run", arguments); !s.ok()) return fail(s, kUsage);
    }

    // In a pipe the lines are out of the view's way.
    if (config.progress && config.live && isatty(STDOUT_FILENO) == 1 && isatty(STDERR_FILENO) == 1) {
        return fail(error(Code::invalid_argument,
                          "--progress and --live would both write to this terminal: take one of them, or let the "
                          "lines of --progress go to a pipe or a file"),
                    kUsage);
    }

    common_params params;
    common_init();
    params.verbosity = 1;  // LOG_LEVEL_ERROR: the text is what people want to see; -v shows llama.cpp's log
    std::string program = "sluice run";
    std::vector<char*> argv = argv_of(program, arguments);
    if (!common_params_parse(static_cast<int>(argv.size()) - 1, argv.data(), params, LLAMA_EXAMPLE_COMPLETION))
        return kUsage;
    if (Status s = refuse_without_effect(params); !s.ok()) return fail(s, kUsage);
    if (!has_flag(arguments, {"-p", "--prompt", "-f", "--file"})) {
        if (isatty(STDIN_FILENO) == 0)
            params.prompt.assign(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
        if (params.prompt.empty()) {
            return fail(error(Code::invalid_argument, "there is no prompt: give one with -p, -f or on standard input"),
                        kUsage);
        }
    }
    choose_context(arguments, params);
    options.prompt = params.prompt;

    struct sigaction action {};
    action.sa_handler = on_interrupt;
    sigaction(SIGINT, &action, nullptr);
    sigaction(SIGTERM, &action, nullptr);

    options.stop = &g_stop;
    ProgressBar loading("loading");
    options.on_load = [&](float part) {
        loading.show(part, "");
        if (part >= 1) loading.clear();
        return true;
    };
    llama_log_set(log_until_stopped, nullptr);
    bool output_broken = false;
    bool line_open = false;
    const auto write = [&](std::string_view text) {
        output_broken = output_broken || std::fwrite(text.data(), 1, text.size(), stdout) != text.size() ||
                        std::fflush(stdout) != 0;
        if (output_broken) g_stop = true;
        return !output_broken;
    };
    options.on_text = [&](const std::string& text) {
        line_open = text.back() != '\n';
        write(text);
    };
    // What is said when the model goes begins a line of its own.
    options.on_end = [&] {
        if (line_open && !output_broken) write("\n");
        line_open = false;
    };
    if (config.progress) {
        options.on_text = [](const std::string&) {};
        trace::Planned planned;
        if (params.n_predict >= 0) planned.steps = params.n_predict;
        backend::add_output(trace::make_progress_sink(
            [&](std::string_view line) {
                return write(line) ? Status() : error(Code::io_error, "standard output is closed or full");
            },
            planned));
    }
    signal(SIGPIPE, SIG_IGN);

    trace::LiveView* live = nullptr;
    if (config.live) {
        // On one terminal the view prints the text too, so that both stay readable.
        auto view = std::make_unique<trace::LiveView>(STDERR_FILENO, isatty(STDOUT_FILENO) == 1);
        live = view.get();
        if (live->draws()) g_live = live;
        if (live->prints_text()) options.on_text = [](const std::string&) {};
        set_log_sink(log_above_view);
        backend::add_output(std::move(view));
    }

    if (config.ram_bytes) {
        // What cannot fit is refused before weights are read then, and not when the context is made.
        if (const auto planned = context_plan(params, options.chat); planned.ok()) backend::plan_context(*planned);
        // Otherwise loading says why.
    }
    const engine::Generation g = engine::generate(params, options);
    loading.clear();
    if (live != nullptr) live->stop();
    g_live = nullptr;
    finish_log();
    if (g.prompt_tokens > 0) print_summary(g, output_broken);
    if (!g.status.ok()) return fail(g.status, kFailed);
    backend::recorder()->with_book(
        [&](const trace::Book& book) { remember_run(params.model.path, config, !params.no_extra_bufts, book); });
    if (output_broken) return fail(error(Code::io_error, "standard output is closed or full"), kFailed);
    if (Status s = backend::recorder()->status(); !s.ok()) return fail(s, kFailed);
    return g.interrupted ? kInterrupted : kOk;
}

}  // namespace sluice::cli
