// Owns: ways of running one model compared within one process: the same tokens, in blocks, each block computed by every
// arm before the next one, forwards and backwards in turn.
// Keeps: arms share the model, its dense weights, the reads' engine and the threads, so that these are the same for
// all; an arm has a context and slots of its own, so that nothing has to be taken back or warmed up between blocks, and
// what it finds in its cache is what it left there. Slots are filled and the first tokens decoded before anything
// counts. Arms that change no results must have the same logits, or the program ends with an error.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ggml-cpu.h>
#include <llama.h>
#include <sys/resource.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu_hooks.h"
#include "backend/device.h"
#include "backend/model_state.h"
#include "backend/options.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "engine/decoder.h"
#include "sluice/sluice.h"

namespace {

using namespace sluice;

struct Arm {
    std::string name;
    Config config;
    bool lossless = true;
};

struct Settings {
    std::string model;
    std::string text;  // a file; empty: numbers that no text has in this order
    double cache_mb = 0;
    int threads = 2;
    int prompt = 32, warm = 32, tokens = 256, block = 16, rounds = 2;
    bool repack = true;
    bool same = false;  // lossy arms, too, must have the logits of the others: to see that a difference is noticed
    std::vector<Arm> arms;
};

// What the process has done so far, of the arm that is in place.
struct Counts {
    Nanos wall = 0, cpu = 0, wait = 0;
    uint64_t lookups = 0, hits = 0, bytes = 0, physical = 0, early = 0, used = 0, hints = 0;
    int64_t on = 0;
};

// What belongs to an arm for a round.
struct Seat {
    struct FreeContext {
        void operator()(llama_context* c) const { llama_free(c); }
    };
    const Arm* arm = nullptr;
    std::unique_ptr<exec::ModelRuntime> way;
    std::unique_ptr<llama_context, FreeContext> context;
    std::unique_ptr<engine::Decoder> decoder;
};

// The model runs as the seat's arm says, as long as this lives.
class Seated {
  public:
    Seated(exec::ModelRuntime& model, Seat& seat) : model_(model), seat_(seat) { exchange(); }
    ~Seated() {
        backend::settle();  // what it has begun to read is its own
        exchange();
    }
    Seated(const Seated&) = delete;
    Seated& operator=(const Seated&) = delete;

