#include "replay/gate_b.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace sluice::replay {
namespace {

using machine::Outcome;

class GateBTest : public testing::Test {
  protected:
    void SetUp() override {
        directory_ = std::filesystem::temp_directory_path() / fmt::format("sluice-gate-b-{}", ::getpid());
        std::filesystem::create_directories(directory_);
    }
    void TearDown() override { std::filesystem::remove_all(directory_); }

    // Two layers with the same choice, one expert per token: each for `repeat` tokens, then the next of `period`.
    std::string trace(const std::string& name, uint32_t tokens, uint32_t repeat, uint32_t period) {
        std::string path = (directory_ / name).string();
        std::ofstream out(path);
        out << "turn,phase,step,layer,slot,expert\n";
        for (uint32_t t = 0; t < tokens; ++t)
            out << fmt::format("0,1,{0},3,0,{1}\n0,1,{0},4,0,{1}\n", t, t / repeat % period);
        return path;
    }

    std::filesystem::path directory_;
};

double figure(const machine::GateVerdict& v, const std::string& name) {
    const auto it = std::find_if(v.figures.begin(), v.figures.end(), [&](const auto& f) { return f.name == name; });
    EXPECT_NE(it, v.figures.end()) << name;
    return it == v.figures.end() ? -1 : it->value.value_or(-1);
}

TEST_F(GateBTest, SaysWhichRoutesAreNotTheRouters) {
    GateB asked;
    asked.traces = {trace("faithful.csv", 64, 1, 64), trace("lossy.csv", 64, 1, 64)};
    asked.slots = 2;
    {
        std::ofstream out(asked.traces[1], std::ios::app);
        out << "# lossy=--drop-cold-experts 1\n";
    }
    const auto v = gate_b(asked);
    ASSERT_TRUE(v.ok()) << v.status().message();
    ASSERT_FALSE(v->notes.empty());
    EXPECT_TRUE(v->notes.back().starts_with("trace 2 is of a run with --drop-cold-experts 1:")) << v->notes.back();
    EXPECT_EQ(std::count_if(v->notes.begin(), v->notes.end(),
                            [](const std::string& n) { return n.find("of a run with") != std::string::npos; }),
              1);
}

TEST_F(GateBTest, SaysNoWhereEveryTokenNeedsOthers) {
    GateB asked;
    asked.traces = {trace("apart.csv", 64, 1, 64)};
    asked.slots = 2;
    const auto v = gate_b(asked);
    ASSERT_TRUE(v.ok()) << v.status().message();
    ASSERT_EQ(v->checks.size(), 2U);
    EXPECT_EQ(v->checks[0].outcome, Outcome::no);
    EXPECT_EQ(v->checks[1].outcome, Outcome::no);
    EXPECT_EQ(v->outcome(), Outcome::no);
    EXPECT_DOUBLE_EQ(figure(*v, "block of 5: breaks even at"), 5);
    EXPECT_DOUBLE_EQ(figure(*v, "block of 2: with the cache at"), 2);
    EXPECT_DOUBLE_EQ(figure(*v, "overlap at lag 1"), 0);
    EXPECT_DOUBLE_EQ(figure(*v, "block of 2: come out at best"), 1.9);
    EXPECT_NEAR(figure(*v, "layer 3: experts in effect"), 64, 1e-6);
    EXPECT_EQ(figure(*v, "hits with 32 slots per layer, lru"), 0);
    EXPECT_TRUE(machine::gate_json(*v).ok());
}

TEST_F(GateBTest, WithACacheABlockMayHaveNothingLeftToSave) {
    // Each expert serves four tokens in a row: a block needs fewer, but a cache has them after the first.
    GateB asked;
    asked.traces = {trace("runs.csv", 64, 4, 16)};
    asked.slots = 2;
    const auto v = gate_b(asked);
    ASSERT_TRUE(v.ok()) << v.status().message();
    EXPECT_EQ(v->checks[0].outcome, Outcome::yes);
    EXPECT_EQ(v->checks[1].outcome, Outcome::no);
    EXPECT_EQ(v->outcome(), Outcome::no);
    EXPECT_DOUBLE_EQ(figure(*v, "overlap at lag 4"), 0);
    EXPECT_DOUBLE_EQ(figure(*v, "hits with 1 slots per layer, lru"), 75);

    // Where no draft is ever right, one token comes out of every block.
    asked.accepted = 0;
    const auto hopeless = gate_b(asked);
    ASSERT_TRUE(hopeless.ok());
    EXPECT_EQ(hopeless->checks[0].outcome, Outcome::no);
}

TEST_F(GateBTest, WhatARecordingCannotTellIsUnknown) {
    GateB asked;
    asked.traces = {trace("short.csv", 8, 1, 8)};
    const auto v = gate_b(asked);
    ASSERT_TRUE(v.ok()) << v.status().message();
    EXPECT_EQ(v->outcome(), Outcome::unknown);
}

TEST_F(GateBTest, InputsAreKnownByTheirContents) {
    const std::string first = trace("a.csv", 32, 1, 8), again = trace("b.csv", 32, 1, 8);
    GateB asked;
    asked.traces = {first, trace("c.csv", 32, 1, 9), again};
    const auto v = gate_b(asked);
    ASSERT_TRUE(v.ok()) << v.status().message();
    ASSERT_EQ(v->inputs.size(), 3U);
    EXPECT_EQ(v->inputs[0].name, "trace");
    EXPECT_EQ(v->inputs[2].name, "trace 3");
    EXPECT_EQ(v->inputs[0].digest, v->inputs[2].digest);
    EXPECT_NE(v->inputs[0].digest, v->inputs[1].digest);
    EXPECT_EQ(v->inputs[0].bytes, std::filesystem::file_size(first));
    EXPECT_GT(figure(*v, "trace 2: decode"), 0);
    const auto twice = gate_b(asked);
    ASSERT_TRUE(twice.ok());
    EXPECT_EQ(*v, *twice);
}

TEST_F(GateBTest, RefusesWhatItCannotAnswer) {
    GateB asked;
    EXPECT_EQ(gate_b(asked).status().code(), Code::invalid_argument);
    asked.traces.assign(kMostGateTraces + 1, trace("a.csv", 32, 1, 8));
    EXPECT_EQ(gate_b(asked).status().code(), Code::invalid_argument);
    asked.traces = {(directory_ / "none.csv").string()};
    EXPECT_FALSE(gate_b(asked).ok());
    asked.traces = {trace("a.csv", 32, 1, 8)};
    asked.accepted = 1;
    EXPECT_EQ(gate_b(asked).status().code(), Code::invalid_argument);
    asked.accepted = 0.5;
    asked.stopped = [] { return true; };
    EXPECT_EQ(gate_b(asked).status().code(), Code::cancelled);
}

}  // namespace
}  // namespace sluice::replay
