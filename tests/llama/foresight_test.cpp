// Looking ahead, in whole models: guesses change nothing, and choices that are committed early are a function of the
// tokens alone.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ggml-backend.h>
#include <gtest/gtest.h>
#include <llama.h>
#include <sluice/sluice.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "backend/device.h"
#include "backend/feature_output.h"
#include "backend/model_state.h"
#include "backend/recording.h"
#include "base/bytes.h"
#include "base/log.h"
#include "io/unreliable_engine.h"
#include "model/digest.h"
#include "model/geometry.h"
#include "route/report.h"
#include "route/trained_gate.h"
#include "tests/models/make_model.h"

namespace sluice {
namespace {

using Model = std::unique_ptr<llama_model, decltype(&llama_model_free)>;
using Context = std::unique_ptr<llama_context, decltype(&llama_free)>;

// A name with a directory is a path.
std::string path_of(const std::string& name) {
    if (name.find('/') != std::string::npos) return name;
    return std::string(std::getenv("SLUICE_TEST_MODELS")) + "/" + name + ".gguf";
}

// One of each architecture and of each further form.
std::vector<std::string> all_models() {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(std::getenv("SLUICE_TEST_MODELS"))) {
        const std::string name = entry.path().stem().string();
        if (entry.path().extension() != ".gguf" || name.starts_with("dense") || name.starts_with("wide")) continue;
        if (name.ends_with("-f16")) names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    return names;
}

// As many experts of the largest set as fit, for a cache of `share` of all experts.
uint64_t cache_for(const std::string& name, double share) {
    const auto index = model::GgufIndex::open(path_of(name));
    const auto geometry = model::derive_geometry(*index);
    uint64_t slot = 0, experts = 0;
    for (const auto& set : geometry->sets) {
        uint64_t bytes = 0;
        for (const auto& t : set.tensors) bytes += (t.bytes_per_expert + 2 * 4096) / 4096 * 4096;
        slot = std::max(slot, bytes);
        experts += set.n_expert;
    }
    return slot * std::max<uint64_t>(1, static_cast<uint64_t>(static_cast<double>(experts) * share));
}

std::vector<std::string> g_said, g_info;

struct Outcome {
    bool ok = false;
    std::vector<float> logits;
    trace::Row decode;  // sums of decode
    std::optional<backend::Predictions> predictions;
};

int64_t grown(trace::Measure now, trace::Measure before) {
    return now.or_zero() - before.or_zero();
}

trace::Row decode_sums() {
    trace::Row row;
    backend::recorder()->with_book([&](const trace::Book& b) { row = b.of(trace::Phase::decode).sum; });
    return row;
}

// Whether each router's choice is disturbed after it is made.
struct Disturb {
    int from_token = -1;
    int token = 0;
    static bool call(ggml_tensor* t, bool ask, void* self) {
        auto* d = static_cast<Disturb*>(self);
        const bool is_choice = std::strncmp(t->name, "ffn_moe_topk", 12) == 0;
        if (ask) return is_choice;
        if (is_choice && t->ne[1] == 1 && d->from_token >= 0 && d->token >= d->from_token) {
            auto* ids = static_cast<int32_t*>(t->data);
            std::swap(ids[0], ids[1]);
        }
        return true;
    }
};

struct Way {
    Disturb* disturb = nullptr;
    int threads = 1;
    bool ask_again = false;  // another prompt after the tokens, and one token after that
    int turns = 1;           // of one conversation
};

// Greedy: a prompt, then `n` tokens one by one, in each turn. All logits of the latter.
Outcome run(const std::string& name, Config config, int n = 12, Way way = {}) {
    Disturb* disturb = way.disturb;
    Outcome out;
    config.verbosity = Verbosity::warn;
    config.record = "/dev/null";
    config.history = true;
    std::string error;
    if (!start(config, &error)) {
        ADD_FAILURE() << error;
        return out;
    }
    const trace::Row before = decode_sums();
    llama_model_params mp = llama_model_default_params();
    mp.use_extra_bufts = false;
    mp.n_gpu_layers = 0;
    const Model model(llama_model_load_from_file(path_of(name).c_str(), mp), llama_model_free);
    if (model == nullptr) return out;
    llama_context_params cp = llama_context_default_params();
    cp.n_ctx = 128;
    cp.n_threads = cp.n_threads_batch = way.threads;
    cp.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    if (disturb != nullptr) {
        cp.cb_eval = Disturb::call;
        cp.cb_eval_user_data = disturb;
    }
    {
        const Context ctx(llama_init_from_model(model.get(), cp), llama_free);
        if (ctx == nullptr) return out;
        const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model.get()));
        std::vector<llama_token> tokens;
        for (int i = 0; i < 9; ++i) tokens.push_back((i * 7919 + 13) % n_vocab);
        for (int g = 0; g < n * way.turns + (way.ask_again ? 1 : 0); ++g) {
            if (g % n == 0 && llama_decode(ctx.get(), llama_batch_get_one(tokens.data(), 9)) != 0) return out;
            const float* l = llama_get_logits_ith(ctx.get(), -1);
            auto next = static_cast<llama_token>(std::max_element(l, l + n_vocab) - l);
            if (disturb != nullptr) disturb->token = g;
            if (llama_decode(ctx.get(), llama_batch_get_one(&next, 1)) != 0) {
                ADD_FAILURE() << last_error();
                return out;
            }
            l = llama_get_logits_ith(ctx.get(), -1);
            out.logits.insert(out.logits.end(), l, l + n_vocab);
        }
        out.ok = true;
    }
    out.predictions = backend::predictions();
    const trace::Row after = decode_sums();
    for (const trace::Column& c : trace::columns()) {
        if (c.total == trace::Total::sum)
            c.of(out.decode) = grown(trace::value_of(c, after), trace::value_of(c, before));
    }
    return out;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class ForesightTest : public ::testing::Test {
  protected:
    ForesightTest() {
        g_said.clear();
        g_info.clear();
        set_log_sink([](LogLevel level, const std::string& line) {
            if (level <= LogLevel::warn) g_said.push_back(line);
            g_info.push_back(line);
        });
    }
    ~ForesightTest() override {
        set_log_sink(nullptr);
        backend::set_foresight({});
        backend::wrap_engines(nullptr);
    }
    static bool said(const std::string& what) {
        return std::any_of(g_said.begin(), g_said.end(),
                           [&](const std::string& s) { return s.find(what) != std::string::npos; });
    }
    // Speculation may go to the drive, whatever this machine's is.
    static void measured(route::Guesser guesser = nullptr, std::function<bool(int64_t)> acts = nullptr) {
        backend::Foresight f;
        f.guesser = std::move(guesser);
        f.acts = std::move(acts);
        f.device = sched::DeviceModel{
            .bytes_per_ns = 1, .service = 1000, .chunk = 1U << 20U, .window = 8U << 20U, .lanes = 16};
        backend::set_foresight(f);
    }
};

// A correction for each pair of layers that makes nonsense of the state.
std::string write_nonsense(const std::string& name) {
    const auto index = model::GgufIndex::open(path_of(name));
    const auto geometry = model::derive_geometry(*index);
    const route::FeatureShape shape =
        backend::feature_shape(*index, *geometry, *model::dense_digest(*index, *geometry));
    route::TrainedGate gate;
    gate.model = shape.model;
    for (uint32_t s = 0; s < shape.sets.size(); ++s) {
        const size_t n = shape.sets[s].n_input;
        auto& set = gate.sets.emplace_back();
        set.n_expert = shape.sets[s].n_expert;
        set.n_input = shape.sets[s].n_input;
        set.from = s == 0 ? 0 : s - 1;
        if (s == 0 || n == 0 || shape.sets[s - 1].n_input != n) continue;
        route::Correction& c = set.correction.emplace();
        c.rank = 1;
        c.scale.assign(n, -0.5F);
        c.shift.assign(n, 1);
        for (size_t i = 0; i < n; ++i) {
            c.down.push_back(i % 3 == 0 ? 1.0F : -0.25F);
            c.up.push_back(i % 5 == 0 ? 60000.0F : 0.5F);
        }
    }
    const std::string path = std::filesystem::temp_directory_path() / fmt::format("sluice-nonsense-{}", getpid());
    std::ofstream(path, std::ios::binary) << *route::trained_bytes(gate);
    return path;
}

// Every choice of the routers in a route trace: phase, token, layer, rank, expert, weight.
struct Choice {
    std::string text;
    int32_t layer = 0;
    uint32_t expert = 0;
    bool operator==(const Choice& other) const { return text == other.text; }
};
// The file is read once, and gone.
std::vector<Choice> choices_of(const std::string& trace) {
    backend::end_recording({});
    std::ifstream file(trace);
    std::filesystem::remove(trace);
    std::vector<Choice> out;
    std::string line;
    while (std::getline(file, line)) {
        if (line.empty() || std::isdigit(static_cast<unsigned char>(line[0])) == 0) continue;
        std::vector<std::string> fields;
        std::istringstream in(line);
        for (std::string field; std::getline(in, field, ',');) fields.push_back(field);
        if (fields.size() < 7) continue;
        // What a turn is called and what was in memory is no choice.
        Choice& c = out.emplace_back();
        for (size_t i = 1; i < 7; ++i) c.text += fields[i] + ",";
        c.layer = std::stoi(fields[3]);
        c.expert = static_cast<uint32_t>(std::stoul(fields[5]));
    }
    return out;
}

// R1, R2: whatever is guessed, on every architecture, routes and logits are those of a run that guesses nothing.
TEST_F(ForesightTest, GuessesChangeNoRouteAndNoLogit) {
    // Each run records anew, which takes a file of its own.
    auto new_trace = [n = 0]() mutable {
        return std::filesystem::temp_directory_path() / fmt::format("sluice-routes-{}-{}", getpid(), n++);
    };
    int64_t hints = 0, predicted = 0;
    uint32_t seed = 1;
    for (const std::string& name : all_models()) {
        const auto index = model::GgufIndex::open(path_of(name));
        const auto geometry = model::derive_geometry(*index);
        Config config;
        config.cache_bytes = cache_for(name, 0.5);
        config.route_trace = new_trace();
        const Outcome want = run(name, config);
        ASSERT_TRUE(want.ok) << name;
        const auto choices = choices_of(config.route_trace);
        ASSERT_FALSE(choices.empty()) << name;
        std::map<std::pair<int32_t, uint32_t>, int> chosen;  // how often, by layer and expert
        for (const Choice& c : choices) ++chosen[{c.layer, c.expert}];
        const std::string nonsense = write_nonsense(name);
        enum Kind { last, last_of_two, stale_gate, trained_on_nonsense, automatic, random, worst_first };
        for (const int kind : {last, last_of_two, stale_gate, trained_on_nonsense, automatic, random, worst_first}) {
            const auto guesser = [&, kind](uint32_t, uint32_t to, route::LikelyExperts& out) {
                out.clear();
                const model::ExpertSet& set = geometry->sets[to];
                std::vector<uint32_t> order(set.n_expert);
                std::iota(order.begin(), order.end(), 0U);
                if (kind == random) {
                    for (size_t i = order.size(); i-- > 1;)
                        std::swap(order[i], order[(seed = seed * 1664525U + 1013904223U) % (i + 1)]);
                    order.resize(1 + seed % order.size());
                } else {
                    // Worst first: what is never chosen is surest.
                    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
                        return chosen[{set.layer, a}] < chosen[{set.layer, b}];
                    });
                }
                for (const uint32_t e : order) out.push_back({e, 1.0F / static_cast<float>(order.size())});
            };
            // Whatever a trial would find: every other pair of tokens acts, those between do not.
            measured(kind >= random ? route::Guesser(guesser) : nullptr, [](int64_t token) { return token % 4 < 2; });
            Config guessing = config;
            guessing.cache_bytes = cache_for(name, kind == last_of_two ? 0.7 : 0.4);
            guessing.prefetch = kind == last || kind == random ? 1 : kind == last_of_two || kind == worst_first ? 2 : 0;
            guessing.predict_prefetch = guessing.prefetch == 0;
            if (kind == trained_on_nonsense) guessing.predict_model = nonsense;
            guessing.predict_log = kind == trained_on_nonsense;
            guessing.prefetch_auto = kind == automatic;
            guessing.overlap = kind != last_of_two;
            guessing.route_trace = new_trace();
            const Outcome got = run(name, guessing);
            ASSERT_TRUE(got.ok) << name;
            EXPECT_TRUE(same(got.logits, want.logits)) << name << " kind " << kind;
            EXPECT_TRUE(choices_of(guessing.route_trace) == choices) << name << " kind " << kind;
            if (kind == automatic) {
                EXPECT_EQ(got.decode.guess_on.or_zero(), got.decode.tokens.or_zero() / 2) << name;
            }
            hints += got.decode.hints.or_zero();
            predicted += got.decode.predicted_bytes.or_zero();
        }
        backend::set_foresight({});
        std::filesystem::remove(nonsense);
    }
    EXPECT_GT(hints, 0);
    EXPECT_GT(predicted, 0);
}

