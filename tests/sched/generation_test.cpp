// Whole generations on the simulated device, in which every read fails in every way, one after the other: each layer
// computes with the bytes of the file or does not compute at all, whoever asked is told which bytes could not be had,
// nothing stays behind, and the next generation is right.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/layout.h"
#include "io/sim_engine.h"
#include "sched/fetcher.h"
#include "tests/sched/layered_model.h"

namespace sluice::sched {
namespace {

constexpr uint32_t kTokens = 64;
constexpr uint32_t kExperts = 16;
constexpr uint32_t kUsed = 4;

// Small, because it is read some ten thousand times.
const LayeredModel& tiny_model() {
    static const LayeredModel model(
        kExperts, kUsed,
        std::array<LayerSizes, 4>{{{700, 700, 1100}, {300, 300, 2050}, {0, 1300, 650}, {513, 511, 90}}}, 11);
    return model;
}

// A read of the past, and what becomes of it and of its repetitions.
struct Plan {
    uint64_t number = UINT64_MAX;  // of the read, counted from the first of all
    io::Fault fault;
    unsigned times = 1;
};

// Lets one read suffer a fault, and then each repetition of it until that has happened `times` times.
class Faulty final : public io::Engine {
  public:
    Faulty(io::SimEngine& inner, const Plan& plan) : inner_(inner), plan_(plan) {}

    void submit(std::span<const io::ReadOp> batch) override {
        uint64_t number = inner_.counters().reads;
        for (const io::ReadOp& op : batch) {
            if (number == plan_.number) victim_ = op;
            if (victim_ && same_bytes(*victim_, op) && suffered < plan_.times) {
                ++suffered;
                io::Fault fault = plan_.fault;
                // Before the component's own bytes come those that only alignment asks for.
                if (fault.kind == io::Fault::Kind::bit_flip) fault.bit = uint64_t{8} * op.need - 1 - number % 64;
                inner_.fault_at(number, fault);
            }
            ++number;
        }
        inner_.submit(batch);
    }
    size_t wait(std::span<io::Completion> out) override { return inner_.wait(out); }
    size_t poll(std::span<io::Completion> out) override { return inner_.poll(out); }
    [[nodiscard]] size_t outstanding() const override { return inner_.outstanding(); }
    [[nodiscard]] const char* name() const override { return inner_.name(); }
    [[nodiscard]] const io::EngineTotals& totals() const override { return inner_.totals(); }

    void heal() { plan_.times = 0; }
    [[nodiscard]] const std::optional<io::ReadOp>& victim() const { return victim_; }
    unsigned suffered = 0;

  private:
    static bool same_bytes(const io::ReadOp& a, const io::ReadOp& b) {
        return a.offset == b.offset && a.length == b.length && a.need == b.need;
    }
    io::SimEngine& inner_;
    Plan plan_;
    std::optional<io::ReadOp> victim_;
};

std::byte converted_byte(std::byte b) {
    return b ^ std::byte{0xFF};
}

// One process: it generates as often as it is told.
class Process {
  public:
    explicit Process(const Plan& plan, uint8_t attempts = 2, bool convert = false, Verify verify = Verify::always)
        : file_(io::File::simulated("model.gguf", tiny_model().contents.size(), 512, 512)),
          sim_(clock_, sim_options()),
          faulty(sim_, plan),
          store_(over(file_)) {
        sim_.set_contents(file_, tiny_model().contents);
        static const std::vector<uint32_t> sums = tiny_model().sums(store_);
        store_.set_checksums(sums);
        Fetcher::Options options;
        if (convert) {
            converted_ = {{true, false, true}, {false, true, false}, {true, false}, {true, true, true}};
            options.slots.converted = converted_;
            options.slots.convert = [](uint32_t, uint32_t, const std::byte* raw, std::byte* slot, uint64_t bytes) {
                std::transform(raw, raw + bytes, slot, converted_byte);
            };
        }
        options.slots.budget = cache::full_budget(Slots::shapes(store_, converted_)) / 3;
        options.slots.min_slots = kUsed;
        options.reads.attempts = attempts;
        options.reads.verify = verify;
        auto made = Fetcher::create(store_, faulty, clock_, std::move(options));
        EXPECT_TRUE(made.ok()) << made.status().message();
        fetcher_ = std::move(*made);
    }

