// Owns: the stock llama.cpp tools run in this process with streaming on.
// Keeps: every option that is not ours reaches the tool unchanged.
#include <arg.h>
#include <common.h>
#include <fmt/ranges.h>
#include <ggml-backend.h>
#include <log.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>

#include "backend/device.h"
#include "backend/host_flags.h"
#include "backend/model_state.h"
#include "backend/options.h"
#include "backend/recording.h"
#include "base/bytes.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/memory_watch.h"
#include "cli/metrics_server.h"
#include "cli/trial.h"
#include "engine/context_memory.h"
#include "engine/generate.h"
#include "model/geometry.h"
#include "trace/summary.h"

// llama.cpp's tools as libraries; it declares these in no header.
int llama_cli(int argc, char** argv);
int llama_server(int argc, char** argv);
int llama_bench(int argc, char** argv);
int llama_perplexity(int argc, char** argv);

extern char** environ;

namespace sluice::cli {
namespace {

// What was read, for tools whose own report knows nothing of it.
void print_streaming_summary(const Config& config) {
    const Stats s = stats();
    if (s.cache_bytes == 0) return;
    const auto line = [](const char* name, const PhaseStats& p) {
        if (p.lookups == 0) return;
        std::fprintf(stderr, "sluice: %s: %.1f %% of %llu expert look-ups hit the cache, %s read, %.2f s waited\n",
                     name, 100.0 * static_cast<double>(p.hits) / static_cast<double>(p.lookups),
                     static_cast<unsigned long long>(p.lookups), human_bytes(p.bytes_physical).c_str(),
                     p.read_wait_ms / 1e3);
    };
    std::string lossy = fmt::format("{}", fmt::join(backend::lossy_options(config), ", "));
    if (!lossy.empty()) lossy += trace::changed_text(s.decode.routed, s.decode.dropped, s.decode.substituted);
    std::fprintf(stderr, "sluice: expert cache %s, %llu of %llu experts fit; lossy options: %s\n",
                 human_bytes(s.cache_bytes).c_str(), static_cast<unsigned long long>(s.slots),
                 static_cast<unsigned long long>(s.experts), lossy.empty() ? "none" : lossy.c_str());
    line("prefill", s.prefill);
    line("decode", s.decode);
    if (config.route_ahead > 0) {
        const PhaseStats& d = s.decode;
        const trace::RouteAheadCounts counts{.committed = d.ahead_committed,
                                             .passed = d.ahead_passed,
                                             .below = d.ahead_passed_below,
                                             .first = d.ahead_passed_first,
                                             .slots = d.ahead_slots,
                                             .agreed = d.ahead_agreed};
        std::fprintf(stderr, "sluice: moe-route-ahead: %s\n",
                     trace::route_ahead_text(config.route_ahead, counts, s.prefill.ahead_passed).c_str());
    }
}

// Takes Ctrl-C (and SIGTERM) for a tool that has a handler of its own: computing ends within one layer, and the handler
// is called then, by a thread of ours. A handler alone would have to wait for the batch, or for ever for a read that
// does not come.
class StopsAtOnce {
  public:
    StopsAtOnce() {
        sigemptyset(&signals_);
        for (const int s : {SIGINT, SIGTERM}) sigaddset(&signals_, s);
        // Threads that are started later inherit it.
        pthread_sigmask(SIG_BLOCK, &signals_, &before_);
        thread_ = std::thread([this] { run(); });
    }
    ~StopsAtOnce() {
        over_ = true;
        pthread_kill(thread_.native_handle(), SIGTERM);
        thread_.join();
        pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }
    StopsAtOnce(const StopsAtOnce&) = delete;
    StopsAtOnce& operator=(const StopsAtOnce&) = delete;