// How many experts of a layer the control named, of how many.
std::pair<uint64_t, uint64_t> control_of(const backend::Predictions& p, size_t set) {
    const route::Score& s = p.scores.of(route::Predictor::control, set);
    return {s.hits, s.slots};
}

// A router run again on its own input chooses what it chose: every layer of every architecture. Where a layer has no
// router to run, it is not scored.
TEST_F(ForesightTest, TheControlIsCompleteInEveryLayer) {
    constexpr int kTokens = 6;
    for (const std::string& name : all_models()) {
        Config config;
        config.cache_bytes = cache_for(name, 0.5);
        config.predict_log = true;
        const Outcome got = run(name, config, kTokens);
        ASSERT_TRUE(got.ok && got.predictions) << name;
        size_t scored = 0;
        for (size_t set = 0; set < got.predictions->scores.sets(); ++set) {
            const std::string what = fmt::format("{} layer {}", name, got.predictions->layers[set]);
            const route::Score& own = got.predictions->scores.of(route::Predictor::control, set);
            if (own.routings == 0) {
                EXPECT_TRUE(name.starts_with("deepseek4")) << what;
                EXPECT_EQ(own.unranked[static_cast<size_t>(route::Unranked::no_router)], kTokens) << what;
                continue;
            }
            ++scored;
            EXPECT_EQ(own.hits, own.slots) << what;
            EXPECT_EQ(own.whole, own.routings) << what;
            // The first token may have met a router whose hidden state nobody had asked for yet.
            EXPECT_GE(own.routings, kTokens - 1) << what;
            EXPECT_EQ(own.routings + own.not_ranked(), kTokens) << what;
        }
        EXPECT_GT(scored, 0U) << name;
        // deepseek4's first layer looks its experts up by the token.
        const auto lines = route::report_lines(got.predictions->scores, got.predictions->layers);
        const auto row =
            std::find_if(lines.begin(), lines.end(), [](const auto& l) { return l.starts_with(" layer "); });
        ASSERT_LT(row + 1, lines.end());
        EXPECT_EQ((row + 1)->find("100.0") == std::string::npos, name.starts_with("deepseek4")) << *(row + 1);
    }
}

