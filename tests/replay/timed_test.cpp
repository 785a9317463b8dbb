// Times of replayed routes, compared with ones worked out by hand.
#include "replay/timed.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <sstream>

#include "base/bytes.h"

namespace sluice::replay {
namespace {

// Two layers of four experts, each three matrices of one sector.
constexpr uint64_t kMatrix = 512;
constexpr uint64_t kExpert = 3 * kMatrix;
constexpr Nanos kLatency = 100;
constexpr Nanos kRead = kLatency + static_cast<Nanos>(kMatrix);  // of one matrix alone, at one byte per nanosecond
constexpr Nanos kDense = 1000, kChoice = 100;                    // of a layer, of an expert

Routes read(const std::string& rows, uint32_t used = 1) {
    std::istringstream in(
        "# route_trace v1\n# model=some.gguf arch=qwen3moe n_layer=2 n_expert=4 n_expert_used=" + std::to_string(used) +
        "\n# layer=0 expert_bytes=1536\n# layer=1 expert_bytes=1536\n"
        "turn,phase,step,layer,slot,expert\n" +
        rows);
    auto routes = read_routes(in, "trace");
    EXPECT_TRUE(routes.ok()) << routes.status().message();
    return std::move(*routes);
}

Drive drive(uint32_t depth) {
    Drive d;
    d.bytes_per_ns = 1;
    d.latency = kLatency;
    d.depth = depth;
    d.chunk = 512;
    d.window = 4096;
    return d;
}
Compute compute(uint32_t used = 1) {
    return {.dense = 2 * kDense, .experts = 2 * kChoice * static_cast<Nanos>(used)};
}

Timed timed_at(const Routes& routes, uint64_t budget, const Drive& drive, const Compute& compute,
               const TimedRule& rule) {
    const auto t = replay_timed(routes, nullptr, budget, drive, compute, rule);
    EXPECT_TRUE(t.ok()) << t.status().message();
    return t.ok() ? *t : Timed();
}

Timed timed(const Routes& routes, uint64_t experts, const Drive& drive, const Compute& compute, TimedRule rule = {}) {
    return timed_at(routes, experts * align_up(kExpert, 4096) * 3, drive, compute, rule);
}

const std::string kOneToken = "0,1,0,0,0,0\n0,1,0,1,0,0\n";

TEST(TimedReplay, AMissIsWaitedForAndAHitIsNot) {
    const Timed one = timed(read(kOneToken), 8, drive(1), compute());
    EXPECT_EQ(one.tokens, 1U);
    EXPECT_EQ(one.hits, 0U);
    EXPECT_EQ(one.read_bytes, 2 * kExpert);
    EXPECT_EQ(one.stall, 2 * 3 * kRead) << "matrix after matrix";
    EXPECT_EQ(one.wall, 2 * (kDense + 3 * kRead + kChoice));
    EXPECT_EQ(one.reading, one.stall);
    EXPECT_EQ(one.hidden(), 0);

    const Timed two = timed(read(kOneToken + "0,1,1,0,0,0\n0,1,1,1,0,0\n"), 8, drive(1), compute());
    EXPECT_EQ(two.hits, 2U);
    EXPECT_EQ(two.stall, one.stall);
    EXPECT_EQ(two.wall, one.wall + 2 * (kDense + kChoice));
}

TEST(TimedReplay, ReadsTogetherAreBoundByTheDrive) {
    const Timed t = timed(read(kOneToken), 8, drive(3), compute());
    EXPECT_EQ(t.stall, 2 * static_cast<Nanos>(kExpert))
        << "all bytes at the drive's speed, which is longer than a read";
}

TEST(TimedReplay, WhatIsThereIsComputedMeanwhile) {
    // The second token wants expert 0, which is there, and expert 1, which is not.
    const Routes routes = read(
        "0,1,0,0,0,0\n0,1,0,0,1,2\n0,1,0,1,0,0\n0,1,0,1,1,2\n"
        "0,1,1,0,0,0\n0,1,1,0,1,1\n0,1,1,1,0,0\n0,1,1,1,1,2\n",
        2);
    Routes first = routes;
    first.passes.resize(1);
    const Timed before = timed(first, 8, drive(1), compute(2));
    const Timed both = timed(routes, 8, drive(1), compute(2));
    EXPECT_EQ(both.hits, 3U);
    EXPECT_EQ(both.stall - before.stall, 3 * kRead - kChoice);
    EXPECT_EQ(both.wall - before.wall, 2 * kDense + 3 * kRead + 3 * kChoice);
}

TEST(TimedReplay, TimeIsWaitingAndComputingAndNothingElse) {
    const Routes routes = read("0,0,0,0,0,3\n0,0,0,1,0,3\n0,0,1,0,0,2\n0,0,1,1,0,2\n" + kOneToken +
                               "0,1,1,0,0,1\n0,1,1,1,0,1\n0,1,2,0,0,0\n0,1,2,1,0,3\n");
    for (const uint64_t experts : {1U, 2U, 5U, 8U}) {
        for (const uint32_t depth : {1U, 4U}) {
            const Timed t = timed(routes, experts, drive(depth), compute());
            EXPECT_EQ(t.tokens, 3U) << "the prompt is not timed";
            EXPECT_EQ(t.wall, t.stall + 6 * (kDense + kChoice));
            const Timed again = timed(routes, experts, drive(depth), compute());
            EXPECT_EQ(again.wall, t.wall);
            EXPECT_EQ(again.read_bytes, t.read_bytes);
            const auto bound =
                clairvoyant(routes, nullptr, experts * align_up(kExpert, 4096) * 3, drive(depth), compute());
            ASSERT_TRUE(bound.ok());
            EXPECT_LE(bound->wall, t.wall);
            EXPECT_LE(bound->read_bytes, t.read_bytes);
        }
    }
}

TEST(TimedReplay, TheBoundIsBytesOrArithmetic) {
    const Routes routes = read(kOneToken + "0,1,1,0,0,0\n0,1,1,1,0,1\n");
    const uint64_t all = 8 * align_up(kExpert, 4096) * 3;
    const auto slow = clairvoyant(routes, nullptr, all, drive(1), {});
    ASSERT_TRUE(slow.ok());
    EXPECT_EQ(slow->read_bytes, 3 * kExpert);
    EXPECT_EQ(slow->wall, static_cast<Nanos>(3 * kExpert));
    EXPECT_EQ(slow->stall, slow->wall);
    const auto busy = clairvoyant(routes, nullptr, all, drive(1), {.dense = 20'000, .experts = 2000});
    EXPECT_EQ(busy->wall, 44'000);
    EXPECT_EQ(busy->stall, 0);
}

// Told exactly what comes, the scheduler reads it while the layers before compute: the same experts, less waiting.
TEST(TimedReplay, WhatIsForetoldIsReadAhead) {
    std::string rows;
    for (int t = 0; t < 40; ++t) {
        for (int layer = 0; layer < 2; ++layer)
            rows += "0,1," + std::to_string(t) + "," + std::to_string(layer) + ",0," + std::to_string(t % 4) + "\n";
    }
    const Routes routes = read(rows);
    const Compute slow{.dense = 20'000, .experts = 200};
    const Timed without = timed(routes, 2, drive(4), slow);
    TimedRule told;
    told.foretold_layers = 1;
    const Timed with = timed(routes, 2, drive(4), slow, told);
    EXPECT_EQ(without.predicted_bytes, 0U);
    EXPECT_GT(with.predicted_bytes, without.read_bytes / 2);
    EXPECT_LT(with.stall, without.stall / 2);
    EXPECT_EQ(with.wall, with.stall + 40 * (20'000 + 200));
}

// What --prefetch auto goes by, with the real cache and scheduler: is adopted where guesses save waiting, is not where
// they cost, and follows a predictor that turns bad. Against never guessing it loses 2 % at most.
TEST(TimedReplay, GuessesAreActedOnWhileThatPays) {
    std::string rows;
    uint64_t state = 5;
    const auto random = [&](uint64_t n) {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        return (state >> 33U) % n;
    };
    for (int t = 0; t < 3000; ++t) {
        for (int layer = 0; layer < 4; ++layer) {
            // Some experts are chosen more often than others.
            const uint64_t first = random(32) * random(32) / 32, second = (first + 1 + random(31)) % 32;
            rows += fmt::format("0,1,{0},{1},0,{2}\n0,1,{0},{1},1,{3}\n", t, layer, first, second);
        }
    }
    std::istringstream in(
        "# route_trace v1\n# model=some.gguf arch=qwen3moe n_layer=4 n_expert=32 n_expert_used=2\n"
        "# layer=0 expert_bytes=1536\n# layer=1 expert_bytes=1536\n# layer=2 expert_bytes=1536\n"
        "# layer=3 expert_bytes=1536\nturn,phase,step,layer,slot,expert\n" +
        rows);
    const auto routes = read_routes(in, "made");
    ASSERT_TRUE(routes.ok()) << routes.status().message();
    Drive d = drive(4);
    d.latency = 100'000;
    const Compute c{.dense = 2'000'000, .experts = 200'000};
    TimedRule off, always;
    always.foretold_layers = 1;
    always.foretold_cost = 10'000;
    TimedRule trial = always;
    trial.foretold_auto = true;
    const auto with = [&](const TimedRule& rule) { return timed(*routes, 40, d, c, rule); };
    const Timed never = with(off), good = with(always), found = with(trial);
    EXPECT_EQ(never.told_tokens, 0U);
    EXPECT_EQ(good.told_tokens, 3000U);
    ASSERT_LT(good.wall, never.wall / 100 * 95) << "guesses do pay here";
    EXPECT_GE(found.told_tokens, 2200U);
    EXPECT_LT(found.wall - good.wall, (never.wall - good.wall) / 3)
        << never.wall << " " << found.wall << " " << good.wall;

    always.foretold_right = trial.foretold_right = 0;
    always.foretold_cost = trial.foretold_cost = 200'000;
    const Timed bad = with(always), refused = with(trial);
    ASSERT_GT(bad.wall, never.wall / 100 * 105) << "guesses do cost here";
    EXPECT_LE(refused.wall, never.wall / 100 * 102);
    EXPECT_LE(refused.told_tokens, 300U);

    trial.foretold_right = 1500;
    trial.foretold_cost = 30'000;
    const Timed turns = with(trial);
    EXPECT_GE(turns.told_tokens, 1000U);
    EXPECT_LE(turns.told_tokens, 2000U);
    EXPECT_LE(turns.wall, never.wall / 100 * 102);
    const Timed again = with(trial);
    EXPECT_EQ(again.wall, turns.wall);
}

// Reading early what a layer is sure to choose costs next to no bytes: real routes, caches of a usual size, a drive
// that is hard pressed and one that is not. It is not nothing, since who leaves is chosen before the layers between
// have told what they resemble. What is read early is used, and nothing is read twice.
TEST(TimedReplay, CommittedChoicesAreReadEarlyAtNextToNoCost) {
    for (const std::string name : {"qwen", "gemma", "gptoss"}) {
        const auto routes = read_routes(std::string(SLUICE_SOURCE_DIR) + "/tests/replay/routes/" + name + ".csv");
        ASSERT_TRUE(routes.ok()) << routes.status().message();
        const uint64_t all = *budget_of_slots(*routes, nullptr, UINT32_MAX);
        for (const int percent : {30, 40, 50}) {
            for (const double speed : {0.5, 4.0}) {
                Drive d = drive(8);
                d.bytes_per_ns = speed;
                d.latency = 100'000;
                const Compute c{.dense = 30'000'000, .experts = 20'000'000};
                const Timed late = timed_at(*routes, all / 100 * static_cast<uint64_t>(percent), d, c, {});
                EXPECT_EQ(late.early_bytes, 0U);
                for (const uint32_t ahead : {1U, 2U, 4U}) {
                    TimedRule rule;
                    rule.committed_layers = ahead;
                    const Timed early = timed_at(*routes, all / 100 * static_cast<uint64_t>(percent), d, c, rule);
                    const std::string where = fmt::format("{} {} % {} GB/s N {}", name, percent, speed, ahead);
                    EXPECT_LE(static_cast<double>(early.read_bytes), 1.02 * static_cast<double>(late.read_bytes))
                        << where;
                    EXPECT_GT(early.early_bytes, early.read_bytes / 5) << where;
                    EXPECT_GE(static_cast<double>(early.early_used), 0.97 * static_cast<double>(early.early_bytes))
                        << where;
                    EXPECT_EQ(early.reads, 3 * early.brought) << where << ": something was read twice";
                    EXPECT_LT(early.stall, late.stall) << where;
                }
            }
        }
    }
}

TEST(TimedReplay, WhatCannotBeTimedIsRefused) {
    const Routes routes = read(kOneToken);
    EXPECT_EQ(replay_timed(routes, nullptr, 1 << 20, {}, {}, {}).status().code(), Code::invalid_argument);
    EXPECT_EQ(replay_timed(routes, nullptr, 100, drive(1), {}, {}).status().code(), Code::no_memory);
    Routes unknown = routes;
    unknown.sets[1].expert_bytes = 0;
    EXPECT_NE(replay_timed(unknown, nullptr, 1 << 20, drive(1), {}, {}).status().message().find("--model"),
              std::string::npos);
    EXPECT_FALSE(budget_of_slots(unknown, nullptr, 4).ok());
    EXPECT_EQ(*budget_of_slots(routes, nullptr, 100), *budget_of_slots(routes, nullptr, 4)) << "no more than there are";
}

TEST(TimedReplay, AProbedDriveIsAsItWasMeasured) {
    machine::Derived found;
    found.sustained = 2;
    found.service = 1'000'000;
    found.chunk = 1 << 20;
    found.window = 4 << 20;
    found.lanes = 16;
    const Drive d = drive_of(found);
    EXPECT_EQ(d.bytes_per_ns, 2);
    EXPECT_EQ(d.latency, 1'000'000 - (1 << 19));
    EXPECT_EQ(d.depth, 16U);
    EXPECT_EQ(d.window, found.window);
    found.service = 5;
    EXPECT_EQ(drive_of(found).latency, 0);
}

}  // namespace
}  // namespace sluice::replay
