// The budget of the cache, looked at whenever the device is asked or answers, and after every step beside: slots that
// cost memory are never more than the limit in force, or than leases alone hold, whatever is wanted, predicted, shrunk
// or grown, and what is computed with is still the file's.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "cache/layout.h"
#include "io/sim_engine.h"
#include "sched/fetcher.h"
#include "tests/sched/layered_model.h"

namespace sluice::sched {
namespace {

constexpr uint32_t kExperts = 16;
constexpr uint32_t kUsed = 4;

// Three sizes of records.
const LayeredModel& model() {
    static const LayeredModel model(
        kExperts, kUsed,
        std::array<LayerSizes, 5>{
            {{700, 700, 1100}, {9000, 9000, 20'050}, {0, 13'000, 6500}, {700, 700, 1100}, {4099, 4099, 4099}}},
        11);
    return model;
}

// Calls `at_event` before and after each call.
class Watched final : public io::Engine {
  public:
    Watched(io::Engine& inner, std::function<void()> at_event) : inner_(inner), at_event_(std::move(at_event)) {}
    void submit(std::span<const io::ReadOp> batch) override {
        at_event_();
        inner_.submit(batch);
    }
    size_t wait(std::span<io::Completion> out) override {
        at_event_();
        const size_t n = inner_.wait(out);
        at_event_();
        return n;
    }
    size_t poll(std::span<io::Completion> out) override {
        at_event_();
        const size_t n = inner_.poll(out);
        at_event_();
        return n;
    }
    [[nodiscard]] size_t outstanding() const override { return inner_.outstanding(); }
    [[nodiscard]] const char* name() const override { return inner_.name(); }
    [[nodiscard]] const io::EngineTotals& totals() const override { return inner_.totals(); }

  private:
    io::Engine& inner_;
    std::function<void()> at_event_;
};

DeviceModel device() {
    return {.bytes_per_ns = 1, .service = 100'000, .chunk = 8192, .window = 65'536, .reserved_lanes = 1, .lanes = 8};
}

// A model in a process whose memory the test owns. The seed also chooses the policy.
class Process {
  public:
    Process(uint64_t bytes, bool shared, uint32_t seed)
        : engine(seed),
          file_(io::File::simulated("model.gguf", model().contents.size(), 512, 512)),
          sim_(clock, sim_options(seed)),
          engine_(sim_, [this] { event(); }),
          store(over(file_)) {
        sim_.set_contents(file_, model().contents);
        shapes_ = Slots::shapes(store, {});
        full = cache::full_budget(shapes_);
        Fetcher::Options options;
        options.slots.budget = bytes == 0 ? full : bytes;
        options.slots.min_slots = kUsed;
        options.slots.slab = 64 * KiB;
        options.slots.policy = static_cast<cache::Policy>(seed % cache::kPolicyNames.size());
        options.reads.device = device();
        options.slots.on_limit = [this](const Slots& slots) { told.push_back(slots.limit()); };
        if (shared) {
            cache::Governor::Options o;
            o.reserve = 100 * KiB;
            o.margin = 10 * KiB;
            o.floor = 0;
            o.patience = 1'000'000;
            budget = std::make_unique<cache::SharedBudget>(
                clock,
                [this] {
                    const uint64_t held = share != nullptr ? share->held() : 0;
                    return cache::Readings{.now = clock.now(),
                                           .process = 1 * MiB + held,
                                           .free = memory - std::min(memory, held),
                                           .pressure = {},
                                           .pending = 0};
                },
                o);
            share = budget->join(cache::minimum_budget(shapes_), options.slots.budget);
            options.slots.share = share.get();
        }
        auto made = Fetcher::create(store, engine_, clock, std::move(options));
        EXPECT_TRUE(made.ok()) << made.status().message();
        fetcher = std::move(*made);
    }

    void check() {
        if (fetcher == nullptr) return;
        ++checks;
        const uint64_t held = fetcher->held();
        ASSERT_LE(held, fetcher->layout().arena_bytes);
        if (held <= fetcher->limit()) return;
        const cache::SlotCache& cache = fetcher->cache();
        std::vector<uint32_t> leased(fetcher->layout().classes.size(), 0);
        for (cache::SlotId s = 0; s < cache.n_slots(); ++s) {
            if (cache.leases(s) > 0) ++leased[cache.class_of(cache.record(s))];
        }
        for (uint32_t c = 0; c < leased.size(); ++c)
            ASSERT_LE(cache.touched(c), std::max(cache.cap(c), leased[c])) << "only what leases alone hold is over";
    }
    void event() {
        check();
        if (fetcher != nullptr && shrinks && random() % 16 == 0) {
            fetcher->set_limit(random() % (full + full / 4));  // in the middle of a layer
            check();
        }
    }

