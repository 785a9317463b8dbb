#include "io/unreliable_engine.h"

#include <algorithm>
#include <array>
#include <set>

#include "tests/io/support.h"

namespace sluice::io {
namespace {

using namespace testing_support;

class Unreliable : public ::testing::Test {
  protected:
    static constexpr uint32_t kBlock = 4096;
    Unreliable() : file_(temp_.open(Access::buffered)), buffer_(16 * kBlock) {
        engine_ = std::make_unique<UnreliableEngine>(make_pool(4), what_);
    }
    ReadOp op(uint64_t block) const {
        return {&file_, block * kBlock, kBlock, kBlock, buffer_.data() + block * kBlock, block};
    }
    void submit(const std::vector<uint64_t>& blocks) {
        std::vector<ReadOp> ops;
        for (const uint64_t b : blocks) ops.push_back(op(b));
        engine_->submit(ops);
    }
    TempFile temp_{16 * kBlock};
    File file_;
    Buffer buffer_;
    std::shared_ptr<Unreliability> what_ = std::make_shared<Unreliability>();
    std::unique_ptr<UnreliableEngine> engine_;
};

TEST_F(Unreliable, WithoutAPlanNothingHappens) {
    submit({0, 1, 2, 3});
    const auto all = drain(*engine_);
    ASSERT_EQ(all.size(), 4U);
    for (const Completion& c : all) EXPECT_EQ(c.error, 0);
    EXPECT_EQ(first_wrong(buffer_.span().first(4 * kBlock), 0), 4 * kBlock);
    EXPECT_EQ(what_->seen, 4U);
}

TEST_F(Unreliable, TheReadAndItsRepetitionsFailSoOften) {
    what_->fail = 1;
    what_->fails = 2;
    what_->error = ESTALE;
    const auto errors_of = [&](const std::vector<uint64_t>& blocks) {
        submit(blocks);
        std::set<uint64_t> failed;
        for (const Completion& c : drain(*engine_)) {
            if (c.error == ESTALE) failed.insert(c.tag);
        }
        return failed;
    };
    EXPECT_EQ(errors_of({5, 6, 7}), std::set<uint64_t>{6});
    EXPECT_EQ(errors_of({7, 6}), std::set<uint64_t>{6});
    EXPECT_EQ(errors_of({6}), std::set<uint64_t>{});
    EXPECT_EQ(what_->failed, 2U);
    what_->plan();
    EXPECT_EQ(errors_of({5, 6}), std::set<uint64_t>{});
}

TEST_F(Unreliable, ACutReadIsAnErrorAndBringsHalf) {
    what_->fail = 1;
    what_->fails = 1;
    what_->harm = Harm::cut;
    submit({0, 1, 2});
    for (const Completion& c : drain(*engine_)) {
        EXPECT_EQ(c.error, c.tag == 1 ? ENODATA : 0);
        EXPECT_EQ(c.bytes, c.tag == 1 ? kBlock / 2 : kBlock);
    }
    EXPECT_EQ(first_wrong(buffer_.span().first(3 * kBlock), 0), kBlock + kBlock / 2);
    submit({1});
    for (const Completion& c : drain(*engine_)) EXPECT_EQ(c.error, 0);
    EXPECT_EQ(first_wrong(buffer_.span().first(3 * kBlock), 0), 3 * kBlock);
}

TEST_F(Unreliable, AWrongReadLooksLikeAGoodOne) {
    what_->fail = 0;
    what_->fails = 1;
    what_->harm = Harm::wrong;
    submit({0, 1});
    for (const Completion& c : drain(*engine_)) EXPECT_EQ(c.error, 0);
    EXPECT_EQ(first_wrong(buffer_.span().first(2 * kBlock), 0), kBlock - 1);
    EXPECT_EQ(what_->failed, 1U);
    submit({0});
    (void)drain(*engine_);
    EXPECT_EQ(first_wrong(buffer_.span().first(2 * kBlock), 0), 2 * kBlock);
}

TEST_F(Unreliable, ALateReadComesAfterSoManyWaitsInVain) {
    what_->stick = 1;
    what_->stick_for = 3;
    submit({3, 4});
    std::array<Completion, 4> out;
    size_t n = 0;
    while (n == 0) n = engine_->wait_for(out, 1'000'000'000);
    EXPECT_EQ(out[0].tag, 3U);
    for (int i = 0; i < 3; ++i) {
        EXPECT_TRUE(what_->stick);
        EXPECT_EQ(engine_->wait_for(out, 1'000'000'000), 0U) << "at once: nothing else is on its way";
    }
    EXPECT_EQ(what_->in_vain, 3U);
    EXPECT_EQ(engine_->wait_for(out, 1'000'000'000), 1U);
    EXPECT_EQ(out[0].tag, 4U);
    EXPECT_EQ(engine_->wait_for(out, 1'000'000), 0U);
    EXPECT_EQ(what_->in_vain, 3U) << "nothing is stuck";
}

TEST_F(Unreliable, AStuckReadComesWhenItIsLetGo) {
    what_->stick = 0;
    submit({3, 4});
    std::array<Completion, 4> out;
    size_t n = 0;
    while (n == 0) n = engine_->wait_for(out, 1'000'000);
    EXPECT_EQ(n, 1U);
    EXPECT_EQ(out[0].tag, 4U);
    EXPECT_EQ(engine_->wait_for(out, 1'000'000), 0U);
    EXPECT_EQ(engine_->poll(out), 0U);
    EXPECT_EQ(engine_->outstanding(), 1U);
    what_->stick.reset();
    EXPECT_EQ(engine_->wait_for(out, 1'000'000), 1U);
    EXPECT_EQ(out[0].tag, 3U);
    EXPECT_EQ(engine_->wait_for(out, 1'000'000), 0U);
}

TEST_F(Unreliable, WhoWaitsWithoutALimitGetsIt) {
    what_->stick = 0;
    submit({3, 4});
    EXPECT_EQ(drain(*engine_).size(), 2U);
}

TEST_F(Unreliable, TheSeedDecidesTheOrder) {
    const auto order = [&](uint64_t seed) {
        what_->plan();
        what_->order_seed = seed;
        submit({0, 1, 2, 3, 4, 5, 6, 7});
        std::vector<uint64_t> tags;
        std::array<Completion, 8> out;
        EXPECT_EQ(engine_->poll(out), 0U);
        while (engine_->outstanding() > 0) {
            const size_t n = tags.size() % 2 == 0 ? engine_->wait(out) : engine_->wait_for(out, 1'000'000'000);
            EXPECT_EQ(n, 1U);
            tags.push_back(out[0].tag);
        }
        uint64_t overtook = 0;
        for (auto t = tags.begin(); t != tags.end(); ++t)
            overtook += std::any_of(t, tags.end(), [&](uint64_t later) { return later < *t; }) ? 1 : 0;
        EXPECT_EQ(what_->overtook, overtook);
        return tags;
    };
    std::set<std::vector<uint64_t>> orders;
    for (uint64_t seed = 1; seed <= 8; ++seed) orders.insert(order(seed));
    EXPECT_GT(orders.size(), 4U);
}

}  // namespace
}  // namespace sluice::io