    // Ends with the first layer that cannot have its experts. Whatever a layer has is compared with the file.
    Status generate() {
        static const auto routes = skewed_routes(tiny_model().geometry, kTokens, 5);
        for (const auto& token : routes) {
            for (uint32_t set = 0; set < token.size(); ++set) {
                if (Status s = layer(set, token[set]); !s.ok()) return s;
                clock_.advance_to(clock_.now() + 50'000);
            }
        }
        return {};
    }

    [[nodiscard]] bool nothing_left_behind() const {
        return fetcher_->cache().total_leases() == 0 && fetcher_->scheduler().live() == 0 && sim_.outstanding() == 0;
    }
    // What an error must say about the bytes that could not be had.
    [[nodiscard]] std::vector<std::string> facts_of(const io::ReadOp& op) const {
        for (RecordId r = 0; r < store_.n_records(); ++r) {
            for (uint32_t c = 0; c < store_.n_components(store_.set_of(r)); ++c) {
                const store::Extent e = store_.extent(r, c);
                const auto read = store::RecordStore::aligned(e);
                if (read.offset != op.offset || read.length != op.length || read.need != op.need) continue;
                const store::RecordName name = store_.name(r);
                const auto component = tiny_model().geometry.sets[store_.set_of(r)].tensors[c].component;
                return {
                    fmt::format("layer {}, expert {}, {}", name.layer, name.expert, model::component_name(component)),
                    fmt::format("{} bytes at offset {} of model.gguf", e.bytes, e.offset)};
            }
        }
        ADD_FAILURE() << "nobody's read";
        return {};
    }
    [[nodiscard]] uint64_t reads() const { return sim_.counters().reads; }
    [[nodiscard]] const SchedCounters& counters() const { return fetcher_->counters(); }
    uint64_t wrong_components = 0;

  private:
    static io::SimOptions sim_options() {
        io::SimOptions sim;
        sim.jitter = 0.5;
        sim.shuffle = true;
        return sim;
    }
    static store::RecordStore over(const io::File& file) {
        const io::File* files[] = {&file};
        return store::RecordStore::over(tiny_model().geometry, files);
    }

    Status layer(uint32_t set, const std::vector<uint32_t>& experts) {
        std::array<RecordId, kUsed> wanted{};
        for (uint32_t i = 0; i < kUsed; ++i) wanted[i] = store_.record(set, experts[i]);
        fetcher_->enter(set, trace::Phase::decode);
        std::span<RecordId> left(wanted);
        while (!left.empty()) {
            const auto leased = left.first(fetcher_->lease(left));
            Status s = fetcher_->load(leased, ComponentMask{0xFF});
            if (s.ok()) {
                for (const RecordId r : leased) compare(r);
            }
            fetcher_->release(leased);
            if (!s.ok()) return s;
            left = left.subspan(leased.size());
        }
        return {};
    }
    void compare(RecordId r) {
        const uint32_t set = store_.set_of(r);
        for (uint32_t c = 0; c < store_.n_components(set); ++c) {
            const std::span<const std::byte> want = tiny_model().bytes(store_, r, c);
            const std::byte* got = fetcher_->data(r, c);
            const bool same = !converted_.empty() && converted_[set][c]
                                  ? std::equal(want.begin(), want.end(), got,
                                               [](std::byte w, std::byte g) { return converted_byte(w) == g; })
                                  : std::equal(want.begin(), want.end(), got);
            if (!same) ++wrong_components;
        }
    }

    VirtualClock clock_;
    io::File file_;
    io::SimEngine sim_;

  public:
    Faulty faulty;

  private:
    store::RecordStore store_;
    std::vector<std::vector<bool>> converted_;
    std::unique_ptr<Fetcher> fetcher_;
};

struct FaultKind {
    const char* name;
    io::Fault fault;
    bool fails;      // an attempt; the others are the engine's own business
    uint64_t first;  // read that gets it, so that kinds do not all meet the same ones
};

// One of how many reads get the fault. All of them take two minutes, and a sanitizer several times as long.
uint64_t step() {
    if (std::getenv("SLUICE_EVERY_READ") != nullptr) return 1;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return 211;
#else
    return 13;
#endif
}

class FaultyGeneration : public ::testing::TestWithParam<FaultKind> {
  protected:
    // For the reads of a generation in turn: each fails `times` times, and there are `attempts`.
    static void at_every_read(unsigned times, uint8_t attempts) {
        const FaultKind& kind = GetParam();
        uint64_t k = kind.first % step();
        for (;; k += step()) {
            const bool convert = k % 2 == 1;
            Process process({.number = k, .fault = kind.fault, .times = times}, attempts, convert);
            const Status s = process.generate();
            if (!process.faulty.victim()) break;  // it has no more reads
            ASSERT_EQ(process.wrong_components, 0U) << "read " << k;
            ASSERT_TRUE(process.nothing_left_behind()) << "read " << k;
            if (kind.fails && times >= attempts) {
                ASSERT_FALSE(s.ok()) << "read " << k;
                for (const std::string& fact : process.facts_of(*process.faulty.victim()))
                    ASSERT_NE(s.message().find(fact), std::string::npos) << fact << " in: " << s.message();
                ASSERT_EQ(process.counters().failures, 1U);
            } else {
                ASSERT_TRUE(s.ok()) << "read " << k << ": " << s.message();
                ASSERT_EQ(process.counters().retries, kind.fails ? process.faulty.suffered : 0U);
            }
            process.faulty.heal();
            const Status next = process.generate();
            ASSERT_TRUE(next.ok()) << "after read " << k << ": " << next.message();
            ASSERT_EQ(process.wrong_components, 0U) << "after read " << k;
            ASSERT_TRUE(process.nothing_left_behind()) << "after read " << k;
        }
        EXPECT_GT(k, 1000U);
    }
};

TEST_P(FaultyGeneration, AFaultAtAnyReadIsMadeGood) {
    at_every_read(1, 2);
}

class FailingGeneration : public FaultyGeneration {};

TEST_P(FailingGeneration, AFaultThatStaysIsToldAndLeavesNothingBehind) {
    at_every_read(2, 2);
}

// With one attempt more the same two are made good, and the third is not.
TEST_P(FailingGeneration, AttemptsAreCounted) {
    at_every_read(2, 3);
    at_every_read(3, 3);
}

const std::array kHarmless{FaultKind{"short_read", io::Fault::short_read(100), false, 5},
                           FaultKind{"interrupted", io::Fault::interrupted(3), false, 10},
                           FaultKind{"again", io::Fault::again(2), false, 15},
                           FaultKind{"stall", io::Fault::stall(5'000'000'000), false, 20}};
const std::array kHarmful{FaultKind{"interrupted_for_ever", io::Fault::interrupted(1'000'000), true, 25},
                          FaultKind{"io_error", io::Fault::error(EIO), true, 30},
                          FaultKind{"stale", io::Fault::stale(), true, 35},
                          FaultKind{"truncated", io::Fault::truncated(10), true, 40},
                          FaultKind{"bit_flip", io::Fault::bit_flip(), true, 45},
                          FaultKind{"never", io::Fault::never(), true, 50}};
const auto kNameOf = [](const auto& kind) { return std::string(kind.param.name); };
INSTANTIATE_TEST_SUITE_P(Harmless, FaultyGeneration, ::testing::ValuesIn(kHarmless), kNameOf);
INSTANTIATE_TEST_SUITE_P(Harmful, FaultyGeneration, ::testing::ValuesIn(kHarmful), kNameOf);
INSTANTIATE_TEST_SUITE_P(Harmful, FailingGeneration, ::testing::ValuesIn(kHarmful), kNameOf);

// Without checksums a flipped bit is not seen, which shows that the comparison above would see one.
TEST(GenerationControl, WithoutChecksumsAFlippedBitIsComputedWith) {
    for (uint64_t k = 0; k < 20; ++k) {
        const Plan plan{.number = k, .fault = io::Fault::bit_flip(8 * 600), .times = 1};
        Process unchecked(plan, 2, false, Verify::never);
        ASSERT_TRUE(unchecked.generate().ok());
        Process checked(plan);
        ASSERT_TRUE(checked.generate().ok());
        EXPECT_EQ(checked.wrong_components, 0U);
        if (unchecked.wrong_components > 0) return;
    }
    ADD_FAILURE() << "no flipped bit was noticed";
}

TEST(GenerationControl, RoutesAreSkewedAndTheCacheHelps) {
    Process process({});
    ASSERT_TRUE(process.generate().ok());
    const uint64_t all = uint64_t{kTokens} * kUsed * (3 + 3 + 2 + 3);
    EXPECT_GT(process.reads(), all / 8);
    EXPECT_LT(process.reads(), all * 3 / 4);
}

}  // namespace
}  // namespace sluice::sched
