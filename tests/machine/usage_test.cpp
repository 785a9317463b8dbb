#include "machine/usage.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "tests/machine/tree.h"

namespace sluice::machine {
namespace {

constexpr const char* kPressure =
    "some avg10=1.50 avg60=0.00 avg300=0.00 total=%s1\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=%s2\n";

std::string pressure(const std::string& digit) {
    std::string text = kPressure;
    for (size_t at = 0; (at = text.find("%s")) != std::string::npos;) text.replace(at, 2, digit);
    return text;
}

TEST(Usage, MemoryIsWhatTheKernelSays) {
    const Usage before = usage();
    ASSERT_TRUE(before.rss.has_value());
    ASSERT_TRUE(before.peak.has_value());
    EXPECT_GE(*before.peak, *before.rss / 2);
    const std::vector<char> block(64 * MiB, 1);
    EXPECT_GE(*usage().anon, *before.anon + 60 * MiB) << block.size();
}

TEST(Usage, CountsOnlyGrow) {
    const UsageReader reader;
    const Usage first = reader.read();
    ASSERT_TRUE(first.bytes_read.has_value());
    ASSERT_TRUE(first.cpu_ns.has_value());
    const std::vector<char> block(16 * MiB, 1);
    const Usage second = reader.read();
    EXPECT_GE(*second.bytes_read, *first.bytes_read);
    EXPECT_GT(*second.cpu_ns, *first.cpu_ns) << block.size();
    EXPECT_GT(*second.minor_faults, *first.minor_faults);
    EXPECT_GE(*second.major_faults, *first.major_faults);
}

TEST(Usage, AKeptReaderSeesWhatIsNew) {
    const UsageReader reader;
    const Usage before = reader.read();
    const std::vector<char> block(64 * MiB, 1);
    EXPECT_GE(*reader.read().anon, *before.anon + 60 * MiB) << block.size();
}

TEST(Usage, FaultsAreThoseOfTheWholeSample) {
    const Faults before = faults();
    const Usage all = usage();
    const Faults after = faults();
    EXPECT_LE(*before.minor, *all.minor_faults);
    EXPECT_LE(*all.minor_faults, *after.minor);
    EXPECT_LE(*before.cpu_ns, *all.cpu_ns);
    EXPECT_LE(*all.cpu_ns, *after.cpu_ns);
}

TEST(Usage, EveryNumberComesFromItsFile) {
    const Tree tree;
    tree.write("proc/self/status",
               "Name:\tx\nVmHWM:\t    20 kB\nVmRSS:\t    10 kB\nRssAnon:\t 6 kB\nRssFile:\t 4 kB\nVmSwap:\t 3 kB\n");
    tree.write("proc/self/io", "rchar: 1\nread_bytes: 4096\nwrite_bytes: 5\n");
    tree.write("proc/meminfo", "MemTotal: 100 kB\nMemFree: 30 kB\nMemAvailable: 50 kB\nSwapFree: 7 kB\n");
    tree.write("proc/pressure/io", pressure("7"));
    tree.write("proc/pressure/memory", pressure("8"));
    const Usage u = usage(tree.root());
    EXPECT_EQ(u.rss, 10 * KiB);
    EXPECT_EQ(u.peak, 20 * KiB);
    EXPECT_EQ(u.anon, 6 * KiB);
    EXPECT_EQ(u.file, 4 * KiB);
    EXPECT_EQ(u.swap, 3 * KiB);
    EXPECT_EQ(u.bytes_read, 4096U);
    EXPECT_EQ(u.mem_free, 30 * KiB);
    EXPECT_EQ(u.mem_available, 50 * KiB);
    EXPECT_EQ(u.swap_free, 7 * KiB);
    EXPECT_EQ(u.psi_io_some_us, 71U);
    EXPECT_EQ(u.psi_io_full_us, 72U);
    EXPECT_EQ(u.psi_mem_some_us, 81U);
    EXPECT_EQ(u.psi_mem_full_us, 82U);
}

void expect_nothing(const Usage& u) {
    for (const auto& n : {u.rss, u.peak, u.anon, u.file, u.swap, u.bytes_read, u.mem_available, u.mem_free, u.swap_free,
                          u.psi_io_some_us, u.psi_io_full_us, u.psi_mem_some_us, u.psi_mem_full_us}) {
        EXPECT_FALSE(n.has_value()) << *n;
    }
}

constexpr std::array<const char*, 5> kFiles{"proc/self/status", "proc/self/io", "proc/meminfo", "proc/pressure/io",
                                            "proc/pressure/memory"};

TEST(Usage, WhatCannotBeReadIsAbsent) {
    const Tree tree;
    expect_nothing(usage(tree.root()));
    for (const char* f : kFiles) tree.folder(f);
    expect_nothing(usage(tree.root()));
    for (const char* f : kFiles) tree.fifo(f);
    expect_nothing(usage(tree.root()));
    for (const char* f : kFiles) tree.write(f, "");
    expect_nothing(usage(tree.root()));
}

TEST(Usage, WhatIsNoNumberIsAbsent) {
    const Tree tree;
    for (const char* value : {"", "-1", "x", "12x", "1.5", "18446744073709551616", "99999999999999999999999"}) {
        tree.write("proc/self/status",
                   fmt::format("VmRSS: {0}\nVmHWM:{0}\nRssAnon: {0} kB\nRssFile:\t{0}\nVmSwap: {0}", value));
        tree.write("proc/self/io", fmt::format("read_bytes: {}\n", value));
        tree.write("proc/meminfo", fmt::format("MemFree: {0}\nMemAvailable: {0}\nSwapFree: {0}\n", value));
        tree.write("proc/pressure/io", fmt::format("some total={0}\nfull {0}\n", value));
        tree.write("proc/pressure/memory", fmt::format("some {0}\nfull total={0}\n", value));
        expect_nothing(usage(tree.root()));
    }
    // Too large in bytes, though the number of kilobytes fits.
    tree.write("proc/self/status", "VmRSS: 18446744073709551615 kB\n");
    EXPECT_FALSE(usage(tree.root()).rss.has_value());
}

TEST(Usage, AFileLargerThanTheBufferIsCutAtALine) {
    const Tree tree;
    std::string text = "VmRSS: 10 kB\n";
    while (text.size() < 16 * KiB - 9) text += 'x';
    tree.write("proc/self/status", text + "\nVmHWM: 12345 kB\n");
    const Usage u = usage(tree.root());
    EXPECT_EQ(u.rss, 10 * KiB);
    EXPECT_FALSE(u.peak.has_value());
    tree.write("proc/self/status", std::string(MiB, '7'));
    EXPECT_FALSE(usage(tree.root()).rss.has_value());
}

// Loose bounds: they only notice when somebody makes a sample cost a hundred times more.
TEST(Usage, SamplesAreCheap) {
    constexpr int kRounds = 200;
    const UsageReader reader;
    const Clock& clock = SystemClock::instance();
    Nanos sample = INT64_MAX;
    Nanos cheap = INT64_MAX;
    for (int i = 0; i < kRounds; ++i) {
        const Nanos a = clock.now();
        (void)reader.read();
        const Nanos b = clock.now();
        (void)faults();
        const Nanos c = clock.now();
        sample = std::min(sample, b - a);
        cheap = std::min(cheap, c - b);
    }
    RecordProperty("sample_ns", std::to_string(sample));
    RecordProperty("faults_ns", std::to_string(cheap));
    EXPECT_LT(sample, 2'000'000);
    EXPECT_LT(cheap, 200'000);
}

}  // namespace
}  // namespace sluice::machine
