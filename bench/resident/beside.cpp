// Owns: stock llama.cpp and Sluice with every expert in its cache, beside each other in one process: the same tokens,
// in blocks, each block computed by one, then by the other, in turn.
// Keeps: both have the same threads (one pool, because those of who waits would spin beside who computes) and stock its
// repacked weights. Stock's model and context are made before Sluice is started, so that nothing of Sluice is in them.
// Every expert is read and every block's kind computed once before anything counts. Logits must be the same, bit for
// bit. One line of JSON for each block; run_beside.py makes the table.
#include <fmt/format.h>
#include <ggml-cpu.h>
#include <llama.h>
#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/cpu_hooks.h"
#include "backend/device.h"
#include "backend/model_state.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "sluice/sluice.h"

namespace {

using namespace sluice;

struct Settings {
    std::string model;
    int threads = 1;
    int prompt = 128, prompts = 12;          // tokens of each, and how many
    int warm = 16, blocks = 24, block = 16;  // tokens of decode: before anything counts, then blocks of so many
    int slots = 0;                           // in MiB; 0: enough for the whole file
    bool repack = true;
};

struct Side {
    struct FreeModel {
        void operator()(llama_model* m) const { llama_model_free(m); }
    };
    struct FreeContext {
        void operator()(llama_context* c) const { llama_free(c); }
    };
    explicit Side(const char* called) : name(called) {}
    const char* name;
    std::unique_ptr<llama_model, FreeModel> model;
    std::unique_ptr<llama_context, FreeContext> context;
    std::vector<float> logits;  // of the last block
};

struct Times {
    Nanos wall = 0, cpu = 0;
};

Times now() {
    rusage u{};
    getrusage(RUSAGE_SELF, &u);
    const auto nanos = [](const timeval& t) { return static_cast<Nanos>(t.tv_sec) * 1'000'000'000 + t.tv_usec * 1000; };
    return {SystemClock::instance().now(), nanos(u.ru_utime) + nanos(u.ru_stime)};
}

class Beside {
  public:
    explicit Beside(const Settings& s) : settings_(s) {}

    // An empty text: it went well.
    std::string run() {
        if (!load(stock_)) return settings_.model + ": llama.cpp could not load it";
        Config config;
        config.cache_bytes = settings_.slots > 0 ? static_cast<uint64_t>(settings_.slots) * MiB : whole_file();
        config.verbosity = Verbosity::warn;
        std::string why;
        if (!start(config, &why)) return why;
        if (!load(ours_)) return last_error().empty() ? settings_.model + ": no context" : last_error();
        state_ = backend::loaded_model();
        if (state_ == nullptr) return settings_.model + " has no experts to stream";
        const auto make_pool =
            reinterpret_cast<decltype(&ggml_threadpool_new)>(backend::cpu_proc("ggml_threadpool_new"));
        const auto free_pool =
            reinterpret_cast<decltype(&ggml_threadpool_free)>(backend::cpu_proc("ggml_threadpool_free"));
        if (make_pool == nullptr || free_pool == nullptr) return "ggml has no thread pools";
        ggml_threadpool_params tp = ggml_threadpool_params_default(settings_.threads);
        const std::unique_ptr<ggml_threadpool, decltype(free_pool)> pool(make_pool(&tp), free_pool);
        if (pool == nullptr) return "no threads";
        for (Side* side : {&stock_, &ours_}) llama_attach_threadpool(side->context.get(), pool.get(), pool.get());
        why = compare();
        for (Side* side : {&stock_, &ours_}) side->context.reset();
        return why;
    }

  private:
    [[nodiscard]] uint64_t whole_file() const {
        // Slots are padded.
        return llama_model_size(stock_.model.get()) * 5 / 4 + 64 * MiB;
    }

    bool load(Side& side) const {
        llama_model_params mp = llama_model_default_params();
        mp.use_extra_bufts = settings_.repack;
        mp.n_gpu_layers = 0;
        side.model.reset(llama_model_load_from_file(settings_.model.c_str(), mp));
        if (side.model == nullptr) return false;
        llama_context_params cp = llama_context_default_params();
        cp.n_ctx =
            static_cast<uint32_t>(std::max(settings_.prompt, settings_.warm + settings_.blocks * settings_.block));
        cp.n_batch = cp.n_ubatch = static_cast<uint32_t>(std::max(1, settings_.prompt));
        cp.n_threads = cp.n_threads_batch = settings_.threads;
        side.context.reset(llama_init_from_model(side.model.get(), cp));
        return side.context != nullptr;
    }

    std::string compare() {
        // A first prompt makes the slots; then all experts are read.
        if (!prompt(ours_, 0)) return last_error();
        if (Status s = fill(); !s.ok()) return s.message();
        for (int i = 0; i <= settings_.prompts; ++i) {
            const auto compute = [&](Side& side) { return prompt(side, i); };
            if (std::string why = both("prefill", i - 1, settings_.prompt, compute); !why.empty()) return why;
        }
        for (Side* side : {&stock_, &ours_}) llama_memory_clear(llama_get_memory(side->context.get()), true);
        for (int i = 0, at = 0; i <= settings_.blocks; ++i) {
            const int n = i == 0 ? settings_.warm : settings_.block;
            const auto compute = [&](Side& side) { return decode(side, at, n); };
            if (std::string why = both("decode", i - 1, n, compute); !why.empty()) return why;
            at += n;
        }
        return "";
    }

    // One block of both, in turn. That of number -1 does not count.
    template <typename F>
    std::string both(const char* phase, int number, int tokens, F&& compute) {
        std::pair<Side*, Times> done[2];
        for (int turn = 0; turn < 2; ++turn) {
            Side& side = (turn == 0) == (number % 2 == 0) ? stock_ : ours_;
            const Times before = now();
            if (!compute(side)) return std::string(side.name) + " failed. " + last_error();
            const Times after = now();
            done[turn] = {&side, {after.wall - before.wall, after.cpu - before.cpu}};
            const float* logits = llama_get_logits_ith(side.context.get(), -1);
            side.logits.assign(logits, logits + llama_vocab_n_tokens(llama_model_get_vocab(side.model.get())));
        }
        if (std::memcmp(stock_.logits.data(), ours_.logits.data(), stock_.logits.size() * sizeof(float)) != 0)
            return fmt::format("{}, block {}: other logits than stock", phase, number);
        for (const auto& [side, t] : done) {
            if (number < 0) continue;
            fmt::print(R"({{"phase":"{}","block":{},"arm":"{}","tokens":{},"wall_ns":{},"cpu_ns":{}}})"
                       "\n",
                       phase, number, side->name, tokens, t.wall, t.cpu);
        }
        std::fflush(stdout);
        return "";
    }

    // Numbers that no text has in this order, so that experts change from token to token.
    llama_token token(int at) const {
        const auto n = static_cast<size_t>(llama_vocab_n_tokens(llama_model_get_vocab(stock_.model.get())));
        return static_cast<llama_token>((static_cast<size_t>(at) * 7919 + 13) % n);
    }

    bool prompt(Side& side, int number) {
        llama_memory_clear(llama_get_memory(side.context.get()), true);
        std::vector<llama_token> tokens;
        for (int i = 0; i < settings_.prompt; ++i) tokens.push_back(token(number * settings_.prompt + i));
        return llama_decode(side.context.get(), llama_batch_get_one(tokens.data(), settings_.prompt)) == 0;
    }

    bool decode(Side& side, int at, int n) {
        for (int i = at; i < at + n; ++i) {
            llama_token t = token(i);
            if (llama_decode(side.context.get(), llama_batch_get_one(&t, 1)) != 0) return false;
            (void)llama_get_logits_ith(side.context.get(), -1);
        }
        return true;
    }

    Status fill() {
        exec::ModelRuntime& runtime = state_->runtime();
        const std::lock_guard lock(runtime.mutex);
        const model::Geometry& geometry = runtime.store->geometry();
        for (uint32_t set = 0; set < geometry.sets.size(); ++set) {
            for (uint32_t e = 0; e < geometry.sets[set].n_expert; ++e) {
                RecordId record[] = {runtime.store->record(set, e)};
                if (runtime.fetcher->lease(record) == 0) return error(Code::internal, "no slot is free");
                Status s = runtime.fetcher->load(record, UINT8_MAX);
                runtime.fetcher->release(record);
                if (!s.ok()) return s;
            }
        }
        if (settings_.slots == 0 && runtime.fetcher->cache().counters().evictions > 0)
            return error(Code::internal, "the experts do not all fit");
        return {};
    }

    const Settings& settings_;
    Side stock_{"stock"}, ours_{"sluice"};
    std::shared_ptr<backend::ModelState> state_;
};

std::string parse(std::span<char*> words, Settings& s) {
    const std::pair<std::string_view, int*> numbers[] = {
        {"--threads", &s.threads}, {"--prompt", &s.prompt}, {"--prompts", &s.prompts}, {"--warm", &s.warm},
        {"--blocks", &s.blocks},   {"--block", &s.block},   {"--slots-mb", &s.slots}};
    for (size_t i = 0; i < words.size(); ++i) {
        const std::string_view w = words[i];
        if (w == "--no-repack") {
            s.repack = false;
            continue;
        }
        if (!w.starts_with("-")) {
            s.model = w;
            continue;
        }
        int* number = nullptr;
        for (const auto& [name, value] : numbers) number = name == w ? value : number;
        if (number == nullptr || i + 1 == words.size()) return fmt::format("{}: no option, or no value", w);
        const std::string_view value = words[++i];
        const auto [end, code] = std::from_chars(value.data(), value.data() + value.size(), *number);
        if (code != std::errc() || end != value.data() + value.size() || *number < 1)
            return fmt::format("{} {}: not a number", w, value);
    }
    return s.model.empty() ? "a model is needed" : "";
}

}  // namespace

int main(int argc, char** argv) {
    Settings settings;
    std::string why = parse({argv + 1, static_cast<size_t>(argc - 1)}, settings);
    if (why.empty()) {
        llama_log_set(
            [](ggml_log_level level, const char* text, void*) {
                if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
            },
            nullptr);
        why = Beside(settings).run();
        if (why.empty()) return 0;
    } else {
        why +=
            "\nusage: beside MODEL [--threads N] [--prompt N] [--prompts N] [--warm N] [--blocks N] [--block N] "
            "[--slots-mb N] [--no-repack]";
    }
    fmt::print(stderr, "beside: {}\n", why);
    return 1;
}
