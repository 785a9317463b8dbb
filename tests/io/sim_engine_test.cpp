#include "io/sim_engine.h"

#include <algorithm>
#include <array>

#include "tests/io/support.h"

namespace sluice::io {
namespace {

using namespace testing_support;

class Sim : public ::testing::Test {
  protected:
    static constexpr uint64_t blocks = 64;

    std::vector<ReadOp> batch(size_t n) const {
        std::vector<ReadOp> ops(n);
        for (size_t i = 0; i < n; ++i) ops[i] = {&file_, i * 4096, 4096, 4096, buffer_.data() + i * 4096, i};
        return ops;
    }
    // The errno of every read of a run of `n`, by tag.
    std::vector<int> run(SimEngine& sim, size_t n) const {
        sim.submit(batch(n));
        std::vector<int> errors(n, -1);
        for (const Completion& c : drain(sim)) errors[c.tag] = c.error;
        return errors;
    }
    [[nodiscard]] bool right(size_t block) const {
        return first_wrong({buffer_.data() + block * 4096, 4096}, block * 4096) == 4096;
    }

    VirtualClock clock_;
    File file_ = File::simulated("simulated.gguf", blocks * 4096, 4096, 4096);
    Buffer buffer_{blocks * 4096};
};

TEST_F(Sim, TakesTheTimeItShould) {
    SimEngine sim(clock_, {.channels = 2, .latency = 1000, .nanos_per_byte = 1.0});
    sim.set_contents(file_, pattern(blocks * 4096));
    sim.submit(batch(4));
    EXPECT_EQ(clock_.now(), 0);
    std::array<Completion, 8> out;
    EXPECT_EQ(sim.wait(out), 2U);  // two channels end together
    EXPECT_EQ(clock_.now(), 5096);
    EXPECT_EQ(sim.outstanding(), 2U);
    clock_.advance_to(20000);  // the caller computes meanwhile
    EXPECT_EQ(sim.wait(out), 2U);
    EXPECT_EQ(clock_.now(), 20000);
    EXPECT_EQ(sim.history()[3].finished, 10192);
    EXPECT_EQ(sim.wait(out), 0U);
    EXPECT_EQ(sim.counters().completed, 4U);
    EXPECT_EQ(sim.counters().bytes, 4U * 4096);
    for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(right(i));
}

// The device works while nobody looks, also on reads that were waiting.
TEST_F(Sim, LateSubmissionDoesNotStartInThePast) {
    SimEngine sim(clock_, {.channels = 1, .latency = 100, .nanos_per_byte = 0});
    sim.set_contents(file_, pattern(blocks * 4096));
    const std::vector<ReadOp> ops = batch(3);
    sim.submit(std::span(ops).first(2));
    clock_.advance_to(150);
    sim.submit(std::span(ops).subspan(2));
    drain(sim);
    EXPECT_EQ(sim.history()[0].finished, 100);
    EXPECT_EQ(sim.history()[1].finished, 200);
    EXPECT_EQ(sim.history()[2].submitted, 150);
    EXPECT_EQ(sim.history()[2].finished, 300);
}

TEST_F(Sim, BufferIsGarbageUntilTheReadHasCompleted) {
    SimEngine sim(clock_);
    sim.set_contents(file_, pattern(blocks * 4096));
    sim.submit(batch(1));
    EXPECT_FALSE(right(0));
    drain(sim);
    EXPECT_TRUE(right(0));
}

TEST_F(Sim, EachReadOfARunCanFail) {
    constexpr size_t n = 20;
    for (uint64_t k = 0; k < n; ++k) {
        SimEngine sim(clock_, {.channels = 3});
        sim.set_contents(file_, pattern(blocks * 4096));
        sim.fault_at(k, Fault::error());
        const std::vector<int> errors = run(sim, n);
        for (uint64_t i = 0; i < n; ++i) EXPECT_EQ(errors[i], i == k ? EIO : 0);
        EXPECT_EQ(sim.history()[k].error, EIO);
        EXPECT_EQ(sim.history()[k].fault, Fault::Kind::error);
        EXPECT_EQ(sim.counters().failed, 1U);
    }
}

TEST_F(Sim, RetriedFaultsShowInCountersOnly) {
    SimEngine sim(clock_, {.channels = 3});
    sim.set_contents(file_, pattern(blocks * 4096));
    sim.fault_at(0, Fault::short_read(100));  // below the alignment: the block is read again
    sim.fault_at(1, Fault::interrupted(3));
    sim.fault_at(2, Fault::again(2));
    sim.fault_at(3, Fault::short_read(UINT32_MAX));
    EXPECT_EQ(run(sim, 4), std::vector<int>(4, 0));
    for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(right(i));
    EXPECT_EQ(sim.counters().attempts, 4U + 1 + 3 + 2 + 1);
    EXPECT_EQ(sim.counters().faults, 4U);
}

TEST_F(Sim, FaultsThatAreTooManyFail) {
    SimEngine sim(clock_);
    sim.set_contents(file_, pattern(blocks * 4096));
    sim.fault_at(1, Fault::interrupted(1000000));
    EXPECT_EQ(run(sim, 3), (std::vector<int>{0, EIO, 0}));
}

TEST_F(Sim, LosesAndSpoilsBytes) {
    SimEngine sim(clock_, {.latency = 1000, .nanos_per_byte = 0});
    sim.set_contents(file_, pattern(blocks * 4096));
    sim.fault_at(0, Fault::truncated(4095));
    sim.fault_at(1, Fault::truncated());
    sim.fault_at(2, Fault::bit_flip(8 * 17 + 3));
    sim.fault_at(3, Fault::stall(1000000));
    sim.fault_at(4, Fault::error(ENOMEM));
    EXPECT_EQ(run(sim, 6), (std::vector<int>{ENODATA, ENODATA, 0, 0, ENOMEM, 0}));
    EXPECT_FALSE(right(2));
    buffer_.data()[2 * 4096 + 17] ^= std::byte{8};
    EXPECT_TRUE(right(2));
    EXPECT_TRUE(right(3));
    EXPECT_EQ(sim.history()[3].finished, 1001000);
    EXPECT_EQ(sim.history()[5].finished, 1000);
}

TEST_F(Sim, ContentsShrinkUnderWay) {
    SimEngine sim(clock_);
    sim.set_contents(file_, pattern(blocks * 4096));
    sim.submit(batch(3));
    sim.truncate(file_, 2 * 4096 - 1);
    std::vector<int> errors(3);
    for (const Completion& c : drain(sim)) errors[c.tag] = c.error;
    EXPECT_EQ(errors, (std::vector<int>{0, ENODATA, ENODATA}));
}

std::vector<uint64_t> order_of(const std::vector<Completion>& all) {
    std::vector<uint64_t> order;
    for (const Completion& c : all) order.push_back(c.tag * 1000 + static_cast<uint64_t>(c.error));
    return order;
}

TEST_F(Sim, SameSeedSameRun) {
    SimOptions options;
    options.channels = 4;
    options.jitter = 2;
    options.shuffle = true;
    options.rates = {.short_read = 0.1,
                     .interrupted = 0.1,
                     .again = 0.1,
                     .error = 0.1,
                     .bit_flip = 0.1,
                     .truncated = 0.1,
                     .stall = 0.1,
                     .stale = 0.05,
                     .never = 0.05};
    options.table = LatencyTable({4096}, {1, 4}, {1000, 9000});
    options.tail = {{0.1, 20}};
    options.bandwidth = {.sustained = 1, .burst_rate = 2, .burst = 8192};
    std::vector<std::vector<uint64_t>> orders;
    std::vector<std::vector<std::byte>> bytes;
    std::vector<Nanos> ends;
    for (const uint64_t seed : {1U, 1U, 2U}) {
        VirtualClock clock;
        options.seed = seed;
        SimEngine sim(clock, options);
        sim.set_contents(file_, pattern(blocks * 4096));
        sim.submit(batch(blocks));
        orders.push_back(order_of(drain(sim)));
        bytes.emplace_back(buffer_.data(), buffer_.data() + buffer_.size());
        ends.push_back(clock.now());
        EXPECT_GT(sim.counters().faults, 20U);
    }
    EXPECT_EQ(orders[0], orders[1]);
    EXPECT_TRUE(bytes[0] == bytes[1]);
    EXPECT_EQ(ends[0], ends[1]);
    EXPECT_NE(orders[0], orders[2]);
}

TEST_F(Sim, ShufflesWhatIsThereTogether) {
    SimEngine sim(clock_, {.channels = 64, .shuffle = true});
    sim.set_contents(file_, pattern(blocks * 4096));
    sim.submit(batch(blocks));
    const std::vector<uint64_t> order = order_of(drain(sim));
    EXPECT_EQ(order.size(), blocks);
    EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
}

// ---- the time that reads take

TEST(LatencyTable, IsLinearBetweenItsPointsAndConstantBeyond) {
    const LatencyTable table({1000, 3000}, {1, 5}, {100, 500, 300, 1100});
    EXPECT_EQ(table.at(1000, 1), 100);
    EXPECT_EQ(table.at(3000, 5), 1100);
    EXPECT_EQ(table.at(2000, 1), 200);
    EXPECT_EQ(table.at(1000, 2), 200);
    EXPECT_EQ(table.at(2000, 3), 500);  // in the middle of all four
    EXPECT_EQ(table.at(1000, 1.5), 150);
    EXPECT_EQ(table.at(1, 1), 100);
    EXPECT_EQ(table.at(UINT64_MAX, 100), 1100);
    EXPECT_EQ(table.at(5000, 0), 300);
    EXPECT_EQ(LatencyTable({4096}, {1}, {77}).at(1, 64), 77);
    EXPECT_TRUE(LatencyTable().empty());
    EXPECT_FALSE(table.empty());
}

TEST_F(Sim, TakesTheTimeThatTheTableHasForWhatIsAtTheDevice) {
    SimOptions options;
    options.channels = 3;
    options.table = LatencyTable({4096, 16384}, {1, 4}, {1000, 4000, 2000, 8000});
    SimEngine sim(clock_, options);
    sim.set_contents(file_, pattern(blocks * 4096));
    std::vector<ReadOp> ops = batch(8);
    ops[4].length = ops[4].need = 16384;
    sim.submit(std::span(ops).first(4));
    drain(sim);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(sim.history()[static_cast<size_t>(i)].finished, 3000);
    EXPECT_EQ(sim.history()[3].finished, 4000) << "alone";
    // Beside one of four times its length a small read has five at the device, of which the table knows four; to the
    // large one the small one is a quarter. When that is over, the rest of the small one goes at its own pace.
    const Nanos t = clock_.now();
    sim.submit(std::span(ops).subspan(4, 1));
    sim.submit(std::span(ops).first(1));
    drain(sim);
    EXPECT_EQ(sim.history()[4].finished - t, 2500);
    EXPECT_EQ(sim.history()[5].finished - t, 2500 + 3 * 1000 / 8);
    // What comes later slows down what is there.
    const Nanos u = clock_.now();
    sim.submit(std::span(ops).first(1));
    clock_.advance_to(u + 500);
    sim.submit(std::span(ops).subspan(1, 1));
    drain(sim);
    EXPECT_EQ(sim.history()[6].finished - u, 500 + 1000);
    EXPECT_EQ(sim.history()[7].finished - u, 1500 + 500);
}

// One that never completes is at the device, but the device does nothing for it; a stall does not move.
TEST_F(Sim, ATableKnowsOfFaults) {
    SimOptions options;
    options.table = LatencyTable({4096}, {1, 4}, {1000, 4000});
    options.timeout = 50'000;
    SimEngine sim(clock_, options);
    sim.set_contents(file_, pattern(blocks * 4096));
    sim.fault_at(0, Fault::never());
    sim.fault_at(1, Fault::stall(10'000));
    sim.fault_at(2, Fault::interrupted());
    EXPECT_EQ(run(sim, 3), (std::vector<int>{ETIMEDOUT, 0, 0}));
    EXPECT_EQ(sim.history()[0].finished, 50'000);
    EXPECT_EQ(sim.history()[1].finished, 11'000) << "as it was alone when it began";
    EXPECT_EQ(sim.history()[2].finished, 2 * 2000);
}

TEST_F(Sim, AShareOfReadsTakesSeveralTimesAsLong) {
    SimOptions options;
    options.channels = 1;
    options.latency = 1000;
    options.nanos_per_byte = 0;
    options.tail = {{0.04, 10}, {0.01, 100}};
    std::vector<std::vector<Nanos>> runs;
    for (const uint64_t seed : {1U, 1U, 2U}) {
        VirtualClock clock;
        options.seed = seed;
        SimEngine sim(clock, options);
        sim.set_contents(file_, pattern(blocks * 4096));
        std::vector<Nanos>& took = runs.emplace_back();
        for (int i = 0; i < 100; ++i) {
            sim.submit(batch(blocks));
            drain(sim);
        }
        Nanos before = 0;
        for (const SimRead& r : sim.history()) {
            took.push_back(r.finished - before);
            EXPECT_EQ(took.back(), static_cast<Nanos>(1000 * r.times));
            before = r.finished;
        }
        const auto share = [&](Nanos nanos) {
            return static_cast<double>(std::count(took.begin(), took.end(), nanos)) / static_cast<double>(took.size());
        };
        EXPECT_NEAR(share(10'000), 0.04, 0.01);
        EXPECT_NEAR(share(100'000), 0.01, 0.005);
        EXPECT_NEAR(share(1000), 0.95, 0.015);
    }
    EXPECT_EQ(runs[0], runs[1]);
    EXPECT_NE(runs[0], runs[2]);
}

TEST_F(Sim, AChosenReadIsSlow) {
    SimEngine sim(clock_, {.latency = 1000, .nanos_per_byte = 0});
    sim.set_contents(file_, pattern(blocks * 4096));
    sim.slow_at(1, 7);
    EXPECT_EQ(run(sim, 3), std::vector<int>(3, 0));
    EXPECT_EQ(sim.history()[0].finished, 1000);
    EXPECT_EQ(sim.history()[1].finished, 7000);
    EXPECT_EQ(sim.history()[1].times, 7);
}

TEST_F(Sim, ChannelsShareTheBandwidth) {
    SimEngine sim(clock_, {.channels = 2, .latency = 100, .nanos_per_byte = 0, .bandwidth = {.sustained = 0.5}});
    sim.set_contents(file_, pattern(blocks * 4096));
    std::vector<ReadOp> ops = batch(3);
    ops[0].length = ops[0].need = 1024;
    sim.submit(std::span(ops).first(2));
    drain(sim);
    EXPECT_EQ(sim.history()[0].finished, 4096);  // half of the bandwidth
    EXPECT_EQ(sim.history()[1].finished, 2 * (1024 + 4096));
    // Alone again, and as late as latency demands where that is more.
    const Nanos t = clock_.now();
    sim.submit(std::span(ops).first(1));
    drain(sim);
    EXPECT_EQ(sim.history()[2].finished - t, 2048);
    SimEngine far(clock_, {.channels = 2, .latency = 50'000, .nanos_per_byte = 0, .bandwidth = {.sustained = 0.5}});
    far.set_contents(file_, pattern(blocks * 4096));
    const Nanos u = clock_.now();
    far.submit(std::span(ops).first(2));
    drain(far);
    EXPECT_EQ(far.history()[1].finished - u, 50'000);
}

TEST_F(Sim, ARestedDeviceIsFastForAWhile) {
    const Bandwidth bandwidth{.sustained = 1, .burst_rate = 5, .burst = 4 * 4096};
    SimEngine sim(clock_, {.channels = 1, .latency = 0, .nanos_per_byte = 0, .bandwidth = bandwidth});
    sim.set_contents(file_, pattern(blocks * 4096));
    const auto read = [&](size_t n) {
        const Nanos t = clock_.now();
        sim.submit(batch(n));
        drain(sim);
        return clock_.now() - t;
    };
    // 4 blocks of credit are spent at 4 bytes per nanosecond, while 5 get through: 5 blocks in the time of one.
    EXPECT_NEAR(static_cast<double>(read(5)), 4096, 8);
    EXPECT_NEAR(static_cast<double>(read(2)), 2 * 4096, 8);
    clock_.advance_to(clock_.now() + 2 * 4096);
    EXPECT_NEAR(static_cast<double>(read(2)), 2 * 4096 / 5.0, 8);
    clock_.advance_to(clock_.now() + 1000 * 4096);
    EXPECT_NEAR(static_cast<double>(read(6)), 2 * 4096, 8) << "it does not save up more";
}

// Whatever is asked for when: no stretch of time sees more bytes than the device can move in it.
TEST_F(Sim, NoMoreBytesGetThroughThanTheBandwidthHas) {
    const Bandwidth bandwidth{.sustained = 0.7, .burst_rate = 3, .burst = 3 * 4096};
    for (const uint64_t seed : {1U, 2U, 3U}) {
        VirtualClock clock;
        SimOptions options;
        options.seed = seed;
        options.channels = 6;
        options.latency = 500;
        options.nanos_per_byte = 0;
        options.jitter = 3;
        options.bandwidth = bandwidth;
        options.rates = {.short_read = 0.2, .interrupted = 0.1, .stall = 0.05, .stall_delay = 20'000};
        SimEngine sim(clock, options);
        sim.set_contents(file_, pattern(blocks * 4096));
        std::mt19937 random(static_cast<unsigned>(seed));
        std::array<Completion, 4> out;
        while (sim.counters().reads < 600) {
            std::vector<ReadOp> ops = batch(1 + random() % 8);
            for (ReadOp& op : ops) op.length = op.need = static_cast<uint32_t>(1 + random() % 4096);
            sim.submit(ops);
            if (random() % 2 == 0) (void)sim.wait(out);
            if (random() % 4 == 0) clock.advance_to(clock.now() + static_cast<Nanos>(random() % 60'000));
        }
        while (sim.wait(out) > 0) {
        }
        uint64_t all = 0;
        for (const SimRead& r : sim.history()) all += r.op.length;
        EXPECT_GE(sim.counters().bytes, all) << "every byte came, some twice";
        const std::vector<SimRead>& reads = sim.history();
        for (size_t from = 0; from < reads.size(); from += 7) {
            const Nanos begin = reads[from].submitted;
            std::vector<std::pair<Nanos, uint64_t>> ends;
            for (const SimRead& r : reads) {
                if (r.submitted >= begin) ends.emplace_back(r.finished, r.op.length);
            }
            std::sort(ends.begin(), ends.end());
            double bytes = 0;
            for (const auto& [end, length] : ends) {
                bytes += static_cast<double>(length);
                const auto nanos = static_cast<double>(end - begin);
                ASSERT_LE(bytes, static_cast<double>(bandwidth.burst) + bandwidth.sustained * nanos + 1);
                ASSERT_LE(bytes, bandwidth.burst_rate * nanos + 1);
            }
        }
    }
}

// And a device that always has something to do moves as much.
TEST_F(Sim, NoBandwidthIsLost) {
    SimEngine sim(clock_, {.channels = 7, .latency = 0, .nanos_per_byte = 0, .bandwidth = {.sustained = 0.3}});
    sim.set_contents(file_, pattern(blocks * 4096));
    std::vector<ReadOp> ops = batch(blocks);
    uint64_t bytes = 0;
    for (size_t i = 0; i < ops.size(); ++i) bytes += ops[i].length = ops[i].need = static_cast<uint32_t>(1 + 63 * i);
    sim.submit(ops);
    drain(sim);
    EXPECT_NEAR(static_cast<double>(clock_.now()), static_cast<double>(bytes) / 0.3, 2 * blocks);
}

TEST_F(Sim, ExactReadsGoBeforeSpeculativeOnesWhereTheDeviceKnows) {
    for (const bool priorities : {false, true}) {
        VirtualClock clock;
        SimEngine sim(clock, {.channels = 1, .latency = 10, .nanos_per_byte = 0, .priorities = priorities});
        sim.set_contents(file_, pattern(blocks * 4096));
        std::vector<ReadOp> ops = batch(6);
        for (const size_t speculative : {0U, 1U, 3U}) ops[speculative].priority = Priority::speculative;
        sim.submit(ops);
        std::vector<uint64_t> order;
        for (const Completion& c : drain(sim)) order.push_back(c.tag);
        // What the device has begun, it ends.
        EXPECT_EQ(order,
                  priorities ? (std::vector<uint64_t>{0, 2, 4, 5, 1, 3}) : (std::vector<uint64_t>{0, 1, 2, 3, 4, 5}));
    }
}

// ---- reads that never come

TEST_F(Sim, AReadThatNeverCompletesHoldsNobodyElseUp) {
    SimEngine sim(clock_, {.channels = 2, .latency = 100, .nanos_per_byte = 0, .timeout = 1'000'000});
    sim.set_contents(file_, pattern(blocks * 4096));
    sim.fault_at(1, Fault::never());
    sim.submit(batch(6));
    std::array<Completion, 1> out;
    for (const uint64_t tag : {0U, 2U, 3U, 4U, 5U}) {
        ASSERT_EQ(sim.wait(out), 1U);
        EXPECT_EQ(out[0].tag, tag);
        EXPECT_EQ(out[0].error, 0);
    }
    EXPECT_EQ(clock_.now(), 500) << "on the other channel, one after the other";
    EXPECT_EQ(sim.poll(out), 0U);
    EXPECT_EQ(sim.outstanding(), 1U);
    EXPECT_FALSE(right(1));
    // Nothing else could end.
    ASSERT_EQ(sim.wait(out), 1U);
    EXPECT_EQ(out[0].tag, 1U);
    EXPECT_EQ(out[0].error, ETIMEDOUT);
    EXPECT_EQ(clock_.now(), 1'000'000);
    EXPECT_EQ(sim.wait(out), 0U);
    EXPECT_EQ(sim.history()[1].fault, Fault::Kind::never);
    EXPECT_EQ(sim.counters().failed, 1U);
}

TEST_F(Sim, ADeviceFullOfReadsThatNeverCompleteComesBack) {
    SimEngine sim(clock_, {.channels = 2, .latency = 100, .nanos_per_byte = 0, .timeout = 5000});
    sim.set_contents(file_, pattern(blocks * 4096));
    for (const uint64_t k : {0U, 1U, 2U}) sim.fault_at(k, Fault::never());
    EXPECT_EQ(run(sim, 4), (std::vector<int>{ETIMEDOUT, ETIMEDOUT, ETIMEDOUT, 0}));
    EXPECT_EQ(sim.history()[3].finished, 5100) << "when a channel was given up";
    EXPECT_EQ(clock_.now(), 10'000);
    // Time that passes by itself gives up, too.
    sim.fault_at(4, Fault::never());
    sim.submit(batch(1));
    clock_.advance_to(clock_.now() + 5000);
    std::array<Completion, 1> out;
    ASSERT_EQ(sim.poll(out), 1U);
    EXPECT_EQ(out[0].error, ETIMEDOUT);
}

TEST_F(Sim, AStaleHandleIsAnError) {
    SimEngine sim(clock_);
    sim.set_contents(file_, pattern(blocks * 4096));
    sim.fault_at(1, Fault::stale());
    EXPECT_EQ(run(sim, 3), (std::vector<int>{0, ESTALE, 0}));
}

TEST_F(Sim, EveryFaultHasARate) {
    SimOptions options;
    options.rates = {.stale = 0.3, .never = 0.3};
    SimEngine sim(clock_, options);
    sim.set_contents(file_, pattern(blocks * 4096));
    const std::vector<int> errors = run(sim, blocks);
    for (const int error : {0, ESTALE, ETIMEDOUT})
        EXPECT_GT(std::count(errors.begin(), errors.end(), error), 8) << error;
}

// Everything costs nothing: a faulty device must still get somewhere.
TEST_F(Sim, WorksWithoutTime) {
    SimEngine sim(clock_, {.latency = 0, .nanos_per_byte = 0});
    sim.set_contents(file_, pattern(blocks * 4096));
    sim.fault_at(0, Fault::interrupted(5));
    EXPECT_EQ(run(sim, 20), std::vector<int>(20, 0));
}

TEST(SimEngine, AWaitOfLimitedTimeMovesTheClockOnlySoFar) {
    VirtualClock clock;
    SimEngine engine(clock, {.latency = 5'000'000, .nanos_per_byte = 0});
    const File file = File::simulated("f", 8192, 1, 1);
    engine.set_contents(file, pattern(8192));
    std::array<std::byte, 4096> buffer;
    const ReadOp op = {&file, 0, 4096, 4096, buffer.data(), 1};
    const Nanos start = clock.now();
    engine.submit({&op, 1});
    std::array<Completion, 4> out;
    EXPECT_EQ(engine.wait_for(out, 2'000'000), 0U);
    EXPECT_EQ(clock.now() - start, 2'000'000);
    EXPECT_EQ(engine.wait_for(out, 60'000'000), 1U);
    EXPECT_EQ(clock.now() - start, 5'000'000) << "not longer than needed";
    EXPECT_EQ(engine.wait_for(out, 1'000'000), 0U);
    EXPECT_EQ(clock.now() - start, 5'000'000) << "nothing is under way";
}

}  // namespace
}  // namespace sluice::io