// A model with more experts to a token than anybody reads: 40 of 64, and routers large enough for a copy in 8 bits.
std::string many_experts() {
    fixture::ModelSpec spec = *fixture::default_spec("qwen3moe");
    spec.n_layer = 3;
    spec.n_embd = 512;
    spec.n_ff = 64;
    spec.n_expert = 64;
    spec.n_expert_used = 40;
    const std::string path = std::filesystem::temp_directory_path() / fmt::format("sluice-many-{}.gguf", getpid());
    const Status made = fixture::write_model(spec, path);
    EXPECT_TRUE(made.ok()) << made.message();
    return path;
}

// Prompt, answer, prompt, answer: what is known of routers is still known, the last token's choice is the prompt's, and
// the guess that was made for a token that did not come is forgotten.
TEST_F(ForesightTest, GuessesGoOnInASecondTurn) {
    constexpr uint64_t kTokens = 6;
    const std::string many = many_experts();
    for (const std::string& name : {std::string("qwen3moe-deep-f16"), std::string("qwen35moe-f16"), many}) {
        Config config;
        config.cache_bytes = cache_for(name, 0.5);
        const Outcome want = run(name, config, kTokens, {.turns = 2});
        config.predict_log = true;
        const Outcome got = run(name, config, kTokens, {.turns = 2});
        ASSERT_TRUE(want.ok && got.ok && got.predictions) << name;
        EXPECT_TRUE(same(got.logits, want.logits)) << name;
        EXPECT_EQ(got.decode.exact_bytes.or_zero(), want.decode.exact_bytes.or_zero()) << name;
        const route::Scores& scores = got.predictions->scores;
        for (size_t set = 0; set < scores.sets(); ++set) {
            const std::string what = fmt::format("{} set {}", name, set);
            const auto [hits, slots] = control_of(*got.predictions, set);
            EXPECT_EQ(hits, slots) << what;
            EXPECT_GE(scores.of(route::Predictor::control, set).routings, 2 * kTokens - 1) << what;
            const route::Score& stale = scores.of(route::Predictor::stale1, set);
            const route::Score& previous = scores.of(route::Predictor::previous, set);
            // Layer 0 is guessed by the token before, if that was generated, too.
            EXPECT_EQ(previous.routings, set == 0 ? 2 * (kTokens - 1) : 2 * kTokens) << what;
            if (set > 0) {
                EXPECT_GE(stale.routings, 2 * kTokens - 2) << what;
            }
        }
        if (name == many) {
            EXPECT_EQ(scores.of(route::Predictor::stale1, 1).slots,
                      40 * scores.of(route::Predictor::stale1, 1).routings);
            EXPECT_GT(scores.exact().guesses, 0U) << "routers have copies in 8 bits";
            EXPECT_GE(scores.exact().agreed, scores.exact().slots * 95 / 100);
        }
    }
    std::filesystem::remove(many);
}

