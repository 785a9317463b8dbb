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
                     .stall = 0.1};
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

// Everything costs nothing: a faulty device must still get somewhere.
TEST_F(Sim, WorksWithoutTime) {
    SimEngine sim(clock_, {.latency = 0, .nanos_per_byte = 0});
    sim.set_contents(file_, pattern(blocks * 4096));
    sim.fault_at(0, Fault::interrupted(5));
    EXPECT_EQ(run(sim, 20), std::vector<int>(20, 0));
}

}  // namespace
}  // namespace sluice::io
