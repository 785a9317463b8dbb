#include "machine/compute_load.h"

#include <gtest/gtest.h>

namespace sluice::machine {
namespace {

TEST(ComputeLoad, ComputesUntilItIsStopped) {
    ComputeLoad load;
    EXPECT_EQ(load.rounds(), 0U);
    ASSERT_TRUE(load.start(2).ok());
    while (load.rounds() < 3) std::this_thread::yield();
    load.stop();
    const uint64_t rounds = load.rounds();
    for (int i = 0; i < 100; ++i) std::this_thread::yield();
    EXPECT_EQ(load.rounds(), rounds);
    ASSERT_TRUE(load.start(1).ok()) << "and again";
    while (load.rounds() == rounds) std::this_thread::yield();
    ASSERT_TRUE(load.start(0).ok()) << "none are no load";
    load.stop();
}

}  // namespace
}  // namespace sluice::machine
