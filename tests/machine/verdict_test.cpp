#include "machine/verdict.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>
#include <numeric>

#include "machine/probe.h"
#include "tests/machine/tree.h"

namespace sluice::machine {
namespace {

constexpr io::EngineKind kRing = io::EngineKind::io_uring;
constexpr io::EngineKind kPool = io::EngineKind::pread;

Cell cell(uint64_t size, unsigned depth, Nanos p50, io::EngineKind engine = kRing, bool direct = true) {
    return {.engine = engine,
            .direct = direct,
            .under_load = false,
            .size = size,
            .depth = depth,
            .source = Source::device,
            .reads = 100,
            .bytes = 100 * size,
            .elapsed = 100 * p50 / depth,
            .device_bytes = 100 * size,
            .spread = 1.25,
            .latency = {p50, p50 * 2, p50 * 4}};
}

// One of everything, and few of each.
Verdict small_verdict() {
    Verdict v;
    v.made = "2025-03-01T12:00:00Z";
    v.sluice = "0.1.0";
    v.kernel = "6.1.0";
    v.drive = {.device = "sda",
               .model = "Some SSD 980",
               .serial = "S5GX 1",
               .file_system = "ext4",
               .scheduler = "none",
               .source = "",
               .bytes = 512'000,
               .virtual_drive = false,
               .memory = false};
    v.path = "/models/some.gguf";
    v.path_bytes = 1 << 30;
    v.model_digest = "0123456789abcdef";
    v.full = true;
    v.took = 30'000'000'000;
    v.load_threads = 2;
    v.sizes = {{4 * KiB, "page"}, {64 * KiB, "gate"}};
    v.cells = {cell(4 * KiB, 1, 100'000), cell(64 * KiB, 1, 160'000), cell(4 * KiB, 4, 200'000),
               cell(64 * KiB, 4, 400'000)};
    v.cells[3].latency.p99.reset();
    v.sustained = {{.engine = kRing,
                    .direct = true,
                    .size = 64 * KiB,
                    .depth = 4,
                    .source = Source::device,
                    .bytes = 1 << 30,
                    .elapsed = 1'000'000'000,
                    .burst = 3.5,
                    .rate = 1.1,
                    .steady = true,
                    .steady_after = 400'000'000}};
    v.interference = {{.exact = 4 * KiB,
                       .chunk = 0,
                       .pieces = 0,
                       .priorities = false,
                       .source = Source::device,
                       .reads = 50,
                       .exact_rate = 0.04,
                       .speculative_rate = 0,
                       .latency = {100'000, 150'000, {}}},
                      {.exact = 4 * KiB,
                       .chunk = 64 * KiB,
                       .pieces = 4,
                       .priorities = true,
                       .source = Source::device,
                       .reads = 50,
                       .exact_rate = 0.03,
                       .speculative_rate = 0.6,
                       .latency = {120'000, 170'000, {}}}};
    v.memory = {.checksum = 12.5, .first_touch = 0.15, .again = 6.25};
    v.derived = Derived{.engine = kRing,
                        .direct = true,
                        .size = 64 * KiB,
                        .depth = 4,
                        .best = 0.65536,
                        .sustained = 0.5,
                        .burst = 3.5,
                        .steady = true,
                        .chunk = 64 * KiB,
                        .service = 160'000,
                        .window = 256 * KiB,
                        .lanes = 5,
                        .reserved = 1,
                        .priorities = false};
    v.notes = {"The drive is virtual."};
    return v;
}

std::string text_of(const Verdict& v) {
    auto text = verdict_text(v);
    EXPECT_TRUE(text.ok()) << text.status().message();
    return text.ok() ? *text : "";
}

// `from` must be there.
std::string replaced(std::string text, const std::string& from, const std::string& to) {
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

TEST(Verdict, ComesBackEqual) {
    Verdict v = small_verdict();
    auto back = parse_verdict(text_of(v));
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_EQ(*back, v);
    v.derived.reset();
    v.memory = {};
    v.cells.clear();
    v.interference.clear();
    v.sustained.clear();
    v.sizes.clear();
    v.notes.clear();
    v.model_digest.clear();
    v.cells.push_back(cell(MiB, 1, 1));
    v.cells.back().device_bytes.reset();
    v.cells.back().latency = {1, {}, {}};
    v.cells.back().elapsed = kMostProbeRead;
    back = parse_verdict(text_of(v));
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_EQ(*back, v);
}

TEST(Verdict, APathThatIsNoTextIsWrittenAllTheSame) {
    Verdict v = small_verdict();
    v.path = "/models/\xff\xfe.gguf";
    const auto back = parse_verdict(text_of(v));
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_EQ(back->cells, v.cells);
}

// Whatever bit of the file is wrong: either it is refused, or (between words) it changes nothing.
TEST(Verdict, NoFlippedBitIsBelieved) {
    const Verdict v = small_verdict();
    std::string text = text_of(v);
    size_t harmless = 0;
    for (size_t i = 0; i < text.size(); ++i) {
        for (int bit = 0; bit < 8; ++bit) {
            text[i] = static_cast<char>(text[i] ^ (1 << bit));
            const auto back = parse_verdict(text);
            if (back.ok()) {
                ++harmless;
                ASSERT_EQ(*back, v) << "byte " << i << " bit " << bit;
            }
            text[i] = static_cast<char>(text[i] ^ (1 << bit));
        }
    }
    EXPECT_LT(harmless, text.size() / 8) << "blanks only";
}

TEST(Verdict, CutOffItIsNone) {
    const std::string text = text_of(small_verdict());
    for (size_t n = 0; n + 2 < text.size(); ++n) {
        const auto back = parse_verdict(std::string_view(text).substr(0, n));
        ASSERT_FALSE(back.ok()) << n;
        EXPECT_EQ(back.status().code(), Code::corrupt);
    }
}

TEST(Verdict, AForeignVersionIsRefusedByName) {
    const auto back = parse_verdict(replaced(text_of(small_verdict()), "\"version\": 1", "\"version\": 2"));
    ASSERT_FALSE(back.ok());
    EXPECT_EQ(back.status().code(), Code::unsupported);
    EXPECT_NE(back.status().message().find("version 2"), std::string::npos);
}

TEST(Verdict, WhatIsNoVerdictIsRefused) {
    for (const std::string& text :
         {std::string(), std::string("{}"), std::string("[]"), std::string("null"), std::string("{\"format\": 1}"),
          std::string("{\"format\": \"sluice-probe\"}"), std::string("{\"format\": \"sluice-probe\", \"version\": -1}"),
          std::string("{\"format\": \"sluice-probe\", \"version\": 1}"), std::string(kMostVerdictBytes, '['),
          std::string(kMostVerdictBytes + 1, ' '), std::string(100, '\0')}) {
        EXPECT_EQ(parse_verdict(text).status().code(), Code::corrupt) << text.substr(0, 60);
    }
}

// With the right digest too: this is what a program with an error would write.
TEST(Verdict, NumbersThatCannotBeAreNeitherWrittenNorRead) {
    const double inf = std::numeric_limits<double>::infinity();
    const double nan = std::numeric_limits<double>::quiet_NaN();
    using Change = void (*)(Verdict&);
    const std::vector<Change> changes{[](Verdict& v) { v.cells[0].size = 0; },
                                      [](Verdict& v) { v.cells[0].size = kMostProbeRead + 1; },
                                      [](Verdict& v) { v.cells[0].depth = 0; },
                                      [](Verdict& v) { v.cells[0].depth = 65; },
                                      [](Verdict& v) { v.cells[0].engine = io::EngineKind::mmap; },
                                      [](Verdict& v) { v.cells[0].reads = 0; },
                                      [](Verdict& v) { v.cells[0].bytes = UINT64_MAX; },
                                      [](Verdict& v) { v.cells[0].bytes = 99; },
                                      [](Verdict& v) { v.cells[0].elapsed = 0; },
                                      [](Verdict& v) { v.cells[0].elapsed = -1; },
                                      [](Verdict& v) { v.cells[0].elapsed = INT64_MAX; },
                                      [](Verdict& v) { v.cells[0].spread = 0.5; },
                                      [](Verdict& v) { v.cells[0].latency.p50 = -5; },
                                      [](Verdict& v) { v.cells[0].latency.p95 = 1; },
                                      [](Verdict& v) { v.cells[0].latency.p99 = 1; },
                                      [](Verdict& v) { v.cells[0].device_bytes = UINT64_MAX; },
                                      [](Verdict& v) { v.cells.push_back(v.cells[0]); },
                                      [](Verdict& v) { v.cells.resize(kMostCells + 1, v.cells[0]); },
                                      [](Verdict& v) { v.interference.push_back(v.interference[1]); },
                                      [](Verdict& v) { v.interference[0].pieces = 1; },
                                      [](Verdict& v) { v.interference[1].chunk = 0; },
                                      [](Verdict& v) { v.interference[1].speculative_rate = -1; },
                                      [](Verdict& v) { v.interference[1].exact_rate = 0; },
                                      [](Verdict& v) { v.sustained[0].rate = 0; },
                                      [](Verdict& v) { v.sustained[0].burst = 1e6; },
                                      [](Verdict& v) { v.sustained[0].steady_after = v.sustained[0].elapsed + 1; },
                                      [](Verdict& v) { v.memory.checksum = 0; },
                                      [](Verdict& v) { v.memory.again = -1; },
                                      [](Verdict& v) { v.derived->chunk = 0; },
                                      [](Verdict& v) { v.derived->window = v.derived->chunk - 1; },
                                      [](Verdict& v) { v.derived->window = UINT64_MAX; },
                                      [](Verdict& v) { v.derived->reserved = 0; },
                                      [](Verdict& v) { v.derived->reserved = v.derived->lanes + 1; },
                                      [](Verdict& v) { v.derived->lanes = 1000; },
                                      [](Verdict& v) { v.derived->service = 0; },
                                      [](Verdict& v) { v.notes.resize(kMostNotes + 1); },
                                      [](Verdict& v) { v.notes = {std::string(5000, 'x')}; },
                                      [](Verdict& v) { v.path = std::string(5000, 'x'); },
                                      [](Verdict& v) { v.sizes[0].bytes = 0; },
                                      [](Verdict& v) { v.path_bytes = UINT64_MAX; },
                                      [](Verdict& v) { v.took = -1; }};
    for (size_t i = 0; i < changes.size(); ++i) {
        Verdict v = small_verdict();
        changes[i](v);
        EXPECT_FALSE(verdict_text(v).ok()) << "change " << i;
    }
    for (const double x : {inf, nan, -inf, 0.0, -1.0, 1e300}) {
        Verdict v = small_verdict();
        v.derived->sustained = x;
        EXPECT_FALSE(verdict_text(v).ok()) << x;
    }
    const std::string text = text_of(small_verdict());
    for (const char* number : {"-1", "1e308", "NaN", "null", "\"1\"", "1.5", "18446744073709551615", "true", "[]"}) {
        for (const char* name : {"\"chunk\": 65536", "\"depth\": 4", "\"elapsed_ns\": 10000000"})
            EXPECT_FALSE(parse_verdict(replaced(text, name,
                                                std::string(name).substr(0, std::string(name).find(' ') + 1) + number))
                             .ok())
                << name << " " << number;
    }
}

TEST(Verdict, AnswersWhatWasMeasured) {
    const Verdict v = small_verdict();
    EXPECT_EQ(v.at(kRing, true, 4 * KiB, 1), (Latency{100'000, 200'000, 400'000}));
    EXPECT_EQ(v.at(kRing, true, 64 * KiB, 4)->p50, 400'000);
    EXPECT_FALSE(v.at(kRing, true, 64 * KiB, 4)->p99.has_value()) << "too few reads";
}

TEST(Verdict, InterpolatesInside) {
    const Verdict v = small_verdict();
    // In the middle of 4 and 64 KiB; one third of the way from 1 to 4.
    EXPECT_EQ(v.at(kRing, true, 34 * KiB, 1)->p50, 130'000);
    EXPECT_EQ(v.at(kRing, true, 4 * KiB, 2)->p50, 133'333);
    EXPECT_EQ(v.at(kRing, true, 34 * KiB, 2)->p50, 186'667);
    EXPECT_EQ(v.at(kRing, true, 34 * KiB, 2)->p95, 373'333);
    EXPECT_FALSE(v.at(kRing, true, 34 * KiB, 2)->p99.has_value()) << "not known at one of the corners";
    EXPECT_EQ(v.at(kRing, true, 4 * KiB, 2)->p99, 533'333);
}

TEST(Verdict, NeverSaysAnythingAboutWhatWasNotMeasured) {
    Verdict v = small_verdict();
    EXPECT_FALSE(v.at(kRing, true, 4 * KiB - 1, 1).has_value());
    EXPECT_FALSE(v.at(kRing, true, 64 * KiB + 1, 1).has_value());
    EXPECT_FALSE(v.at(kRing, true, 4 * KiB, 0).has_value());
    EXPECT_FALSE(v.at(kRing, true, 4 * KiB, 5).has_value());
    EXPECT_FALSE(v.at(kPool, true, 4 * KiB, 1).has_value()) << "another engine";
    EXPECT_FALSE(v.at(kRing, false, 4 * KiB, 1).has_value()) << "through the page cache";
    EXPECT_FALSE(v.at(kRing, true, 4 * KiB, 1, true).has_value()) << "under load";
    v.cells[3].source = Source::memory;
    EXPECT_FALSE(v.at(kRing, true, 64 * KiB, 4).has_value()) << "memory answered";
    EXPECT_FALSE(v.at(kRing, true, 34 * KiB, 2).has_value()) << "at a corner too";
    EXPECT_TRUE(v.at(kRing, true, 4 * KiB, 2).has_value());
    v.cells[0].source = Source::unknown;
    EXPECT_FALSE(v.at(kRing, true, 4 * KiB, 1).has_value());
    EXPECT_FALSE(Verdict().at(kRing, true, 1, 1).has_value());
}

TEST(Verdict, AHoleInTheTableIsNotCrossed) {
    Verdict v = small_verdict();
    v.cells.erase(v.cells.begin() + 1);  // 64 KiB at depth 1
    EXPECT_FALSE(v.at(kRing, true, 34 * KiB, 2).has_value());
    EXPECT_TRUE(v.at(kRing, true, 34 * KiB, 4).has_value());
}

TEST(Verdict, ChecksumsAsAPartOfReading) {
    Verdict v = small_verdict();
    EXPECT_NEAR(*v.checksum_share(), 0.65536 / 12.5, 1e-9);
    v.memory.checksum.reset();
    EXPECT_FALSE(v.checksum_share().has_value());
}

TEST(Latencies, PercentilesNeedEnoughReads) {
    std::vector<Nanos> took{30, 10, 20};
    EXPECT_EQ(latency_of(took), (Latency{20, {}, {}}));
    took.assign(kReadsForP95, 7);
    EXPECT_EQ(latency_of(took), (Latency{7, 7, {}}));
    took.resize(kReadsForP99 + 1);
    std::iota(took.begin(), took.end(), 1);
    EXPECT_EQ(latency_of(took), (Latency{51, 96, 100}));
}

// --- drives

DriveIdentity some_drive() {
    return small_verdict().drive;
}

TEST(DriveIdentity, IsAFileNameAndStaysOverAReboot) {
    const DriveIdentity d = some_drive();
    EXPECT_EQ(d.id().substr(0, 18), "some-ssd-980-ext4-");
    EXPECT_EQ(d.id().find('/'), std::string::npos);
    DriveIdentity renamed = d;
    renamed.device = "sdb";
    EXPECT_EQ(renamed.id(), d.id()) << "the serial number tells which it is";
    DriveIdentity scheduled = d;
    scheduled.scheduler = "bfq";
    EXPECT_EQ(scheduled.id(), d.id());
    for (const auto part : {&DriveIdentity::model, &DriveIdentity::serial, &DriveIdentity::file_system}) {
        DriveIdentity other = d;
        other.*part += "x";
        EXPECT_NE(other.id(), d.id());
    }
    DriveIdentity nameless = d;
    nameless.serial.clear();
    renamed.serial.clear();
    EXPECT_NE(renamed.id(), nameless.id());
    DriveIdentity share;
    share.source = "host:/b at /mnt";
    share.file_system = "nfs4";
    EXPECT_EQ(share.id().substr(0, 19), "host-b-at-mnt-nfs4-");
    EXPECT_FALSE(DriveIdentity().id().empty());
    DriveIdentity evil;
    evil.model = "../../x";
    evil.file_system = "/";
    EXPECT_EQ(evil.id().find_first_of("/."), std::string::npos);
}

TEST(DriveIdentity, ComesFromTheFacts) {
    const Tree tree;
    const Model model;
    plant_healthy(tree, model);
    DriveIdentity d = identify(*read_drive(model.path(), tree.root()));
    EXPECT_EQ(d.model, "Some SSD 980");
    EXPECT_EQ(d.serial, "S5GX 1");
    EXPECT_EQ(d.scheduler, "none");
    EXPECT_EQ(d.bytes, 512'000U);
    EXPECT_EQ(d.source, "");
    EXPECT_FALSE(d.memory);
    tree.write("proc/self/mountinfo", "1 0 9:9 / / rw - tmpfs t\xc3\xa4 rw\n");
    d = identify(*read_drive(model.path(), tree.root()));
    EXPECT_TRUE(d.memory);
    EXPECT_EQ(d.source, "t?? at /") << "plain ASCII, so that it is the same after a file";
}

class FindVerdict : public ::testing::Test {
  protected:
    FindVerdict() {
        plant_healthy(tree_, model_);
        setenv("SLUICE_CACHE_DIR", (tree_.root() + "/cache").c_str(), 1);
        verdict_ = small_verdict();
        verdict_.drive = now();
    }
    ~FindVerdict() override { unsetenv("SLUICE_CACHE_DIR"); }
    DriveIdentity now() { return identify(*read_drive(model_.path(), tree_.root())); }
    void keep() { tree_.write("cache/probe/" + now().id() + ".json", text_of(verdict_)); }
    Result<Verdict> find() { return find_verdict(model_.path(), tree_.root()); }
    Tree tree_;
    Model model_;
    Verdict verdict_;
};

TEST_F(FindVerdict, FindsTheOneOfItsDrive) {
    EXPECT_EQ(find().status().code(), Code::not_found);
    EXPECT_NE(find().status().message().find("sluice probe"), std::string::npos);
    keep();
    const auto found = find();
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(*found, verdict_);
    EXPECT_EQ(find_verdict("/no/such/file", tree_.root()).status().code(), Code::not_found);
}

TEST_F(FindVerdict, AnotherSchedulerIsAnotherDrive) {
    keep();
    tree_.write("sys/devices/pci/block/sda/queue/scheduler", "none mq-deadline [bfq]\n");
    ASSERT_FALSE(find().ok());
    EXPECT_EQ(find().status().code(), Code::invalid_argument);
    EXPECT_NE(find().status().message().find("\"bfq\" now"), std::string::npos) << find().status().message();
}

TEST_F(FindVerdict, AnothersVerdictIsNotUsed) {
    verdict_.drive.serial = "another";
    keep();
    ASSERT_FALSE(find().ok());
    EXPECT_EQ(find().status().code(), Code::invalid_argument);
    EXPECT_NE(find().status().message().find("another drive (serial number \"another\""), std::string::npos)
        << find().status().message();
}

TEST_F(FindVerdict, ADamagedOneIsAnErrorAndNamed) {
    keep();
    const std::string path = "cache/probe/" + now().id() + ".json";
    tree_.write(path, replaced(text_of(verdict_), "65536", "65537"));
    ASSERT_FALSE(find().ok());
    EXPECT_EQ(find().status().code(), Code::corrupt);
    EXPECT_NE(find().status().message().find(path), std::string::npos);
    tree_.folder(path);
    EXPECT_EQ(find().status().code(), Code::io_error);
    tree_.fifo(path);
    EXPECT_EQ(find().status().code(), Code::io_error) << "and it does not block";
    tree_.write(path, std::string(2 * kMostVerdictBytes, ' '));
    EXPECT_EQ(find().status().code(), Code::corrupt);
}

TEST(VerdictDirectory, FollowsTheVariables) {
    const auto old_home = std::string(std::getenv("HOME") != nullptr ? std::getenv("HOME") : "");
    setenv("HOME", "/home/me", 1);
    unsetenv("XDG_CACHE_HOME");
    unsetenv("SLUICE_CACHE_DIR");
    EXPECT_EQ(*verdict_directory(), "/home/me/.cache/sluice/probe");
    setenv("XDG_CACHE_HOME", "relative", 1);
    EXPECT_EQ(*verdict_directory(), "/home/me/.cache/sluice/probe");
    setenv("XDG_CACHE_HOME", "/xdg", 1);
    EXPECT_EQ(*verdict_directory(), "/xdg/sluice/probe");
    setenv("SLUICE_CACHE_DIR", "/own", 1);
    EXPECT_EQ(*verdict_directory(), "/own/probe");
    for (const char* name : {"SLUICE_CACHE_DIR", "XDG_CACHE_HOME", "HOME"}) unsetenv(name);
    EXPECT_EQ(verdict_directory().status().code(), Code::not_found);
    setenv("HOME", old_home.c_str(), 1);
    EXPECT_EQ(verdict_path("/a", some_drive()), "/a/" + some_drive().id() + ".json");
    EXPECT_STREQ(engine_name(io::EngineKind::pread), "pread");
}

}  // namespace
}  // namespace sluice::machine
