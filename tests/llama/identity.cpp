// Owns: the proof of bit identity for one model file: logits of stock llama.cpp with everything resident against logits
// with streaming, byte for byte, for the flags and cache sizes asked for.
// Keeps: the reference runs in this very process before Sluice is started, so both sides share one binary; a case that
// did not run counts as a failure.
//
// Usage: identity MODEL [--full | --cover K | --pick K] [--cases N] [--all-modes] [--n-prompt N] [--n-decode N]
//                 [--n-seq N] [--no-pool] [--way WAY]
//        identity --check-picks N [--cases N] | --check-cover N
//   --full      all of repack x threads x flash attention x cache size, each in one mode by turns and, with reads that
//               end in a drawn order, at every wave width in both ways of reading a prompt
//   --all-modes each of these in every mode, not in one of them by turns: the whole product
//   --cover K   every mode once, each with other flags and another size for each K: one model meets all modes, all
//   flags
//               and all sizes, and forty of them the whole product
//   --pick K    three cases, other ones for each K; fourteen picks in a row meet all flags and sizes (default 0)
//   --cases N   that many cases in a pick, not three
//   --check-picks N, --check-cover N  run nothing: whether the first N meet what they should
//   --way W     where experts are read from: sums (the model with checksums), packed (a pack beside it),
//               reclaimed (a pack, and the model without its experts), gguf (the model, although there is a pack),
//               mirrored (two copies that share the reads)
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <llama.h>
#include <sluice/sluice.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/model_state.h"
#include "base/log.h"
#include "io/unreliable_engine.h"
#include "model/geometry.h"
#include "store/pack_build.h"
#include "store/sums.h"

