#include "sched/profile.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

namespace sluice::sched {
namespace {

namespace fs = std::filesystem;

const std::string kModel = "0123456789abcdef";
const std::vector<uint32_t> kExperts{3, 2};

class ProfileTest : public testing::Test {
  protected:
    void SetUp() override {
        directory_ = fs::temp_directory_path() / fmt::format("sluice-profile-{}", ::getpid());
        fs::create_directories(directory_);
        path_ = (directory_ / "deep" / "m.profile").string();
    }
    void TearDown() override { fs::remove_all(directory_); }

    fs::path directory_;
    std::string path_;
};

Profile some() {
    return {kModel, {{100, {65535, 0, 32768}}, {7, {1, 2}}}};
}

cache::Order order() {
    const std::vector<uint32_t> sets{0, 0, 0, 1, 1}, classes(5, 0);
    return cache::Order(sets, classes, 1, cache::Policy::reuse, {});
}

std::string text_of(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

void put(const std::string& path, const std::string& bytes) {
    fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

TEST_F(ProfileTest, ComesBackAsItWasWritten) {
    EXPECT_EQ(read_profile(path_, kModel, kExperts).status().code(), Code::not_found);
    ASSERT_TRUE(write_profile(store::Files::system(), path_, some()).ok());
    const auto back = read_profile(path_, kModel, kExperts);
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_EQ(*back, some());
    EXPECT_EQ(back->most_tokens(), 100U);
    // Nothing else is left behind.
    EXPECT_EQ(std::distance(fs::directory_iterator(fs::path(path_).parent_path()), fs::directory_iterator()), 1);
}

TEST_F(ProfileTest, OfAnotherModelItIsRefused) {
    ASSERT_TRUE(write_profile(store::Files::system(), path_, some()).ok());
    EXPECT_EQ(read_profile(path_, "fedcba9876543210", kExperts).status().code(), Code::conflict);
    EXPECT_EQ(read_profile(path_, kModel, {3, 3}).status().code(), Code::conflict);
    EXPECT_EQ(read_profile(path_, kModel, {3}).status().code(), Code::conflict);
}

TEST_F(ProfileTest, EveryCutAndEveryChangedByteIsNoticed) {
    const std::string whole = *profile_bytes(some());
    ASSERT_TRUE(parse_profile(whole).ok());
    for (size_t n = 0; n < whole.size(); ++n) EXPECT_FALSE(parse_profile(whole.substr(0, n)).ok()) << n;
    for (size_t i = 0; i < whole.size(); ++i) {
        std::string changed = whole;
        changed[i] = static_cast<char>(changed[i] ^ 0x10);
        EXPECT_FALSE(parse_profile(changed).ok()) << i;
    }
    EXPECT_EQ(parse_profile(whole + "x").status().code(), Code::corrupt);
    std::string later = whole;
    later[8] = 2;
    EXPECT_EQ(parse_profile(later).status().code(), Code::unsupported);
    EXPECT_EQ(parse_profile("a letter to grandmother").status().code(), Code::invalid_argument);
}

TEST_F(ProfileTest, WhatIsNoFileOfOursIsNotRead) {
    put(path_, std::string(2 * kMostProfileBytes, 'x'));
    EXPECT_EQ(read_profile(path_, kModel, kExperts).status().code(), Code::invalid_argument);
    EXPECT_EQ(read_profile("/dev/zero", kModel, kExperts).status().code(), Code::invalid_argument);
    EXPECT_EQ(read_profile(directory_.string(), kModel, kExperts).status().code(), Code::invalid_argument);
}

TEST_F(ProfileTest, IsWrittenWhereItsLinkLeadsAndNowhereElse) {
    const std::string other = (directory_ / "other").string();
    put(other, "mine");
    fs::create_directories(fs::path(path_).parent_path());
    fs::create_symlink("far.profile", path_);
    fs::create_symlink(other, (directory_ / "deep" / "far.profile.tmp").string());  // laid for us
    ASSERT_TRUE(write_profile(store::Files::system(), path_, some()).ok());
    EXPECT_EQ(text_of(other), "mine");
    EXPECT_TRUE(fs::is_symlink(path_));
    EXPECT_TRUE(read_profile((directory_ / "deep" / "far.profile").string(), kModel, kExperts).ok());
    EXPECT_EQ(write_profile(store::Files::system(), "/dev/null", some()).code(), Code::invalid_argument);
}

// What two processes learn at once: each adds its own to what is there when it ends, and a reader never sees a part.
TEST_F(ProfileTest, ManyWritersLeaveOneWholeProfile) {
    std::vector<std::thread> writers;
    for (uint16_t i = 0; i < 4; ++i) {
        writers.emplace_back([&, i] {
            Profile mine = some();
            mine.sets[1].uses = {i, i};
            for (int n = 0; n < 20; ++n) {
                const Status s = write_profile(store::Files::system(), path_, mine);
                EXPECT_TRUE(s.ok()) << s.message();
                const auto read = read_profile(path_, kModel, kExperts);
                EXPECT_TRUE(read.ok()) << read.status().message();
            }
        });
    }
    for (std::thread& t : writers) t.join();
    size_t files = 0;
    for (const auto& entry : fs::directory_iterator(directory_ / "deep")) files += entry.exists() ? 1 : 0;
    EXPECT_EQ(files, 1U) << "nothing is left behind";
}

TEST_F(ProfileTest, IsNeverLargerThanItsLimit) {
    Profile large{kModel, {{1, std::vector<uint16_t>(kMostProfileBytes / 2, 1)}}};
    EXPECT_EQ(profile_bytes(large).status().code(), Code::unsupported);
    EXPECT_FALSE(write_profile(store::Files::system(), path_, large).ok());
    EXPECT_FALSE(fs::exists(path_));
    large.sets[0].uses.resize(kMostProfileBytes / 2 - 64);
    const auto bytes = profile_bytes(large);
    ASSERT_TRUE(bytes.ok());
    EXPECT_LE(bytes->size(), kMostProfileBytes);
    EXPECT_EQ(*parse_profile(*bytes), large);
}

TEST_F(ProfileTest, LearnsFrequenciesAndAddsThemToThePast) {
    cache::Order o = order();
    EXPECT_FALSE(learned(o, kModel, std::nullopt).has_value());
    for (int t = 0; t < 4; ++t) {
        o.visit(0, 1, false);
        o.use(0, 0);
        if (t == 0) o.use(1, 0);
    }
    const auto first = learned(o, kModel, std::nullopt);
    ASSERT_TRUE(first.has_value());
    EXPECT_EQ(first->sets[0].tokens, 4U);
    EXPECT_EQ(first->sets[0].uses, (std::vector<uint16_t>{65535, 16384, 0}));
    EXPECT_EQ(first->sets[1].tokens, 0U);
    // Twelve tokens before without the first record: it was used in 4 of 16.
    const auto both = learned(o, kModel, Profile{kModel, {{12, {0, 0, 65535}}, {0, {0, 0}}}});
    ASSERT_TRUE(both.has_value());
    EXPECT_EQ(both->sets[0].tokens, 16U);
    EXPECT_EQ(both->sets[0].uses, (std::vector<uint16_t>{16384, 4096, 49151}));
    // The past is forgotten at last.
    const auto old = learned(o, kModel, Profile{kModel, {{kProfileMemory, {0, 0, 65535}}, {0, {0, 0}}}});
    EXPECT_EQ(old->sets[0].tokens, kProfileMemory);
}

TEST_F(ProfileTest, TheOrderExpectsWhatWasFrequent) {
    cache::Order o = order();
    expect(o, {kModel, {{1000, {32768, 0, 6554}}, {0, {65535, 0}}}});
    EXPECT_GT(o.chance(0), o.chance(2));
    EXPECT_GT(o.chance(2), o.chance(1));
    EXPECT_NEAR(o.chance(0), 0.5 * (1 - cache::Tuning().short_share), 0.02);
    // Nothing is known of a set that no token came through.
    EXPECT_EQ(o.chance(3), o.chance(4));
}

TEST_F(ProfileTest, LiesInTheUsersDirectoryOrWhereAsked) {
    ::setenv("SLUICE_CACHE_DIR", "/u/c", 1);
    EXPECT_EQ(*profile_path("auto", kModel), "/u/c/profiles/" + kModel);
    EXPECT_EQ(*profile_path("a.profile", kModel), "a.profile");
    ::unsetenv("SLUICE_CACHE_DIR");
}

}  // namespace
}  // namespace sluice::sched
