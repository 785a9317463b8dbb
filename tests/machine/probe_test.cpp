#include "machine/probe.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <set>

#include "io/sim_engine.h"
#include "tests/machine/tree.h"

namespace sluice::machine {
namespace {

constexpr Nanos kSecond = 1'000'000'000;

// A drive that serves 8 reads at once, each in exactly 1 ms per MiB.
class RunReads : public ::testing::Test {
  protected:
    RunReads()
        : file_(io::File::simulated("drive", 64 * MiB, 4096, 4096)),
          engine_(clock_, {.channels = 8, .latency = 0, .nanos_per_byte = 1e6 / static_cast<double>(MiB)}) {
        engine_.set_contents(file_, std::vector<std::byte>(64 * MiB));
        files_.push_back(&file_);
    }
    Result<ProbeRun> run(unsigned lanes, uint64_t bytes, Nanos time = 100 * kSecond) {
        return run_reads(
            engine_, clock_,
            {.files = files_, .targets = targets_, .first = 0, .lanes = lanes, .bytes = bytes, .time = time}, nullptr);
    }
    VirtualClock clock_;
    io::File file_;
    io::SimEngine engine_;
    std::vector<const io::File*> files_;
    std::vector<Target> targets_ = scattered(64 * MiB, MiB, 64, 1);
};

TEST_F(RunReads, MeasuresOneAfterTheOther) {
    const auto r = run(1, 16 * MiB);
    ASSERT_TRUE(r.ok());
    EXPECT_EQ(r->reads, 16U);
    EXPECT_EQ(r->bytes, 16 * MiB);
    EXPECT_NEAR(*r->mib_per_second(), 1000, 1);
    EXPECT_NEAR(static_cast<double>(*r->p50), 1e6, 1e3);
    EXPECT_NEAR(static_cast<double>(*r->p95), 1e6, 1e3);
}

TEST_F(RunReads, KeepsAsManyInFlightAsTold) {
    const auto r = run(8, 64 * MiB);
    ASSERT_TRUE(r.ok());
    EXPECT_NEAR(*r->mib_per_second(), 8000, 10);
    EXPECT_EQ(r->reads, 64U);
    std::set<uint64_t> offsets;
    for (const io::SimRead& read : engine_.history()) offsets.insert(read.op.offset);
    EXPECT_EQ(offsets.size(), 64U) << "every piece once";
}

TEST_F(RunReads, BeginsNothingAfterItsTime) {
    const auto r = run(4, 64 * MiB, 5'500'000);
    ASSERT_TRUE(r.ok());
    EXPECT_TRUE(r->out_of_time);
    EXPECT_EQ(r->reads, 24U) << "four each millisecond, the last ones begun at 5 ms";
    const auto none = run(4, 64 * MiB, 0);
    ASSERT_TRUE(none.ok());
    EXPECT_EQ(none->reads, 0U);
    EXPECT_FALSE(none->mib_per_second().has_value());
    EXPECT_FALSE(none->p50.has_value());
}

TEST_F(RunReads, ReadsNothingTwice) {
    targets_.resize(3);
    EXPECT_EQ(run(2, 8 * MiB)->reads, 3U);
}

TEST_F(RunReads, UnalignedPiecesAreReadWhole) {
    targets_ = {{0, 5000, 10'000}};
    const auto r = run(1, 10'000);
    ASSERT_TRUE(r.ok());
    const io::ReadOp& op = engine_.history().back().op;
    EXPECT_EQ(op.offset, 4096U);
    EXPECT_EQ(op.length, 12'288U);
    EXPECT_EQ(op.offset + op.need, 15'000U);
    EXPECT_EQ(r->bytes, 10'000U);
}

TEST_F(RunReads, LargeOnesAreCut) {
    targets_ = {{0, 0, 64 * MiB}};
    const auto r = run(1, 1);
    ASSERT_TRUE(r.ok());
    EXPECT_EQ(r->bytes, kMostProbeRead);
}

TEST_F(RunReads, AFailedReadEndsTheRunInWords) {
    engine_.fault_at(5, io::Fault::error(EIO));
    const auto r = run(2, 64 * MiB);
    ASSERT_TRUE(r.ok());
    EXPECT_EQ(r->error, std::strerror(EIO));
    EXPECT_LT(r->reads, 8U);
    EXPECT_EQ(engine_.outstanding(), 0U);
    targets_.clear();
    EXPECT_FALSE(run(1, 1).ok());
}

TEST_F(RunReads, GoesRoundWhenAsked) {
    targets_.resize(3);
    std::vector<Nanos> took;
    const auto r = run_reads(engine_, clock_,
                             {.files = files_,
                              .targets = targets_,
                              .first = 2,
                              .lanes = 2,
                              .bytes = 8 * MiB,
                              .time = kSecond,
                              .again = true,
                              .took = &took},
                             nullptr);
    ASSERT_TRUE(r.ok());
    EXPECT_EQ(r->reads, 8U);
    EXPECT_EQ(took.size(), 8U);
    EXPECT_EQ(engine_.history()[0].op.offset, targets_[2].offset);
    EXPECT_EQ(engine_.history()[1].op.offset, targets_[0].offset);
}

TEST_F(RunReads, TakesLongerForTheLeastReads) {
    RunPlan plan{.files = files_,
                 .targets = targets_,
                 .lanes = 1,
                 .bytes = 64 * MiB,
                 .time = 2'500'000,
                 .again = true,
                 .least_reads = 10,
                 .most_time = 100'000'000};
    EXPECT_EQ(run_reads(engine_, clock_, plan, nullptr)->reads, 10U);
    plan.most_time = 4'500'000;
    EXPECT_EQ(run_reads(engine_, clock_, plan, nullptr)->reads, 5U) << "begun at 0, 1, 2, 3 and 4 ms";
}

TEST_F(RunReads, StopsWhenTold) {
    int asked = 0;
    const auto r = run_reads(engine_, clock_,
                             {.files = files_,
                              .targets = targets_,
                              .lanes = 2,
                              .bytes = 64 * MiB,
                              .time = kSecond,
                              .stop = [&] { return ++asked > 5; }},
                             nullptr);
    ASSERT_TRUE(r.ok());
    EXPECT_EQ(r->reads, 5U);
    EXPECT_FALSE(r->out_of_time);
    EXPECT_EQ(engine_.outstanding(), 0U);
}

// Two channels: one exact read at a time, and beside it as many half as large as are asked for.
TEST_F(RunReads, OthersGoOnBesideIt) {
    const std::vector<Target> small = scattered(64 * MiB, 512 * KiB, 128, 2);
    const auto r = run_reads(engine_, clock_,
                             {.files = files_,
                              .targets = targets_,
                              .lanes = 1,
                              .bytes = 16 * MiB,
                              .time = kSecond,
                              .beside = {.targets = small, .reads = 3}},
                             nullptr);
    ASSERT_TRUE(r.ok());
    EXPECT_EQ(r->reads, 16U) << "only its own are counted";
    EXPECT_EQ(r->bytes, 16 * MiB);
    EXPECT_NEAR(static_cast<double>(*r->p50), 1e6, 1e3);
    EXPECT_NEAR(static_cast<double>(r->beside_bytes), static_cast<double>(48 * MiB), static_cast<double>(2 * MiB));
    EXPECT_EQ(engine_.outstanding(), 0U);
    EXPECT_EQ(engine_.history()[0].op.priority, io::Priority::speculative) << "they are under way before it begins";
    for (const io::SimRead& read : engine_.history()) {
        EXPECT_EQ(read.op.priority == io::Priority::speculative, read.op.need == 512 * KiB);
    }
    EXPECT_FALSE(
        run_reads(engine_, clock_,
                  {.files = files_, .targets = targets_, .bytes = 1, .time = 1, .beside = {.targets = {}, .reads = 1}},
                  nullptr)
            .ok());
}

TEST_F(RunReads, UsesTheRoomItIsGiven) {
    const auto room = ReadRoom::allocate(4, MiB);
    ASSERT_TRUE(room.ok());
    EXPECT_TRUE(room->holds(4, MiB));
    EXPECT_TRUE(room->holds(8, 400 * KiB));
    EXPECT_FALSE(room->holds(5, MiB));
    RunPlan plan{.files = files_, .targets = targets_, .lanes = 4, .bytes = 8 * MiB, .time = kSecond, .room = &*room};
    ASSERT_TRUE(run_reads(engine_, clock_, plan, nullptr).ok());
    std::set<std::byte*> places;
    for (const io::SimRead& read : engine_.history()) places.insert(read.op.dst);
    EXPECT_EQ(places, (std::set<std::byte*>{room->place(0, MiB), room->place(1, MiB), room->place(2, MiB),
                                            room->place(3, MiB)}));
    plan.lanes = 8;
    EXPECT_TRUE(run_reads(engine_, clock_, plan, nullptr).ok()) << "too small a room is not used";
}

TEST(Percentile, OfSortedValues) {
    const std::vector<Nanos> one{5};
    EXPECT_EQ(percentile(one, 0), 5);
    EXPECT_EQ(percentile(one, 0.99), 5);
    const std::vector<Nanos> many{1, 2, 3, 4, 5};
    EXPECT_EQ(percentile(many, 0), 1);
    EXPECT_EQ(percentile(many, 0.5), 3);
    EXPECT_EQ(percentile(many, 1), 5);
}

TEST(Scattered, LiesInsideTheFileAndNeverTwice) {
    for (const uint64_t file : {uint64_t{1}, MiB - 1, MiB, MiB + 1, 10 * MiB + 5, 1000 * MiB, uint64_t{1} << 42}) {
        const auto targets = scattered(file, MiB, 100, 7);
        ASSERT_FALSE(targets.empty());
        EXPECT_LE(targets.size(), 100U);
        std::set<uint64_t> offsets;
        for (const Target& t : targets) {
            EXPECT_LE(t.offset + t.bytes, file);
            EXPECT_TRUE(offsets.insert(t.offset).second) << t.offset;
        }
    }
    EXPECT_TRUE(scattered(0, MiB, 100, 7).empty());
    EXPECT_TRUE(scattered(MiB, 0, 100, 7).empty());
    EXPECT_TRUE(scattered(MiB, KiB, 0, 7).empty());
}

TEST(Probe, ReadsAFileEveryWay) {
    const Model model(std::string(4 * MiB, 'x'));
    ProbePlan plan;
    plan.paths = {model.path()};
    plan.targets = scattered(4 * MiB, 256 * KiB, 1000, 1);
    plan.bytes_per_run = MiB;
    int calls = 0;
    plan.progress = [&](const ProbeRun&, double part) {
        ++calls;
        EXPECT_GE(part, 0);
    };
    const Probe probe = measure(plan);
    ASSERT_EQ(probe.not_done, "");
    ASSERT_FALSE(probe.runs.empty());
    EXPECT_FALSE(probe.engine.empty());
    EXPECT_EQ(probe.read_bytes, 256 * KiB);
    EXPECT_GT(calls, 0);
    for (const ProbeRun& r : probe.runs) {
        EXPECT_EQ(r.bytes, MiB);
        EXPECT_EQ(r.error, "");
        EXPECT_TRUE(r.mib_per_second().has_value());
        EXPECT_LE(*r.p50, *r.p95);
    }
    EXPECT_FALSE(probe.runs.back().direct);
    EXPECT_NE(probe.best(), nullptr);
}

TEST(Probe, WhatCannotBeMeasuredSaysWhy) {
    ProbePlan plan;
    EXPECT_NE(measure(plan).not_done, "");
    plan.paths = {"/no/such/file"};
    plan.targets = {{0, 0, kLeastToProbe - 1}};
    EXPECT_NE(measure(plan).not_done.find("too little"), std::string::npos);
    plan.targets = {{0, 0, kLeastToProbe}};
    const Probe probe = measure(plan);
    EXPECT_NE(probe.not_done.find("/no/such/file"), std::string::npos);
    EXPECT_EQ(probe.best(), nullptr);
}

TEST(Probe, KnowsWhenMemoryAnswered) {
    ProbeRun r;
    r.bytes = 100;
    EXPECT_FALSE(r.from_memory()) << "nobody counted";
    r.device_bytes = 100;
    EXPECT_FALSE(r.from_memory());
    r.device_bytes = 10;
    EXPECT_TRUE(r.from_memory());
}

}  // namespace
}  // namespace sluice::machine