namespace {

struct Flags {
    bool repack = false;
    int threads = 1;
    bool flash = false;
    auto operator<=>(const Flags&) const = default;
};

struct Workload {
    int n_prompt = 300;
    int n_decode = 64;
    int n_seq = 1;
    bool attach_pool = true;
};

std::string name(const Flags& f) {
    return std::string(f.repack ? "repack" : "no-repack") + " t" + std::to_string(f.threads) +
           (f.flash ? " fa" : " no-fa");
}

// How experts are computed while others are read, how a prompt's are read, and whose are read before they are chosen.
struct Mode {
    const char* name;
    bool overlap;
    unsigned wave;
    sluice::PrefillMode prefill;
    bool drawn = false;   // reads end one by one in a drawn order, not as the drive brings them
    bool matrix = false;  // of the wave widths by the ways of reading a prompt: part of every full set
    unsigned prefetch = 0;
    bool predict_prefetch = false;
    bool prefetch_auto = false;
};
using enum sluice::PrefillMode;
// Of a drive that may read in vain as it likes, so that guesses are acted on wherever this runs.
constexpr sluice::sched::DeviceModel kDrive{
    .bytes_per_ns = 1, .service = 1000, .chunk = 1U << 20U, .window = 8U << 20U, .lanes = 16};
constexpr Mode kModes[] = {
    {"as they come", true, 1, automatic},
    {"in twos", true, 2, macro},
    {"in fours", true, 4, automatic},
    {"all at once", true, 64, automatic},
    {"no overlap", false, 0, automatic},
    {"auto", true, 0, automatic},
    {"macro", true, 1, macro},
    {"micro", true, 1, micro},
    {.name = "prefetch", .overlap = true, .wave = 1, .prefill = automatic, .prefetch = 2},
    {.name = "predict-prefetch", .overlap = true, .wave = 1, .prefill = automatic, .predict_prefetch = true},
    {.name = "predict auto",
     .overlap = true,
     .wave = 1,
     .prefill = automatic,
     .predict_prefetch = true,
     .prefetch_auto = true},
    {"drawn, 1, macro", true, 1, macro, true, true},
    {"drawn, 2, macro", true, 2, macro, true, true},
    {"drawn, 4, macro", true, 4, macro, true, true},
    {"drawn, all, macro", true, 64, macro, true, true},
    {"drawn, 1, micro", true, 1, micro, true, true},
    {"drawn, 2, micro", true, 2, micro, true, true},
    {"drawn, 4, micro", true, 4, micro, true, true},
    {"drawn, all, micro", true, 64, micro, true, true},
    {"drawn, auto", true, 0, automatic, true},
    {"drawn, no overlap", false, 0, automatic, true},
    {.name = "drawn, prefetch", .overlap = true, .wave = 1, .prefill = automatic, .drawn = true, .prefetch = 2},
};

// A copy of the model in a directory of its own, which disappears with this.
class Copied {
  public:
    Copied(const sluice::model::GgufIndex& index, std::string way) : way_(std::move(way)) {
        std::string pattern = (std::filesystem::temp_directory_path() / "sluice-identity-XXXXXX").string();
        directory_ = ::mkdtemp(pattern.data());
        for (const auto& f : index.files())
            std::filesystem::copy_file(f.path, directory_ / std::filesystem::path(f.path).filename());
        path_ = (directory_ / std::filesystem::path(index.files()[0].path).filename()).string();
        if (way_ == "mirrored") mirror_ = index.files()[0].path;  // the model itself is a copy of its copy
    }
    ~Copied() {
        std::error_code ignored;
        std::filesystem::remove_all(directory_, ignored);
    }
    Copied(const Copied&) = delete;
    Copied& operator=(const Copied&) = delete;

    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] std::string store() const { return way_ == "packed" ? "pack" : way_ == "gguf" ? "gguf" : "auto"; }
    [[nodiscard]] std::vector<std::string> mirrors() const {
        return mirror_.empty() ? std::vector<std::string>() : std::vector{mirror_};
    }
    sluice::Status prepare() const {
        const auto index = sluice::model::GgufIndex::open(path_);
        if (!index.ok()) return index.status();
        const auto geometry = sluice::model::derive_geometry(*index);
        if (!geometry.ok()) return geometry.status();
        const auto engine = sluice::io::make_engine({});
        if (!engine.ok()) return engine.status();
        if (way_ == "mirrored") return {};
        if (way_ == "sums") {
            auto source = sluice::store::describe(*index, *geometry);
            if (!source.ok()) return source.status();
            const auto store = sluice::store::RecordStore::open(*index, *geometry, {}, nullptr);
            if (!store.ok()) return store.status();
            auto sums = sluice::store::compute_sums(*store, *engine->engine, {});
            if (!sums.ok()) return sums.status();
            return sluice::store::save_sums(sluice::store::Files::system(), *index,
                                            {std::move(*source), std::move(*sums)});
        }
        const auto done = sluice::store::make_pack(sluice::store::Files::system(), *index, *geometry, *engine->engine,
                                                   {.reclaim = way_ == "reclaimed"});
        if (!done.ok()) return done.status();
        const auto store = sluice::store::RecordStore::open(*index, *geometry, {.store = this->store()}, nullptr);
        if (!store.ok()) return store.status();
        const bool packed = store->holder(0).name == done->path;
        if (packed == (way_ == "gguf") || !store->has_checksums() ||
            store->n_holders() != (way_ == "reclaimed" ? 1U : 2U))
            return sluice::error(sluice::Code::internal, "experts would be read from {}", store->holder(0).name);
        return {};
    }

  private:
    std::string way_;
    std::filesystem::path directory_;
    std::string path_, mirror_;
};

// Cache sizes from one expert upward. Slots are padded, so a size in "experts" is taken generously from the file's own
// record sizes: the point is the regime, and the smallest one is exact (what Sluice itself demands).
struct Budget {
    const char* name;
    uint64_t bytes;
    bool one_slot = false;
};

struct Case {
    Flags flags;
    Budget size;
    Mode mode;
    bool guessing;   // with --predict-log, whose control must be complete
    uint64_t order;  // the seed of a drawn one
};

// Which of the full set of flags and sizes run: those from `begin` on, in which modes.
struct Choice {
    int begin = 0, end = 0;
    bool matrix = false;     // in all modes of it, besides the one whose turn it is
    bool all_modes = false;  // in all there are
};
constexpr int kFlags = 8;
constexpr int kPerPick = 3;
constexpr Choice kFullSet{.begin = 0, .end = kFlags * 5, .matrix = true};
constexpr Choice pick_of(int k, int n_cases) {
    return {.begin = k * n_cases, .end = (k + 1) * n_cases};
}

Case case_of(int n, size_t mode, const std::vector<Budget>& sizes, bool may_guess) {
    const Flags flags{.repack = (n & 1) != 0, .threads = (n & 2) != 0 ? 2 : 1, .flash = (n & 4) != 0};
    return {flags, sizes[static_cast<size_t>(n) % sizes.size()], kModes[mode], n % 3 == 1 && may_guess,
            static_cast<uint64_t>(n) * std::size(kModes) + mode};
}

