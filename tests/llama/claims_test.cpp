// What of each architecture's graph Sluice computes, by name: the list below fails when that changes. The scheduler of
// ggml says where it puts every node when it is asked to (GGML_SCHED_DEBUG).
#include <gtest/gtest.h>
#include <llama.h>
#include <sluice/sluice.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "archs.h"
#include "base/log.h"

namespace {

std::string g_log;
bool g_keep_log = false;
std::vector<std::string> g_fallbacks;  // that Sluice told of

struct Split {
    bool ours = false;
    int inputs = 0;     // that are copied for it
    int experts = 0;    // products with expert weights
    int shared = 0;     // nodes over weights of the shared expert
    int router = 0;     // products with router weights
    std::string names;  // of its nodes, for messages
};

// "## SPLIT #3: SLUICE # 0 inputs" and "node # 12 (   MUL_MAT):      ffn_moe_logits-0 ( 512B) [...": the node, then its
// sources; names are cut off at 20 letters, which leaves "blk.0.ffn_gate_shexp".
std::vector<Split> parse(std::string_view log) {
    std::vector<Split> splits;
    while (!log.empty()) {
        const std::string_view line = log.substr(0, log.find('\n'));
        log.remove_prefix(std::min(log.size(), line.size() + 1));
        const auto has = [&](std::string_view part) { return line.find(part) != std::string_view::npos; };
        if (line.starts_with("## SPLIT #")) {
            splits.push_back({.ours = has(": SLUICE #"),
                              .inputs = std::atoi(std::string(line.substr(line.rfind(" # ") + 3)).c_str()),
                              .names = {}});
        } else if (line.starts_with("node #") && !splits.empty()) {
            Split& split = splits.back();
            split.experts += has("MUL_MAT_ID") ? 1 : 0;
            split.shared += has("_shexp") || has("ffn_gate_inp_s") ? 1 : 0;
            split.router += has("MUL_MAT)") && has(".ffn_gate_inp.w") ? 1 : 0;
            const size_t begin = line.find_first_not_of(' ', line.find("):") + 2);
            split.names += " " + std::string(line.substr(begin, line.find(" (", begin) - begin));
        }
    }
    return splits;
}

// The splits of a graph over so many tokens.
std::vector<Split> splits_of(const std::string& model_name, bool repack, int tokens) {
    const std::string path = std::string(std::getenv("SLUICE_TEST_MODELS")) + "/" + model_name + ".gguf";
    llama_model_params mp = llama_model_default_params();
    mp.use_extra_bufts = repack;
    mp.n_gpu_layers = 0;
    llama_model* model = llama_model_load_from_file(path.c_str(), mp);
    EXPECT_NE(model, nullptr) << path;
    if (model == nullptr) return {};
    llama_context_params cp = llama_context_default_params();
    cp.n_ctx = 64;
    cp.n_threads = cp.n_threads_batch = 1;
    llama_context* context = llama_init_from_model(model, cp);
    EXPECT_NE(context, nullptr) << path;
    if (context != nullptr) {
        std::vector<llama_token> ids(static_cast<size_t>(tokens), 5);
        g_log.clear();
        g_keep_log = true;
        EXPECT_EQ(llama_decode(context, llama_batch_get_one(ids.data(), tokens)), 0) << path;
        g_keep_log = false;
        llama_free(context);
    }
    llama_model_free(model);
    return parse(g_log);
}

std::string text(const std::vector<Split>& splits) {
    std::string out;
    for (const Split& s : splits) out += (s.ours ? "\n  ours:" : "\n  CPU: ") + s.names;
    return out;
}

// What is expected of one architecture's decode.
struct Expected {
    std::string_view model;
    int blocks;       // expert blocks
    int with_shared;  // of these, with a shared expert in the same split: it is computed while experts are read
    int apart;        // shared experts in a split of ours without the chosen ones, or elsewhere
    int splits;       // all
};

// No node between the products of any block is unknown, so all run by rank while experts are read (exec/rank_block).
// A block whose experts and shared expert are in one split runs fused. Those that do not:
// - bailingmoe3: before a recurrent layer llama.cpp puts that layer's state between the chosen and the shared experts
// of
//   a block, which makes the latter a split of its own (7 splits if it were left with the CPU backend).
// - gemma4: its dense branch is no shared expert by name; claimed, it would be one more split in every layer.
// - grovemoe: the second of a layer's blocks has a router of its own after the first one.
constexpr Expected kExpected[] = {
    {"bailingmoe3-f16", 3, 2, 1, 9},     {"deepseek2-f16", 3, 3, 0, 7},     {"deepseek2-fused-f16", 3, 3, 0, 7},
    {"deepseek4-f16", 4, 4, 0, 9},       {"gemma4-f16", 3, 0, 0, 7},        {"gemma4-ple-f16", 3, 0, 0, 7},
    {"gemma4-separate-f16", 3, 0, 0, 7}, {"glm4moe-f16", 3, 3, 0, 7},       {"glm4moe-groups-f16", 3, 3, 0, 7},
    {"gpt-oss-f16", 2, 0, 0, 5},         {"grovemoe-f16", 4, 0, 0, 9},      {"lfm2moe-f16", 3, 0, 0, 7},
    {"llama-f16", 2, 0, 0, 5},           {"llama4-f16", 2, 2, 0, 5},        {"nemotron_h_moe-f16", 2, 2, 0, 5},
    {"olmoe-f16", 2, 0, 0, 5},           {"qwen2moe-f16", 2, 2, 0, 5},      {"qwen2moe-q4_k_m", 2, 2, 0, 5},
    {"deepseek2-q4_k_m", 3, 3, 0, 7},    {"qwen35moe-f16", 4, 4, 0, 9},     {"qwen35moe-fused-f16", 4, 4, 0, 9},
    {"qwen3moe-f16", 2, 0, 0, 5},        {"qwen3moe-top1-f16", 4, 0, 0, 9}, {"qwen4exp-f16", 4, 4, 0, 9},
    {"smallthinker-f16", 4, 0, 0, 9},
};

TEST(Claims, EveryArchitectureIsListed) {
    for (const auto& arch : sluice::fixture::archs()) {
        EXPECT_TRUE(std::any_of(std::begin(kExpected), std::end(kExpected), [&](const Expected& e) {
            return e.model == std::string(arch.name) + "-f16";
        })) << arch.name;
    }
}

TEST(Claims, ExpertsAndSharedExpertAreOneSplitWhereTheListSaysSo) {
    for (const Expected& want : kExpected) {
        for (const bool repack : {false, true}) {
            for (const int tokens : {1, 9}) {
                const std::vector<Split> splits = splits_of(std::string(want.model), repack, tokens);
                Expected got{want.model, 0, 0, 0, static_cast<int>(splits.size())};
                for (const Split& s : splits) {
                    EXPECT_EQ(s.inputs, 0) << "something is copied";
                    EXPECT_TRUE(s.ours || s.experts == 0) << "an expert product is left to the CPU backend";
                    EXPECT_TRUE(!s.ours || s.router == 0) << "a router is ours";
                    got.blocks += s.experts > 0 ? 1 : 0;
                    got.with_shared += s.experts > 0 && s.shared > 0 ? 1 : 0;
                    got.apart += s.experts == 0 && s.shared > 0 ? 1 : 0;
                }
                const std::string what = std::string(want.model) + (repack ? ", repacked" : "") + ", " +
                                         std::to_string(tokens) + " tokens:" + text(splits);
                EXPECT_EQ(got.blocks, want.blocks) << what;
                EXPECT_EQ(got.with_shared, want.with_shared) << what;
                EXPECT_EQ(got.apart, want.apart) << what;
                EXPECT_EQ(got.splits, want.splits) << what;
                EXPECT_TRUE(g_fallbacks.empty()) << g_fallbacks.front() << what;
                if (HasFailure()) return;
            }
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    ::setenv("GGML_SCHED_DEBUG", "2", 1);
    llama_log_set(
        [](ggml_log_level, const char* line, void*) {
            if (g_keep_log) g_log += line;
        },
        nullptr);
    llama_backend_init();
    sluice::Config config;
    config.cache_bytes = UINT64_MAX / 4;
    config.verbosity = sluice::Verbosity::debug;
    sluice::set_log_sink([](sluice::LogLevel, const std::string& line) {
        if (line.find("does not know") != std::string::npos) g_fallbacks.push_back(line);
    });
    std::string error;
    if (!sluice::start(config, &error)) {
        std::fprintf(stderr, "%s\n", error.c_str());
        return 1;
    }
    ::testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
