#include "base/same_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace sluice {
namespace {

namespace fs = std::filesystem;

TEST(SameFile, ByNameByLinkAndByDescriptor) {
    const fs::path folder = fs::path(testing::TempDir()) / "sluice-same-file";
    fs::remove_all(folder);
    fs::create_directory(folder);
    const std::string a = (folder / "a").string(), link = (folder / "link").string(), b = (folder / "b").string();
    std::ofstream(a) << "x";
    std::ofstream(b) << "x";
    fs::create_symlink("a", link);
    EXPECT_TRUE(same_file(a, a));
    EXPECT_TRUE(same_file(a, link));
    EXPECT_FALSE(same_file(a, b));
    EXPECT_FALSE(same_file(a, (folder / "none").string()));
    EXPECT_FALSE(same_file("", a));

    const int fd = ::open(a.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    EXPECT_TRUE(is_open_as(a, fd));
    EXPECT_TRUE(is_open_as(link, fd));
    EXPECT_FALSE(is_open_as(b, fd));
    EXPECT_FALSE(is_open_as((folder / "none").string(), fd));
    EXPECT_FALSE(is_open_as("", fd));
    ::close(fd);
    EXPECT_FALSE(is_open_as(a, fd)) << "a closed descriptor";
    const int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    EXPECT_FALSE(is_open_as("/dev/null", null)) << "a device has nothing to lose";
    ::close(null);
    fs::remove_all(folder);
}

}  // namespace
}  // namespace sluice
