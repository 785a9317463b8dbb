#include "plan/history.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <thread>
#include <vector>

namespace sluice::plan {
namespace {

namespace fs = std::filesystem;

PastRun some_run() {
    PastRun r;
    r.at = "2025-03-01T12:00:00Z";
    r.model = "0123456789abcdef";
    r.machine = "Some CPU, 8 cores";
    r.drive = "nvme-ext4-1";
    r.threads = 2;
    r.cache_bytes = 500'000'000;
    r.slots = 311;
    r.policy = "frequency";
    r.tokens = 64;
    r.wall = 6'400'000'000;
    r.waited = 2'000'000'000;
    r.reading = 3'000'000'000;
    r.lookups = 8192;
    r.hits = 4096;
    r.read_bytes = 7'000'000'000;
    r.predicted = Range{8, 12.5};
    return r;
}

Speeds some_speeds() {
    return {"2025-03-01T12:00:00Z", "Some CPU, 8 cores", 2, {{"q8_0", 0.16}}, {{"f32", 0.2}, {"q8_0", 0.18}}, 900};
}

class HistoryFile : public testing::Test {
  protected:
    HistoryFile() {
        std::string folder = testing::TempDir() + "sluice-history-XXXXXX";
        directory_ = ::mkdtemp(folder.data());
        path_ = directory_ + "/deep/runs.jsonl";
    }
    ~HistoryFile() override { fs::remove_all(directory_); }

    [[nodiscard]] std::string text() const {
        std::ifstream in(path_);
        std::ostringstream out;
        out << in.rdbuf();
        return out.str();
    }
    void write(const std::string& text) {
        fs::create_directories(fs::path(path_).parent_path());
        std::ofstream(path_) << text;
    }

