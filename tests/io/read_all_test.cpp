#include "io/read_all.h"

#include <random>

#include "tests/io/support.h"

namespace sluice::io {
namespace {

using namespace testing_support;

bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

class ReadExact : public ::testing::TestWithParam<Kind> {};

TEST_P(ReadExact, AnyRangeOfAnyFile) {
    constexpr uint64_t size = 3 * MiB + 4321;
    const TempFile temp(size);
    SLUICE_SKIP_IF_REFUSED(GetParam().name);
    const std::unique_ptr<Engine> engine = GetParam().make(8);
    ASSERT_NE(engine, nullptr);
    std::mt19937_64 random(5);
    for (const Access access : {Access::direct, Access::buffered}) {
        const File file = temp.open(access);
        std::vector<std::pair<uint64_t, uint64_t>> ranges = {
            {0, size}, {0, 0},       {size, 0},  {1, size - 1}, {size - 1, 1},
            {4095, 2}, {0, 2 * MiB}, {511, 513}, {MiB, MiB},    {size - 4322, 4322}};
        for (int i = 0; i < 20; ++i) {
            const uint64_t at = random() % size;
            ranges.emplace_back(at, random() % (size - at + 1));
        }
        for (const auto& [at, bytes] : ranges) {
            const std::optional<uint64_t> needed = region_bytes(file, at, bytes);
            ASSERT_TRUE(needed);
            const Buffer region(*needed + 1);
            const Result<std::byte*> got = read_exact(*engine, file, at, bytes, region.span().first(*needed));
            ASSERT_TRUE(got) << got.status().message();
            EXPECT_EQ(*got, region.data() + at % file.offset_align());
            EXPECT_EQ(first_wrong({*got, bytes}, at), bytes) << at << " + " << bytes;
            EXPECT_EQ(region.data()[*needed], std::byte{0xEE});
            EXPECT_EQ(engine->outstanding(), 0U);
        }
    }
}

TEST_P(ReadExact, ShorterFileIsAnErrorWithItsSize) {
    const TempFile temp(2 * MiB);
    SLUICE_SKIP_IF_REFUSED(GetParam().name);
    const std::unique_ptr<Engine> engine = GetParam().make(8);
    ASSERT_NE(engine, nullptr);
    for (const Access access : {Access::direct, Access::buffered}) {
        temp.truncate(2 * MiB);
        const File file = temp.open(access);
        temp.truncate(1500000);
        const Buffer region(2 * MiB);
        ReadExactOptions options;
        options.chunk = 64 * KiB;
        const Result<std::byte*> got = read_exact(*engine, file, 4000, 2 * MiB - 4000, region.span(), options);
        ASSERT_FALSE(got);
        EXPECT_EQ(got.status().code(), Code::io_error);
        const std::string& message = got.status().message();
        EXPECT_TRUE(has(message, temp.path())) << message;
        EXPECT_TRUE(has(message, "1500000 bytes now")) << message;
        EXPECT_TRUE(has(message, "2097152 when it was opened")) << message;
        EXPECT_TRUE(has(message, "reading 2093152 bytes at offset 4000")) << message;
        EXPECT_EQ(engine->outstanding(), 0U);
    }
}

INSTANTIATE_TEST_SUITE_P(Engines, ReadExact, ::testing::ValuesIn(all_kinds()),
                         [](const auto& kind) { return std::string(kind.param.name); });

class ReadExactSim : public ::testing::Test {
  protected:
    static constexpr uint64_t size = 100 * 4096;
    VirtualClock clock_;
    File file_ = File::simulated("model.gguf", size, 4096, 4096);
    Buffer region_{size};
};

TEST_F(ReadExactSim, EveryFailedReadIsReportedWithItsPlace) {
    const ReadExactOptions options = {.depth = 4, .chunk = 8192};
    SimEngine clean(clock_);
    clean.set_contents(file_, pattern(size));
    ASSERT_TRUE(read_exact(clean, file_, 100, size - 100, region_.span(), options));
    const uint64_t reads = clean.counters().reads;
    EXPECT_EQ(reads, 50U);
    for (uint64_t k = 0; k < reads; ++k) {
        SimEngine sim(clock_, {.channels = 2, .jitter = 1});
        sim.set_contents(file_, pattern(size));
        sim.fault_at(k, Fault::error());
        const Result<std::byte*> got = read_exact(sim, file_, 100, size - 100, region_.span(), options);
        ASSERT_FALSE(got);
        EXPECT_EQ(got.status().code(), Code::io_error);
        const std::string place = k == 0 ? "cannot read 8092 bytes at offset 100 of model.gguf: Input/output error"
                                         : fmt::format(
                                               "cannot read 8192 bytes at offset {} of model.gguf: "
                                               "Input/output error",
                                               k * 8192);
        EXPECT_TRUE(has(got.status().message(), place)) << got.status().message();
        EXPECT_EQ(sim.outstanding(), 0U);
        EXPECT_LE(sim.counters().reads, k + 5);  // nothing more is asked for after a failure
    }
}

TEST_F(ReadExactSim, KeepsTheDepthAndTheOrder) {
    SimEngine sim(clock_, {.channels = 64});
    sim.set_contents(file_, pattern(size));
    ASSERT_TRUE(read_exact(sim, file_, 0, size, region_.span(), {.depth = 3, .chunk = 1}));
    ASSERT_EQ(sim.history().size(), 100U);
    for (size_t i = 0; i < 100; ++i) {
        EXPECT_EQ(sim.history()[i].op.offset, i * 4096);
        // Read i starts only when read i - 3 has ended.
        if (i >= 3) {
            EXPECT_GE(sim.history()[i].submitted, sim.history()[i - 3].finished);
        }
    }
}

TEST_F(ReadExactSim, RefusesWhatCannotBe) {
    SimEngine sim(clock_);
    sim.set_contents(file_, pattern(size));
    // No room, crooked memory, no such file.
    EXPECT_EQ(read_exact(sim, file_, 1, 4096, region_.span().first(8191)).status().code(), Code::invalid_argument);
    EXPECT_EQ(read_exact(sim, file_, 0, 4096, region_.span().subspan(1)).status().code(), Code::invalid_argument);
    EXPECT_EQ(read_exact(sim, file_, UINT64_MAX, 2, region_.span()).status().code(), Code::invalid_argument);
    EXPECT_EQ(read_exact(sim, file_, UINT64_MAX - 1, 1, region_.span()).status().code(), Code::invalid_argument);
    EXPECT_EQ(read_exact(sim, file_, INT64_MAX, 1, region_.span()).status().code(), Code::invalid_argument);
    EXPECT_EQ(region_bytes(file_, UINT64_MAX, 2), std::nullopt);
    // The engine is busy: its completions are somebody else's.
    const ReadOp op = {&file_, 0, 4096, 4096, region_.data(), 1};
    sim.submit({&op, 1});
    EXPECT_EQ(read_exact(sim, file_, 0, 4096, region_.span().subspan(4096)).status().code(), Code::internal);
    drain(sim);
    EXPECT_TRUE(read_exact(sim, file_, 0, 4096, region_.span()));
}

}  // namespace
}  // namespace sluice::io