  private:
    void run() {
        for (int signal = 0; sigwait(&signals_, &signal) == 0 && !over_;) {
            struct sigaction action {};
            sigaction(signal, nullptr, &action);
            if (action.sa_handler == SIG_IGN) continue;
            if (action.sa_handler == SIG_DFL) _exit(128 + signal);  // before the tool is ready for it
            backend::stop_all();
            action.sa_handler(signal);
        }
    }
    sigset_t signals_ = {}, before_ = {};
    std::atomic<bool> over_{false};
    std::thread thread_;  // last: it uses all of the above
};

int run_stock(const char* command, int (*tool)(int, char**), std::vector<std::string> arguments,
              bool respawns = false) {
    std::unique_ptr<MetricsServer> metrics;
    Config config;
    if (asks_help(arguments)) {
        if (const int code = print_help(help_text(*find_command(command))); code != kOk) return code;
    } else {
        backend::TakenOptions taken;
        if (Status s = start_streaming(arguments, config, command, &taken); !s.ok()) return fail(s, kUsage);
        if (const int code = refuse_arguments(arguments); code != kOk) return code;
        if (tool == llama_perplexity && backend::has_decode_dials(config)) {
            return fail(error(Code::invalid_argument,
                              "perplexity computes whole batches, in which {} never acts: its number would be that of "
                              "the model without it. sluice quality goes token by token",
                              fmt::join(backend::lossy_options(config), " and ")),
                        kUsage);
        }
        if (Status s = pass_on_experts_used(config, command, arguments); !s.ok()) return fail(s, kUsage);
        if (respawns && backend::has_outputs(config) && !names_model(arguments)) {
            return fail(error(Code::invalid_argument,
                              "as a router (no -m) the server runs one process per model, and all would write to the "
                              "same files and port: name a model, or leave the outputs out"),
                        kUsage);
        }
        if (config.metrics_port != 0) {
            auto sink = std::make_unique<trace::Metrics>();
            auto server = MetricsServer::start(config.metrics_port, *sink);
            if (!server.ok()) return fail(server.status(), kFailed);
            metrics = std::move(*server);
            backend::add_output(std::move(sink));
        }
        // As a router the server starts this program again for each model, with its own arguments only: the command and
        // our options travel in the environment.
        if (respawns) {
            setenv("SLUICE_SERVE_CHILD", "1", 1);
            for (const auto& [variable, value] : taken) setenv(variable.c_str(), value.c_str(), 1);
        }
    }
    std::string program = std::string("sluice ") + command;
    std::vector<char*> argv = argv_of(program, arguments);
    std::optional<StopsAtOnce> stops;
    if (respawns) stops.emplace();
    const int rc = tool(static_cast<int>(argv.size()) - 1, argv.data());
    finish_log();
    backend::end_recording({.status = rc == 0 ? "ok" : "failed", .error = {}, .output_digest = {}});
    print_streaming_summary(config);
    return rc;
}

}  // namespace

bool names_model(const std::vector<std::string>& arguments) {
    static constexpr std::string_view kFlags[] = {"-m",   "--model",   "-mu", "--model-url",  "-hf",
                                                  "-hfr", "--hf-repo", "-dr", "--docker-repo"};
    if (std::getenv("LLAMA_ARG_MODEL") != nullptr) return true;
    return std::any_of(arguments.begin(), arguments.end(), [](const std::string& a) {
        return std::find(std::begin(kFlags), std::end(kFlags), a) != std::end(kFlags);
    });
}

bool take_switch(std::vector<std::string>& arguments, std::string_view flag) {
    bool found = false;
    for (size_t i = 0; i < arguments.size();) {
        if (arguments[i] == flag) {
            found = true;
            arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(i));
        } else {
            i += backend::takes_free_text(arguments[i]) ? 2 : 1;
        }
    }
    return found;
}

bool asks_help(const std::vector<std::string>& arguments) {
    std::vector<std::string> copy = arguments;
    return take_switch(copy, "--help") || take_switch(copy, "-h") || take_switch(copy, "--usage");
}

std::vector<char*> argv_of(std::string& program, std::vector<std::string>& arguments) {
    std::vector<char*> argv{program.data()};
    for (std::string& a : arguments) argv.push_back(a.data());
    argv.push_back(nullptr);
    return argv;
}

