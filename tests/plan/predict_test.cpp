#include "plan/predict.h"

#include <gtest/gtest.h>

#include <cmath>

namespace sluice::plan {
namespace {

using machine::Cell;
using machine::Verdict;

// 10 layers of 64 experts of 3 x 1 MB, 8 used; as much again in dense weights.
Work some_work() {
    Work w;
    w.layers = 10;
    w.vocabulary = 1000;
    w.sets.assign(10, {64, 8, 3'000'000, 3});
    w.cycle_bytes = uint64_t{10} * 8 * 3'000'000;
    w.expert_bytes = uint64_t{10} * 64 * 3'000'000;
    w.component_bytes = 1'000'000;
    w.experts = {{"q8_0", w.cycle_bytes}};
    w.dense = {{"f32", 1'000'000}, {"q8_0", w.cycle_bytes}};
    w.expert_matrices = {{"q8_0", {1024, 1024, 1'000'000}}};
    w.dense_matrices = {{"q8_0", {1024, 1024, 1'000'000}}};
    return w;
}

cache::Layout layout_of(uint32_t slots) {
    cache::Layout l;
    l.classes = {{.slot_bytes = 3'000'000, .n_slots = slots, .first_slot = 0, .offset = 0, .n_records = 640}};
    l.class_of_set.assign(10, 0);
    l.arena_bytes = uint64_t{slots} * 3'000'000;
    return l;
}

Cell cell(uint64_t size, unsigned depth, double bytes_per_ns, bool under_load = false) {
    Cell c;
    c.direct = true;
    c.under_load = under_load;
    c.size = size;
    c.depth = depth;
    c.source = machine::Source::device;
    c.bytes = 1'000'000'000;
    c.reads = c.bytes / size;
    c.elapsed = static_cast<Nanos>(1e9 / bytes_per_ns);
    return c;
}

Verdict some_verdict(double factor = 1) {
    Verdict v;
    for (const uint64_t size : {500'000U, 1'000'000U, 3'000'000U}) {
        for (const unsigned depth : {1U, 4U, 16U}) v.cells.push_back(cell(size, depth, factor * (1 + 0.1 * depth)));
        v.cells.push_back(cell(size, 4, factor * 0.9, true));
    }
    return v;
}

Speeds some_speeds(double factor = 1) {
    return {"", "cpu", 2, {{"q8_0", 0.1 * factor}}, {{"q8_0", 0.1 * factor}, {"f32", 0.2 * factor}}, 1000 * factor};
}

PastRun run_of(uint32_t slots, double hits, double wall_ms, double waited_ms, unsigned threads = 2) {
    PastRun r;
    r.model = "model";
    r.machine = "cpu";
    r.drive = "drive";
    r.threads = threads;
    r.slots = slots;
    r.cache_bytes = uint64_t{slots} * 3'000'000;
    r.policy = "frequency";
    r.tokens = 100;
    r.wall = static_cast<Nanos>(wall_ms * 1e8);
    r.waited = static_cast<Nanos>(waited_ms * 1e8);
    r.reading = static_cast<Nanos>(waited_ms * 1.2e8);
    r.lookups = 8000;
    r.hits = static_cast<uint64_t>(8000 * hits);
    r.read_bytes = (r.lookups - r.hits) * 3'000'000;
    return r;
}

Setting some_setting(unsigned threads = 2) {
    return {.threads = threads, .lanes = 8, .tokens = 256, .policy = "frequency"};
}

Estimate estimate_with(uint32_t slots, const Verdict* verdict, const Speeds* speeds, const History* history = nullptr,
                       unsigned threads = 2) {
    return estimate(some_work(), layout_of(slots), some_setting(threads),
                    {.verdict = verdict,
                     .history = history,
                     .speeds = speeds,
                     .model = "model",
                     .machine = "cpu",
                     .drive = "drive"});
}

TEST(Hits, GrowWithTheCacheAndLieBetweenEvenAndSkewed) {
    double before = 0;
    for (int i = 0; i <= 1000; ++i) {
        const double share = i / 1000.0;
        const double most = most_hits(share);
        EXPECT_GE(most, before);
        EXPECT_GE(most, share - 1e-12);
        EXPECT_LE(most, 1);
        before = most;
        const Range any = hits_at(share, {0, 1});
        EXPECT_DOUBLE_EQ(any.low, share);
        EXPECT_DOUBLE_EQ(any.high, most);
    }
    EXPECT_EQ(most_hits(-1), 0);
    EXPECT_EQ(most_hits(2), 1);
}

// What docs/results/cache-policy.md has for the policy in use.
TEST(Hits, RecordedRoutesLieWithin) {
    struct Recorded {
        double slots, hits;
    };
    for (const Recorded r : {Recorded{4, 0.279},
                             {8, 0.424},
                             {16, 0.623},
                             {32, 0.840},
                             {4, 0.286},
                             {8, 0.434},
                             {16, 0.613},
                             {32, 0.808},
                             {4, 0.350},
                             {8, 0.497},
                             {16, 0.650},
                             {32, 0.770}}) {
        EXPECT_TRUE(hits_at(r.slots / 128, {0, 1}).holds(r.hits)) << r.slots;
    }
}

TEST(Hits, SkewIsTheWayBack) {
    const auto skew = skew_of(0.3, 0.5);
    ASSERT_TRUE(skew.has_value());
    EXPECT_NEAR(hits_at(0.3, {*skew, *skew}).low, 0.5, 1e-12);
    EXPECT_LT(*skew_of(0.3, 0.2), 0);
    EXPECT_FALSE(skew_of(1, 0.9).has_value());
    EXPECT_EQ(hits_at(0.3, {-100, 100}), (Range{0, 1}));
}

TEST(Drive, LiesBetweenTheNeighbours) {
    const Verdict v = some_verdict();
    const auto one = drive_speed(v, 1'000'000, 1, 1);
    ASSERT_TRUE(one.has_value());
    EXPECT_NEAR(one->low, 0.9, 1e-6);  // under load there is depth 4 only
    EXPECT_NEAR(one->high, 1.1, 1e-6);
    const auto many = drive_speed(v, 1'000'000, 1, 16);
    EXPECT_NEAR(many->high, 2.6, 1e-6);
    EXPECT_NEAR(many->low, 0.9, 1e-6);
    // Sizes and depths that nobody measured: what is nearest, on either side.
    EXPECT_TRUE(drive_speed(v, 700'000, 6, 6)->holds(1.5));
    EXPECT_EQ(drive_speed(v, 10'000'000, 64, 64), drive_speed(v, 3'000'000, 16, 16));
    EXPECT_EQ(drive_speed(v, 100'000, 1, 1), drive_speed(v, 500'000, 1, 1));
    // Pages tell nothing of matrices, nor matrices of pages.
    Verdict with_pages = v;
    with_pages.cells.push_back(cell(4096, 1, 0.01));
    with_pages.cells.push_back(cell(4096, 4, 0.01, true));
    EXPECT_EQ(drive_speed(with_pages, 500'000, 1, 8), drive_speed(v, 500'000, 1, 8));
    EXPECT_FALSE(drive_speed(v, 4096, 1, 8).has_value());
    EXPECT_FALSE(drive_speed(v, 100'000'000, 1, 8).has_value());
}

TEST(Drive, OnlyWhatTheDriveAnsweredCounts) {
    Verdict v = some_verdict();
    for (Cell& c : v.cells) c.source = machine::Source::memory;
    EXPECT_FALSE(drive_speed(v, 1'000'000, 1, 8).has_value());
    v = some_verdict();
    for (Cell& c : v.cells) c.direct = false;
    EXPECT_FALSE(drive_speed(v, 1'000'000, 1, 8).has_value());
    EXPECT_FALSE(drive_speed(Verdict(), 1'000'000, 1, 8).has_value());
}

TEST(Drive, WhatItKeepsUpBoundsIt) {
    Verdict v = some_verdict();
    v.derived.emplace();
    v.derived->sustained = 0.3;
    v.derived->burst = 4;
    const auto r = drive_speed(v, 1'000'000, 1, 8);
    EXPECT_EQ(r->low, 0.3);
    EXPECT_EQ(r->high, 4);
}

TEST(TokenTime, AtBestTheLongerAndAtWorstTheSum) {
    const Costs c{.dense = {10, 20}, .experts = {30, 40}, .read_bytes = {100, 200}, .drive = Range{2, 4}};
    const Token t = token_of(c);
    EXPECT_EQ(t.time, (Range{10 + 30, 20 + 40 + 100}));
    EXPECT_EQ(*t.reads, (Range{25, 100}));
    EXPECT_EQ(t.compute, (Range{40, 60}));
    EXPECT_DOUBLE_EQ(t.tokens_per_second.low, 1e9 / 160);
    EXPECT_DOUBLE_EQ(t.tokens_per_second.high, 1e9 / 40);
}

TEST(TokenTime, PastWaitingTellsMoreThanTheDrive) {
    const Costs c{.dense = {10, 20},
                  .experts = {30, 40},
                  .read_bytes = {100, 200},
                  .drive = Range{2, 4},
                  .wait_per_byte = Range{0.1, 0.2}};
    EXPECT_EQ(token_of(c).time, (Range{50, 100}));
}

TEST(TokenTime, AnUnknownDriveHasNoLowerEnd) {
    Costs c{.dense = {10, 20}, .experts = {30, 40}, .read_bytes = {100, 200}};
    Token t = token_of(c);
    EXPECT_TRUE(std::isinf(t.time.high));
    EXPECT_EQ(t.tokens_per_second.low, 0);
    EXPECT_DOUBLE_EQ(t.tokens_per_second.high, 1e9 / 40);
    EXPECT_FALSE(t.reads.has_value());
    c.read_bytes = {0, 0};
    EXPECT_EQ(token_of(c).time, (Range{40, 60}));
}

TEST(TokenTime, WhatWasSeenNarrowsAndWins) {
    Costs c{.dense = {10, 20}, .experts = {30, 40}, .read_bytes = {100, 200}, .drive = Range{2, 4}};
    c.seen = Range{1e9 / 100, 1e9 / 20};
    EXPECT_EQ(token_of(c).tokens_per_second, (Range{1e9 / 100, 1e9 / 40}));
    c.seen = Range{1, 2};  // nothing of it is in what was computed
    EXPECT_EQ(token_of(c).tokens_per_second, (Range{1, 2}));
}

TEST(Estimates, FasterPartsNeverMakeASlowerToken) {
    for (const uint32_t slots : {8U, 64U, 300U, 640U}) {
        Range before{0, 0};
        for (const double f : {0.25, 0.5, 1.0, 2.0, 8.0}) {
            const Verdict v = some_verdict(f);
            const Speeds s = some_speeds();
            const Range now = estimate_with(slots, &v, &s).token->tokens_per_second;
            EXPECT_GE(now.low, before.low);
            EXPECT_GE(now.high, before.high);
            before = now;
        }
        before = {0, 0};
        for (const double f : {8.0, 2.0, 1.0, 0.5}) {
            const Verdict v = some_verdict();
            const Speeds s = some_speeds(f);
            const Range now = estimate_with(slots, &v, &s).token->tokens_per_second;
            EXPECT_GE(now.low, before.low);
            EXPECT_GE(now.high, before.high);
            before = now;
        }
    }
}

TEST(Estimates, ALargerCacheNeverMakesASlowerToken) {
    const Verdict v = some_verdict();
    const Speeds s = some_speeds();
    Estimate before = estimate_with(1, &v, &s);
    for (uint32_t slots = 2; slots <= 640; ++slots) {
        const Estimate now = estimate_with(slots, &v, &s);
        EXPECT_GE(now.token->tokens_per_second.low, before.token->tokens_per_second.low - 1e-9) << slots;
        EXPECT_GE(now.token->tokens_per_second.high, before.token->tokens_per_second.high - 1e-9) << slots;
        EXPECT_LE(now.costs.read_bytes.low, before.costs.read_bytes.low + 1e-6) << slots;
        before = now;
    }
    EXPECT_EQ(before.share, 1);
    EXPECT_EQ(before.hits, (Range{1, 1}));
    EXPECT_EQ(before.costs.read_bytes.low, 0);
    // The cache begins empty.
    EXPECT_NEAR(before.costs.read_bytes.high, 640 * 3e6 / 256, 1);
}

TEST(Estimates, WithoutAVerdictNothingIsInvented) {
    const Speeds s = some_speeds();
    const Estimate e = estimate_with(64, nullptr, &s);
    EXPECT_EQ(e.drive_basis, Basis::none);
    EXPECT_FALSE(e.costs.drive.has_value());
    EXPECT_EQ(e.token->tokens_per_second.low, 0);
    EXPECT_EQ(e.binds, Binds::unknown);
}

TEST(Estimates, WithoutSpeedsThereIsNone) {
    const Verdict v = some_verdict();
    const Estimate e = estimate_with(64, &v, nullptr);
    EXPECT_FALSE(e.token.has_value());
    EXPECT_EQ(e.compute_basis, Basis::none);
    EXPECT_GT(e.costs.read_bytes.high, 0);
}

TEST(Estimates, TellWhatBinds) {
    const Speeds s = some_speeds();
    const Verdict slow = some_verdict(0.05);
    EXPECT_EQ(estimate_with(64, &slow, &s).binds, Binds::drive);
    const Verdict fast = some_verdict(50);
    EXPECT_EQ(estimate_with(64, &fast, &s).binds, Binds::compute);
}

TEST(Estimates, ARunWithTheSameSettingsIsFoundAgain) {
    History h;
    h.runs = {run_of(64, 0.2, 200, 120)};
    const Verdict v = some_verdict();
    const Speeds s = some_speeds();
    const Estimate e = estimate_with(64, &v, &s, &h);
    EXPECT_EQ(e.runs_alike, 1U);
    EXPECT_EQ(e.hits_basis, Basis::past_runs);
    EXPECT_EQ(e.compute_basis, Basis::past_runs);
    EXPECT_EQ(e.drive_basis, Basis::past_runs);
    EXPECT_TRUE(e.hits.holds(0.2));
    EXPECT_TRUE(e.token->tokens_per_second.holds(5));
    EXPECT_LE(e.token->tokens_per_second.high, 2.9 * e.token->tokens_per_second.low);
    EXPECT_EQ(e.binds, Binds::drive);
}

TEST(Estimates, ARunWithAnotherCacheTellsOfThisOne) {
    History h;
    h.runs = {run_of(64, 0.12, 200, 120)};
    const Verdict v = some_verdict();
    const Speeds s = some_speeds();
    const Estimate e = estimate_with(320, &v, &s, &h);
    EXPECT_EQ(e.runs_alike, 0U);
    EXPECT_EQ(e.hits_basis, Basis::past_runs);
    // That model chooses almost evenly, so it will here: about half of the misses, and of the waiting.
    EXPECT_TRUE(e.hits.holds(0.52));
    EXPECT_LT(e.hits.high, 0.7);
    EXPECT_TRUE(e.token->tokens_per_second.holds(1000 / (80 + 120 * 0.5 / 0.88)));
    EXPECT_LE(e.token->tokens_per_second.high, 2.9 * e.token->tokens_per_second.low);
}

// A token needs 80 experts. `lru` with fewer slots than that may hit nothing, whatever runs with larger caches did.
TEST(Estimates, APolicyWithACliffMayHitNothingBelowOneToken) {
    History h;
    h.runs = {run_of(120, 0.5, 200, 120)};
    h.runs[0].policy = "lru";
    for (const History* history : {static_cast<const History*>(nullptr), static_cast<const History*>(&h)}) {
        const auto hits = [&](uint32_t slots, const char* policy) {
            Setting setting = some_setting();
            setting.policy = policy;
            return estimate(some_work(), layout_of(slots), setting,
                            {.history = history, .model = "model", .machine = "cpu", .drive = "drive"})
                .hits;
        };
        EXPECT_EQ(hits(79, "lru").low, 0);
        EXPECT_GT(hits(79, "lru").high, 0.1);
        EXPECT_GT(hits(80, "lru").low, 0.1);
        EXPECT_GT(hits(79, "reuse").low, 0.1);
        EXPECT_GT(hits(79, "frequency").low, 0.1);
    }
}

TEST(Estimates, RunsOfOthersDoNotCount) {
    const Verdict v = some_verdict();
    const Speeds s = some_speeds();
    const Estimate none = estimate_with(64, &v, &s);
    const auto same = [&](auto change) {
        History h;
        h.runs = {run_of(64, 0.2, 200, 120)};
        change(h.runs[0]);
        const Estimate e = estimate_with(64, &v, &s, &h);
        return e.token->tokens_per_second == none.token->tokens_per_second && e.hits == none.hits;
    };
    EXPECT_FALSE(same([](PastRun&) {}));
    EXPECT_TRUE(same([](PastRun& r) { r.model = "other"; }));
    EXPECT_TRUE(same([](PastRun& r) { r.machine = "other"; }));
    EXPECT_TRUE(same([](PastRun& r) { r.tokens = kLeastTokens - 1; }));
}

TEST(Estimates, AnotherDriveTellsOfHitsAndComputeOnly) {
    const Verdict v = some_verdict();
    const Speeds s = some_speeds();
    History h;
    h.runs = {run_of(64, 0.2, 200, 120)};
    h.runs[0].drive = "other";
    const Estimate e = estimate_with(64, &v, &s, &h);
    EXPECT_EQ(e.hits_basis, Basis::past_runs);
    EXPECT_EQ(e.compute_basis, Basis::past_runs);
    EXPECT_EQ(e.drive_basis, Basis::measured);
    EXPECT_EQ(e.runs_alike, 0U);
}

TEST(Estimates, AnotherNumberOfThreadsTellsOfHitsAndWaitingOnly) {
    const Verdict v = some_verdict();
    const Speeds s = some_speeds();
    History h;
    h.runs = {run_of(64, 0.2, 200, 120, 1)};
    const Estimate e = estimate_with(64, &v, &s, &h);
    EXPECT_EQ(e.compute_basis, Basis::measured);
    EXPECT_EQ(e.drive_basis, Basis::past_runs);
    EXPECT_EQ(e.runs_alike, 0U);
}

TEST(Estimates, OnlyTheNewestRunsCount) {
    History h;
    h.runs = {run_of(64, 0.2, 2000, 120)};  // a busy machine, long ago
    for (int i = 0; i < 5; ++i) h.runs.push_back(run_of(64, 0.2, 200, 120));
    const Verdict v = some_verdict();
    EXPECT_GT(estimate_with(64, &v, nullptr, &h).token->tokens_per_second.low, 2.9);
}

// A run that was foretold, and came out `factor` faster than the middle of that.
PastRun foretold(double factor) {
    PastRun r = run_of(64, 0.2, 100, 60);
    r.model = "another";
    r.predicted = Range{10 / factor / 1.2, 10 / factor * 1.2};
    return r;
}

TEST(Scatter, IsCautiousUntilPredictionsHaveProvedThemselves) {
    History h;
    EXPECT_NEAR(scatter(h, "cpu"), 1.7, 1e-9);
    h.runs.push_back(foretold(1 / 2.5));
    EXPECT_NEAR(scatter(h, "cpu"), 2.5, 1e-6) << "worse was seen, and slower counts as faster does";
    h.runs.assign(19, foretold(1.1));
    EXPECT_NEAR(scatter(h, "cpu"), 1.7, 1e-9);
    h.runs.assign(20, foretold(1.1));
    EXPECT_NEAR(scatter(h, "cpu"), 1.1, 1e-6);
}

TEST(Scatter, IsWhatNineOfTenOfTheNewestStayWithin) {
    History h;
    h.runs.assign(5, foretold(3));  // too long ago
    for (int i = 0; i < 37; ++i) h.runs.push_back(foretold(1 + 0.01 * i));
    h.runs.insert(h.runs.end(), 3, foretold(3));
    EXPECT_NEAR(scatter(h, "cpu"), 1.36, 1e-6);
    h.runs.push_back(foretold(3));
    EXPECT_NEAR(scatter(h, "cpu"), 3, 1e-6);
    h.runs.assign(20, foretold(100));
    EXPECT_EQ(scatter(h, "cpu"), 4);
}

TEST(Scatter, CountsOnlyPredictionsThatCanBeWrong) {
    const auto counts = [](auto change) {
        History h;
        h.runs.assign(1, foretold(2));
        change(h.runs[0]);
        return std::abs(scatter(h, "cpu") - 2) < 1e-6;
    };
    EXPECT_TRUE(counts([](PastRun&) {}));
    EXPECT_FALSE(counts([](PastRun& r) { r.machine = "other"; }));
    EXPECT_FALSE(counts([](PastRun& r) { r.predicted.reset(); }));
    EXPECT_FALSE(counts([](PastRun& r) { r.tokens = kLeastTokens - 1; }));
    EXPECT_FALSE(counts([](PastRun& r) { r.predicted = Range{0, 5}; }));
    EXPECT_FALSE(counts([](PastRun& r) { r.predicted = Range{1, 25}; })) << "as without past runs";
}

TEST(Estimates, PastRunsNarrowNoFurtherThanTheyCameTrue) {
    const Verdict v = some_verdict();
    const Speeds s = some_speeds();
    History h;
    h.runs = {run_of(64, 0.2, 200, 120)};
    const auto width = [&](double error) {
        History with = h;
        with.runs.insert(with.runs.begin(), 20, foretold(error));
        const Range r = estimate_with(64, &v, &s, &with).token->tokens_per_second;
        EXPECT_TRUE(r.holds(5));
        return r.high / r.low;
    };
    EXPECT_LT(width(1.01), 1.6) << "what is foretold anyway";
    EXPECT_NEAR(width(2), 4, 0.01);
    // Without runs of this model there is nothing that they could have narrowed.
    History others;
    others.runs.assign(20, foretold(3));
    EXPECT_EQ(estimate_with(64, &v, &s, &others).token->tokens_per_second,
              estimate_with(64, &v, &s).token->tokens_per_second);
}

TEST(FindSpeeds, TheNewestThatHasAllTypes) {
    History h;
    h.speeds = {some_speeds(1), some_speeds(2), some_speeds(3), some_speeds(4), some_speeds(5)};
    h.speeds[2].machine = "other";
    h.speeds[3].threads = 1;
    h.speeds[4].experts.clear();
    EXPECT_EQ(find_speeds(h, some_work(), "cpu", 2), &h.speeds[1]);
    EXPECT_EQ(find_speeds(h, some_work(), "cpu", 1), &h.speeds[3]);
    EXPECT_EQ(find_speeds(h, some_work(), "cpu", 8), nullptr);
    h.speeds[1].busy = true;
    EXPECT_EQ(find_speeds(h, some_work(), "cpu", 2), &h.speeds[0]) << "what a quiet machine had, however old";
    h.speeds[0].busy = true;
    EXPECT_EQ(find_speeds(h, some_work(), "cpu", 2), &h.speeds[1]);
}

TEST(StillGood, WhatABusyMachineHadOnlyWhileItIsBusy) {
    Speeds s = some_speeds();
    s.at = "2026-01-02";
    EXPECT_TRUE(still_good(s, "2026-01-01", false));
    EXPECT_FALSE(still_good(s, "2026-01-03", false)) << "old";
    EXPECT_TRUE(still_good(s, "2026-01-03", true)) << "better than what could be measured now";
    s.busy = true;
    EXPECT_FALSE(still_good(s, "2026-01-01", false)) << "the machine is quiet now";
    EXPECT_TRUE(still_good(s, "2026-01-01", true));
    EXPECT_FALSE(still_good(s, "2026-01-03", true));
}

TEST(ComputedBefore, ByThisModelWithTheseThreads) {
    History h;
    h.runs = {run_of(64, 0.2, 200, 120)};
    EXPECT_TRUE(computed_before(h, "model", "cpu", 2));
    EXPECT_FALSE(computed_before(h, "model", "cpu", 1));
    EXPECT_FALSE(computed_before(h, "other", "cpu", 2));
    EXPECT_FALSE(computed_before(h, "model", "other", 2));
}

TEST(Names, AreWords) {
    EXPECT_STREQ(basis_name(Basis::past_runs), "past runs");
    EXPECT_STREQ(binds_name(Binds::drive), "drive");
}

}  // namespace
}  // namespace sluice::plan
