#include "cache/governor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "cache/shared_budget.h"

namespace sluice::cache {
namespace {

constexpr Nanos kSecond = Governor::kSecond;
using Change = Governor::Change;
using Cause = Governor::Cause;

// A machine and a process on it. What experts hold is of the process; others take memory as the test says.
struct Machine {
    uint64_t total = 16 * GiB;
    uint64_t others = 2 * GiB;
    uint64_t process = 1 * GiB;  // without experts
    double pressure = 0;
    Nanos now = 0;

    [[nodiscard]] Readings read(uint64_t held) const {
        const uint64_t used = others + process + held;
        return {.now = now,
                .process = process + held,
                .free = total - std::min(total, used),
                .pressure = pressure,
                .pending = 0};
    }
};

// The cache follows at once, and takes what it may.
struct Simulated {
    Machine machine;
    Governor governor;
    uint64_t held = 0;
    int ups = 0, downs = 0;

    explicit Simulated(Governor::Options o) : governor(o) {}
    Governor::Decision look() {
        const auto d = governor.look(machine.read(held), held);
        ups += d.change == Change::up ? 1 : 0;
        downs += d.change == Change::down ? 1 : 0;
        held = std::min(held, governor.limit());
        return d;
    }
    void grow() {
        while (governor.may_take(machine.read(held), held, 32 * MiB)) held += 32 * MiB;
    }
    void seconds(int n) {
        for (int i = 0; i < n * 10; ++i) {
            machine.now += kSecond / 10;
            look();
            grow();
        }
    }
};

Governor::Options options() {
    return {.ram = std::nullopt, .margin = 64 * MiB, .reserve = GiB, .floor = 256 * MiB, .ceiling = 8 * GiB};
}

TEST(Governor, TakesWhatThereIsUpToTheReserve) {
    Simulated run(options());
    run.grow();
    EXPECT_EQ(run.held, 8 * GiB) << "the ceiling";
    run = Simulated(options());
    run.machine.others = 10 * GiB;
    run.grow();
    EXPECT_EQ(run.held, 16 * GiB - 10 * GiB - GiB - GiB);
    EXPECT_EQ(run.look().change, Change::none);
}

TEST(Governor, TheProcessStaysWithinItsNumber) {
    Governor::Options o = options();
    o.ram = 3 * GiB;
    Simulated run(o);
    run.grow();
    EXPECT_EQ(run.held, 3 * GiB - GiB - 64 * MiB);
    run.machine.process += 500 * MiB;  // a longer context
    const auto d = run.look();
    EXPECT_EQ(d.change, Change::down);
    EXPECT_EQ(d.cause, Cause::ram);
    EXPECT_LE(run.machine.process + run.held, 3 * GiB - 64 * MiB);
}

// A slab that does not fit whole: the rest may still be taken, and a cache of a few megabytes comes back, too.
TEST(Governor, WhatIsDeniedLeavesWhatThereIs) {
    Simulated s({.ram = 1 * GiB + 40 * MiB, .margin = 8 * MiB});
    s.held = 4 * MiB;
    EXPECT_FALSE(s.governor.may_take(s.machine.read(s.held), s.held, 32 * MiB));
    EXPECT_EQ(s.governor.limit(), 32 * MiB);
    EXPECT_TRUE(s.governor.may_take(s.machine.read(s.held), s.held, 28 * MiB));
    s.held = 8 * MiB;
    s.machine.process += 20 * MiB;
    EXPECT_FALSE(s.governor.may_take(s.machine.read(s.held), s.held, 24 * MiB));
    EXPECT_EQ(s.governor.limit(), 12 * MiB);
    s.machine.process -= 20 * MiB;
    s.seconds(60);
    EXPECT_GE(s.governor.limit(), 32 * MiB);
}

TEST(Governor, WhatIsSureToBeTouchedIsCounted) {
    Governor::Options o = options();
    o.ram = 3 * GiB;
    const Governor governor(o);
    Governor copy = governor;
    Readings r = Machine().read(0);
    EXPECT_TRUE(copy.may_take(r, 0, GiB));
    r.pending = GiB;
    copy = governor;
    EXPECT_FALSE(copy.may_take(r, 0, GiB));
}

TEST(Governor, GivesWayToOthersAtOnce) {
    Simulated run(options());
    run.grow();
    run.machine.others = 7 * GiB;
    const auto d = run.look();
    EXPECT_EQ(d.change, Change::down);
    EXPECT_EQ(d.cause, Cause::free);
    EXPECT_EQ(run.held, 16 * GiB - 7 * GiB - GiB - GiB);
    EXPECT_EQ(run.look().change, Change::none);
}

// How much lacks cannot be seen once nothing is free: steps grow until something is.
TEST(Governor, WhereNothingIsFreeStepsDoubleUntilSomethingIs) {
    Governor::Options o = options();
    o.reserve = 16 * MiB;
    Simulated run(o);
    run.grow();
    run.machine.others = 9 * GiB;  // 2 GiB more than there were
    int looks = 0;
    while (run.machine.read(run.held).free < o.reserve) {
        run.machine.now += SharedBudget::kLookEvery;
        const auto d = run.look();
        ASSERT_EQ(d.change, Change::down);
        ASSERT_LE(++looks, 8) << "2^7 reserves are 2 GiB";
    }
    EXPECT_LE(run.held, 6 * GiB - o.reserve);
    EXPECT_GT(run.held, 4 * GiB) << "no more than twice what lacked";
    // The next time it begins with what can be seen.
    run.machine.now += 20 * kSecond;
    run.machine.others += run.machine.read(run.held).free.value();
    const uint64_t before = run.held;
    run.look();
    EXPECT_EQ(run.held, before - o.reserve);
}

TEST(Governor, ALittleLessThanTheReserveIsNoReason) {
    Simulated run(options());
    run.machine.others = 10 * GiB;
    run.grow();
    run.machine.others += 400 * MiB;
    EXPECT_EQ(run.look().change, Change::none);
    run.machine.others += 200 * MiB;
    EXPECT_EQ(run.look().change, Change::down);
}

TEST(Governor, ComesBackOnlyAfterMemoryWasFreeForAWhile) {
    Simulated run(options());
    run.grow();
    run.machine.others = 9 * GiB;
    // What is lacking cannot be read off free memory: it is zero, and experts go down in steps, each twice the last.
    while (run.look().change == Change::down) {
    }
    const uint64_t low = run.held;
    EXPECT_EQ(low, 5 * GiB);
    run.machine.others = 2 * GiB;
    run.seconds(9);
    EXPECT_EQ(run.held, low);
    run.seconds(3);
    EXPECT_GT(run.held, low);
    EXPECT_LE(run.held, low + low / 8) << "a step, not all";
    run.seconds(60);
    EXPECT_EQ(run.held, 8 * GiB);
    EXPECT_EQ(run.downs, 2);
}

// Somebody takes and leaves memory for ever in the rhythm that would hurt most: just when we have grown into it.
TEST(Governor, DoesNotSwing) {
    Simulated run(options());
    run.grow();
    for (int s = 0; s < 3600; ++s) {
        run.machine.others = run.held > 5 * GiB + 100 * MiB ? 9 * GiB : 6 * GiB;
        run.seconds(1);
    }
    EXPECT_LE(run.downs, 20) << "an hour";
    EXPECT_GE(run.held, 4 * GiB);
}

TEST(Governor, PressureTakesAnEighthAtATime) {
    Simulated run(options());
    run.machine.others = 5 * GiB;
    run.grow();
    EXPECT_EQ(run.held, 8 * GiB);
    run.machine.pressure = 30;
    EXPECT_EQ(run.look().change, Change::none) << "there is memory: they are short elsewhere";
    run.machine.others = 6 * GiB;
    const auto d = run.look();
    EXPECT_EQ(d.change, Change::down);
    EXPECT_EQ(d.cause, Cause::pressure);
    EXPECT_EQ(run.held, 7 * GiB);
    run.machine.now += kSecond;
    run.machine.others = 7 * GiB;
    EXPECT_EQ(run.look().change, Change::none) << "the average needs time to show it";
    run.machine.now += kSecond;
    EXPECT_EQ(run.look().change, Change::down);
    EXPECT_FALSE(run.governor.may_take(run.machine.read(run.held), run.held, MiB));
    Governor::Options deaf = options();
    deaf.heeds_pressure = false;
    run = Simulated(deaf);
    run.machine.pressure = 100;
    run.machine.others = 5 * GiB;
    run.grow();
    run.seconds(5);
    EXPECT_EQ(run.held, 8 * GiB);
}

TEST(Governor, NeverLessThanTheFloorAndSaysSo) {
    Simulated run(options());
    run.grow();
    run.machine.others = 16 * GiB;
    while (run.look().change == Change::down) {
    }
    EXPECT_EQ(run.held, 256 * MiB);
    EXPECT_EQ(run.look().change, Change::stuck);
}

TEST(Governor, AToldLimitStays) {
    Simulated run(options());
    run.grow();
    run.governor.set_limit(GiB);
    run.look();
    EXPECT_EQ(run.held, GiB);
    run.seconds(1000);
    EXPECT_EQ(run.held, GiB) << "it never grows by itself";
    run.governor.set_limit(10 * MiB);
    run.look();
    EXPECT_EQ(run.held, 10 * MiB) << "also below the floor: this is what was asked for";
    run.governor.set_limit(2 * GiB);
    run.grow();
    EXPECT_GT(run.held, 2 * GiB - 32 * MiB) << "to the last whole slab";
    EXPECT_LE(run.held, 2 * GiB);
    run.machine.others = 14 * GiB;
    run.look();
    EXPECT_LT(run.held, 2 * GiB) << "a limit is no floor";
    run.machine.others = 2 * GiB;
    run.governor.set_limit(std::nullopt);
    run.grow();
    EXPECT_GT(run.held, 8 * GiB - 32 * MiB);
}

TEST(Governor, WhatCannotBeReadCountsAsEnough) {
    Governor governor(options());
    const Readings none;
    EXPECT_TRUE(governor.may_take(none, 0, 8 * GiB));
    EXPECT_EQ(governor.look(none, 8 * GiB).change, Change::none);
    EXPECT_FALSE(governor.may_take(none, 8 * GiB, 1)) << "the ceiling";
}

TEST(Governor, SillyNumbersDoNotWrap) {
    Governor::Options o = options();
    o.ram = UINT64_MAX;
    o.reserve = UINT64_MAX;
    o.margin = UINT64_MAX;
    Governor governor(o);
    const Readings r{.now = 0, .process = UINT64_MAX, .free = UINT64_MAX, .pressure = 1e300, .pending = UINT64_MAX};
    (void)governor.look(r, UINT64_MAX);
    EXPECT_EQ(governor.limit(), 256 * MiB);
    EXPECT_FALSE(governor.may_take(r, 256 * MiB, UINT64_MAX));
}

// Whatever is read, what it allows is within its bounds, and what may be taken is within what it allows.
TEST(Governor, StaysWithinItsBoundsWhateverIsRead) {
    for (uint32_t seed = 0; seed < 50; ++seed) {
        std::mt19937_64 random(seed);
        Governor::Options o = options();
        if (seed % 2 == 0) o.ram = random() % (8 * GiB);
        Governor governor(o);
        uint64_t held = 0;
        Nanos now = 0;
        for (int i = 0; i < 2000; ++i) {
            now += static_cast<Nanos>(random() % (20 * kSecond));
            const Readings r{.now = now,
                             .process = held + random() % (4 * GiB),
                             .free = random() % (8 * GiB),
                             .pressure = random() % 4 == 0 ? 50.0 : 0.0,
                             .pending = random() % GiB};
            (void)governor.look(r, held);
            ASSERT_GE(governor.limit(), o.floor);
            ASSERT_LE(governor.limit(), o.ceiling);
            held = std::min(held, governor.limit());
            const uint64_t more = random() % GiB;
            if (governor.may_take(r, held, more)) held += more;
            ASSERT_LE(held, governor.limit());
        }
    }
}

// ---- several models in one process

class Shared : public ::testing::Test {
  protected:
    std::unique_ptr<SharedBudget> make(Governor::Options o) {
        return std::make_unique<SharedBudget>(
            clock_,
            [this] {
                ++reads_;
                machine_.now = clock_.now();
                return machine_.read(budget_ != nullptr ? seen_ : 0);
            },
            o, [this](Governor::Decision d, uint64_t limit) { told_.emplace_back(d.change, limit); });
    }
    VirtualClock clock_;
    Machine machine_;
    int reads_ = 0;
    uint64_t seen_ = 0;  // what both hold
    std::vector<std::pair<Change, uint64_t>> told_;
    std::unique_ptr<SharedBudget> budget_;
};

TEST_F(Shared, TwoShareOneBudget) {
    Governor::Options o = options();
    o.ceiling = 3 * GiB;
    budget_ = make(o);
    const auto a = budget_->join(10 * MiB, 8 * GiB);
    EXPECT_EQ(a->limit(), 3 * GiB);
    a->holds(3 * GiB);
    seen_ = 3 * GiB;
    auto b = budget_->join(10 * MiB, 4 * GiB);
    EXPECT_LE(a->limit() + b->limit(), 3 * GiB);
    EXPECT_NEAR(static_cast<double>(a->limit()), static_cast<double>(2 * GiB), 10e6);
    EXPECT_FALSE(b->may_take(GiB)) << "the first one still has it";
    a->holds(a->limit());
    seen_ = a->held();
    EXPECT_TRUE(b->may_take(500 * MiB));
    b.reset();
    EXPECT_EQ(a->limit(), 3 * GiB) << "all is its again";
}

TEST_F(Shared, SomethingElseThatIsToComeTakesItsPartFirst) {
    budget_ = make(options());
    const auto share = budget_->join(10 * MiB, 8 * GiB);
    EXPECT_EQ(share->limit(), 8 * GiB);
    EXPECT_TRUE(budget_->make_room(8 * GiB));
    EXPECT_EQ(share->limit(), 16 * GiB - 2 * GiB - GiB - GiB - 8 * GiB);
    EXPECT_FALSE(budget_->make_room(13 * GiB)) << "not even with the floor alone";
    EXPECT_EQ(share->limit(), 256 * MiB);
    EXPECT_EQ(budget_->shares(), 1U);
}

TEST_F(Shared, WhoJoinsLearnsWhatThereWas) {
    Governor::Options o = options();
    o.ram = 2 * GiB;
    budget_ = make(o);
    Governor::Room found;
    const auto a = budget_->join(10 * MiB, 8 * GiB, &found);
    EXPECT_EQ(found.cause, Cause::ram);
    EXPECT_EQ(found.bytes, 2 * GiB - GiB - 64 * MiB);
    EXPECT_EQ(a->limit(), found.bytes);
    machine_.process = 3 * GiB;
    const auto b = budget_->join(10 * MiB, 8 * GiB, &found);
    EXPECT_TRUE(found.below_floor);
}

TEST_F(Shared, ASmallOneGetsWhatItNeeds) {
    Governor::Options o = options();
    o.ceiling = GiB;
    budget_ = make(o);
    const auto a = budget_->join(10 * MiB, 100 * GiB);
    const auto b = budget_->join(10 * MiB, 20 * MiB);
    EXPECT_GE(b->limit(), 10 * MiB);
    EXPECT_LE(a->limit() + b->limit(), GiB);
}

TEST_F(Shared, AFloorAboveAllThatExpertsTakeIsNotWanted) {
    Governor::Options o = options();
    o.floor = 64 * GiB;
    budget_ = make(o);
    Governor::Room found;
    const auto share = budget_->join(10 * MiB, GiB, &found);
    EXPECT_FALSE(found.below_floor);
    EXPECT_EQ(share->limit(), GiB);
    EXPECT_EQ(budget_->limit(), GiB);
    share->holds(GiB);
    seen_ = GiB;
    for (int i = 0; i < 20; ++i) {
        clock_.advance_to(clock_.now() + SharedBudget::kLookEvery);
        (void)share->limit();
    }
    EXPECT_TRUE(told_.empty()) << "no memory is short";
    machine_.others = 40 * GiB;
    clock_.advance_to(clock_.now() + SharedBudget::kLookEvery);
    EXPECT_EQ(share->limit(), GiB) << "it is a floor all the same";
}

TEST_F(Shared, MemoryIsNotReadMoreOftenThanItHasTo) {
    budget_ = make(options());
    const auto share = budget_->join(MiB, 8 * GiB);
    for (int i = 0; i < 1000; ++i) {
        clock_.advance_to(clock_.now() + 1'000'000);
        (void)share->limit();
    }
    EXPECT_EQ(reads_, 1 + 5) << "when it joined, and in a second";
}

TEST_F(Shared, OneThatStepsDownTellsOnce) {
    budget_ = make(options());
    const auto share = budget_->join(MiB, 8 * GiB);
    share->holds(8 * GiB);
    seen_ = 8 * GiB;
    machine_.others = 16 * GiB;
    for (int i = 0; i < 20; ++i) {
        clock_.advance_to(clock_.now() + SharedBudget::kLookEvery);
        seen_ = std::min(seen_, share->limit());
        share->holds(seen_);
    }
    ASSERT_EQ(told_.size(), 5U) << "1, 2, 4 GiB and what was left above the floor";
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(told_[i].first, Change::down);
    EXPECT_EQ(told_[3].second, 256 * MiB);
    EXPECT_EQ(told_[4].first, Change::stuck);
    budget_->set_limit(MiB);
    EXPECT_EQ(share->limit(), MiB);
    EXPECT_EQ(budget_->limit(), MiB);
    EXPECT_EQ(budget_->held(), 256 * MiB);
}

}  // namespace
}  // namespace sluice::cache
