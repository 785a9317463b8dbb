#include "machine/envelope.h"

#include <gtest/gtest.h>

#include <set>

#include "io/sim_engine.h"

namespace sluice::machine {
namespace {

constexpr Nanos kSecond = 1'000'000'000;
constexpr io::EngineKind kRing = io::EngineKind::io_uring;
constexpr io::EngineKind kPool = io::EngineKind::pread;

// A device outlives the engines that measure it, and remembers what they did to it.
class Forwarding final : public io::Engine {
  public:
    Forwarding(io::SimEngine& device, bool priorities) : device_(device), priorities_(priorities) {}
    void submit(std::span<const io::ReadOp> batch) override {
        for (io::ReadOp op : batch) {
            if (!priorities_) op.priority = io::Priority::exact;  // the device is not told
            device_.submit({&op, 1});
        }
    }
    size_t wait(std::span<io::Completion> out) override { return device_.wait(out); }
    size_t poll(std::span<io::Completion> out) override { return device_.poll(out); }
    [[nodiscard]] size_t outstanding() const override { return device_.outstanding(); }
    [[nodiscard]] const char* name() const override { return "planted"; }
    [[nodiscard]] const io::EngineTotals& totals() const override { return device_.totals(); }

  private:
    io::SimEngine& device_;
    const bool priorities_;
};

// Planted devices must give their planted numbers back.
class Envelope : public ::testing::Test {
  protected:
    static constexpr uint64_t kFileBytes = 4 * MiB;
    static constexpr uint64_t kPart = 200 * KiB;
    static constexpr uint64_t kRecord = 600 * KiB;

    // Both engines meet the same device, unless a slower one is planted for the pool.
    void plant(const io::SimOptions& options, const std::optional<io::SimOptions>& pool = {}) {
        device_ = make(options);
        if (pool) pool_ = make(*pool);
        plan_.direct = {&direct_};
        plan_.buffered = {&buffered_};
        plan_.sizes.clear();
        add_scattered_sizes(plan_, {kPart, kRecord}, 1);
        plan_.page = 4 * KiB;
        plan_.part = kPart;
        plan_.record = kRecord;
        plan_.time = kSecond;
        plan_.load_threads = 3;
        plan_.most_room = 20 * MiB;  // touching more takes longer than all the rest
        rig_.clock = &clock_;
        rig_.make_engine = [this](const io::EngineOptions& o) -> Result<io::MadeEngine> {
            asked_.push_back(o);
            io::SimEngine& device = o.kind == kPool && pool_ ? *pool_ : *device_;
            return io::MadeEngine{std::make_unique<Forwarding>(device, o.priorities), {}};
        };
        rig_.device_bytes = [this] { return device_->totals().bytes + (pool_ ? pool_->totals().bytes : 0); };
        rig_.load = [this](unsigned threads) -> Status {
            loads_.push_back(threads);
            return {};
        };
    }
    std::unique_ptr<io::SimEngine> make(io::SimOptions options) {
        options.poison = false;
        auto device = std::make_unique<io::SimEngine>(clock_, options);
        for (const io::File* f : {&direct_, &buffered_}) device->set_contents(*f, std::vector<std::byte>(kFileBytes));
        return device;
    }
    void refuse_pool() {
        rig_.make_engine = [made = rig_.make_engine](const io::EngineOptions& o) -> Result<io::MadeEngine> {
            if (o.kind == kPool) return error(Code::unsupported, "no threads");
            return made(o);
        };
    }
    Verdict measure() {
        auto v = measure_envelope(plan_, rig_);
        EXPECT_TRUE(v.ok()) << v.status().message();
        return v.ok() ? *v : Verdict();
    }
    static bool says(const Verdict& v, const std::string& words) {
        return std::any_of(v.notes.begin(), v.notes.end(),
                           [&](const std::string& n) { return n.find(words) != std::string::npos; });
    }