    void layer(uint32_t set, const std::vector<uint32_t>& experts, bool prompt = false) {
        std::vector<RecordId> wanted;
        for (const uint32_t e : experts) wanted.push_back(store.record(set, e));
        fetcher->enter(set, prompt ? trace::Phase::prefill : trace::Phase::decode);
        check();
        std::span<RecordId> left(wanted);
        while (!left.empty()) {
            const auto leased = left.first(fetcher->lease(left, prompt ? cache::Seat::guest : cache::Seat::member));
            check();
            if (leased.empty()) {
                ASSERT_TRUE(fetcher->wait_for_any()) << "nothing else is leased for long";
                continue;
            }
            const Status s = fetcher->load(leased, ComponentMask{0xFF});
            ASSERT_TRUE(s.ok()) << s.message();
            for (const RecordId r : leased) compare(r);
            check();
            fetcher->release(leased);
            check();
            left = left.subspan(leased.size());
        }
        if (hints) {
            for (int i = 0; i < 3; ++i) {
                const auto next = static_cast<uint32_t>((set + 1) % model().geometry.sets.size());
                Scheduler::Hint hint;
                hint.deadline = clock.now() + 10'000'000;
                (void)fetcher->scheduler().hint(store.record(next, random() % kExperts), hint);
            }
            fetcher->scheduler().expect_exact(clock.now() + 5'000'000);
            fetcher->look();
            check();
        }
        clock.advance_to(clock.now() + 50'000);
    }
    void token(const std::function<std::vector<uint32_t>(uint32_t set)>& route, bool prompt = false) {
        for (uint32_t set = 0; set < model().geometry.sets.size(); ++set) layer(set, route(set), prompt);
    }
    std::vector<uint32_t> some(uint32_t from, uint32_t to) {
        std::set<uint32_t> chosen;
        while (chosen.size() < std::min(kUsed, to - from)) chosen.insert(from + random() % (to - from));
        return {chosen.begin(), chosen.end()};
    }

    VirtualClock clock;
    std::mt19937 engine;
    uint32_t random() { return static_cast<uint32_t>(engine()); }
    bool hints = false, shrinks = false;
    uint64_t memory = 1 * GiB;  // that the machine has for it
    uint64_t checks = 0;
    std::vector<uint64_t> told;  // limits, by the slots

  private:
    static io::SimOptions sim_options(uint32_t seed) {
        io::SimOptions sim;
        sim.seed = seed;
        sim.jitter = 0.5;
        sim.shuffle = true;
        return sim;
    }
    static store::RecordStore over(const io::File& file) {
        const io::File* files[] = {&file};
        return store::RecordStore::over(model().geometry, files);
    }
    void compare(RecordId r) {
        for (uint32_t c = 0; c < store.n_components(store.set_of(r)); ++c) {
            const auto want = model().bytes(store, r, c);
            ASSERT_TRUE(std::equal(want.begin(), want.end(), fetcher->data(r, c))) << r;
        }
    }

    io::File file_;
    io::SimEngine sim_;
    Watched engine_;
    std::vector<cache::SetShape> shapes_;

  public:
    store::RecordStore store;
    uint64_t full = 0;
    std::unique_ptr<cache::SharedBudget> budget;
    std::unique_ptr<cache::BudgetShare> share;
    std::unique_ptr<Fetcher> fetcher;
};

struct Case {
    bool shared, hints, shrinks;
    double part;  // of what all experts need
};

class Budget : public ::testing::TestWithParam<Case> {};

TEST_P(Budget, HoldsAtEveryEvent) {
    const Case c = GetParam();
    // Each with a policy of its own.
    for (uint32_t seed = 0; seed < cache::kPolicyNames.size(); ++seed) {
        SCOPED_TRACE(cache::kPolicyNames[seed]);
        Process p(0, c.shared, seed);
        const auto limit = static_cast<uint64_t>(c.part * static_cast<double>(p.full));
        p.fetcher->set_limit(limit);
        p.check();
        p.hints = c.hints;
        p.shrinks = c.shrinks;
        uint32_t turn = 0;
        // All in turn: no order of use keeps anything.
        for (int t = 0; t < 6; ++t) {
            p.token([&](uint32_t) {
                std::vector<uint32_t> e;
                for (uint32_t i = 0; i < kUsed; ++i) e.push_back((turn + i) % kExperts);
                turn += kUsed;
                return e;
            });
        }
        // Two prompts that have no expert in common, then what they led to.
        std::vector<uint32_t> low, high;
        for (uint32_t e = 0; e < kExperts; ++e) (e < kExperts / 2 ? low : high).push_back(e);
        p.token([&](uint32_t) { return low; }, true);
        p.token([&](uint32_t) { return high; }, true);
        for (uint32_t t = 0; t < 10; ++t) p.token([&](uint32_t) { return p.some(t % 2 * 8, t % 2 * 8 + 8); });
        for (int t = 0; t < 10; ++t) p.token([&](uint32_t) { return p.some(0, kExperts); });
        if (HasFatalFailure()) return;
        if (!c.hints) {
            EXPECT_EQ(p.fetcher->cache().total_leases(), 0U);
        }
        EXPECT_GT(p.checks, 1000U);
    }
}

INSTANTIATE_TEST_SUITE_P(All, Budget,
                         ::testing::Values(Case{false, false, false, 1}, Case{false, false, false, 0.4},
                                           Case{false, true, false, 0.3}, Case{false, true, true, 0.5},
                                           Case{false, false, true, 0.05}, Case{true, false, false, 0.4},
                                           Case{true, true, false, 0.2}, Case{true, true, true, 1}));

// The machine's memory comes and goes: the cache follows between blocks, and grows slab by slab.
TEST(BudgetOfTheMachine, IsFollowed) {
    Process p(0, true, 3);
    const auto run = [&](int tokens) {
        for (int t = 0; t < tokens; ++t) {
            p.token([&](uint32_t) { return p.some(0, kExperts); });
            p.clock.advance_to(p.clock.now() + cache::SharedBudget::kLookEvery);
        }
    };
    EXPECT_EQ(p.fetcher->held(), 0U) << "nothing is taken before it is needed";
    p.layer(0, {1, 2, 3, 4});
    EXPECT_TRUE(p.told.empty()) << "it has what it had";
    EXPECT_LE(p.fetcher->held(), 64 * KiB + p.fetcher->layout().classes.size() * 64 * KiB);
    run(40);
    const uint64_t high = p.fetcher->held();
    EXPECT_GT(high, p.full / 2);
    p.memory = high / 2;  // somebody takes it; how much is lacking cannot be read off free memory, which is zero
    run(30);
    EXPECT_LE(p.fetcher->held(), high / 2 - 50 * KiB);
    EXPECT_GT(p.fetcher->cache().counters().shrunk, 0U);
    const uint64_t low = p.fetcher->held();
    p.memory = 1 * GiB;
    run(60);
    EXPECT_GT(p.fetcher->held(), low) << "it comes back";
    p.told.clear();
    p.budget->set_limit(200 * KiB);
    run(1);
    EXPECT_LE(p.fetcher->held(), 200 * KiB);
    EXPECT_EQ(p.told, (std::vector<uint64_t>{200 * KiB})) << "once, with what holds from then on";
    EXPECT_EQ(p.fetcher->limit(), 200 * KiB);
    run(60);
    EXPECT_LE(p.fetcher->held(), 200 * KiB) << "and stays";
}

// What the cache counts is what the kernel counts.
TEST(BudgetOfTheMachine, PagesAreGivenBack) {
    Process p(0, false, 1);
    for (int t = 0; t < 30; ++t) p.token([&](uint32_t) { return p.some(0, kExperts); });
    const auto resident = [&] {
        const std::span<std::byte> arena = p.fetcher->arena();
        std::vector<unsigned char> pages((arena.size() + page_size() - 1) / page_size());
        EXPECT_EQ(mincore(arena.data(), arena.size(), pages.data()), 0);
        uint64_t n = 0;
        for (const unsigned char page : pages) n += page & 1U;
        return n * page_size();
    };
    const uint64_t before = resident();
    p.fetcher->set_limit(p.full / 4);
    EXPECT_LE(p.fetcher->held(), p.full / 4);
    EXPECT_LE(resident(), p.fetcher->held());
    EXPECT_LT(resident(), before / 2);
    for (int t = 0; t < 30; ++t) p.token([&](uint32_t) { return p.some(0, kExperts); });
    EXPECT_LE(resident(), p.fetcher->held());
}

// One that cannot hold a slot of each size at a time is laid out anew, for one size.
TEST(BudgetOfTheMachine, AVeryNarrowBeginningStillWorks) {
    for (const uint64_t slots : {1U, 2U, 5U}) {
        Process p(cache::minimum_budget(Slots::shapes(Process(0, false, 1).store, {})) * slots, true, 2);
        for (int t = 0; t < 5; ++t) p.token([&](uint32_t) { return p.some(0, kExperts); });
        EXPECT_LE(p.fetcher->held(), p.fetcher->layout().arena_bytes);
    }
}

}  // namespace
}  // namespace sluice::sched