// Routers in 8 bits guess for who reads early, and change nothing else.
TEST_F(ForesightTest, GuessesInEightBitsChangeNoLogit) {
    const std::string name = many_experts();
    Config config;
    config.cache_bytes = cache_for(name, 0.7);
    const Outcome want = run(name, config);
    measured();
    config.predict_prefetch = true;
    config.predict_spec_max = 8;
    const Outcome got = run(name, config);
    ASSERT_TRUE(want.ok && got.ok);
    EXPECT_TRUE(same(got.logits, want.logits));
    std::filesystem::remove(name);
}

TEST_F(ForesightTest, AnotherModelsCorrectionIsRefused) {
    Config config;
    config.cache_bytes = cache_for("qwen3moe-deep-f16", 0.5);
    config.predict_prefetch = true;
    config.predict_model = write_nonsense("olmoe-f16");
    EXPECT_FALSE(run("qwen3moe-deep-f16", config).ok);
    EXPECT_TRUE(said("it was trained for the model")) << (g_said.empty() ? "nothing was said" : g_said.front());
    EXPECT_TRUE(said("sluice predict train"));
    std::filesystem::remove(config.predict_model);
}

// With auto, guesses are tried after some tokens and say so; whether they are kept is for the machine to say, the
// logits are the same.
TEST_F(ForesightTest, AutoTriesAndTells) {
    const std::string name = "qwen3moe-deep-f16";
    Config config;
    config.cache_bytes = cache_for(name, 0.4);
    const Outcome want = run(name, config, 100);
    measured();
    for (const bool stale_gate : {false, true}) {
        g_info.clear();
        config.prefetch_auto = true;
        config.predict_prefetch = stale_gate;
        config.prefetch = stale_gate ? 0 : 1;
        const Outcome got = run(name, config, 100);
        ASSERT_TRUE(got.ok && want.ok);
        EXPECT_TRUE(same(got.logits, want.logits));
        EXPECT_TRUE(got.decode.guess_on.known());
        EXPECT_GT(got.decode.guess_on.or_zero(), 0) << "a trial begins after 64 tokens";
        EXPECT_LT(got.decode.guess_on.or_zero(), 36);
        const auto told = [](const std::string& s) { return s.starts_with("moe-prefetch auto: on for "); };
        EXPECT_EQ(std::count_if(g_info.begin(), g_info.end(), told), 1);
        // The record's count and the log's are one.
        const std::string counts = fmt::format("moe-prefetch auto: on for {} of {} tokens, ",
                                               got.decode.guess_on.or_zero(), got.decode.tokens.or_zero());
        EXPECT_EQ(
            std::count_if(g_info.begin(), g_info.end(), [&](const std::string& s) { return s.starts_with(counts); }), 1)
            << counts;
    }
}