int fail(const Status& status, int code) {
    std::fprintf(stderr, "sluice: error: %s\n", status.message().c_str());
    return code;
}

backend::Place place_of(std::string_view command) {
    if (command == "run") return backend::Place::run;
    return command == "serve" ? backend::Place::serve : backend::Place::tool;
}

namespace {

// Whether a value of --override-kv ("KEY=TYPE:VALUE,...") sets `key`. Another architecture's keys set nothing.
bool overrides(std::string_view value, std::string_view key) {
    while (!value.empty()) {
        std::string_view item = value.substr(0, value.find(','));
        value.remove_prefix(std::min(value.size(), item.size() + 1));
        item.remove_prefix(std::min(item.size(), item.find_first_not_of(" \"")));
        if (item.starts_with(key) && item.substr(key.size()).starts_with('=')) return true;
    }
    return false;
}

// The value of --override-kv that says how many experts this model uses; empty: none does.
std::string override_of_experts(const model::GgufIndex& index, const std::vector<std::string>& arguments) {
    const std::string key = index.architecture() + ".expert_used_count";
    for (size_t i = 0; i + 1 < arguments.size(); ++i) {
        if (arguments[i] == "--override-kv" && overrides(arguments[i + 1], key)) return arguments[i + 1];
    }
    return {};
}

// The last one counts, as for llama.cpp; empty: no file is named.
std::string model_file(const std::vector<std::string>& arguments) {
    std::string path;
    for (size_t i = 0; i + 1 < arguments.size(); ++i) {
        if (arguments[i] == "-m" || arguments[i] == "--model") path = arguments[i + 1];
    }
    return path;
}

// Options that would change answers, and change nothing in the model that is named, are taken out before any output
// names them. Returns what there is to say; a model that cannot be opened is for others to speak of.
std::string leave_out_idle(Config& config, const std::vector<std::string>& arguments) {
    const std::string path = backend::lossy_options(config).empty() ? "" : model_file(arguments);
    if (path.empty()) return {};
    const auto index = model::GgufIndex::open(path);
    if (!index.ok()) return {};
    const auto geometry = model::derive_geometry(*index);
    if (!geometry.ok()) return {};
    std::string said;
    const uint32_t n_expert_used = config.n_expert_used;
    config = backend::acting_on(*index, *geometry, config, &said);
    if (!override_of_experts(*index, arguments).empty()) config.n_expert_used = n_expert_used;
    return said;
}

}  // namespace

Status start_streaming(std::vector<std::string>& arguments, Config& config, const char* command,
                       backend::TakenOptions* taken) {
    const backend::Place place = place_of(command);
    backend::set_host(
        {.place = place, .program = std::string("sluice ") + command, .whole_loop = place == backend::Place::run});
    backend::Given given;
    if (Status s = backend::read_environment(config, environ, place, &given); !s.ok()) return s;
    if (Status s = backend::take_options(config, arguments, place, taken, &given); !s.ok()) return s;
    if (backend::asks_verbose(arguments)) backend::say_more(config, given);
    // Here, where it is known how each value was given.
    if (Status s = backend::validate(config, given); !s.ok()) return s;
    if (Status s = backend::check_outputs(config, arguments); !s.ok()) return s;
    // The plug-in named for stock tools would be a second copy of what this program already contains.
    if (const char* plugin = std::getenv("GGML_BACKEND_PATH");
        plugin != nullptr && std::strstr(plugin, "ggml-sluice") != nullptr) {
        unsetenv("GGML_BACKEND_PATH");
    }
    if (ggml_backend_reg_by_name("SLUICE") != nullptr) {
        return error(Code::invalid_argument,
                     "the plug-in is preloaded (LD_PRELOAD), but this program streams by itself: unset it");
    }
    const std::string idle = leave_out_idle(config, arguments);
    std::string why;
    if (!start(config, &why)) return error(Code::unsupported, "{}", why);
    if (!idle.empty()) log(LogLevel::warn, "{}", idle);
    watch_memory();
    return {};
}