    std::string directory_, path_;
};

TEST(HistoryLine, ComesBackAsItWas) {
    PastRun unpredicted = some_run();
    unpredicted.predicted.reset();
    const History h =
        parse_history(*line_of(some_run()) + "\n" + *line_of(some_speeds()) + "\n" + *line_of(unpredicted));
    ASSERT_EQ(h.runs.size(), 2U);
    ASSERT_EQ(h.speeds.size(), 1U);
    EXPECT_EQ(h.runs[0], some_run());
    EXPECT_EQ(h.runs[1], unpredicted);
    EXPECT_EQ(h.speeds[0], some_speeds());
    Speeds busy = some_speeds();
    busy.busy = true;
    EXPECT_EQ(parse_history(*line_of(busy)).speeds, std::vector<Speeds>{busy});
    EXPECT_EQ(some_run().tokens_per_second(), 10);
}

TEST(HistoryLine, WhatCannotBeIsNotWritten) {
    const auto refused = [](auto change) {
        PastRun r = some_run();
        change(r);
        return !line_of(r).ok();
    };
    EXPECT_TRUE(refused([](PastRun& r) { r.wall = 0; }));
    EXPECT_TRUE(refused([](PastRun& r) { r.waited = r.wall + 1; }));
    EXPECT_TRUE(refused([](PastRun& r) { r.reading = -1; }));
    EXPECT_TRUE(refused([](PastRun& r) { r.threads = 0; }));
    EXPECT_TRUE(refused([](PastRun& r) { r.hits = r.lookups + 1; }));
    EXPECT_TRUE(refused([](PastRun& r) { r.tokens = 0; }));
    EXPECT_TRUE(refused([](PastRun& r) { r.model = ""; }));
    EXPECT_TRUE(refused([](PastRun& r) { r.machine = "two\nlines"; }));
    EXPECT_TRUE(refused([](PastRun& r) { r.machine = "\xff"; }));
    EXPECT_TRUE(refused([](PastRun& r) { r.machine = std::string(5000, 'x'); }));
    EXPECT_TRUE(refused([](PastRun& r) { r.predicted = Range{3, 2}; }));
    EXPECT_TRUE(refused([](PastRun& r) { r.predicted = Range{0, std::numeric_limits<double>::infinity()}; }));
    Speeds s = some_speeds();
    s.experts["q8_0"] = std::nan("");
    EXPECT_FALSE(line_of(s).ok());
    s = some_speeds();
    s.node = 0;
    EXPECT_FALSE(line_of(s).ok());
}

TEST(HistoryLine, DamagedOnesArePassedOver) {
    const std::string good = *line_of(some_run());
    const auto with = [&](const std::string& from, const std::string& to) {
        std::string s = good;
        s.replace(s.find(from), from.size(), to);
        return s;
    };
    for (const std::string& bad : {std::string("nonsense"),
                                   std::string("[]"),
                                   std::string("{}"),
                                   std::string("null"),
                                   good.substr(0, 100),
                                   with("\"v\":1", "\"v\":2"),
                                   with("\"v\":1", "\"v\":\"1\""),
                                   with("\"run\"", "\"dance\""),
                                   with("\"run\"", "7"),
                                   with("\"threads\":2", "\"threads\":-2"),
                                   with("\"threads\":2", "\"threads\":4294967298"),
                                   with("\"threads\":2", "\"threads\":2.5"),
                                   with("\"tokens\":64", "\"tokens\":0"),
                                   with("\"tokens\":64,", ""),
                                   with("\"slots\":311", "\"slots\":18446744073709551615"),
                                   with("[8.0,12.5]", "[8.0]"),
                                   with("[8.0,12.5]", "[12.5,8.0]"),
                                   with("[8.0,12.5]", "[\"8\",12.5]"),
                                   with("[8.0,12.5]", "true"),
                                   std::string(kMostLine, ' ') + good}) {
        EXPECT_TRUE(parse_history(bad).runs.empty()) << bad;
        EXPECT_EQ(parse_history(bad + "\n" + good + "\n").runs.size(), 1U) << bad;
    }
}

TEST_F(HistoryFile, IsMadeWithItsDirectoryForTheUserAlone) {
    EXPECT_TRUE(read_history(path_).runs.empty());
    ASSERT_TRUE(append_line(path_, *line_of(some_run())).ok());
    ASSERT_TRUE(append_line(path_, *line_of(some_speeds())).ok());
    const History h = read_history(path_);
    EXPECT_EQ(h.runs.size(), 1U);
    EXPECT_EQ(h.speeds.size(), 1U);
    struct stat st = {};
    ASSERT_EQ(stat(path_.c_str(), &st), 0);
    EXPECT_EQ(st.st_mode & 0777U, 0600U);
}

TEST_F(HistoryFile, KeepsTheNewestWhenItIsFull) {
    constexpr uint64_t kMost = 4096;
    for (unsigned i = 1; i <= 100; ++i) {
        PastRun r = some_run();
        r.threads = i;
        ASSERT_TRUE(append_line(path_, *line_of(r), kMost).ok());
        ASSERT_LE(fs::file_size(path_), kMost);
        const History h = read_history(path_);
        ASSERT_FALSE(h.runs.empty());
        ASSERT_EQ(h.runs.back().threads, i);
        for (size_t k = 1; k < h.runs.size(); ++k) ASSERT_EQ(h.runs[k].threads, h.runs[k - 1].threads + 1);
    }
    EXPECT_GE(read_history(path_).runs.size(), 4U);
    EXPECT_FALSE(fs::exists(path_ + ".tmp"));
}

TEST_F(HistoryFile, ALineThatWasCutOffSpoilsNoOther) {
    const std::string line = *line_of(some_run());
    write(line + "\n" + line.substr(0, 50));
    ASSERT_TRUE(append_line(path_, line).ok());
    EXPECT_EQ(read_history(path_).runs.size(), 2U);
}

TEST_F(HistoryFile, OnlyLinesAreAdded) {
    EXPECT_FALSE(append_line(path_, "").ok());
    EXPECT_FALSE(append_line(path_, "two\nlines").ok());
    EXPECT_FALSE(append_line(path_, std::string(kMostLine, 'x')).ok());
    EXPECT_FALSE(fs::exists(path_));
}

TEST_F(HistoryFile, WhatIsNoPlainFileIsLeftAlone) {
    fs::create_directories(path_);
    EXPECT_FALSE(append_line(path_, *line_of(some_run())).ok());
    EXPECT_TRUE(read_history(path_).runs.empty());
    fs::remove(path_);
    // Neither waits for a reader of the pipe, nor follows a link.
    ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
    EXPECT_FALSE(append_line(path_, *line_of(some_run())).ok());
    EXPECT_TRUE(read_history(path_).runs.empty());
    fs::remove(path_);
    std::ofstream(directory_ + "/other") << "precious";
    fs::create_symlink(directory_ + "/other", path_);
    EXPECT_FALSE(append_line(path_, *line_of(some_run())).ok());
    EXPECT_EQ(fs::file_size(directory_ + "/other"), 8U);
}

TEST_F(HistoryFile, ManyWritersLoseNothing) {
    constexpr unsigned kWriters = 4;
    constexpr unsigned kEach = 25;
    std::vector<std::thread> writers;
    for (unsigned w = 0; w < kWriters; ++w) {
        writers.emplace_back([&, w] {
            for (unsigned i = 0; i < kEach; ++i) {
                PastRun r = some_run();
                r.threads = 1 + w * kEach + i;
                // Whoever finds it in use for long gives up, which is no error of the file.
                while (!append_line(path_, *line_of(r)).ok()) {
                }
            }
        });
    }
    for (std::thread& t : writers) t.join();
    const History h = read_history(path_);
    std::vector<bool> seen(kWriters * kEach + 1);
    for (const PastRun& r : h.runs) seen[r.threads] = true;
    EXPECT_EQ(h.runs.size(), kWriters * kEach);
    for (unsigned t = 1; t <= kWriters * kEach; ++t) EXPECT_TRUE(seen[t]) << t;
}

TEST(HistoryPath, LiesWithTheVerdicts) {
    setenv("SLUICE_CACHE_DIR", "/own", 1);
    EXPECT_EQ(*history_path(), "/own/runs.jsonl");
    unsetenv("SLUICE_CACHE_DIR");
}

}  // namespace
}  // namespace sluice::plan