TEST_F(ForesightTest, AnUnmeasuredDriveIsSaid) {
    backend::Foresight f;
    f.device = sched::DeviceModel{};
    backend::set_foresight(f);
    Config config;
    config.cache_bytes = cache_for("qwen3moe-deep-f16", 0.5);
    config.prefetch = 1;
    const Outcome got = run("qwen3moe-deep-f16", config);
    ASSERT_TRUE(got.ok);
    EXPECT_TRUE(said("--prefetch reads nothing early"));
    EXPECT_EQ(got.decode.predicted_bytes.or_zero(), 0);
}

// Every architecture: what the copies of its routers choose is what the routers choose, or the watchdog would say so;
// and most choices are committed.
TEST_F(ForesightTest, RouteAheadKnowsEveryArchitecture) {
    std::map<std::string, std::string> left;  // to their routers, and why
    for (const std::string& name : all_models()) {
        g_said.clear();
        Config config;
        config.cache_bytes = cache_for(name, 0.5);
        config.route_ahead = 1;
        const Outcome got = run(name, config);
        ASSERT_TRUE(got.ok) << name;
        EXPECT_FALSE(said("off from now on")) << name << ": " << g_said.front();
        const trace::Row& d = got.decode;
        EXPECT_LE(d.ra_agreed.or_zero(), d.ra_slots.or_zero()) << name;
        std::printf("%-28s %4lld committed, %4lld passed, %5.1f %% agreed%s%s\n", name.c_str(),
                    static_cast<long long>(d.ra_committed.or_zero()), static_cast<long long>(d.ra_passed.or_zero()),
                    100.0 * static_cast<double>(d.ra_agreed.or_zero()) /
                        static_cast<double>(std::max<int64_t>(1, d.ra_slots.or_zero())),
                    g_said.empty() ? "" : "; ", g_said.empty() ? "" : g_said.front().c_str());
        if (d.ra_committed.or_zero() == 0) left[name] = g_said.empty() ? "" : g_said.front();
    }
    for (const auto& [name, why] : left) EXPECT_NE(why, "") << name << " commits nothing and does not say why";
}

// Twenty runs at N = 1, 2, 4: caches of every size, lanes, with and without overlap. In every other one no read comes
// before somebody waits for it, and then in any order: as late as the drive of an early read can be. That a ranking is
// late cannot happen: it is computed in the layer that it is made from, by the thread that computes, before that
// layer's own experts are asked for, so whoever delays it delays the layer that would take it by as much.
TEST_F(ForesightTest, RouteAheadIsAFunctionOfTheTokens) {
    const std::string name = "qwen3moe-deep-f16";
    for (const unsigned ahead : {1U, 2U, 4U}) {
        for (const bool predicted : {false, true}) {
            std::vector<float> want;
            for (int turn = 0; turn < 20; ++turn) {
                const auto what = std::make_shared<io::Unreliability>();
                if (turn % 2 == 0) what->order_seed = static_cast<uint64_t>(turn);
                backend::wrap_engines([what](std::unique_ptr<io::Engine> inner) -> std::unique_ptr<io::Engine> {
                    return std::make_unique<io::UnreliableEngine>(std::move(inner), what);
                });
                Config config;
                constexpr double kShares[] = {0.02, 0.1, 0.25, 0.5, 0.75, 1.1};
                config.cache_bytes = cache_for(name, kShares[turn % 6]);
                config.io_threads = 1 + static_cast<unsigned>(turn % 5);
                config.overlap = turn % 7 != 0;
                config.route_ahead = ahead;
                if (predicted) config.route_ahead_weights = RouteAheadWeights::predicted;
                const Outcome got = run(name, config);
                ASSERT_TRUE(got.ok);
                EXPECT_GT(got.decode.ra_committed.or_zero(), 0);
                if (turn == 0) want = got.logits;
                ASSERT_TRUE(same(got.logits, want)) << "N " << ahead << " turn " << turn << " predicted " << predicted;
            }
        }
    }
}