int refuse_arguments(const std::vector<std::string>& arguments) {
    if (Status s = backend::check_host_flags(arguments); !s.ok()) return fail(s, kUsage);
    for (size_t i = 0; i + 1 < arguments.size(); ++i) {
        if (arguments[i] != "-m" && arguments[i] != "--model") continue;
        const std::string& path = arguments[i + 1];
        const auto index = model::GgufIndex::open(path);
        if (!index.ok()) return fail(index.status(), kFailed);
        if (index->files().size() > 1 && index->files()[0].path != path) {
            return fail(error(Code::invalid_argument, "{} is a later part of a split model: give its first part, {}",
                              path, index->files()[0].path),
                        kFailed);
        }
        const auto geometry = model::derive_geometry(*index);
        if (!geometry.ok()) return fail(geometry.status(), kFailed);
        if (Status s = engine::check_model(path); !s.ok()) return fail(s, kFailed);
    }
    return kOk;
}

namespace {

llama_example example_of(std::string_view command) {
    return command == "serve"        ? LLAMA_EXAMPLE_SERVER
           : command == "chat"       ? LLAMA_EXAMPLE_CLI
           : command == "perplexity" ? LLAMA_EXAMPLE_PERPLEXITY
                                     : LLAMA_EXAMPLE_COMPLETION;
}

}  // namespace

Status pass_on_experts_used(const Config& config, const char* command, std::vector<std::string>& arguments) {
    const uint32_t n = config.n_expert_used;
    if (n == 0) return {};
    const auto no = [&](std::string_view why) {
        return error(Code::invalid_argument, "--n-expert-used has no effect in sluice {}: {}", command, why);
    };
    if (std::string_view(command) == "bench") return no("llama-bench cannot be told to use fewer experts");
    const std::string path = model_file(arguments);
    if (path.empty()) return no("it needs the model's file, given with -m");
    const auto index = model::GgufIndex::open(path);
    if (!index.ok()) return index.status();
    const uint64_t most = index->arch_number("expert_count").value_or(0);
    if (n > most)
        return error(Code::invalid_argument, "--n-expert-used {}: {} has {} experts in a layer", n, path, most);
    const std::string key = index->architecture() + ".expert_used_count";
    if (const std::string other = override_of_experts(*index, arguments); !other.empty())
        return no("--override-kv " + other + " says how many already");
    arguments.insert(arguments.end(), {"--override-kv", fmt::format("{}=int:{}", key, n)});
    if (n <= index->arch_number("expert_used_count").value_or(0)) return {};
    // llama.cpp plans its graph by the number of the model's tensors, and ends the program where more experts than the
    // model was trained with need more nodes.
    const bool too_many = aborts([&] {
        common_params params;
        std::string program = "sluice";
        std::vector<char*> argv = argv_of(program, arguments);
        if (common_params_parse(static_cast<int>(argv.size()) - 1, argv.data(), params, example_of(command)))
            (void)engine::context_memory(params);
    });
    if (too_many) {
        return error(Code::invalid_argument,
                     "--n-expert-used {}: llama.cpp's graph of {} has no room for so many experts in each layer (the "
                     "model was trained with {}): take fewer",
                     n, path, index->arch_number("expert_used_count").value_or(0));
    }
    return {};
}

void finish_log() {
    common_log_pause(common_log_main());
}

int print_help(const std::string& text) {
    const bool written = std::fputs(text.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
    return written ? kOk : fail(error(Code::io_error, "standard output is closed or full"), kFailed);
}

int chat_command(std::vector<std::string> arguments) {
    return run_stock("chat", llama_cli, std::move(arguments));
}
int serve_command(std::vector<std::string> arguments) {
    return run_stock("serve", llama_server, std::move(arguments), true);
}
int bench_command(std::vector<std::string> arguments) {
    return run_stock("bench", llama_bench, std::move(arguments));
}
int perplexity_command(std::vector<std::string> arguments) {
    return run_stock("perplexity", llama_perplexity, std::move(arguments));
}

}  // namespace sluice::cli