// The numbers of flags and sizes have no common factor, so fourteen picks in a row meet all pairs of these two; the
// mode moves on by one against the sizes with every round of them.
std::vector<Case> cases_of(const Choice& choice, const std::vector<Budget>& sizes, bool may_guess) {
    std::vector<Case> cases;
    const int n_sizes = static_cast<int>(sizes.size());
    for (int n = choice.begin; n < choice.end; ++n) {
        const auto turn = static_cast<size_t>(n + n / n_sizes) % std::size(kModes);
        for (size_t m = 0; m < std::size(kModes); ++m) {
            if (choice.all_modes || m == turn || (choice.matrix && kModes[m].matrix))
                cases.push_back(case_of(n, m, sizes, may_guess));
        }
    }
    return cases;
}

// Every mode once. Nine has no factor in common with the number of flags and sizes, so the modes of one model are at
// different ones of these, and each mode moves on by one from one model to the next.
std::vector<Case> covering(int k, const std::vector<Budget>& sizes, bool may_guess) {
    std::vector<Case> cases;
    const int n_products = kFlags * static_cast<int>(sizes.size());
    for (size_t m = 0; m < std::size(kModes); ++m)
        cases.push_back(case_of((k + 9 * static_cast<int>(m)) % n_products, m, sizes, may_guess));
    return cases;
}

// What Sluice says.
std::vector<std::string> g_lines;
void keep_line(sluice::LogLevel level, const std::string& line) {
    g_lines.push_back(line);
    if (level == sluice::LogLevel::error) std::fprintf(stderr, "sluice: %s\n", line.c_str());
}

// Every router replayed on its own input chose what the graph chose.
bool control_is_complete() {
    const auto says = [](const char* text) {
        return std::any_of(g_lines.begin(), g_lines.end(),
                           [&](const std::string& l) { return l.find(text) != std::string::npos; });
    };
    return says("control 100.0 % of routed slots (100.0 % whole routings)") && !says("control should be");
}

// All logits that a caller could see, and the state of every sequence at the end.
struct Outcome {
    bool ok = false;
    std::vector<float> logits;
    std::vector<uint8_t> state;
};

