#include "cache/layout.h"

#include <gtest/gtest.h>

#include "base/bytes.h"

namespace sluice::cache {
namespace {

const std::vector<SetShape> kMixed{{.n_expert = 8, .component_bytes = {1000, 5000}},
                                   {.n_expert = 8, .component_bytes = {1000, 5000}},
                                   {.n_expert = 4, .component_bytes = {9000, 9000, 9000}}};

TEST(Layout, EqualSlotsShareAClassAndComponentsDoNotOverlap) {
    const auto layout = plan_layout(kMixed, 100 * MiB, 2);
    ASSERT_TRUE(layout.ok());
    ASSERT_EQ(layout->classes.size(), 2U);
    EXPECT_EQ(layout->classes[0].slot_bytes, 3 * 4096U);
    EXPECT_EQ(layout->classes[0].n_slots, 16U);
    EXPECT_EQ(layout->classes[1].slot_bytes, 9 * 4096U);
    EXPECT_EQ(layout->classes[1].n_slots, 4U);
    EXPECT_EQ(layout->component_offset[0], (std::vector<uint64_t>{0, 4096}));
    EXPECT_EQ(layout->component_offset[2], (std::vector<uint64_t>{0, 3 * 4096, 6 * 4096}));
    EXPECT_EQ(layout->arena_bytes, full_budget(kMixed));
}

TEST(Layout, NoBudgetFromOneRecordUpwardIsExceeded) {
    for (uint64_t budget = minimum_budget(kMixed); budget < full_budget(kMixed) + 8192; budget += 1111) {
        const auto layout = plan_layout(kMixed, budget, 2);
        ASSERT_TRUE(layout.ok()) << budget;
        EXPECT_LE(layout->arena_bytes, budget);
        for (const SizeClass& c : layout->classes) EXPECT_GE(c.n_slots, 1U);
        for (size_t i = 0; i < kMixed.size(); ++i) {
            EXPECT_LE(kMixed[i].slot_bytes(), layout->classes[layout->class_of_set[i]].slot_bytes);
        }
    }
}

TEST(Layout, LessThanOneRecordIsRefusedWithTheArithmetic) {
    const auto layout = plan_layout(kMixed, minimum_budget(kMixed) - 1, 2);
    ASSERT_FALSE(layout.ok());
    EXPECT_EQ(layout.status().code(), Code::no_memory);
    EXPECT_NE(layout.status().message().find("36.0 KiB"), std::string::npos) << layout.status().message();
    // 36 KiB are 0.03516 MiB: the size that is named must do.
    EXPECT_NE(layout.status().message().find("0.036 MiB"), std::string::npos) << layout.status().message();
}

}  // namespace
}  // namespace sluice::cache
