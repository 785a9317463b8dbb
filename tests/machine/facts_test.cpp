#include "machine/facts.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/bytes.h"
#include "machine/text.h"
#include "tests/machine/tree.h"

namespace sluice::machine {
namespace {

TEST(Facts, OfThisMachineAreThere) {
    const Facts f = read_facts();
    EXPECT_TRUE(f.ram_total.has_value());
    EXPECT_TRUE(f.kernel_release.has_value());
    EXPECT_TRUE(f.cores_online.has_value());
    ASSERT_TRUE(f.cores_allowed.has_value());
    EXPECT_GE(*f.cores_allowed, 1U);
    EXPECT_GE(f.page_size, 4096U);
    EXPECT_FALSE(f.io_uring.has_value()) << "nothing was tried";
    EXPECT_TRUE(try_io_uring().works || !try_io_uring().refusal.empty());
}

TEST(Facts, EveryFactComesFromItsFile) {
    const Tree tree;
    const Model model;
    plant_healthy(tree, model);
    tree.write("sys/fs/cgroup/cpu.max", "150000 100000\n");
    tree.write("sys/fs/cgroup/memory.max", "1073741824\n");
    tree.write("sys/fs/cgroup/memory.current", "1048576\n");
    tree.write("proc/self/status", "Cpus_allowed_list:\t0,2-3\n");
    tree.write("sys/devices/system/cpu/cpu2/cpufreq/scaling_governor", "powersave\n");
    const Facts f = read_facts(tree.root());
    EXPECT_EQ(f.architecture, "x86-64");
    EXPECT_EQ(f.cpu_model, "Some CPU @ 3.00GHz");
    const std::vector<std::string> features{"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512_vnni"};
    EXPECT_EQ(f.cpu_features, features);
    EXPECT_TRUE(has_feature(f, "avx512f"));
    EXPECT_FALSE(has_feature(f, "avx512"));
    EXPECT_EQ(f.cores_online, 4U);
    EXPECT_EQ(f.cores_allowed, 3U);
    EXPECT_EQ(f.cpu_quota, 1.5);
    EXPECT_EQ(f.governor, "powersave, schedutil");
    EXPECT_EQ(f.governor_driver, "acpi-cpufreq");
    EXPECT_EQ(f.ram_total, 32 * GiB);
    EXPECT_EQ(f.room.available, 24 * GiB);
    EXPECT_EQ(f.room.cgroup_limit, GiB);
    EXPECT_EQ(f.swap_total, 8 * GiB);
    EXPECT_EQ(f.swap_used, 0U);
    EXPECT_EQ(f.memlock_limit, 8 * MiB);
    EXPECT_EQ(f.huge_pages, "madvise");
    EXPECT_EQ(f.kernel_release, "6.8.0-45-generic");
    EXPECT_EQ(f.cgroup_version, 2);
    EXPECT_EQ(f.io_uring_disabled, 0U);
    EXPECT_EQ(f.load, 0.04);
    ASSERT_TRUE(f.pressure.has_value());
    EXPECT_EQ(f.pressure->cpu, 0.1);
    EXPECT_EQ(f.pressure->memory, 0.1);
}

TEST(Facts, OfAnArmProcessor) {
    const Tree tree;
    tree.write("proc/cpuinfo",
               "processor\t: 0\nFeatures\t: fp asimd asimddp i8mm\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n");
    const Facts f = read_facts(tree.root());
    EXPECT_EQ(f.architecture, "arm64");
    EXPECT_TRUE(has_feature(f, "asimddp"));
    EXPECT_TRUE(has_feature(f, "i8mm"));
    EXPECT_EQ(f.cpu_model, "implementer 0x41 part 0xd0c");
}

TEST(Facts, QuotaOfCgroupVersion1) {
    const Tree tree;
    tree.write("proc/self/cgroup", "3:cpu,cpuacct:/a\n2:memory:/a\n0::/\n");
    tree.write("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "-1\n");
    tree.write("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
    EXPECT_FALSE(read_facts(tree.root()).cpu_quota.has_value());
    EXPECT_EQ(read_facts(tree.root()).cgroup_version, 1);
    tree.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "50000\n");
    tree.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    EXPECT_EQ(read_facts(tree.root()).cpu_quota, 0.5);
}

// Every file that facts come from.
const std::vector<std::string>& files() {
    static const std::vector<std::string> names{"proc/cpuinfo",
                                                "proc/meminfo",
                                                "proc/self/status",
                                                "proc/self/cgroup",
                                                "proc/self/limits",
                                                "proc/sys/kernel/osrelease",
                                                "proc/sys/kernel/io_uring_disabled",
                                                "proc/loadavg",
                                                "proc/pressure/cpu",
                                                "proc/pressure/io",
                                                "proc/pressure/memory",
                                                "sys/fs/cgroup/user/cpu.max",
                                                "sys/devices/system/cpu/online",
                                                "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
                                                "sys/devices/system/cpu/cpu0/cpufreq/scaling_driver",
                                                "sys/kernel/mm/transparent_hugepage/enabled"};
    return names;
}

void expect_no_facts(const Facts& f, const std::string& why) {
    SCOPED_TRACE(why.substr(0, 60));
    EXPECT_EQ(f.architecture, "");
    EXPECT_FALSE(f.cpu_model.has_value());
    EXPECT_FALSE(f.cpu_features.has_value());
    EXPECT_FALSE(f.cores_online.has_value());
    EXPECT_FALSE(f.cores_allowed.has_value());
    EXPECT_FALSE(f.cpu_quota.has_value());
    EXPECT_FALSE(f.ram_total.has_value());
    EXPECT_FALSE(f.room.available.has_value());
    EXPECT_FALSE(f.room.cgroup_limit.has_value());
    EXPECT_FALSE(f.swap_total.has_value());
    EXPECT_FALSE(f.swap_used.has_value());
    EXPECT_FALSE(f.memlock_limit.has_value());
    EXPECT_FALSE(f.huge_pages.has_value());
    EXPECT_FALSE(f.cgroup_version.has_value());
    EXPECT_FALSE(f.io_uring_disabled.has_value());
    EXPECT_FALSE(f.load.has_value());
    EXPECT_FALSE(f.pressure.has_value());
}

TEST(Facts, WhatCannotBeReadIsAbsent) {
    const Tree tree;
    expect_no_facts(read_facts(tree.root()), "no tree at all");
    for (const std::string& f : files()) tree.folder(f);
    expect_no_facts(read_facts(tree.root()), "folders");
    for (const std::string& f : files()) tree.fifo(f);
    expect_no_facts(read_facts(tree.root()), "FIFOs");
    for (const std::string& f : files()) tree.link(f, "/dev/zero");
    expect_no_facts(read_facts(tree.root()), "devices");
    for (const std::string& f : files()) tree.link(f, "nowhere");
    expect_no_facts(read_facts(tree.root()), "links to nothing");
    for (const std::string& f : files()) tree.link(f, std::filesystem::path(f).filename().string());
    expect_no_facts(read_facts(tree.root()), "links to themselves");
}

TEST(Facts, GarbageIsNoFact) {
    const Tree tree;
    const std::string huge(3 * MiB, '9');
    for (const std::string& text :
         {std::string(), std::string("\n\n\n"), std::string(100, '\0'), std::string("\xff\xfe\x80 -1 [ ] ]["), huge,
          std::string("-99999999999999999999999999999999"), std::string(": : :"), std::string("]none[")}) {
        for (const std::string& f : files()) tree.write(f, text);
        const Facts f = read_facts(tree.root());
        expect_no_facts(f, text);
    }
    // The right keys with wrong values.
    tree.write("proc/cpuinfo", "flags\nmodel name\nFeatures\n");
    tree.write("proc/meminfo", "MemTotal: 18446744073709551615 kB\nMemAvailable: x kB\nSwapTotal:\nSwapFree: -1 kB\n");
    tree.write("proc/self/status", "Cpus_allowed_list:\t3-1\n");
    tree.write("proc/self/limits", "Max locked memory\n");
    tree.write("proc/self/cgroup", "0::/user\n");
    tree.write("sys/fs/cgroup/user/cpu.max", "100000 0\n");
    tree.write("proc/pressure/io", "some avg10=1e999 avg60\n");
    tree.write("proc/pressure/cpu", "some avg10=-1 avg60\n");
    tree.write("proc/pressure/memory", "some avg10=nan avg60\n");
    tree.write("proc/loadavg", "inf 1 2\n");
    Facts f = read_facts(tree.root());
    EXPECT_EQ(f.cgroup_version, 2);
    f.cgroup_version.reset();
    expect_no_facts(f, "right keys");
}

TEST(Facts, ListsOfProcessors) {
    EXPECT_EQ(count_cpus("0"), 1U);
    EXPECT_EQ(count_cpus("0-3"), 4U);
    EXPECT_EQ(count_cpus(" 0-1,4,8-9\n"), 5U);
    for (const char* wrong : {"", ",", "0,", "x", "0-", "-1", "3-1", "0-99999999999999999999", "0-18446744073709551615",
                              "0-4294967295", "0--1", "0 1"}) {
        EXPECT_FALSE(count_cpus(wrong).has_value()) << wrong;
    }
    std::string many = "0";
    for (int i = 0; i < 70'000; ++i) many += ",0";
    EXPECT_FALSE(count_cpus(many).has_value());
}

TEST(Facts, KernelReleases) {
    EXPECT_EQ(parse_kernel("6.1.0-13-amd64"), (KernelVersion{6, 1}));
    EXPECT_EQ(parse_kernel("5.15"), (KernelVersion{5, 15}));
    EXPECT_LT(*parse_kernel("5.15.3"), (KernelVersion{6, 0}));
    for (const char* wrong : {"", "6", "six.one", "6.", ".1", "99999999999999999999.1"}) {
        EXPECT_FALSE(parse_kernel(wrong).has_value()) << wrong;
    }
}

TEST(Text, IsBounded) {
    const Tree tree;
    tree.write("big", std::string(kMostText - 3, 'a') + "\nbbbbbbbb\n");
    const auto text = read_text(tree.root() + "/big");
    ASSERT_TRUE(text.has_value());
    EXPECT_EQ(text->size(), kMostText - 2);
    EXPECT_EQ(text->back(), '\n');
    EXPECT_FALSE(read_text("/dev/zero").has_value());
    EXPECT_FALSE(read_text(tree.root()).has_value());
}

}  // namespace
}  // namespace sluice::machine