Outcome run(const char* path, const Flags& flags, const Workload& work) {
    Outcome out;
    llama_model_params mp = llama_model_default_params();
    mp.use_extra_bufts = flags.repack;
    mp.n_gpu_layers = 0;
    llama_model* model = llama_model_load_from_file(path, mp);
    if (model == nullptr) return out;
    llama_context_params cp = llama_context_default_params();
    cp.n_ctx = static_cast<uint32_t>((work.n_prompt + work.n_decode + 8) * work.n_seq);
    cp.n_batch = 512;
    cp.n_ubatch = 128;
    cp.n_seq_max = static_cast<uint32_t>(work.n_seq);
    cp.n_threads = cp.n_threads_batch = flags.threads;
    cp.flash_attn_type = flags.flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    llama_context* ctx = llama_init_from_model(model, cp);
    if (ctx == nullptr) {
        llama_model_free(model);
        return out;
    }
    // The tools attach a pool of threads to their contexts; programs without one get threads anew for every graph.
    const ggml_backend_reg_t cpu = ggml_backend_dev_backend_reg(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
    const auto new_pool =
        reinterpret_cast<decltype(&ggml_threadpool_new)>(ggml_backend_reg_get_proc_address(cpu, "ggml_threadpool_new"));
    const auto free_pool = reinterpret_cast<decltype(&ggml_threadpool_free)>(
        ggml_backend_reg_get_proc_address(cpu, "ggml_threadpool_free"));
    ggml_threadpool_params tp = ggml_threadpool_params_default(flags.threads);
    ggml_threadpool_t pool = work.attach_pool ? new_pool(&tp) : nullptr;
    if (pool != nullptr) llama_attach_threadpool(ctx, pool, nullptr);
    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    llama_batch batch = llama_batch_init(std::max(512, work.n_seq), 0, 1);
    const auto add = [&](llama_token token, int pos, int seq, bool logits) {
        batch.token[batch.n_tokens] = token;
        batch.pos[batch.n_tokens] = pos;
        batch.n_seq_id[batch.n_tokens] = 1;
        batch.seq_id[batch.n_tokens][0] = seq;
        batch.logits[batch.n_tokens] = logits ? 1 : 0;
        ++batch.n_tokens;
    };
    const auto keep = [&] {
        for (int i = 0; i < batch.n_tokens; ++i) {
            if (batch.logits[i] == 0) continue;
            const float* l = llama_get_logits_ith(ctx, i);
            out.logits.insert(out.logits.end(), l, l + n_vocab);
        }
    };
    // Greedy continuation of one row of kept logits.
    const auto best = [&](size_t row_from_end) {
        const float* l = out.logits.data() + out.logits.size() - row_from_end * static_cast<size_t>(n_vocab);
        return static_cast<llama_token>(std::max_element(l, l + n_vocab) - l);
    };

    bool ok = true;
    std::vector<llama_token> next(static_cast<size_t>(work.n_seq));
    for (int s = 0; ok && s < work.n_seq; ++s) {
        batch.n_tokens = 0;
        for (int i = 0; i < work.n_prompt; ++i) {
            add(static_cast<llama_token>((i * 7919 + 13 + s * 31) % n_vocab), i, s, i >= work.n_prompt - 4);
            if (batch.n_tokens == 512 && i + 1 < work.n_prompt) {
                ok = ok && llama_decode(ctx, batch) == 0;
                if (ok) keep();
                batch.n_tokens = 0;
            }
        }
        ok = ok && llama_decode(ctx, batch) == 0;
        if (ok) keep();
        if (ok) next[static_cast<size_t>(s)] = best(1);
    }
    for (int g = 0; ok && g < work.n_decode; ++g) {
        batch.n_tokens = 0;
        for (int s = 0; s < work.n_seq; ++s) add(next[static_cast<size_t>(s)], work.n_prompt + g, s, true);
        ok = llama_decode(ctx, batch) == 0;
        if (!ok) break;
        keep();
        for (int s = 0; s < work.n_seq; ++s) next[static_cast<size_t>(s)] = best(static_cast<size_t>(work.n_seq - s));
    }
    if (ok) {
        for (int s = 0; s < work.n_seq; ++s) {
            const size_t before = out.state.size();
            out.state.resize(before + llama_state_seq_get_size(ctx, s));
            const size_t written =
                llama_state_seq_get_data(ctx, out.state.data() + before, out.state.size() - before, s);
            ok = ok && written > 0;
            out.state.resize(before + written);
        }
        out.ok = ok;
    }
    llama_batch_free(batch);
    llama_free(ctx);
    if (pool != nullptr) free_pool(pool);
    llama_model_free(model);
    return out;
}

std::vector<Budget> budgets(const sluice::model::Geometry& g) {
    uint64_t slot = 0;
    uint64_t layer = 0;
    for (const auto& set : g.sets) {
        uint64_t bytes = 0;
        for (const auto& t : set.tensors) bytes += (t.bytes_per_expert + 2 * 4096) / 4096 * 4096;
        slot = std::max(slot, bytes);
        layer = std::max(layer, bytes * set.n_expert);
    }
    const uint64_t top_k = std::max<uint64_t>(2, g.n_expert_used);
    return {{"one expert", slot, true},
            {"less than top-k", slot * (top_k - 1), top_k == 2},
            {"less than a layer", std::max(slot * top_k, layer * 2 / 3)},
            {"less than a cycle", std::max(slot * (top_k + 1), slot * top_k * g.sets.size() * 2 / 3)},
            {"everything", UINT64_MAX / 4}};
}

// What some cases meet.
struct Met {
    std::set<Flags> flags;
    std::set<std::string> sizes;
    std::set<std::string> modes;
    std::set<std::pair<Flags, std::string>> pairs;                   // of flags and size
    std::set<std::tuple<std::string, Flags, std::string>> products;  // of mode, flags and size
    std::set<std::tuple<std::string, bool, int>> drawn;              // of the drawn matrix
    void add(const Case& c) {
        flags.insert(c.flags);
        sizes.insert(c.size.name);
        modes.insert(c.mode.name);
        pairs.emplace(c.flags, c.size.name);
        products.emplace(c.mode.name, c.flags, c.size.name);
        if (c.mode.matrix) drawn.emplace(c.mode.name, c.flags.repack, c.flags.threads);
    }
};

// Whether the first picks meet every pair of flags and size, and every mode; of the drawn matrix, if there are enough
// of them for that, every mode with and without repacking and with one thread and two.
int check_picks(int n_picks, int n_cases) {
    const std::vector<Budget> sizes = budgets({});
    Met met;
    for (int k = 0; k < n_picks; ++k) {
        for (const Case& c : cases_of(pick_of(k, n_cases), sizes, false)) met.add(c);
    }
    const auto n_matrix = static_cast<size_t>(
        std::count_if(std::begin(kModes), std::end(kModes), [](const Mode& m) { return m.matrix; }));
    const size_t n_pairs = kFlags * sizes.size();
    const bool enough = static_cast<size_t>(n_picks) * static_cast<size_t>(n_cases) >= 4 * n_pairs;
    std::printf(
        "%d picks: %zu of %zu flags and sizes, %zu of %zu modes, %zu of %zu drawn orders by repacking and threads\n",
        n_picks, met.pairs.size(), n_pairs, met.modes.size(), std::size(kModes), met.drawn.size(), 4 * n_matrix);
    return met.pairs.size() == n_pairs && met.modes.size() == std::size(kModes) &&
                   (!enough || met.drawn.size() == 4 * n_matrix)
               ? 0
               : 1;
}

// Whether each of the first models meets all modes, all flags and all sizes, and all of them together the whole
// product.
int check_cover(int n_models) {
    const std::vector<Budget> sizes = budgets({});
    Met met;
    int lacking = 0;
    for (int k = 0; k < n_models; ++k) {
        Met of_this;
        for (const Case& c : covering(k, sizes, false)) {
            met.add(c);
            of_this.add(c);
        }
        if (of_this.modes.size() != std::size(kModes) || of_this.flags.size() != kFlags ||
            of_this.sizes.size() != sizes.size())
            ++lacking;
    }
    const size_t n_products = std::size(kModes) * kFlags * sizes.size();
    std::printf("%d models: %zu of %zu products of mode, flags and size; %d models lack something\n", n_models,
                met.products.size(), n_products, lacking);
    return met.products.size() == n_products && lacking == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    const auto is = [&](int i, const char* text) { return i + 1 < argc && std::string_view(argv[i]) == text; };
    if (is(1, "--check-picks"))
        return check_picks(std::stoi(argv[2]), is(3, "--cases") ? std::stoi(argv[4]) : kPerPick);
    if (is(1, "--check-cover")) return check_cover(std::stoi(argv[2]));
    if (argc < 2) {
        std::fprintf(stderr,
                     "usage: identity MODEL [--full | --cover K | --pick K] [--cases N] [--all-modes] [--n-prompt N] "
                     "[--n-decode N] [--n-seq N] [--no-pool] [--way W]\n");
        return 2;
    }
    const char* path = argv[1];
    bool full = false;
    bool all_modes = false;
    int pick = 0;
    int cover = -1;
    int n_cases = kPerPick;
    std::string way;
    Workload work;
    for (int i = 2; i < argc; ++i) {
        const std::string a = argv[i];
        if (a == "--full") {
            full = true;
            continue;
        }
        if (a == "--all-modes") {
            all_modes = true;
            continue;
        }
        if (a == "--no-pool") {
            work.attach_pool = false;
            continue;
        }
        if (a == "--way" && i + 1 < argc) {
            way = argv[++i];
            continue;
        }
        int* field = a == "--pick"       ? &pick
                     : a == "--cover"    ? &cover
                     : a == "--cases"    ? &n_cases
                     : a == "--n-prompt" ? &work.n_prompt
                     : a == "--n-decode" ? &work.n_decode
                     : a == "--n-seq"    ? &work.n_seq
                                         : nullptr;
        if (field == nullptr || i + 1 == argc) {
            std::fprintf(stderr, "identity: do not understand %s\n", argv[i]);
            return 2;
        }
        *field = std::stoi(argv[++i]);
    }

    const auto index = sluice::model::GgufIndex::open(path);
    if (!index.ok()) {
        std::fprintf(stderr, "%s\n", index.status().message().c_str());
        return 2;
    }
    const auto geometry = sluice::model::derive_geometry(*index);
    if (!geometry.ok()) {
        std::fprintf(stderr, "%s\n", geometry.status().message().c_str());
        return 2;
    }

    llama_log_set(
        [](ggml_log_level level, const char* text, void*) {
            if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
        },
        nullptr);
    llama_backend_init();

    Choice choice = full ? kFullSet : pick_of(pick, n_cases);
    choice.all_modes = all_modes;
    const std::vector<Budget> sizes = budgets(*geometry);
    const std::vector<Case> cases =
        cover >= 0 ? covering(cover, sizes, work.n_seq == 1) : cases_of(choice, sizes, work.n_seq == 1);

    std::map<Flags, Outcome> stock;
    for (const Case& c : cases) {
        if (stock.contains(c.flags)) continue;
        stock[c.flags] = run(path, c.flags, work);
        if (!stock[c.flags].ok) {
            std::fprintf(stderr, "FAILED: stock llama.cpp does not run this model with %s\n", name(c.flags).c_str());
            return 1;
        }
    }

    std::unique_ptr<Copied> copied;
    if (!way.empty()) {
        copied = std::make_unique<Copied>(*index, way);
        if (const sluice::Status s = copied->prepare(); !s.ok()) {
            std::fprintf(stderr, "FAILED: %s\n", s.message().c_str());
            return 1;
        }
    }

    int failures = 0;
    sluice::set_log_sink(keep_line);
    sluice::backend::Foresight foresight;
    foresight.device = kDrive;
    sluice::backend::set_foresight(foresight);
    const auto drive = std::make_shared<sluice::io::Unreliability>();
    sluice::backend::wrap_engines(
        [&](std::unique_ptr<sluice::io::Engine> inner) -> std::unique_ptr<sluice::io::Engine> {
            if (!drive->order_seed) return inner;
            return std::make_unique<sluice::io::UnreliableEngine>(std::move(inner), drive);
        });
    for (const auto& [flags, size, mode, guessing, order] : cases) {
        g_lines.clear();
        drive->plan();
        if (mode.drawn) drive->order_seed = order;
        sluice::Config config;
        config.cache_bytes = size.bytes;
        config.overlap = mode.overlap;
        config.wave = mode.wave;
        config.prefill_mode = mode.prefill;
        config.predict_log = guessing;
        config.prefetch = mode.prefetch;
        config.predict_prefetch = mode.predict_prefetch;
        config.prefetch_auto = mode.prefetch_auto;
        if (copied) {
            config.store = copied->store();
            config.mirrors = copied->mirrors();
        }
        config.verbosity = sluice::Verbosity::error;
        std::string error;
        if (!sluice::start(config, &error)) {
            std::fprintf(stderr, "FAILED: %s\n", error.c_str());
            return 1;
        }
        const Outcome& want = stock[flags];
        const Outcome got = run(copied ? copied->path().c_str() : path, flags, work);
        size_t differing = 0;
        if (got.ok && got.logits.size() == want.logits.size()) {
            for (size_t i = 0; i < want.logits.size(); ++i) {
                differing += std::memcmp(&want.logits[i], &got.logits[i], sizeof(float)) != 0 ? 1 : 0;
            }
        }
        const bool right = !guessing || control_is_complete();
        // With a slot for one expert there is one read at a time.
        const bool mixed = !mode.drawn || size.one_slot || drive->overtook > 0;
        const bool same = right && mixed && got.ok && got.logits.size() == want.logits.size() && differing == 0 &&
                          got.state == want.state;
        if (!same) {
            ++failures;
            std::printf(
                "DIFFERS  %-22s %-18s %-18s ran %d, control %s, order %s, logits %zu of %zu differ, state %s %s\n",
                name(flags).c_str(), size.name, mode.name, got.ok ? 1 : 0, right ? "complete" : "not complete",
                mixed ? "drawn if it had to be" : "not mixed", differing, want.logits.size(),
                got.state == want.state ? "same" : "differs", sluice::last_error().c_str());
        } else {
            std::printf("same     %-22s %-18s %-18s%s %zu logits", name(flags).c_str(), size.name, mode.name,
                        guessing ? " guessing" : "", want.logits.size());
            if (mode.drawn)
                std::printf(", %llu of %llu reads overtook another", static_cast<unsigned long long>(drive->overtook),
                            static_cast<unsigned long long>(drive->seen));
            std::printf("\n");
        }
    }
    std::printf("%zu cases, %d differ\n", cases.size(), failures);
    return failures == 0 && !cases.empty() ? 0 : 1;
}