// Large routers rank in 8 bits unless told otherwise, and that is said; the text is then, too, a function of the tokens
// alone, whatever the cache. Where no router is large, nothing is said, and nothing differs.
TEST_F(ForesightTest, RouteAheadRanksLargeRoutersInEightBits) {
    const std::string large = many_experts();
    for (const std::string& name : {large, std::string("qwen3moe-deep-f16")}) {
        std::map<RouteAheadRouter, std::vector<float>> want;
        for (const auto router : {RouteAheadRouter::small, RouteAheadRouter::full}) {
            for (const double share : {0.02, 0.5, 1.1}) {
                g_said.clear();
                Config config;
                config.cache_bytes = cache_for(name, share);
                config.route_ahead = 1;
                config.route_ahead_router = router;
                const Outcome got = run(name, config, 24);
                ASSERT_TRUE(got.ok) << name;
                EXPECT_GT(got.decode.ra_committed.or_zero(), 0) << name;
                EXPECT_TRUE(said("without --route-ahead 1")) << name;
                EXPECT_EQ(said("--route-ahead-router 8-bit"), name == large && router == RouteAheadRouter::small);
                EXPECT_FALSE(said("off from now on")) << name;
                if (want[router].empty()) want[router] = got.logits;
                EXPECT_TRUE(same(got.logits, want[router])) << name << " " << share;
            }
        }
        EXPECT_EQ(same(want[RouteAheadRouter::small], want[RouteAheadRouter::full]), name != large) << name;
    }
    std::filesystem::remove(large);
}

// Nothing lies so far ahead: that is said once, and not that answers differ.
TEST_F(ForesightTest, RouteAheadOfAllLayersIsTheRouters) {
    for (const std::string name : {"qwen3moe-deep-f16", "deepseek2-f16", "grovemoe-f16"}) {
        const auto index = model::GgufIndex::open(path_of(name));
        ASSERT_TRUE(index.ok());
        const auto geometry = model::derive_geometry(*index);
        ASSERT_TRUE(geometry.ok());
        std::set<int32_t> layers;
        for (const model::ExpertSet& s : geometry->sets) layers.insert(s.layer);
        const auto n = static_cast<uint32_t>(layers.size());
        Config config;
        config.cache_bytes = cache_for(name, 0.5);
        const Outcome routers = run(name, config);
        for (const uint32_t depth : {n, 64U}) {
            for (const auto weights : {RouteAheadWeights::router, RouteAheadWeights::predicted}) {
                config.route_ahead = depth;
                config.route_ahead_weights = weights;
                g_said.clear();
                const Outcome got = run(name, config);
                ASSERT_TRUE(got.ok && routers.ok) << name;
                EXPECT_TRUE(same(got.logits, routers.logits)) << name;
                EXPECT_FALSE(got.decode.ra_committed.known() && got.decode.ra_committed.value() > 0) << name;
                EXPECT_EQ(g_said.size(), 1U) << name;
                EXPECT_TRUE(said("acts on no layer")) << name;
            }
        }
        config.route_ahead = n - 1;
        g_said.clear();
        EXPECT_TRUE(run(name, config).ok) << name;
        EXPECT_TRUE(said(fmt::format("without --route-ahead {}", n - 1))) << name;
        EXPECT_FALSE(said("acts on no layer")) << name;
    }
}

// One expert per layer: its weight is 1 if the model normalises, whichever it is.
TEST_F(ForesightTest, RouteAheadWithOneExpertPerLayer) {
    Config config;
    config.cache_bytes = cache_for("qwen3moe-top1-f16", 0.5);
    config.route_ahead = 1;
    const Outcome a = run("qwen3moe-top1-f16", config);
    config.cache_bytes = cache_for("qwen3moe-top1-f16", 0.25);
    const Outcome b = run("qwen3moe-top1-f16", config);
    ASSERT_TRUE(a.ok && b.ok);
    EXPECT_TRUE(same(a.logits, b.logits));
    EXPECT_GT(a.decode.ra_committed.or_zero(), 0);
    EXPECT_EQ(a.decode.ra_slots.or_zero(), a.decode.ra_committed.or_zero());
}

// Of a file of --io-trace: reads of decode, and those of them that bring a component which the same token read before.
std::pair<size_t, size_t> reads_in(const std::string& path) {
    std::ifstream file(path);
    std::string line;
    std::set<std::string> seen;
    size_t reads = 0;
    while (std::getline(file, line)) {
        std::vector<std::string> fields;
        std::istringstream in(line);
        for (std::string field; std::getline(in, field, ',');) fields.push_back(field);
        if (fields.size() < 6 || fields[1] != "1") continue;
        ++reads;
        seen.insert(fmt::format("{}", fmt::join(fields.begin(), fields.begin() + 6, ",")));
    }
    return {reads, reads - seen.size()};
}

