#include "report/race.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace sluice::report {
namespace {

std::string race_path(const std::string& name) {
    return (std::filesystem::path(SLUICE_SOURCE_DIR) / "tests/report/races" / name).string();
}

std::string file_text(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

RaceResult golden(const std::string& name) {
    auto race = read_race(race_path(name));
    EXPECT_TRUE(race.ok()) << race.status().message();
    return race.ok() ? std::move(race).value() : RaceResult();
}

// A race in a file for a moment.
class Written {
  public:
    explicit Written(const std::string& text)
        : path_(std::filesystem::temp_directory_path() / ("race-" + std::to_string(getpid()) + ".jsonl")) {
        std::ofstream(path_, std::ios::binary) << text;
    }
    ~Written() { std::filesystem::remove(path_); }
    Written(const Written&) = delete;
    Written& operator=(const Written&) = delete;
    [[nodiscard]] Result<RaceResult> read() const { return read_race(path_.string()); }

  private:
    std::filesystem::path path_;
};

std::string replaced(std::string text, const std::string& from, const std::string& to) {
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

bool remarked(const RaceResult& race, const std::string& part) {
    for (const std::string& r : race.remarks) {
        if (r.find(part) != std::string::npos) return true;
    }
    return false;
}

TEST(Race, MediansOfOddAndEvenNumbers) {
    EXPECT_EQ(median_of({3, 1, 2}), 2);
    EXPECT_EQ(median_of({4, 1, 3, 2}), 2.5);
    EXPECT_EQ(median_of({7}), 7);
}

TEST(Race, IntervalsRepeatAndHoldTheMedian) {
    const std::vector<double> values = {8.0, 9.0, 8.5, 8.1, 8.2, 8.3, 8.4};
    const Interval a = bootstrap_median(values);
    const Interval b = bootstrap_median(values);
    EXPECT_EQ(a.low, b.low);
    EXPECT_EQ(a.high, b.high);
    EXPECT_LE(a.low, 8.3);
    EXPECT_GE(a.high, 8.3);
    EXPECT_GE(a.low, 8.0);
    EXPECT_LE(a.high, 9.0);
}

TEST(Race, RatioResamplesRoundsNotArms) {
    // Both arms move together: each round's ratio is 2, so every resample's is.
    const Interval i = bootstrap_ratio({2, 4, 6, 8, 20}, {1, 2, 3, 4, 10});
    EXPECT_EQ(i.low, 2);
    EXPECT_EQ(i.high, 2);
}

TEST(Race, CleanWin) {
    const RaceResult race = golden("win.jsonl");
    ASSERT_EQ(race.cells.size(), 1U);
    ASSERT_EQ(race.cells[0].entries.size(), 2U);
    const RaceEntry& stock = race.cells[0].entries[0];
    const RaceEntry& ours = race.cells[0].entries[1];
    EXPECT_TRUE(race.ended);
    EXPECT_TRUE(race.remarks.empty());
    EXPECT_EQ(race.arms[1].command, "CACHE=auto ours -m 'my model.gguf'");

    // 1.00 1.02 0.98 1.01 and 8.0 9.0 8.5 8.1
    EXPECT_DOUBLE_EQ(*stock.decode.median, 1.005);
    EXPECT_DOUBLE_EQ(*ours.decode.median, 8.3);
    EXPECT_DOUBLE_EQ(*ours.decode.ratio, 8.3 / 1.005);
    EXPECT_EQ(stock.decode.verdict, Verdict::baseline);
    EXPECT_FALSE(stock.decode.ratio);
    EXPECT_EQ(ours.decode.verdict, Verdict::faster);
    EXPECT_EQ(ours.decode.spread->low, 8.0);
    EXPECT_EQ(ours.decode.spread->high, 9.0);
    EXPECT_EQ(ours.digest, Digest::same);
    // (0.98 + 1.01) / 2 against (1.00 + 1.02) / 2
    EXPECT_NEAR(*race.cells[0].decode_drift, 0.995 / 1.01 - 1, 1e-12);

    // 9 11 10 10.5 against 10.0 10.1 9.9 10.0
    EXPECT_DOUBLE_EQ(*ours.prefill.median, 10.25);
    EXPECT_DOUBLE_EQ(*ours.prefill.ratio, 1.025);
    EXPECT_EQ(ours.prefill.verdict, Verdict::undecided);
    EXPECT_EQ(*ours.wall_seconds, 2.5);
    EXPECT_FALSE(ours.load_seconds);  // null in the file, not 0
}

TEST(Race, TextOfACleanWin) {
    const std::string text = race_text(golden("win.jsonl"));
    if (std::getenv("SLUICE_UPDATE_GOLDENS") != nullptr) std::ofstream(race_path("win.md"), std::ios::binary) << text;
    EXPECT_EQ(text, file_text(race_path("win.md")));
}

TEST(Race, DriftDiscardsTheCell) {
    const RaceResult race = golden("drift.jsonl");
    EXPECT_NEAR(*race.cells[0].decode_drift, -0.19, 1e-12);  // 0.81 against 1.00
    for (const RaceEntry& e : race.cells[0].entries) {
        EXPECT_EQ(e.decode.verdict, Verdict::drift);
        EXPECT_EQ(e.prefill.verdict, Verdict::drift);
        EXPECT_FALSE(e.decode.ratio);
        EXPECT_FALSE(e.prefill.ratio);
    }
    EXPECT_TRUE(remarked(race, "drifted by -19.0 %"));
}

TEST(Race, DriftOfPrefillAloneDiscardsPrefill) {
    std::string text = file_text(race_path("win.jsonl"));
    for (int i = 0; i < 2; ++i)  // the first two rounds of the baseline
        text = replaced(text, i == 0 ? R"("prefill_tokens_per_second": 10.0)" : R"("prefill_tokens_per_second": 10.1)",
                        R"("prefill_tokens_per_second": 20)");
    const auto race = Written(text).read();
    ASSERT_TRUE(race.ok());
    EXPECT_EQ(race->cells[0].entries[1].decode.verdict, Verdict::faster);
    EXPECT_EQ(race->cells[0].entries[1].prefill.verdict, Verdict::drift);
}

TEST(Race, ADriftWithinTheLimitIsAllowed) {
    const std::string text =
        replaced(file_text(race_path("drift.jsonl")), R"("drift_limit": 0.1)", R"("drift_limit": 0.2)");
    const auto race = Written(text).read();
    ASSERT_TRUE(race.ok());
    EXPECT_EQ(race->cells[0].entries[1].decode.verdict, Verdict::faster);
}

TEST(Race, AnotherOutputHasNoRatio) {
    const RaceResult race = golden("digest.jsonl");
    const RaceEntry& ours = race.cells[0].entries[1];
    EXPECT_EQ(ours.digest, Digest::differs);  // one run of four is enough
    EXPECT_EQ(ours.decode.verdict, Verdict::digest_differs);
    EXPECT_FALSE(ours.decode.ratio);
    EXPECT_EQ(race.cells[0].entries[0].decode.verdict, Verdict::baseline);
}

TEST(Race, AnArmThatPromisesNothingMayDiffer) {
    const std::string text = replaced(file_text(race_path("digest.jsonl")), R"("exact": true)", R"("exact": false)");
    const auto race = Written(text).read();
    ASSERT_TRUE(race.ok());
    EXPECT_EQ(race->cells[0].entries[1].decode.verdict, Verdict::faster);
    EXPECT_TRUE(remarked(*race, "wrote another text"));
}

TEST(Race, APromiseThatCannotBeCheckedHasNoRatio) {
    std::string text = file_text(race_path("win.jsonl"));
    text = replaced(text, R"("output_digest": "d1")", R"("output_digest": "d0")");
    const auto race = Written(text).read();
    ASSERT_TRUE(race.ok());
    EXPECT_EQ(race->cells[0].entries[1].decode.verdict, Verdict::digest_unknown);
    EXPECT_TRUE(remarked(*race, "baseline itself wrote different texts"));
}

TEST(Race, FailingArm) {
    const RaceResult race = golden("failing.jsonl");
    const RaceEntry& ours = race.cells[0].entries[1];
    EXPECT_EQ(ours.failures, 4U);
    EXPECT_EQ(ours.error, "out of memory in its cell");
    EXPECT_EQ(ours.decode.verdict, Verdict::failed);
    EXPECT_TRUE(ours.decode.values.empty());  // what a failed run said of its speed does not count
    EXPECT_TRUE(remarked(race, "4 of 4 runs failed"));
}

TEST(Race, FailingBaselineLeavesNothingToCompareWith) {
    std::string text = file_text(race_path("win.jsonl"));
    for (const char* speed : {"1.0", "1.02", "0.98"}) {
        text = replaced(text, fmt::format(R"("decode_tokens_per_second": {},)", speed),
                        R"("decode_tokens_per_second": null,)");
    }
    const auto race = Written(text).read();
    ASSERT_TRUE(race.ok());
    EXPECT_EQ(race->cells[0].entries[0].decode.verdict, Verdict::too_few);
    EXPECT_EQ(race->cells[0].entries[1].decode.verdict, Verdict::no_baseline);
    EXPECT_DOUBLE_EQ(*race->cells[0].entries[1].decode.median, 8.3);
}

TEST(Race, KilledInTheMiddle) {
    const RaceResult race = golden("killed.jsonl");
    EXPECT_FALSE(race.ended);
    EXPECT_TRUE(race.cut_short);
    EXPECT_EQ(race.cells[0].entries[0].runs, 3U);
    EXPECT_EQ(race.cells[0].entries[1].runs, 4U);
    EXPECT_DOUBLE_EQ(*race.cells[0].entries[1].decode.ratio, 8.0);  // of three rounds
    EXPECT_TRUE(remarked(race, "not complete"));
    EXPECT_TRUE(remarked(race, "3 of 4 runs were made"));
}

TEST(Race, TooFew) {
    const RaceResult race = golden("few.jsonl");
    for (const RaceEntry& e : race.cells[0].entries) {
        EXPECT_EQ(e.decode.verdict, Verdict::too_few);
        EXPECT_FALSE(e.decode.ratio);
        EXPECT_FALSE(e.decode.median_interval);
        EXPECT_TRUE(e.decode.median);
    }
}

TEST(Race, LeftOutArmsAreSaid) {
    const std::string text = replaced(file_text(race_path("few.jsonl")), R"("cells":)",
                                      R"("skipped": [{"cell": "50%", "arm": "ours", "why": "too big"}], "cells":)");
    const auto race = Written(text).read();
    ASSERT_TRUE(race.ok());
    EXPECT_TRUE(remarked(*race, "not run: too big"));
    EXPECT_NE(race_text(*race).find("| not run |"), std::string::npos);
}

TEST(Race, WhatMakesItWorthLessIsSaid) {
    std::string text = file_text(race_path("few.jsonl"));
    text = replaced(text, R"("quiet": true)", R"("quiet": false)");
    text = replaced(text, R"("load_s": null)", R"("other_cores": 1.5, "load_s": null)");
    text = replaced(text, R"("page_cache_left_bytes": 0)", R"("page_cache_left_bytes": 4096)");
    text = replaced(text, R"({"kind": "end"})", "{\"kind\": \"resume\"}\n{\"kind\": \"end\"}");
    const auto race = Written(text).read();
    ASSERT_TRUE(race.ok());
    EXPECT_TRUE(remarked(*race, "others used the machine before or during 1 of 4 runs"));  // one run, twice disturbed
    EXPECT_TRUE(remarked(*race, "before 1 of 4 runs the page cache"));
    EXPECT_TRUE(remarked(*race, "interrupted and continued."));
}

TEST(Race, HostileValuesMeanNothing) {
    const RaceResult race = golden("hostile.jsonl");
    const RaceEntry& ours = race.cells[0].entries[1];
    EXPECT_EQ(ours.failures, 8U);
    EXPECT_FALSE(ours.decode.median);
    EXPECT_FALSE(race.model_bytes);
    const std::string text = race_text(race);
    EXPECT_EQ(text.find('\x1b'), std::string::npos);
    EXPECT_EQ(text.find("\n## forged"), std::string::npos);
    EXPECT_EQ(text.find("<script"), std::string::npos);
    EXPECT_EQ(text.find("\xC2\x9B"), std::string::npos);
    EXPECT_LT(text.size(), 20'000U);
}

TEST(Race, WhatIsNoRaceIsRefusedInWords) {
    const std::string win = file_text(race_path("win.jsonl"));
    const std::string head = win.substr(0, win.find('\n') + 1);
    const struct {
        std::string text, says;
    } cases[] = {
        {"", "is empty"},
        {"\x7f\x45LF", "its first line is not JSON"},
        {"[]\n", "its first line is not JSON"},
        {"{}\n", "not a race"},
        {R"({"sluice_record":1,"kind":"run"})"
         "\n",
         "of kind \"run\""},
        {replaced(head, R"("sluice_record": 1)", R"("sluice_record": 2)"), "schema 2"},
        {replaced(head, R"("baseline": true)", R"("baseline": false)"), "one baseline"},
        {replaced(head, R"("baseline": false)", R"("baseline": true)"), "one baseline"},
        {replaced(head, R"("name": "ours")", R"("name": "stock")"), "two named \"stock\""},
        {replaced(head, R"("drift_limit": 0.1)", R"("drift_limit": -1)"), "drift limit"},
        {replaced(head, R"("cells": [)", R"("cells": [], "c": [)"), "no cells"},
        {replaced(head, R"("arms": [)", R"("arms": 5, "c": [)"), "no arms"},
        {head + "nonsense\n", "line 2 is not JSON"},
        {head + R"({"kind":"sample","cell":"50%","arm":"nobody","round":0})" + "\n", "line 2: a run of an arm"},
        {head + R"({"kind":"sample","cell":"50%","arm":"ours","round":-1})" + "\n", "line 2: a run of no round"},
        {head + R"({"kind":"sample","cell":"50%","arm":"ours","round":1e9})" + "\n", "line 2: a run of no round"},
        {win + R"({"kind":"sample","cell":"50%","arm":"ours","round":0})" + "\n", "that was there before"},
    };
    for (const auto& c : cases) {
        const auto race = Written(c.text).read();
        ASSERT_FALSE(race.ok()) << c.says;
        EXPECT_NE(race.status().message().find(c.says), std::string::npos) << race.status().message();
    }
    EXPECT_EQ(read_race("/nowhere/race.jsonl").status().code(), Code::not_found);
}

TEST(Race, EveryBeginningOfAFileIsReadOrRefused) {
    const std::string win = file_text(race_path("win.jsonl"));
    const size_t head = win.find('\n') + 1;
    for (size_t n = 0; n < win.size(); n += 13) {
        const auto race = Written(win.substr(0, n)).read();
        if (n >= head) {
            ASSERT_TRUE(race.ok()) << n << race.status().message();
            EXPECT_FALSE(race_text(*race).empty());
        }
    }
}

}  // namespace
}  // namespace sluice::report
