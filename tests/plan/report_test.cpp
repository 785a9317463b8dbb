#include "plan/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

namespace sluice::plan {
namespace {

using Json = nlohmann::json;

PastRun run_with(std::optional<Range> predicted, double tokens_per_second) {
    PastRun r;
    r.at = "2025-03-01T12:00:00Z";
    r.threads = 2;
    r.cache_bytes = 524'288'000;
    r.tokens = 100;
    r.wall = static_cast<Nanos>(100e9 / tokens_per_second);
    r.predicted = predicted;
    return r;
}

Report some_report() {
    Report r;
    r.path = "/models/some-Q4_K_M.gguf";
    r.architecture = "qwen3moe";
    r.expert_layers = 48;
    r.n_expert = 128;
    r.n_used = 8;
    r.work.cycle_bytes = 1'073'741'824;
    r.need = {.dense = 1'500'000'000, .context = 400'000'000, .compute = 300'000'000, .program = 64'000'000};
    r.cache = 8'000'000'000;
    r.free = 16'000'000'000;
    r.cache_why = "free memory 14.9 GiB less a reserve of 1.86 GiB";
    r.n_ctx = 4096;
    r.slots = 2800;
    r.records = 6144;
    r.setting = {.threads = 8, .lanes = 8, .tokens = 256, .policy = "frequency"};
    r.estimate.share = 0.45;
    r.estimate.hits = {0.45, 0.95};
    r.estimate.costs = {.dense = {10e6, 20e6}, .experts = {30e6, 40e6}, .read_bytes = {5e7, 6e8}, .drive = Range{1, 3}};
    r.estimate.drive_basis = Basis::measured;
    r.estimate.compute_basis = Basis::measured;
    r.estimate.token = token_of(r.estimate.costs);
    r.estimate.binds = Binds::drive;
    r.others = {{.cache = 4'000'000'000, .slots = 1400, .estimate = r.estimate, .fits = true},
                {.cache = 8'000'000'000, .slots = 2800, .estimate = r.estimate, .fits = true},
                {.cache = 18'000'000'000, .slots = 6144, .estimate = r.estimate, .fits = false}};
    r.drive_made = "2025-03-01T12:00:00Z";
    r.command = "sluice run -m some-Q4_K_M.gguf";
    return r;
}

size_t widest(const std::string& text) {
    size_t most = 0;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) most = std::max(most, line.size());
    return most;
}

TEST(ScoreOf, CountsOnlyPredictions) {
    const Score s =
        score_of({run_with({}, 5), run_with(Range{4, 6}, 5), run_with(Range{4, 6}, 7), run_with(Range{4, 6}, 3)});
    EXPECT_EQ(s.held, 1U);
    EXPECT_EQ(s.of, 3U);
}

TEST(ReportText, FitsTwoScreensOfEightyColumns) {
    Report r = some_report();
    for (int i = 0; i < 20; ++i) r.runs.push_back(run_with(Range{4, 6.5}, 5 + i));
    r.notes = {
        "Something that takes many words to say, because it goes on and on, over the end of the line and further."};
    const std::string text = text_of(r);
    EXPECT_LE(widest(text), 80U) << text;
    EXPECT_LE(std::count(text.begin(), text.end(), '\n'), 48) << text;
    EXPECT_EQ(text.find('\x1b'), std::string::npos);
}

TEST(ReportText, SaysWhatItRestsOn) {
    const std::string text = text_of(some_report());
    for (const char* words : {"predicted: ", "the drive binds", "measured 2025-03-01", "none yet", "together",
                              "this plan", "more than is free", "run it: sluice run -m some-Q4_K_M.gguf"}) {
        EXPECT_NE(text.find(words), std::string::npos) << words << "\n" << text;
    }
}

TEST(ReportText, WhatIsNotKnownSaysSo) {
    Report r = some_report();
    r.free.reset();
    r.estimate = {};
    r.others.clear();
    const std::string text = text_of(r);
    for (const char* words : {"predicted: not known tok/s; what binds is not known", "not measured", "is unknown"})
        EXPECT_NE(text.find(words), std::string::npos) << words << "\n" << text;
    r = some_report();
    r.estimate.costs.drive.reset();
    r.estimate.token = token_of(r.estimate.costs);
    EXPECT_NE(text_of(r).find("predicted: at most 25 tok/s"), std::string::npos) << text_of(r);
}

TEST(ReportText, TellsHowPredictionsDid) {
    Report r = some_report();
    r.runs = {run_with(Range{4, 6}, 5), run_with(Range{4, 6}, 3), run_with(Range{4, 6}, 9), run_with({}, 9)};
    const std::string text = text_of(r);
    for (const char* words : {"  within", "  slower", "  faster", "no prediction", "1 of 3 runs were within"})
        EXPECT_NE(text.find(words), std::string::npos) << words << "\n" << text;
}

TEST(ReportJson, HasNumbersAndNulls) {
    Report r = some_report();
    r.runs = {run_with(Range{4, 6}, 5), run_with({}, 9)};
    Json j = Json::parse(json_of(r));
    EXPECT_EQ(j["format"], "sluice-plan");
    EXPECT_EQ(j["memory"]["total_bytes"], r.together());
    EXPECT_EQ(j["token"]["binds"], "drive");
    EXPECT_EQ(j["token"]["tokens_per_second"].size(), 2U);
    EXPECT_LE(j["token"]["tokens_per_second"][0], j["token"]["tokens_per_second"][1]);
    EXPECT_EQ(j["caches"].size(), 3U);
    EXPECT_EQ(j["past_runs"][0]["predicted"][1], 6);
    EXPECT_TRUE(j["past_runs"][1]["predicted"].is_null());
    EXPECT_EQ(j["predictions"]["of"], 1);
    r.estimate = {};
    r.free.reset();
    r.drive_made.clear();
    r.path = "/models/\xff.gguf";
    j = Json::parse(json_of(r));
    EXPECT_TRUE(j["token"]["tokens_per_second"].is_null());
    EXPECT_TRUE(j["token"]["drive_bytes_per_s"].is_null());
    EXPECT_TRUE(j["memory"]["free_bytes"].is_null());
    EXPECT_TRUE(j["drive_measured"].is_null());
}

TEST(QuotedForShell, OnlyWhereNeedBe) {
    EXPECT_EQ(quoted_for_shell("/models/a-b_1.gguf"), "/models/a-b_1.gguf");
    EXPECT_EQ(quoted_for_shell("two words"), "'two words'");
    EXPECT_EQ(quoted_for_shell("it's"), "'it'\\''s'");
    EXPECT_EQ(quoted_for_shell(""), "''");
    EXPECT_EQ(quoted_for_shell("$(x)"), "'$(x)'");
}

}  // namespace
}  // namespace sluice::plan