// The same choices with and without early reads: the same logits, as many bytes, and what is read early is used.
TEST_F(ForesightTest, EarlyReadsCostNoBytes) {
    const std::string name = "qwen3moe-deep-f16";
    for (const double share : {0.25, 0.5, 0.75}) {
        for (const unsigned ahead : {1U, 2U}) {
            Config config;
            config.cache_bytes = cache_for(name, share);
            config.route_ahead = ahead;
            const std::string trace =
                std::filesystem::temp_directory_path() / fmt::format("sluice-early-{}-{}-{}", getpid(), share, ahead);
            config.io_trace = trace;
            const Outcome early = run(name, config, 40);
            config.io_trace.clear();
            const auto [reads, twice] = reads_in(trace);
            std::filesystem::remove(trace);
            EXPECT_GT(reads, 0U);
            EXPECT_EQ(twice, 0U) << "of " << reads << " reads, within their step; " << share << " N " << ahead;
            backend::Foresight f;
            f.no_early_reads = true;
            backend::set_foresight(f);
            const Outcome same_cache = run(name, config, 40);
            // What is read early takes its slot that much sooner, as if the cache had as many fewer.
            config.cache_bytes = *config.cache_bytes - ahead * 2 * cache_for(name, 0);
            const Outcome late = run(name, config, 40);
            backend::set_foresight({});
            ASSERT_TRUE(early.ok && late.ok);
            EXPECT_TRUE(same(early.logits, late.logits));
            const int64_t bytes = early.decode.exact_bytes.or_zero(), without = late.decode.exact_bytes.or_zero();
            ASSERT_TRUE(same_cache.ok);
            EXPECT_TRUE(same(early.logits, same_cache.logits));
            const int64_t beside = same_cache.decode.exact_bytes.or_zero();
            // Of a few dozen slots, those that early reads take sooner are many; the fewer there are, the more it
            // costs.
            EXPECT_LE(bytes, beside * (share < 0.75 ? 105 : 102) / 100) << share << " N " << ahead;
            std::printf(
                "%.2f N %u: %.3f of the bytes with the same cache, %.3f with a smaller one, %.3f of early ones "
                "used\n",
                share, ahead, static_cast<double>(bytes) / static_cast<double>(beside),
                static_cast<double>(bytes) / static_cast<double>(without),
                static_cast<double>(early.decode.predicted_used.or_zero()) /
                    static_cast<double>(std::max<int64_t>(1, early.decode.ahead_bytes.or_zero())));
            EXPECT_LE(bytes, without * 101 / 100) << share << " N " << ahead;
            EXPECT_EQ(late.decode.ahead_bytes.or_zero(), 0);
            EXPECT_GT(early.decode.ahead_bytes.or_zero(), 0);
            EXPECT_GE(early.decode.predicted_used.or_zero(), early.decode.ahead_bytes.or_zero() * 97 / 100)
                << share << " N " << ahead;
            EXPECT_EQ(early.decode.predicted_bytes.or_zero(), 0) << "nothing of it is a guess";
        }
    }
}

// Where the cache holds more than a few tokens' experts, the slots that early reads take sooner are few: within 1 %.
// Both counts follow from the tokens, the cache and, a little, from when the drive is idle.
TEST_F(ForesightTest, EarlyReadsOfAModelOfManyExpertsCostNoBytes) {
    fixture::ModelSpec spec = *fixture::default_spec("qwen3moe");
    spec.n_layer = 16;
    spec.n_expert = 64;
    spec.n_expert_used = 8;
    const std::string name = std::filesystem::temp_directory_path() / fmt::format("sluice-sixteen-{}.gguf", getpid());
    ASSERT_TRUE(fixture::write_model(spec, name).ok());
    for (const double share : {0.25, 0.5, 0.75}) {
        for (const unsigned ahead : {1U, 2U}) {
            Config config;
            config.cache_bytes = cache_for(name, share);
            config.route_ahead = ahead;
            const Outcome early = run(name, config, 100);
            backend::Foresight f;
            f.no_early_reads = true;
            backend::set_foresight(f);
            const Outcome without = run(name, config, 100);
            backend::set_foresight({});
            ASSERT_TRUE(early.ok && without.ok);
            EXPECT_TRUE(same(early.logits, without.logits));
            EXPECT_GT(early.decode.ahead_bytes.or_zero(), 0);
            const double ratio = static_cast<double>(early.decode.exact_bytes.or_zero()) /
                                 static_cast<double>(without.decode.exact_bytes.or_zero());
            std::printf("%.2f N %u: %.4f of the bytes\n", share, ahead, ratio);
            EXPECT_LE(ratio, 1.01) << share << " N " << ahead;
            EXPECT_GE(early.decode.predicted_used.or_zero(), early.decode.ahead_bytes.or_zero() * 97 / 100);
        }
    }
    std::filesystem::remove(name);
}

