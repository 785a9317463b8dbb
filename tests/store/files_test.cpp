#include "store/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "tests/store/support.h"

namespace sluice::store {
namespace {

namespace fs = std::filesystem;

class ReplaceFile : public ::testing::Test {
  protected:
    ReplaceFile() {
        fs::remove_all(here_);
        fs::create_directories(here_ / "sub");
    }
    ~ReplaceFile() override { fs::remove_all(here_); }

    [[nodiscard]] std::string at(const std::string& name) const { return (here_ / name).string(); }
    static Status put(const std::string& path, const std::string& text) {
        return replace_file(Files::system(), path, std::as_bytes(std::span(text.data(), text.size())));
    }
    static std::string text_of(const std::string& path) {
        const auto text = read_whole(path, 1000);
        return text.ok() ? *text : text.status().message();
    }
    [[nodiscard]] size_t names() const {
        return static_cast<size_t>(std::distance(fs::directory_iterator(here_), fs::directory_iterator()));
    }

    fs::path here_ = fs::temp_directory_path() / fmt::format("sluice-replace-{}", ::getpid());
};

// Nobody holds the other end: waiting for it would be for ever.
TEST_F(ReplaceFile, APipeIsNotReadAsAFile) {
    ASSERT_EQ(::mkfifo(at("pipe").c_str(), 0600), 0);
    EXPECT_NE(text_of(at("pipe")).find("not a plain file"), std::string::npos) << text_of(at("pipe"));
}

// Another writer took the name between the look and the open, and has renamed its file since.
TEST_F(ReplaceFile, ANameThatWasTakenForAMomentIsPassedOver) {
    class TakenOnce final : public Files {
      public:
        int open(const std::string& path, int flags, int& fd) override {
            if (path.ends_with(".tmp")) return EEXIST;
            return Files::open(path, flags, fd);
        }
    } files;
    const std::string text = "one";
    const Status s = replace_file(files, at("a"), std::as_bytes(std::span(text)));
    ASSERT_TRUE(s.ok()) << s.message();
    EXPECT_EQ(text_of(at("a")), "one");
    EXPECT_EQ(names(), 2U);
}

TEST_F(ReplaceFile, MakesAFileAndReplacesIt) {
    ASSERT_TRUE(put(at("a"), "one").ok());
    ASSERT_TRUE(put(at("a"), "two").ok());
    EXPECT_EQ(text_of(at("a")), "two");
    EXPECT_EQ(names(), 2U) << "the file and the directory sub, and nothing that was only a step";
}

TEST_F(ReplaceFile, ALinkStaysAndWhatItLeadsToIsReplaced) {
    ASSERT_TRUE(put(at("sub/real"), "old").ok());
    fs::create_symlink("sub/hop", at("link"));
    fs::create_symlink("real", at("sub/hop"));  // relative to where it lies
    EXPECT_EQ(*replaceable(at("link")), at("sub/real"));
    ASSERT_TRUE(put(at("link"), "new").ok());
    EXPECT_TRUE(fs::is_symlink(at("link")));
    EXPECT_TRUE(fs::is_symlink(at("sub/hop")));
    EXPECT_FALSE(fs::is_symlink(at("sub/real")));
    EXPECT_EQ(text_of(at("sub/real")), "new");
    EXPECT_EQ(names(), 2U);

    fs::create_symlink(at("sub/later"), at("early"));
    ASSERT_TRUE(put(at("early"), "made").ok()) << "a link to nothing yet";
    EXPECT_TRUE(fs::is_symlink(at("early")));
    EXPECT_EQ(text_of(at("sub/later")), "made");

    fs::create_symlink("round", at("round"));
    EXPECT_FALSE(put(at("round"), "x").ok());
    EXPECT_TRUE(fs::is_symlink(at("round")));
}

TEST_F(ReplaceFile, WhetherItWillWorkIsKnownBeforeAndLeavesNothing) {
    EXPECT_TRUE(check_replaceable(Files::system(), at("new")).ok());
    EXPECT_EQ(names(), 1U) << "the directory sub, and nothing that was only tried";
    ASSERT_TRUE(put(at("old"), "old").ok());
    EXPECT_TRUE(check_replaceable(Files::system(), at("old")).ok());
    EXPECT_EQ(text_of(at("old")), "old");
    EXPECT_EQ(names(), 2U);
    const Status nowhere = check_replaceable(Files::system(), at("none/new"));
    EXPECT_EQ(nowhere.code(), Code::not_found);
    EXPECT_NE(nowhere.message().find("there is no directory " + at("none")), std::string::npos) << nowhere.message();
    EXPECT_FALSE(check_replaceable(Files::system(), at("sub")).ok()) << "a directory";
    class Forbidden final : public Files {
        int open(const std::string&, int, int&) override { return EACCES; }
    } forbidden;
    const Status s = check_replaceable(forbidden, at("new"));
    EXPECT_NE(s.message().find("Permission denied"), std::string::npos) << s.message();
}

TEST_F(ReplaceFile, OnlyFilesAreReplaced) {
    ASSERT_EQ(::mkfifo(at("pipe").c_str(), 0600), 0);
    fs::create_symlink("pipe", at("link"));
    std::vector<std::pair<std::string, const char*>> kinds{
        {"pipe", "a pipe"}, {"link", "a pipe"}, {"sub", "directory"}};
    // Takes privileges: the null device under a name of our own.
    if (::mknod(at("null").c_str(), S_IFCHR | 0600, (1U << 8U) | 3U) == 0) kinds.emplace_back("null", "a device");
    for (const auto& [name, said] : kinds) {
        struct stat before {
        }, after{};
        ASSERT_EQ(::lstat(at(name).c_str(), &before), 0);
        const size_t there = names();
        const Status s = put(at(name), "x");
        EXPECT_EQ(s.code(), Code::invalid_argument) << name;
        EXPECT_NE(s.message().find(said), std::string::npos) << s.message();
        EXPECT_NE(s.message().find(at(name)), std::string::npos) << s.message();
        ASSERT_EQ(::lstat(at(name).c_str(), &after), 0);
        EXPECT_EQ(before.st_ino, after.st_ino) << name;
        EXPECT_EQ(before.st_mode, after.st_mode) << name;
        EXPECT_EQ(names(), there);
    }
}

TEST_F(ReplaceFile, AFileWithoutANameIsNotReplaced) {
    const int fd = ::open(at("gone").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ASSERT_GE(fd, 0);
    fs::remove(at("gone"));
    const size_t there = names();
    const Status s = put(fmt::format("/proc/self/fd/{}", fd), "x");
    EXPECT_EQ(s.code(), Code::invalid_argument) << s.message();
    EXPECT_NE(s.message().find("without a name"), std::string::npos) << s.message();
    EXPECT_EQ(names(), there);
    ::close(fd);
}

// What a process may have left, or somebody may have planted, under the name of the step between.
TEST_F(ReplaceFile, FollowsAndOverwritesNothingOnItsWay) {
    ASSERT_TRUE(put(at("precious"), "mine").ok());
    fs::create_symlink("precious", at("a.tmp"));
    fs::create_symlink("nowhere", at("a.tmp2"));
    ASSERT_TRUE(put(at("a.tmp3"), "of another").ok());
    ASSERT_TRUE(put(at("a"), "new").ok());
    EXPECT_FALSE(fs::is_symlink(at("a")));
    EXPECT_EQ(text_of(at("a")), "new");
    EXPECT_EQ(text_of(at("precious")), "mine");
    EXPECT_EQ(text_of(at("a.tmp3")), "of another");
    EXPECT_FALSE(fs::exists(at("nowhere")));
    EXPECT_EQ(names(), 6U);

    for (int i = 4; i <= 100; ++i) fs::create_symlink("nowhere", at(fmt::format("a.tmp{}", i)));
    const Status s = put(at("a"), "newer");
    ASSERT_FALSE(s.ok());
    EXPECT_NE(s.message().find("remove them"), std::string::npos) << s.message();
    EXPECT_EQ(text_of(at("a")), "new");
}

// Between the look and the call somebody else takes the name.
class Racing : public Files {
  public:
    int open(const std::string& path, int flags, int& fd) override {
        EXPECT_NE(flags & O_EXCL, 0) << path;
        if (path.ends_with(".tmp")) fs::create_symlink("precious", path);
        return Files::open(path, flags, fd);
    }
};

TEST_F(ReplaceFile, WhoeverIsFasterKeepsTheName) {
    ASSERT_TRUE(put(at("precious"), "mine").ok());
    Racing files;
    const std::string text = "new";
    ASSERT_TRUE(replace_file(files, at("a"), std::as_bytes(std::span(text.data(), text.size()))).ok());
    EXPECT_EQ(text_of(at("a")), "new");
    EXPECT_EQ(text_of(at("precious")), "mine");
}

TEST_F(ReplaceFile, LeavesNothingBehindAfterAnError) {
    ASSERT_TRUE(put(at("a"), "old").ok());
    for (int call = 0;; ++call) {
        testing::FaultyFiles files(call, ENOSPC, false);
        const std::string text = "new";
        const Status s = replace_file(files, at("a"), std::as_bytes(std::span(text.data(), text.size())));
        EXPECT_EQ(names(), 2U) << call;
        if (s.ok()) break;
        EXPECT_TRUE(text_of(at("a")) == "old" || text_of(at("a")) == "new");
    }
    EXPECT_EQ(text_of(at("a")), "new");
}

}  // namespace
}  // namespace sluice::store