    VirtualClock clock_;
    io::File direct_ = io::File::simulated("model", kFileBytes, 4096, 4096);
    io::File buffered_ = io::File::simulated("model", kFileBytes);
    std::unique_ptr<io::SimEngine> device_, pool_;
    std::vector<io::EngineOptions> asked_;
    std::vector<unsigned> loads_;
    EnvelopePlan plan_;
    Rig rig_;
};

// 100 microseconds, then a byte each nanosecond, eight reads at once: with eight in flight, reads of S bytes come at
// 8 S / (100'000 + S) bytes per nanosecond.
constexpr io::SimOptions kEight{.channels = 8, .latency = 100'000, .nanos_per_byte = 1.0};
double planted_rate(uint64_t size, unsigned at_once) {
    return at_once * static_cast<double>(size) / (100'000 + static_cast<double>(size));
}

TEST_F(Envelope, TheTableIsWhatWasPlanted) {
    plant(kEight);
    plan_.most_room = 40 * MiB;
    const Verdict v = measure();
    for (const unsigned depth : {1U, 2U, 4U, 8U, 16U, 32U}) {
        for (const SizeTargets& s : plan_.sizes) {
            const Cell* c = v.find(kRing, true, s.bytes, depth);
            ASSERT_NE(c, nullptr) << s.bytes << " at " << depth;
            EXPECT_EQ(c->source, Source::device);
            // The last reads find the device emptier.
            EXPECT_NEAR(c->bytes_per_ns(), planted_rate(s.bytes, std::min(depth, 8U)), 0.10 * c->bytes_per_ns())
                << s.bytes << " at " << depth;
            // Aligned, a read may be two blocks longer.
            const Nanos alone = 100'000 + static_cast<Nanos>(s.bytes);
            if (depth <= 8) {
                EXPECT_NEAR(static_cast<double>(c->latency.p50), static_cast<double>(alone), 8192);
            } else {
                EXPECT_GE(c->latency.p50, alone) << "some wait for a channel";
            }
            EXPECT_GE(c->spread, 1.0);
        }
    }
    EXPECT_EQ(v.at(kRing, true, 4 * KiB, 1)->p50, 104'096);
    EXPECT_FALSE(v.at(kRing, true, 2 * MiB, 1).has_value());
    EXPECT_FALSE(v.at(kRing, true, 4 * KiB, 33).has_value());
}

TEST_F(Envelope, FindsKneeDepthAndSpeed) {
    plant(kEight);
    const Verdict v = measure();
    ASSERT_TRUE(v.derived.has_value());
    const Derived& d = *v.derived;
    EXPECT_EQ(d.engine, kRing) << "of two equals";
    EXPECT_TRUE(d.direct);
    EXPECT_EQ(d.size, kPart);
    EXPECT_EQ(d.depth, 8U) << "more only wait";
    EXPECT_NEAR(d.best, planted_rate(kPart, 8), 0.05 * d.best);
    EXPECT_NEAR(d.sustained, planted_rate(kPart, 8), 0.02 * d.sustained);
    EXPECT_TRUE(d.steady);
    // 512 KiB come at 91 % of the speed of 1 MiB, 256 KiB at 78 %.
    EXPECT_EQ(d.chunk, 512 * KiB);
    EXPECT_EQ(d.service, 100'000 + static_cast<Nanos>(512 * KiB));
    EXPECT_EQ(d.window, 4 * d.chunk) << "channels enough: nothing is in the way of anything";
    EXPECT_EQ(d.lanes, 8U);
    EXPECT_EQ(d.reserved, 4U);
    EXPECT_FALSE(d.priorities);
    EXPECT_FALSE(says(v, "steady"));
    EXPECT_TRUE(says(v, "more than once")) << "4 MiB is a small file";
}

TEST_F(Envelope, AShallowDeviceHasAShallowDepth) {
    plant({.channels = 2, .latency = 20'000, .nanos_per_byte = 0.5});
    const Verdict v = measure();
    ASSERT_TRUE(v.derived.has_value());
    EXPECT_EQ(v.derived->depth, 2U);
    EXPECT_EQ(v.derived->chunk, 256 * KiB) << "87 % at 64 KiB... of what 1 MiB has";
}

TEST_F(Envelope, ATableComesBackAtItsPoints) {
    const std::vector<uint64_t> sizes{4 * KiB, MiB};
    const std::vector<uint32_t> depths{1, 8, 32};
    const std::vector<Nanos> nanos{100'000, 150'000, 500'000, 700'000, 2'000'000, 9'000'000};
    const io::LatencyTable table(sizes, depths, nanos);
    plant({.channels = 64, .table = table, .tail = {{.share = 0.03, .times = 20}}});
    refuse_pool();
    plan_.time = 3 * kSecond;
    const Verdict v = measure();
    for (const uint64_t size : {4 * KiB, 64 * KiB, 256 * KiB, MiB}) {
        for (const unsigned depth : {1U, 2U, 8U}) {
            const auto at = v.at(kRing, true, size, depth);
            ASSERT_TRUE(at.has_value());
            const auto planted = static_cast<double>(table.at(size, depth));
            EXPECT_NEAR(static_cast<double>(at->p50), planted, 0.15 * planted) << size << " at " << depth;
        }
    }
    EXPECT_EQ(v.at(kRing, true, 4 * KiB, 1)->p50, 100'000);
    const Cell* pages = v.find(kRing, true, 4 * KiB, 8);
    ASSERT_TRUE(pages != nullptr && pages->latency.p99.has_value());
    EXPECT_GE(pages->latency.p99, 2'000'000) << "the tail";
    EXPECT_LT(pages->latency.p95, 200'000) << "is not that thick";
}

// 1 byte per nanosecond, after a rest 3 for as long as a bucket of 48 MiB lasts.
TEST_F(Envelope, ABucketIsEmptied) {
    plant({.channels = 16,
           .latency = 50'000,
           .nanos_per_byte = 0,
           .bandwidth = {.sustained = 1.0, .burst_rate = 3.0, .burst = 48 * MiB}});
    const Verdict v = measure();
    ASSERT_EQ(v.sustained.size(), 2U);
    EXPECT_NEAR(v.sustained[0].burst, 3.0, 0.1);
    for (const Sustained& s : v.sustained) {
        EXPECT_TRUE(s.steady);
        EXPECT_NEAR(s.rate, 1.0, 0.02);
    }
    // It is filled while it is emptied.
    const double empty_after = 48.0 * MiB / (3.0 - 1.0);
    EXPECT_NEAR(static_cast<double>(v.sustained[0].steady_after), empty_after, 0.025 * kSecond);
    ASSERT_TRUE(v.derived.has_value());
    EXPECT_NEAR(v.derived->sustained, 1.0, 0.02);
    EXPECT_NEAR(v.derived->burst, 3.0, 0.1);
    EXPECT_TRUE(v.derived->steady);
}

TEST_F(Envelope, ABucketTooLargeToBeEmptiedAtFirstIsSeenInTheEnd) {
    plant({.channels = 16,
           .latency = 50'000,
           .nanos_per_byte = 0,
           .bandwidth = {.sustained = 0.5, .burst_rate = 3.0, .burst = 700 * MiB}});
    const Verdict v = measure();
    ASSERT_EQ(v.sustained.size(), 2U);
    EXPECT_NEAR(v.sustained[0].rate, 3.0, 0.1) << "it cannot be told from a fast drive";
    EXPECT_NEAR(v.derived->sustained, 0.5, 0.02);
    EXPECT_TRUE(says(v, "3.00 GB/s at the beginning and at 0.50 GB/s in the end"));
}

TEST_F(Envelope, WithoutASteadyStateItSaysSo) {
    plant({.channels = 16,
           .latency = 50'000,
           .nanos_per_byte = 0,
           .bandwidth = {.sustained = 1.0, .burst_rate = 3.0, .burst = 48 * MiB}});
    plan_.most_sustained = 80 * MiB;
    const Verdict v = measure();
    EXPECT_FALSE(v.sustained[0].steady);
    EXPECT_LE(v.sustained[0].bytes, 80 * MiB + kRecord);
    EXPECT_EQ(v.sustained[0].steady_after, 0);
    plan_.most_sustained = 8 * MiB;
    const Verdict shorter = measure();
    EXPECT_FALSE(shorter.derived->steady);
    EXPECT_TRUE(says(shorter, "No steady state was reached"));
}

// One read at a time, in order: an exact one waits for all chunks before it.
constexpr io::SimOptions kOne{.channels = 1, .latency = 20'000, .nanos_per_byte = 1.0};

TEST_F(Envelope, ADriveThatServesInOrderBearsOneChunk) {
    plant(kOne);
    plan_.time = 3 * kSecond;
    const Verdict v = measure();
    ASSERT_TRUE(v.derived.has_value());
    const Derived& d = *v.derived;
    EXPECT_EQ(d.depth, 1U);
    EXPECT_EQ(d.chunk, 256 * KiB) << "95 % of the speed of 1 MiB; 128 KiB have 88 %";
    EXPECT_EQ(d.window, d.chunk);
    EXPECT_FALSE(d.priorities);
    EXPECT_EQ(d.lanes, 2U);
    EXPECT_EQ(d.reserved, 1U);
    const auto page = std::find_if(v.interference.begin(), v.interference.end(), [](const Interference& i) {
        return i.exact == 4 * KiB && i.chunk == 256 * KiB && i.pieces == 4 && !i.priorities;
    });
    ASSERT_NE(page, v.interference.end());
    EXPECT_EQ(page->latency.p50, 24'096 + 4 * (20'000 + 256 * 1024));
    EXPECT_NEAR(page->speculative_rate, 256.0 * 1024 / (20'000 + 256 * 1024), 0.1);
}

TEST_F(Envelope, ADriveThatHonoursPrioritiesBearsMoreWithThem) {
    io::SimOptions honours = kOne;
    honours.priorities = true;
    plant(honours);
    plan_.time = 3 * kSecond;
    const Verdict v = measure();
    ASSERT_TRUE(v.derived.has_value());
    EXPECT_EQ(v.derived->window, 4 * 256 * KiB) << "an exact read waits for one chunk, whatever their number";
    EXPECT_TRUE(v.derived->priorities);
    EXPECT_EQ(v.derived->reserved, 1U);
}

// Reads under way share the bandwidth: beside a chunk that is always there, a read takes twice as long.
TEST_F(Envelope, ADriveAtItsLimitBearsNoSpeculation) {
    plant({.channels = 16, .latency = 20'000, .nanos_per_byte = 0, .bandwidth = {.sustained = 1.0}});
    const Verdict v = measure();
    ASSERT_TRUE(v.derived.has_value());
    EXPECT_EQ(v.derived->window, 0U);
    EXPECT_TRUE(says(v, "Speculation cannot be had for little here"));
    EXPECT_TRUE(verdict_text(v).ok());
}

TEST_F(Envelope, TheFasterEngineIsChosen) {
    io::SimOptions slow = kEight;
    slow.latency = 300'000;
    plant(slow, kEight);
    EXPECT_EQ(measure().derived->engine, kPool);
    plant(kEight, slow);
    const Verdict v = measure();
    EXPECT_EQ(v.derived->engine, kRing);
    EXPECT_GT(v.at(kPool, true, 4 * KiB, 1)->p50, v.at(kRing, true, 4 * KiB, 1)->p50);
}

TEST_F(Envelope, AnEngineThatTheKernelRefusesIsNotMeasured) {
    plant(kEight);
    rig_.make_engine = [this](const io::EngineOptions& o) -> Result<io::MadeEngine> {
        if (o.kind == kRing) return error(Code::unsupported, "the kernel refuses an io_uring: no");
        return io::MadeEngine{std::make_unique<Forwarding>(*device_, o.priorities), {}};
    };
    const Verdict v = measure();
    EXPECT_TRUE(says(v, "io_uring was not measured: the kernel refuses"));
    EXPECT_EQ(v.derived->engine, kPool);
    EXPECT_TRUE(v.at(kPool, true, kPart, 8).has_value()) << "then the pool gets the whole table";
    rig_.make_engine = [](const io::EngineOptions&) -> Result<io::MadeEngine> {
        return error(Code::unsupported, "no");
    };
    EXPECT_EQ(measure_envelope(plan_, rig_).status().code(), Code::unsupported);
}

TEST_F(Envelope, BothEnginesAreMadeOnceForEachUse) {
    plant(kEight);
    (void)measure();
    ASSERT_EQ(asked_.size(), 3U);
    EXPECT_FALSE(asked_[0].priorities || asked_[1].priorities);
    EXPECT_TRUE(asked_[2].priorities) << "for the reads beside others";
    EXPECT_EQ(asked_[2].kind, kRing);
}

TEST_F(Envelope, TheSameDeviceGivesTheSameVerdict) {
    const auto once = [&] {
        clock_ = VirtualClock();
        plant({.channels = 4, .latency = 50'000, .nanos_per_byte = 0.3, .jitter = 0.5});
        return measure();
    };
    const Verdict first = once();
    EXPECT_EQ(first, once());
}

TEST_F(Envelope, ComputingIsSwitchedOnAndOff) {
    plant(kEight);
    const Verdict v = measure();
    EXPECT_EQ(loads_, (std::vector<unsigned>{3, 0, 3, 0}));
    EXPECT_TRUE(v.at(kRing, true, kPart, 4, true).has_value());
    EXPECT_EQ(v.load_threads, 3U);
    rig_.load = [](unsigned) { return error(Code::io_error, "no threads"); };
    EXPECT_EQ(measure_envelope(plan_, rig_).status().message(), "no threads");
}

TEST_F(Envelope, FullMeasuresEveryCombination) {
    plant(kEight);
    plan_.most_room = 40 * MiB;
    plan_.full = true;
    plan_.time = 2 * kSecond;
    const Verdict v = measure();
    EXPECT_TRUE(v.full);
    EXPECT_EQ(v.cells.size(), plan_.sizes.size() * 6 * 2 * 2 * 2);
    EXPECT_EQ(v.interference.size(), 2 * (1 + 5 * 4 * 2U));
    EXPECT_TRUE(verdict_text(v).ok());
}

TEST_F(Envelope, WhatMemoryAnsweredIsLabelledAndConcludesNothing) {
    plant(kEight);
    uint64_t counted = 0;
    rig_.device_bytes = [&] { return counted; };  // never grows
    const Verdict v = measure();
    ASSERT_FALSE(v.cells.empty());
    for (const Cell& c : v.cells) EXPECT_EQ(c.source, Source::memory);
    EXPECT_FALSE(v.derived.has_value());
    EXPECT_FALSE(v.at(kRing, true, kPart, 1).has_value());
    EXPECT_TRUE(v.interference.empty());
    EXPECT_TRUE(says(v, "drive itself was not measured"));
    EXPECT_TRUE(verdict_text(v).ok());
}

TEST_F(Envelope, OnlyBufferedReadsCameFromThePageCache) {
    plant(kEight);
    uint64_t counted = 0;
    size_t seen = 0;
    rig_.device_bytes = [&] {
        const auto& history = device_->history();
        for (; seen < history.size(); ++seen) counted += history[seen].op.file->direct() ? history[seen].op.length : 0;
        return counted;
    };
    const Verdict v = measure();
    bool buffered = false;
    for (const Cell& c : v.cells) {
        EXPECT_EQ(c.source, c.direct ? Source::device : Source::memory);
        buffered = buffered || !c.direct;
    }
    EXPECT_TRUE(buffered);
    EXPECT_TRUE(v.derived.has_value());
    EXPECT_TRUE(v.at(kRing, true, kPart, 1).has_value());
    EXPECT_FALSE(v.at(kRing, false, kPart, 1).has_value());
}

TEST_F(Envelope, WithoutACountBufferedReadsAreOfUnknownOrigin) {
    plant(kEight);
    rig_.device_bytes = nullptr;
    const Verdict v = measure();
    for (const Cell& c : v.cells) EXPECT_EQ(c.source, c.direct ? Source::device : Source::unknown);
    EXPECT_FALSE(v.at(kRing, false, kPart, 1).has_value());
}

TEST_F(Envelope, AFileInMemoryIsSaidToBeOne) {
    plant(kEight);
    plan_.memory = true;
    const Verdict v = measure();
    EXPECT_TRUE(says(v, "no drive under it"));
    EXPECT_FALSE(v.derived.has_value());
    EXPECT_TRUE(v.sustained.empty());
    for (const Cell& c : v.cells) EXPECT_EQ(c.source, Source::memory);
}

TEST_F(Envelope, WithoutDirectReadingTheBufferedOneCounts) {
    plant(kEight);
    plan_.direct.clear();
    size_t dropped = 0;
    rig_.drop = [&](const io::File& file, const Target&) {
        EXPECT_EQ(&file, &buffered_);
        ++dropped;
    };
    const Verdict v = measure();
    EXPECT_TRUE(says(v, "cannot be read directly"));
    EXPECT_GT(dropped, 0U);
    EXPECT_TRUE(v.sustained.empty()) << "it would be the page cache's";
    ASSERT_TRUE(v.derived.has_value());
    EXPECT_FALSE(v.derived->direct);
    EXPECT_FALSE(v.derived->steady);
    EXPECT_TRUE(says(v, "How fast reading stays was not measured"));
    for (const io::SimRead& r : device_->history()) ASSERT_FALSE(r.op.file->direct());
}

TEST_F(Envelope, ItStopsWheneverItIsTold) {
    plant(kEight);
    plan_.time = kSecond / 4;
    plan_.most_room = 4 * MiB;
    uint64_t asked = 0;
    uint64_t limit = UINT64_MAX;
    rig_.stop = [&] { return ++asked > limit; };
    (void)measure();
    const uint64_t all = asked;
    constexpr uint64_t kTimes = 12;
    for (uint64_t i = 0; i < kTimes; ++i) {
        limit = all / kTimes * i;
        asked = 0;
        loads_.clear();
        const auto v = measure_envelope(plan_, rig_);
        ASSERT_FALSE(v.ok());
        EXPECT_EQ(v.status().code(), Code::cancelled);
        EXPECT_EQ(device_->outstanding(), 0U);
        EXPECT_TRUE(loads_.empty() || loads_.back() == 0) << "nothing computes any more";
        EXPECT_LT(asked, limit + 200) << "and soon";
    }
}

TEST_F(Envelope, AReadThatFailsEndsItByName) {
    plant(kEight);
    (void)measure();
    const uint64_t all = device_->counters().reads;
    loads_.clear();
    for (const uint64_t k : {uint64_t{0}, uint64_t{100}, all / 4, all / 2, all / 4 * 3, all - 1}) {
        clock_ = VirtualClock();
        plant(kEight);
        device_->fault_at(k, io::Fault::error(EIO));
        const auto v = measure_envelope(plan_, rig_);
        ASSERT_FALSE(v.ok());
        EXPECT_EQ(v.status().code(), Code::io_error);
        EXPECT_NE(v.status().message().find("of model: Input/output error"), std::string::npos) << v.status().message();
        EXPECT_EQ(device_->outstanding(), 0U);
        EXPECT_TRUE(loads_.empty() || loads_.back() == 0);
        loads_.clear();
    }
}

TEST_F(Envelope, AHangingReadIsATailNotTheEnd) {
    plant(kEight);
    device_->fault_at(3000, io::Fault::stall(kSecond / 4));
    const Verdict v = measure();
    EXPECT_TRUE(v.derived.has_value());
}

TEST_F(Envelope, ASlowDriveIsNotWaitedForForever) {
    // 10 MB/s: a single read of a record takes a fifteenth of the time of the whole measurement.
    plant({.channels = 1, .latency = 10'000'000, .nanos_per_byte = 100});
    const Verdict v = measure();
    EXPECT_LT(clock_.now(), 4 * kSecond) << "twice its time, and what was under way then";
    EXPECT_TRUE(says(v, "the time was over"));
    EXPECT_TRUE(verdict_text(v).ok());
}

TEST_F(Envelope, WhatDoesNotFitIntoMemoryIsLeftOut) {
    plant(kEight);
    plan_.most_room = 8 * MiB;
    const Verdict v = measure();
    EXPECT_TRUE(says(v, "do not fit into 8.0 MiB of memory"));
    EXPECT_EQ(v.find(kRing, true, MiB, 8), nullptr);
    EXPECT_NE(v.find(kRing, true, MiB, 4), nullptr);
    EXPECT_NE(v.find(kRing, true, 4 * KiB, 32), nullptr);
    EXPECT_FALSE(v.at(kRing, true, MiB, 8).has_value());
}

TEST_F(Envelope, SmallFilesAreMeasuredAsFarAsTheyGo) {
    io::File small = io::File::simulated("small", 2 * MiB + 5, 4096, 4096);
    io::File same = io::File::simulated("small", 2 * MiB + 5);
    plant(kEight);
    device_->set_contents(small, std::vector<std::byte>(2 * MiB + 5));
    device_->set_contents(same, std::vector<std::byte>(2 * MiB + 5));
    plan_.direct = {&small};
    plan_.buffered = {&same};
    plan_.sizes.clear();
    add_scattered_sizes(plan_, {kPart, kRecord, 4 * MiB}, 1);
    EXPECT_EQ(plan_.sizes.back().bytes, MiB) << "4 MiB are more than there are";
    EXPECT_TRUE(measure().derived.has_value());

    io::File tiny = io::File::simulated("tiny", kLeastToProbe - 1);
    plan_.direct.clear();
    plan_.buffered = {&tiny};
    const auto v = measure_envelope(plan_, rig_);
    EXPECT_EQ(v.status().code(), Code::invalid_argument);
    EXPECT_NE(v.status().message().find("too little"), std::string::npos);
    plan_.sizes.clear();
    add_scattered_sizes(plan_, {}, 1);
    EXPECT_EQ(plan_.sizes.size(), 6U);
}

TEST_F(Envelope, SizesThatNobodyPlannedAreAnError) {
    plant(kEight);
    plan_.record = 12345;
    EXPECT_EQ(measure_envelope(plan_, rig_).status().code(), Code::internal);
    plan_.record = kRecord;
    plan_.sizes.back().targets.clear();
    EXPECT_EQ(measure_envelope(plan_, rig_).status().code(), Code::internal);
}

TEST(Sizes, AreSortedAndNamed) {
    EnvelopePlan plan;
    const io::File a = io::File::simulated("a", 3 * MiB);
    const io::File b = io::File::simulated("b", 300 * KiB);
    const io::File empty = io::File::simulated("empty", 0);
    plan.buffered = {&a, &b, &empty};
    add_size(plan, {.bytes = 64 * KiB, .name = "gate", .targets = {{0, 7, 64 * KiB}}});
    add_scattered_sizes(plan, {100 * MiB, 100 * KiB}, 1);
    name_size(plan, 100 * KiB, "row");
    name_size(plan, 100 * KiB, "");
    name_size(plan, 99 * KiB, "nobody");
    add_size(plan, {.bytes = 64 * KiB, .name = "up", .targets = {}});
    std::vector<uint64_t> sizes;
    for (const SizeTargets& s : plan.sizes) {
        sizes.push_back(s.bytes);
        std::set<uint32_t> files;
        for (const Target& t : s.targets) {
            files.insert(t.file);
            EXPECT_EQ(t.bytes, s.bytes);
            EXPECT_LE(t.offset + t.bytes, plan.buffered[t.file]->size_at_open());
        }
        EXPECT_EQ(files.size(), s.bytes == 64 * KiB || s.bytes > 300 * KiB ? 1U : 2U) << s.bytes;
    }
    EXPECT_EQ(sizes, (std::vector<uint64_t>{4 * KiB, 64 * KiB, 100 * KiB, 128 * KiB, 256 * KiB, 512 * KiB, MiB}));
    EXPECT_EQ(plan.sizes[1].name, "gate, up");
    EXPECT_EQ(plan.sizes[1].targets.size(), 1U) << "the real places, not scattered ones";
    EXPECT_EQ(plan.sizes[2].name, "row");
}

// --- what follows from numbers

class DeriveTest : public ::testing::Test {
  protected:
    static constexpr uint64_t kPage = 4 * KiB;
    static constexpr uint64_t kPart = 128 * KiB;
    static constexpr uint64_t kRecord = 384 * KiB;
    // A byte each nanosecond from one size on, half of that below.
    DeriveTest() {
        for (const uint64_t size : {kPage, 64 * KiB, kPart, 256 * KiB, kRecord, 512 * KiB, MiB}) {
            v_.sizes.push_back({size, ""});
            for (const unsigned depth : {1U, 4U, 8U}) {
                cell(size, depth, static_cast<Nanos>(size >= 256 * KiB ? size : 2 * size));
            }
        }
        sustain(1.0, true);
        for (const uint64_t exact : {kPage, kRecord}) beside(exact, 0, 0, false, 100'000);
    }
    void cell(uint64_t size, unsigned depth, Nanos elapsed, io::EngineKind engine = kRing) {
        v_.cells.push_back({.engine = engine,
                            .direct = true,
                            .under_load = false,
                            .size = size,
                            .depth = depth,
                            .source = Source::device,
                            .reads = 100,
                            .bytes = 100 * size,
                            .elapsed = 100 * elapsed,
                            .latency = {elapsed, 2 * elapsed, {}}});
    }
    void sustain(double rate, bool steady) {
        v_.sustained.push_back({.engine = kRing,
                                .direct = true,
                                .size = kPart,
                                .depth = 8,
                                .source = Source::device,
                                .bytes = GiB,
                                .elapsed = kSecond,
                                .burst = rate * 2,
                                .rate = rate,
                                .steady = steady});
    }
    void beside(uint64_t exact, uint64_t chunk, unsigned pieces, bool priorities, Nanos p50, Nanos p95 = 0) {
        v_.interference.push_back({.exact = exact,
                                   .chunk = chunk,
                                   .pieces = pieces,
                                   .priorities = priorities,
                                   .source = Source::device,
                                   .reads = 50,
                                   .exact_rate = 1,
                                   .speculative_rate = 1,
                                   .latency = {p50, p95 > 0 ? p95 : p50 * 2, {}}});
    }
    void both_beside(uint64_t chunk, unsigned pieces, bool priorities, Nanos p50) {
        beside(kPage, chunk, pieces, priorities, p50);
        beside(kRecord, chunk, pieces, priorities, p50);
    }
    std::optional<Derived> go() {
        notes_.clear();
        return derive(v_, kPage, kPart, kRecord, notes_);
    }
    [[nodiscard]] bool says(const std::string& words) const {
        return std::any_of(notes_.begin(), notes_.end(),
                           [&](const std::string& n) { return n.find(words) != std::string::npos; });
    }
    Verdict v_;
    std::vector<std::string> notes_;
};

TEST_F(DeriveTest, TheLeastDepthAndTheKnee) {
    const auto d = go();
    ASSERT_TRUE(d.has_value());
    EXPECT_EQ(d->depth, 1U) << "all are equal";
    EXPECT_EQ(d->chunk, 256 * KiB);
    EXPECT_EQ(d->service, 256 * 1024);
    EXPECT_EQ(d->window, 0U) << "not measured";
    EXPECT_EQ(d->reserved, d->lanes);
    EXPECT_TRUE(says("no window"));
}

TEST_F(DeriveTest, WithinFivePercentIsAsFast) {
    v_.cells.clear();
    for (const auto& [depth, elapsed] : {std::pair{1U, 200}, {2U, 110}, {4U, 104}, {8U, 100}}) {
        for (const SizeName& s : v_.sizes) cell(s.bytes, depth, elapsed * static_cast<Nanos>(s.bytes) / 100);
    }
    EXPECT_EQ(go()->depth, 4U);
    for (const SizeName& s : v_.sizes) cell(s.bytes, 8, 97 * static_cast<Nanos>(s.bytes) / 100, kPool);
    EXPECT_EQ(go()->engine, kRing) << "a pool must be clearly faster";
    for (const SizeName& s : v_.sizes) {
        for (const unsigned depth : {1U, 16U}) cell(s.bytes, depth, 90 * static_cast<Nanos>(s.bytes) / 100, kPool);
    }
    EXPECT_EQ(go()->engine, kPool);
    EXPECT_EQ(go()->depth, 1U);
}

TEST_F(DeriveTest, TheSteadyRateCounts) {
    EXPECT_EQ(go()->sustained, 1.0);
    EXPECT_EQ(go()->burst, 2.0);
    EXPECT_TRUE(go()->steady);
    sustain(3.0, false);
    EXPECT_EQ(go()->sustained, 1.0) << "the other one never got steady";
    EXPECT_EQ(go()->burst, 6.0);
    sustain(0.5, true);
    EXPECT_EQ(go()->sustained, 0.5) << "the later one";
    v_.sustained = {};
    sustain(0.7, false);
    const auto d = go();
    EXPECT_EQ(d->sustained, 0.7);
    EXPECT_FALSE(d->steady);
    EXPECT_TRUE(says("No steady state"));
    v_.sustained[0].source = Source::memory;
    EXPECT_EQ(go()->sustained, go()->best) << "memory's speed is not the drive's";
}

TEST_F(DeriveTest, TheWindowIsTheMostThatIsBearable) {
    // One chunk's time is bearable, and more than a tenth of a record's.
    const Nanos service = 256 * 1024;
    both_beside(256 * KiB, 1, false, 110'000);
    both_beside(256 * KiB, 2, false, 100'000 + service);
    both_beside(256 * KiB, 4, false, 100'001 + service);
    both_beside(256 * KiB, 8, false, 100'000);
    auto d = go();
    EXPECT_EQ(d->chunk, 256 * KiB);
    EXPECT_EQ(d->window, 512 * KiB) << "8 are measured well, but 4 are not";
    EXPECT_EQ(d->lanes, 3U);
    EXPECT_EQ(d->reserved, 1U);
    EXPECT_FALSE(d->priorities);
    // With priorities more: then they are needed.
    both_beside(256 * KiB, 1, true, 100'000);
    both_beside(256 * KiB, 2, true, 100'000);
    both_beside(256 * KiB, 4, true, 100'000);
    d = go();
    EXPECT_EQ(d->window, MiB);
    EXPECT_TRUE(d->priorities);
    // A page counts as well as a record.
    for (Interference& i : v_.interference) {
        if (i.exact == kPage && i.priorities && i.pieces == 4) i.latency.p50 = 10 * service;
    }
    EXPECT_EQ(go()->window, 512 * KiB);
    EXPECT_FALSE(go()->priorities) << "the same without";
}

TEST_F(DeriveTest, TheTailMustKeepThePromiseToo) {
    // 256 KiB at a byte per nanosecond, and one service.
    const Nanos promised = 2 * 256 * 1024;
    beside(kRecord, 256 * KiB, 1, false, 100'000, 200'000 + promised);
    beside(kPage, 256 * KiB, 1, false, 100'000, 200'000 + promised);
    EXPECT_EQ(go()->window, 256 * KiB);
    v_.interference.back().latency.p95 = 200'001 + promised;
    EXPECT_EQ(go()->window, 0U);
    v_.interference.back().latency.p95.reset();
    EXPECT_EQ(go()->window, 0U) << "too few reads to tell";
}

TEST_F(DeriveTest, SmallerChunksWhereTheKneeIsTooMuch) {
    both_beside(256 * KiB, 1, false, 10'000'000);
    both_beside(64 * KiB, 1, false, 100'000);
    both_beside(64 * KiB, 4, false, 100'000);
    auto d = go();
    EXPECT_EQ(d->chunk, 64 * KiB);
    EXPECT_EQ(d->window, 256 * KiB);
    EXPECT_EQ(d->service, 128 * 1024);
    for (Interference& i : v_.interference) {
        if (i.chunk > 0) i.latency = {10'000'000, 10'000'000, {}};
    }
    d = go();
    EXPECT_EQ(d->window, 0U);
    EXPECT_EQ(d->chunk, 256 * KiB);
    EXPECT_TRUE(says("takes 10.00 ms instead of 0.10 ms"));
}

TEST_F(DeriveTest, WithoutTheDriveNothingFollows) {
    for (Cell& c : v_.cells) c.source = Source::memory;
    EXPECT_FALSE(go().has_value());
    EXPECT_TRUE(says("drive itself was not measured"));
    v_.cells.clear();
    EXPECT_FALSE(go().has_value());
    cell(kPart, 8, 100);
    EXPECT_FALSE(go().has_value()) << "nobody knows how long one alone takes";
    EXPECT_TRUE(says("Too little of the table"));
}

// Each look takes a millisecond.
class TickingClock final : public Clock {
  public:
    [[nodiscard]] Nanos now() const override { return now_ += 1'000'000; }

  private:
    mutable Nanos now_ = 0;
};

TEST(MemorySpeed, IsBytesOverTime) {
    const MemorySpeeds s = measure_memory(TickingClock());
    // 16 pieces of 2 MiB, with a look after each.
    ASSERT_TRUE(s.first_touch && s.again && s.checksum);
    EXPECT_NEAR(*s.first_touch, 32.0 * MiB / 16e6, 0.1);
    EXPECT_GT(*s.again, *s.first_touch) << "a look per pass, not per piece";
    EXPECT_NEAR(*s.checksum, *s.again, 0.1);
}

TEST(MemorySpeed, WithoutTimeThereIsNone) {
    EXPECT_EQ(measure_memory(VirtualClock()), MemorySpeeds());
}

}  // namespace
}  // namespace sluice::machine