  private:
    void exchange() {
        const std::scoped_lock both(model_.mutex, seat_.way->mutex);
        exec::exchange_ways(model_, *seat_.way);
    }
    exec::ModelRuntime& model_;
    Seat& seat_;
};

Nanos processor_time() {
    rusage u{};
    getrusage(RUSAGE_SELF, &u);
    const auto nanos = [](const timeval& t) { return static_cast<Nanos>(t.tv_sec) * 1'000'000'000 + t.tv_usec * 1000; };
    return nanos(u.ru_utime) + nanos(u.ru_stime);
}

Counts counts_of(exec::ModelRuntime& model) {
    const std::lock_guard lock(model.mutex);
    const trace::PhaseCounters& d = model.counters.decode;
    const sched::SchedCounters& s = model.fetcher->counters();
    return {.wall = SystemClock::instance().now(),
            .cpu = processor_time(),
            .wait = s.wait,
            .lookups = d.lookups,
            .hits = d.hits,
            .bytes = s.exact_bytes + s.predicted_bytes,
            .physical = s.exact_physical + s.predicted_physical,
            .early = s.predicted_bytes + s.ahead_bytes,
            .used = s.used_bytes,
            .hints = s.hints,
            .on = model.asked.on};
}

int fail(const std::string& why) {
    fmt::print(stderr, "inturns: {}\n", why);
    return 1;
}

// Every slot is taken before anything counts: no memory is touched for the first time later.
Status fill(exec::ModelRuntime& model) {
    const std::lock_guard lock(model.mutex);
    sched::Fetcher& fetcher = *model.fetcher;
    const store::RecordStore& store = *model.store;
    uint32_t most = 0;
    for (const auto& set : store.geometry().sets) most = std::max(most, set.n_expert);
    for (uint32_t e = 0; e < most; ++e) {
        for (uint32_t set = 0; set < store.geometry().sets.size(); ++set) {
            if (fetcher.cache().n_resident() >= fetcher.slots_within_limit()) return {};
            if (e >= store.geometry().sets[set].n_expert) continue;
            RecordId record[] = {store.record(set, e)};
            if (fetcher.lease(record) == 0) return error(Code::internal, "no slot is free");
            Status s = fetcher.load(record, UINT8_MAX);
            fetcher.release(record);
            if (!s.ok()) return s;
        }
    }
    return {};
}

// Digest of all logits; nullopt: llama.cpp or Sluice has failed.
std::optional<uint64_t> decode_all(Seat& seat, std::span<const llama_token> tokens, int n_vocab) {
    uint64_t digest = 0;
    for (const llama_token t : tokens) {
        if (seat.decoder->decode(std::span(&t, 1)).code != 0) return std::nullopt;
        const float* logits = llama_get_logits_ith(seat.context.get(), -1);
        digest = XXH3_64bits_withSeed(logits, static_cast<size_t>(n_vocab) * sizeof *logits, digest);
    }
    return digest;
}

void print_block(int round, int block, int place, const Seat& seat, const Counts& a, const Counts& b, size_t tokens,
                 uint64_t digest) {
    fmt::print(
        R"({{"kind":"block","round":{},"block":{},"place":{},"arm":"{}","tokens":{},"wall_ns":{},"cpu_ns":{},"wait_ns":{},)"
        R"("lookups":{},"hits":{},"bytes":{},"physical_bytes":{},"early_bytes":{},"used_bytes":{},"hints":{},)"
        R"("guess_on":{},"logits":"{:016x}"}})"
        "\n",
        round, block, place, seat.arm->name, tokens, b.wall - a.wall, b.cpu - a.cpu, b.wait - a.wait,
        b.lookups - a.lookups, b.hits - a.hits, b.bytes - a.bytes, b.physical - a.physical, b.early - a.early,
        b.used - a.used, b.hints - a.hints, b.on - a.on, digest);
    std::fflush(stdout);
}

std::string last_words() {
    const std::string why = last_error();
    return why.empty() ? "llama.cpp gave no reason" : why;
}

class Bench {
  public:
    explicit Bench(const Settings& s) : settings_(s) {}
    ~Bench() {
        model_state_.reset();
        if (pool_ != nullptr) free_pool_(pool_);
    }
    Bench(const Bench&) = delete;
    Bench& operator=(const Bench&) = delete;

    // An empty text: it went well.
    std::string run() {
        if (std::string why = load(); !why.empty()) return why;
        for (int round = 0; round < settings_.rounds; ++round) {
            if (std::string why = run_round(round); !why.empty()) return why;
        }
        return "";
    }

  private:
    struct FreeModel {
        void operator()(llama_model* m) const { llama_model_free(m); }
    };

    std::string load() {
        Config config;
        config.cache_bytes = settings_.arms[0].config.cache_bytes;
        config.verbosity = Verbosity::warn;
        // Whoever follows routers needs the CPU backend to be watched, which is then so for all arms.
        config.predict_prefetch = true;
        std::string why;
        if (!start(config, &why)) return why;
        llama_model_params mp = llama_model_default_params();
        mp.use_extra_bufts = settings_.repack;
        mp.n_gpu_layers = 0;
        model_.reset(llama_model_load_from_file(settings_.model.c_str(), mp));
        if (model_ == nullptr) return settings_.model + ": llama.cpp could not load it";
        model_state_ = backend::loaded_model();
        if (model_state_ == nullptr) return settings_.model + " has no experts to stream";
        n_vocab_ = llama_vocab_n_tokens(llama_model_get_vocab(model_.get()));
        // One pool for all contexts: the threads of one that is not at work would spin beside the one that is.
        const auto make_pool =
            reinterpret_cast<decltype(&ggml_threadpool_new)>(backend::cpu_proc("ggml_threadpool_new"));
        free_pool_ = reinterpret_cast<decltype(&ggml_threadpool_free)>(backend::cpu_proc("ggml_threadpool_free"));
        if (make_pool == nullptr || free_pool_ == nullptr) return "ggml has no thread pools";
        ggml_threadpool_params tp = ggml_threadpool_params_default(settings_.threads);
        pool_ = make_pool(&tp);
        if (pool_ == nullptr) return "no threads";
        return read_tokens();
    }

    std::string read_tokens() {
        const auto wanted = static_cast<size_t>(settings_.prompt + settings_.warm + settings_.tokens);
        if (settings_.text.empty()) {
            for (size_t i = 0; i < wanted; ++i)
                tokens_.push_back(static_cast<llama_token>((i * 7919 + 13) % static_cast<size_t>(n_vocab_)));
            return "";
        }
        std::ifstream file(settings_.text, std::ios::binary);
        if (!file) return settings_.text + " cannot be read";
        std::string text(std::istreambuf_iterator<char>(file), {});
        text.resize(std::min<size_t>(text.size(), 32 * wanted + 1024));  // a long text is not wanted whole
        tokens_.resize(text.size() + 8);
        const int n =
            llama_tokenize(llama_model_get_vocab(model_.get()), text.data(), static_cast<int32_t>(text.size()),
                           tokens_.data(), static_cast<int32_t>(tokens_.size()), true, false);
        if (n < static_cast<int>(wanted))
            return fmt::format("{} has {} tokens, of which {} are wanted", settings_.text, n, wanted);
        tokens_.resize(wanted);
        return "";
    }

    std::string run_round(int round) {
        std::vector<Seat> seats(settings_.arms.size());
        // Made in another order each round: where an arm's memory lies is not always the same.
        for (size_t i = 0; i < seats.size(); ++i) {
            const size_t at = (i + static_cast<size_t>(round)) % seats.size();
            if (std::string why = prepare(seats[at], settings_.arms[at]); !why.empty()) return why;
        }
        const auto all = std::span(tokens_).subspan(static_cast<size_t>(settings_.prompt + settings_.warm));
        const auto block_size = static_cast<size_t>(settings_.block);
        for (int block = 0; static_cast<size_t>(block + 1) * block_size <= all.size(); ++block) {
            const auto tokens = all.subspan(static_cast<size_t>(block) * block_size, block_size);
            if (std::string why = run_block(round, block, seats, tokens); !why.empty()) return why;
        }
        return "";
    }

    std::string prepare(Seat& seat, const Arm& arm) {
        seat.arm = &arm;
        auto way = model_state_->make_way(arm.config);
        if (!way.ok()) return fmt::format("{}: {}", arm.name, way.status().message());
        seat.way = std::move(*way);
        llama_context_params cp = llama_context_default_params();
        cp.n_ctx = static_cast<uint32_t>(tokens_.size() + 8);
        cp.n_batch = cp.n_ubatch = static_cast<uint32_t>(settings_.prompt);
        cp.n_threads = cp.n_threads_batch = settings_.threads;
        seat.context.reset(llama_init_from_model(model_.get(), cp));
        if (seat.context == nullptr) return arm.name + ": no context could be made";
        llama_attach_threadpool(seat.context.get(), pool_, pool_);
        seat.decoder = std::make_unique<engine::Decoder>(seat.context.get(), engine::Decoder::Undo::if_free);
        const Seated seated(model_state_->runtime(), seat);
        if (Status s = fill(model_state_->runtime()); !s.ok()) return s.message();
        const auto prompt = std::span(std::as_const(tokens_)).first(static_cast<size_t>(settings_.prompt));
        if (seat.decoder->decode(prompt).code != 0) return last_words();
        const auto warm = std::span(std::as_const(tokens_))
                              .subspan(static_cast<size_t>(settings_.prompt), static_cast<size_t>(settings_.warm));
        return decode_all(seat, warm, n_vocab_) ? "" : last_words();
    }

    std::string run_block(int round, int block, std::vector<Seat>& seats, std::span<const llama_token> tokens) {
        std::optional<std::pair<uint64_t, const Arm*>> lossless;
        for (size_t i = 0; i < seats.size(); ++i) {
            Seat& seat = seats[block % 2 == 0 ? i : seats.size() - 1 - i];
            std::optional<uint64_t> digest;
            {
                const Seated seated(model_state_->runtime(), seat);
                const Counts before = counts_of(model_state_->runtime());
                digest = decode_all(seat, tokens, n_vocab_);
                const Counts after = counts_of(model_state_->runtime());
                if (!digest) return fmt::format("{}: {}", seat.arm->name, last_words());
                print_block(round, block, static_cast<int>(i), seat, before, after, tokens.size(), *digest);
            }
            if (!seat.arm->lossless && !settings_.same) continue;
            if (!lossless) lossless = {*digest, seat.arm};
            if (lossless->first != *digest) {
                return fmt::format("block {}: {} and {} have other logits, but neither should change any", block,
                                   lossless->second->name, seat.arm->name);
            }
        }
        return "";
    }

    const Settings& settings_;
    std::unique_ptr<llama_model, FreeModel> model_;
    std::shared_ptr<backend::ModelState> model_state_;
    ggml_threadpool_t pool_ = nullptr;
    decltype(&ggml_threadpool_free) free_pool_ = nullptr;
    int n_vocab_ = 0;
    std::vector<llama_token> tokens_;
};

// "NAME=--flag value ...". Options of one arm, which Sluice itself reads.
std::string parse_arm(const std::string& text, Arm& arm) {
    const size_t equals = text.find('=');
    arm.name = text.substr(0, equals);
    if (arm.name.empty() || arm.name.find_first_of("\"\\\n") != std::string::npos)
        return fmt::format("--arm \"{}\" should be NAME=OPTIONS", text);
    std::istringstream words(equals == std::string::npos ? "" : text.substr(equals + 1));
    std::vector<std::string> arguments{std::istream_iterator<std::string>(words), {}};
    arm.config = {};
    if (Status s = backend::take_options(arm.config, arguments, backend::Place::library); !s.ok()) return s.message();
    if (!arguments.empty()) return fmt::format("{}: {} is no option of Sluice", arm.name, arguments[0]);
    // The model's own tables and the whole process are not an arm's.
    const Config& c = arm.config;
    if (backend::has_outputs(c) || c.cache_bytes || c.ram_bytes || c.n_expert_used != 0)
        return arm.name + ": outputs, sizes and --n-expert-used are no arm's";
    arm.lossless = backend::lossy_options(c).empty();
    return "";
}

std::string parse(std::vector<std::string> words, Settings& s) {
    const auto number = [](const std::string& text, auto& out) {
        const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), out);
        return code == std::errc() && end == text.data() + text.size() && out >= 0;
    };
    for (size_t i = 0; i < words.size(); ++i) {
        const std::string& w = words[i];
        if (w == "--no-repack") {
            s.repack = false;
            continue;
        }
        if (w == "--same") {
            s.same = true;
            continue;
        }
        if (!w.starts_with("-")) {
            s.model = w;
            continue;
        }
        if (i + 1 == words.size()) return w + " wants a value";
        const std::string& value = words[++i];
        bool good = true;
        if (w == "--arm") {
            if (std::string why = parse_arm(value, s.arms.emplace_back()); !why.empty()) return why;
        } else if (w == "--text") {
            s.text = value;
        } else if (w == "--cache-mb") {
            good = number(value, s.cache_mb);
        } else if (w == "--threads") {
            good = number(value, s.threads);
        } else if (w == "--prompt") {
            good = number(value, s.prompt);
        } else if (w == "--warm") {
            good = number(value, s.warm);
        } else if (w == "--tokens") {
            good = number(value, s.tokens);
        } else if (w == "--block") {
            good = number(value, s.block);
        } else if (w == "--rounds") {
            good = number(value, s.rounds);
        } else {
            return w + " is no option of this program";
        }
        if (!good) return fmt::format("{} {}: not a number", w, value);
    }
    if (s.model.empty() || s.arms.size() < 2 || s.cache_mb <= 0 || s.threads < 1 || s.prompt < 2 || s.block < 1)
        return "a model, --cache-mb, a prompt of two tokens or more and two arms or more are needed";
    for (Arm& a : s.arms) a.config.cache_bytes = static_cast<uint64_t>(s.cache_mb * static_cast<double>(MiB));
    for (const Arm& a : s.arms) {
        if (Status status = backend::validate(a.config); !status.ok())
            return fmt::format("{}: {}", a.name, status.message());
    }
    return "";
}

}  // namespace

int main(int argc, char** argv) {
    Settings settings;
    if (const std::string why = parse({argv + 1, argv + argc}, settings); !why.empty()) {
        return fail(
            why +
            "\nusage: inturns MODEL --cache-mb N --arm NAME=OPTIONS --arm NAME=OPTIONS ... [--text FILE] "
            "[--threads N] [--prompt N] [--warm N] [--tokens N] [--block N] [--rounds N] [--no-repack] [--same]");
    }
    llama_log_set(
        [](ggml_log_level level, const char* text, void*) {
            if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
        },
        nullptr);
    Bench bench(settings);
    const std::string why = bench.run();
    return why.empty() ? 0 : fail(why);
}
