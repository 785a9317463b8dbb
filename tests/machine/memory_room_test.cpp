#include "machine/memory_room.h"

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "tests/machine/tree.h"

namespace sluice::machine {
namespace {

TEST(MemoryRoom, NothingReadableMeansUnknown) {
    const Tree tree;
    const MemoryRoom room = read_memory_room(tree.root());
    EXPECT_FALSE(room.available.has_value());
    EXPECT_FALSE(room.cgroup_limit.has_value());
    EXPECT_FALSE(room.free().has_value());
}

TEST(MemoryRoom, KnowsWhatTheMachineHas) {
    const Tree tree;
    tree.write("proc/meminfo", "MemTotal: 100 kB\nMemAvailable:   8388608 kB\n");
    EXPECT_EQ(read_memory_room(tree.root()).available, 8 * GiB);
    EXPECT_EQ(read_memory_room(tree.root()).free(), 8 * GiB);
}

TEST(MemoryRoom, KnowsLimitsOfCgroupVersion1AndOfParents) {
    const Tree tree;
    tree.write("proc/meminfo", "MemAvailable: 8388608 kB\n");
    tree.write("proc/self/cgroup", "5:devices:/\n4:memory:/a/b\n0::/\n");
    tree.write("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
    tree.write("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "1000\n");
    tree.write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1073741824\n");
    tree.write("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "536870912\n");
    tree.write("sys/fs/cgroup/memory/a/memory.stat", "cache 5\ntotal_inactive_file 268435456\n");
    const MemoryRoom room = read_memory_room(tree.root());
    ASSERT_EQ(room.cgroup_limit, GiB);
    EXPECT_EQ(room.cgroup_used, 256 * MiB);
    EXPECT_EQ(room.free(), 768 * MiB);
}

TEST(MemoryRoom, KnowsLimitsOfCgroupVersion2) {
    const Tree tree;
    tree.write("proc/meminfo", "MemAvailable: 8388608 kB\n");
    tree.write("proc/self/cgroup", "0::/user/x\n");
    tree.write("sys/fs/cgroup/user/x/memory.max", "2147483648\n");
    tree.write("sys/fs/cgroup/user/x/memory.current", "1073741824\n");
    const MemoryRoom room = read_memory_room(tree.root());
    ASSERT_EQ(room.cgroup_limit, 2 * GiB);
    EXPECT_EQ(room.free(), GiB);
}

TEST(MemoryRoom, WhereTheKernelThrottlesIsALimitToo) {
    const Tree tree;
    tree.write("proc/self/cgroup", "0::/x\n");
    tree.write("sys/fs/cgroup/x/memory.max", "max\n");
    tree.write("sys/fs/cgroup/x/memory.high", "1073741824\n");
    tree.write("sys/fs/cgroup/x/memory.current", "5\n");
    EXPECT_EQ(read_memory_room(tree.root()).cgroup_limit, GiB);
    tree.write("sys/fs/cgroup/x/memory.max", "536870912\n");
    EXPECT_EQ(read_memory_room(tree.root()).cgroup_limit, 512 * MiB);
    tree.write("sys/fs/cgroup/x/memory.high", "max\n");
    EXPECT_EQ(read_memory_room(tree.root()).cgroup_limit, 512 * MiB);
}

TEST(MemoryPressure, IsTheWorseOfTheMachinesAndTheGroups) {
    const Tree tree;
    EXPECT_FALSE(read_memory_pressure(tree.root()).has_value());
    tree.write("proc/pressure/memory", "some avg10=1.50 avg60=0.00 avg300=0.00 total=5\nfull avg10=9.00\n");
    EXPECT_EQ(read_memory_pressure(tree.root()), 1.5);
    tree.write("proc/self/cgroup", "4:memory:/a\n0::/x\n");
    tree.write("sys/fs/cgroup/x/memory.pressure", "some avg10=20.25 avg60=0.00 avg300=0.00 total=5\n");
    EXPECT_EQ(read_memory_pressure(tree.root()), 20.25);
    tree.write("sys/fs/cgroup/x/memory.pressure", "some avg10=-1\n");
    EXPECT_EQ(read_memory_pressure(tree.root()), 1.5);
}

TEST(MemoryRoom, WordsInsteadOfNumbersMeanNoLimit) {
    const Tree tree;
    tree.write("proc/self/cgroup", "0::/\n");
    tree.write("sys/fs/cgroup/memory.max", "max\n");
    tree.write("sys/fs/cgroup/memory.current", "5\n");
    EXPECT_FALSE(read_memory_room(tree.root()).cgroup_limit.has_value());
}

TEST(MemoryRoom, AGroupThatIsNoPathIsIgnored) {
    const Tree tree;
    for (const char* text : {"4:memory:a/b\n", "0::\n", "0::x\n", ":\n", "::\n", "4:memory\n", "\n\n", "0::/../../..\n",
                             "4:memory://///\n", "0:::::/\n"}) {
        tree.write("proc/self/cgroup", text);
        EXPECT_FALSE(read_memory_room(tree.root()).cgroup_limit.has_value()) << text;
    }
}

TEST(MemoryRoom, WhatIsTakenIsGoneFromMachineAndGroup) {
    const MemoryRoom room{.available = 10 * MiB, .cgroup_limit = 8 * MiB, .cgroup_used = 1 * MiB};
    EXPECT_EQ(room.free(), 7 * MiB);
    EXPECT_EQ(room.after(2 * MiB).free(), 5 * MiB);
    EXPECT_EQ(room.after(20 * MiB).free(), 0U);
    EXPECT_EQ((MemoryRoom{10 * MiB, std::nullopt, std::nullopt}).after(4 * MiB).free(), 6 * MiB);
    EXPECT_EQ(MemoryRoom().after(1).free(), std::nullopt);
}

}  // namespace
}  // namespace sluice::machine
