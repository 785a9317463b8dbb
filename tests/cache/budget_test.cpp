#include "cache/budget.h"

#include <gtest/gtest.h>

#include "base/bytes.h"

namespace sluice::cache {
namespace {

using machine::MemoryRoom;

MemoryRoom available(uint64_t bytes) {
    return {.available = bytes, .cgroup_limit = {}, .cgroup_used = {}};
}

TEST(Budget, UnknownMemoryMeansModesty) {
    EXPECT_EQ(choose_budget({}, false, 10 * MiB, 100 * MiB).bytes, 100 * MiB);
    EXPECT_EQ(choose_budget({}, false, 10 * MiB, 100 * GiB).bytes, GiB);
}

TEST(Budget, TakesWhatIsFreeLessAReserve) {
    EXPECT_EQ(choose_budget(available(8 * GiB), false, MiB, 100 * GiB).bytes, 7 * GiB);
    EXPECT_EQ(choose_budget(available(8 * GiB), false, MiB, 3 * GiB).bytes, 3 * GiB);
    EXPECT_EQ(choose_budget(available(8 * GiB), false, MiB, 3 * GiB).why, "all experts fit");
}

TEST(Budget, TheGroupsLimitCountsWhereItIsTighter) {
    MemoryRoom room = available(8 * GiB);
    room.cgroup_limit = GiB;
    room.cgroup_used = 256 * MiB;
    EXPECT_EQ(choose_budget(room, false, MiB, 100 * GiB).bytes, 704 * MiB);
    EXPECT_NE(choose_budget(room, false, MiB, 100 * GiB).why.find("cgroup"), std::string::npos);
    room.cgroup_limit = 2 * GiB;
    room.cgroup_used = GiB;
    EXPECT_EQ(choose_budget(room, false, MiB, 100 * GiB).bytes, 960 * MiB);
    room.cgroup_limit = GiB + 256 * MiB;
    EXPECT_EQ(choose_budget(room, false, MiB, 100 * GiB).bytes, 192 * MiB);
    room.cgroup_limit = 100 * GiB;
    EXPECT_EQ(choose_budget(room, false, MiB, 100 * GiB).bytes, 7 * GiB);
    // Over its limit already.
    room.cgroup_limit = GiB;
    room.cgroup_used = 2 * GiB;
    EXPECT_EQ(choose_budget(room, false, MiB, 100 * GiB).bytes, MiB);
}

// Who has named a number gets it, as long as that does not bring the machine down.
TEST(Budget, TheReserveIsSmallWhereANumberWasTold) {
    EXPECT_EQ(reserve_of(available(16 * GiB), false), 2 * GiB);
    EXPECT_EQ(reserve_of(available(16 * GiB), true), 512 * MiB);
    EXPECT_EQ(reserve_of(available(GiB), true), 64 * MiB);
    MemoryRoom room = available(8 * GiB);
    room.cgroup_limit = 256 * MiB;
    room.cgroup_used = 0;
    EXPECT_TRUE(limited_by_group(room));
    EXPECT_EQ(reserve_of(room, true), 16 * MiB);
    EXPECT_EQ(reserve_of({}, true), 64 * MiB);
}

TEST(Budget, TheReserveIsSmallerInAGroup) {
    MemoryRoom room = available(32 * GiB);
    EXPECT_EQ(reserve_of(room, false), 2 * GiB);
    room.cgroup_limit = 8 * GiB;
    room.cgroup_used = 0;
    EXPECT_EQ(reserve_of(room, false), 512 * MiB) << "a sixteenth";
    room.cgroup_limit = 512 * MiB;
    EXPECT_EQ(reserve_of(room, false), 64 * MiB) << "at least";
    room.available = 4 * GiB;
    room.cgroup_limit = 8 * GiB;
    EXPECT_EQ(reserve_of(room, false), 512 * MiB)
        << "what the machine has is less than the group's room: an eighth of that";
}

// What is left free of little is little, too: a cache of an expert or two would read everything again for every token.
TEST(Budget, OfLittleMemoryExpertsGetMost) {
    MemoryRoom room = available(8 * GiB);
    room.cgroup_limit = 64 * MiB;
    room.cgroup_used = 24 * MiB;
    EXPECT_EQ(reserve_of(room, false), 10 * MiB);
    EXPECT_EQ(choose_budget(room, false, MiB, 100 * GiB).bytes, 30 * MiB);
    EXPECT_EQ(reserve_of(available(400 * MiB), false), 100 * MiB);
}

TEST(Budget, WhereTheProcessHasANumberTheReserveIsSmall) {
    EXPECT_EQ(choose_budget(available(8 * GiB), true, MiB, 100 * GiB).bytes, 8 * GiB - 256 * MiB);
}

TEST(Budget, NeverLessThanOneExpert) {
    EXPECT_EQ(choose_budget(available(MiB), false, 30 * MiB, 100 * GiB).bytes, 30 * MiB);
}

}  // namespace
}  // namespace sluice::cache
