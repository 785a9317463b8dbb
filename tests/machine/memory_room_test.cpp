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

// The files of Linux 6.1, where a part of the hierarchy is mounted over all of it and names still count from the root.
TEST(MemoryRoom, AGroupIsFoundInTheMountThatShowsIt) {
    const Tree tree;
    tree.write("proc/self/cgroup", "0::/a/b/c\n");
    tree.write("proc/self/mountinfo",
               "31 30 0:23 / /sys/fs/cgroup rw,relatime - cgroup2 cg rw\n"
               "35 31 0:23 /a/b /sys/fs/cgroup rw,relatime - cgroup2 cg rw\n");
    tree.write("sys/fs/cgroup/memory.max", "104857600\n");
    tree.write("sys/fs/cgroup/memory.current", "5844992\n");
    tree.write("sys/fs/cgroup/c/memory.max", "52428800\n");
    tree.write("sys/fs/cgroup/c/memory.current", "5771264\n");
    tree.write("sys/fs/cgroup/c/memory.pressure", "some avg10=13.91 avg60=3.17 avg300=0.69 total=2712383\n");
    EXPECT_EQ(read_memory_room(tree.root()).cgroup_limit, 50 * MiB);
    EXPECT_EQ(read_memory_pressure(tree.root()), 13.91);
    tree.write("sys/fs/cgroup/c/memory.max", "max\n");
    EXPECT_EQ(read_memory_room(tree.root()).cgroup_limit, 100 * MiB);
    // What lies on top shows another part: nothing is known of the group.
    tree.write("proc/self/cgroup", "0::/ab\n");
    EXPECT_EQ(read_memory_room(tree.root()).cgroup_limit, 100 * MiB) << "the usual place";
}

// The same: moved to a group outside of its namespace, with the mount of before.
TEST(MemoryRoom, AGroupOutsideOfTheNamespaceIsFound) {
    const Tree tree;
    tree.write("proc/self/cgroup", "0::/../../other\n");
    tree.write("proc/self/mountinfo", "31 30 0:23 /../.. /sys/fs/cgroup rw,relatime - cgroup2 cg rw\n");
    tree.write("sys/fs/cgroup/other/memory.max", "314572800\n");
    tree.write("sys/fs/cgroup/other/memory.current", "5836800\n");
    EXPECT_EQ(read_memory_room(tree.root()).cgroup_limit, 300 * MiB);
    EXPECT_FALSE(read_memory_pressure(tree.root()).has_value());
}

TEST(MemoryRoom, ControllersOfVersion1MayShareAMountAndASecondMountHidesNothing) {
    const Tree tree;
    tree.write("proc/self/cgroup", "4:hugetlb,memory:/docker/1/in\n0::/docker/1/in\n");
    tree.write("proc/self/mountinfo",
               "30 29 0:26 /docker /sys/fs/cgroup/hugetlb,memory rw - cgroup cgroup rw,hugetlb,memory\n"
               "31 29 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
               "32 29 0:26 /docker/1/in /mnt\\040x rw - cgroup cgroup rw,hugetlb,memory\n");
    tree.write("sys/fs/cgroup/hugetlb,memory/1/memory.limit_in_bytes", "1073741824\n");
    tree.write("sys/fs/cgroup/hugetlb,memory/1/memory.usage_in_bytes", "5\n");
    tree.write("mnt x/memory.limit_in_bytes", "2147483648\n");
    tree.write("mnt x/memory.usage_in_bytes", "5\n");
    EXPECT_EQ(read_memory_room(tree.root()).cgroup_limit, GiB);
}

// Files of Linux 6.1 of a group in which a file was read twice. It swapped out 50 MB of the group's own memory before
// it dropped such pages, so they are as good as taken; what was read once it drops at once.
TEST(MemoryRoom, PageCacheThatTheKernelWouldKeepIsUsed) {
    const Tree tree;
    tree.write("proc/self/cgroup", "0::/g0\n");
    tree.write("sys/fs/cgroup/g0/memory.max", "209715200\n");
    tree.write("sys/fs/cgroup/g0/memory.current", "112001024\n");
    tree.write("sys/fs/cgroup/g0/memory.stat",
               "anon 10883072\nfile 100663296\nkernel 581632\nshmem 0\nfile_mapped 0\ninactive_anon 10805248\n"
               "active_anon 16384\ninactive_file 0\nactive_file 100663296\nslab_reclaimable 244400\n");
    EXPECT_EQ(read_memory_room(tree.root()).free(), 97'714'176U);
    tree.write("sys/fs/cgroup/g0/memory.current", "112103424\n");
    tree.write("sys/fs/cgroup/g0/memory.stat",
               "anon 10936320\nfile 100671488\nkernel 610304\nshmem 0\nfile_mapped 0\ninactive_anon 10809344\n"
               "active_anon 16384\ninactive_file 100663296\nactive_file 8192\nslab_reclaimable 261584\n");
    EXPECT_EQ(read_memory_room(tree.root()).free(), 198'275'072U);
}

// One group of a tree may have no memory controller: then it has no such files, and the one above counts.
TEST(MemoryRoom, AGroupWithoutControllerObeysTheOneAbove) {
    const Tree tree;
    tree.write("proc/self/cgroup", "0::/n/leaf\n");
    tree.write("sys/fs/cgroup/n/leaf/memory.pressure", "some avg10=2.00 avg60=0.00 avg300=0.00 total=1\n");
    tree.write("sys/fs/cgroup/n/memory.max", "157286400\n");
    tree.write("sys/fs/cgroup/n/memory.high", "max\n");
    tree.write("sys/fs/cgroup/n/memory.current", "21479424\n");
    EXPECT_EQ(read_memory_room(tree.root()).free(), 135'806'976U);
    EXPECT_EQ(read_memory_pressure(tree.root()), 2.0);
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