// Nothing is ranked and read for a layer that takes its router's choice: in the first token after each prompt, and in
// models whose weights are applied before the experts.
TEST_F(ForesightTest, NothingIsReadEarlyForWhomItIsNotTaken) {
    Config config;
    config.cache_bytes = cache_for("qwen3moe-deep-f16", 0.25);
    config.route_ahead = 1;
    const Outcome first = run("qwen3moe-deep-f16", config, 1);
    ASSERT_TRUE(first.ok);
    EXPECT_EQ(first.decode.ra_committed.or_zero(), 0);
    EXPECT_EQ(first.decode.ahead_bytes.or_zero(), 0);
    EXPECT_EQ(first.decode.ra_rank.or_zero(), 0) << "something was ranked";
    const Outcome once = run("qwen3moe-deep-f16", config, 8);
    const Outcome again = run("qwen3moe-deep-f16", config, 8, {.ask_again = true});
    ASSERT_TRUE(once.ok && again.ok);
    EXPECT_GT(once.decode.ahead_bytes.or_zero(), 0);
    EXPECT_EQ(again.decode.ahead_bytes.or_zero(), once.decode.ahead_bytes.or_zero());
    EXPECT_EQ(again.decode.ra_committed.or_zero(), once.decode.ra_committed.or_zero());
    config.cache_bytes = cache_for("llama4-f16", 0.25);
    for (const bool predicted : {false, true}) {
        config.route_ahead_weights = predicted ? RouteAheadWeights::predicted : RouteAheadWeights::router;
        const Outcome never = run("llama4-f16", config);
        ASSERT_TRUE(never.ok);
        EXPECT_EQ(never.decode.ra_committed.or_zero(), 0);
        EXPECT_EQ(never.decode.ahead_bytes.or_zero(), 0) << predicted;
    }
}

// With dropping, too, what is read early is used: an expert that the early ranking had read is not dropped, however
// light the router finds it in the end. With --deterministic the text does not depend on when reads come, nor on
// whether they are begun early at all.
TEST_F(ForesightTest, DroppingLeavesWhatWasReadEarly) {
    const std::string name = "qwen3moe-deep-f16";
    for (const unsigned ahead : {1U, 2U}) {
        for (const double drop : {0.5, 0.9, 1.0}) {
            for (const bool predicted : {false, true}) {
                std::vector<float> want;
                for (int turn = 0; turn < 6; ++turn) {
                    const auto what = std::make_shared<io::Unreliability>();
                    if (turn % 2 == 1) what->order_seed = static_cast<uint64_t>(turn);
                    backend::wrap_engines([what](std::unique_ptr<io::Engine> inner) -> std::unique_ptr<io::Engine> {
                        return std::make_unique<io::UnreliableEngine>(std::move(inner), what);
                    });
                    backend::Foresight f;
                    f.no_early_reads = turn == 5;
                    backend::set_foresight(f);
                    Config config;
                    config.cache_bytes = cache_for(name, 0.4);
                    config.io_threads = 1 + static_cast<unsigned>(turn);
                    config.overlap = turn != 3;
                    config.deterministic = true;
                    config.route_ahead = ahead;
                    config.drop_cold_experts = drop;
                    if (predicted) config.route_ahead_weights = RouteAheadWeights::predicted;
                    const Outcome got =
                        run(name, config, 12, {.threads = turn == 4 && ahead == 2 && drop == 0.9 ? 2 : 1});
                    ASSERT_TRUE(got.ok);
                    const std::string where =
                        fmt::format("N {} F {} predicted {} turn {}", ahead, drop, predicted, turn);
                    if (turn == 0) {
                        want = got.logits;
                        EXPECT_GT(got.decode.dropped.or_zero(), 0) << where;
                        EXPECT_GT(got.decode.ahead_bytes.or_zero(), 0) << where;
                    }
                    EXPECT_TRUE(same(got.logits, want)) << where;
                    EXPECT_GE(got.decode.predicted_used.or_zero(), got.decode.ahead_bytes.or_zero() * 97 / 100)
                        << where;
                }
            }
        }
    }
}

// A router that chooses something else than its copy is found out within 64 tokens, whichever weights are used.
TEST_F(ForesightTest, TheWatchdogEndsRouteAheadAloud) {
    for (const bool predicted : {false, true}) {
        g_said.clear();
        Config config;
        config.cache_bytes = cache_for("qwen3moe-deep-f16", 0.5);
        config.route_ahead = 1;
        if (predicted) config.route_ahead_weights = RouteAheadWeights::predicted;
        Disturb disturb;
        disturb.from_token = 4;
        const Outcome got = run("qwen3moe-deep-f16", config, 4 + 64, {.disturb = &disturb});
        ASSERT_TRUE(got.ok);
        EXPECT_TRUE(said("--route-ahead is off from now on")) << predicted;
        Disturb none;
        g_said.clear();
        ASSERT_TRUE(run("qwen3moe-deep-f16", config, 68, {.disturb = &none}).ok);
        EXPECT_FALSE(said("off from now on")) << g_said.front();
    }
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
    testing::InitGoogleTest(&argc, argv);
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    llama_backend_init();
    return RUN_ALL_TESTS();
}
