#include "io/file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cstring>

#include "io/open_calls.h"
#include "tests/io/support.h"

namespace sluice::io {
namespace {

using namespace testing_support;

bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

int64_t short_when_direct(int fd, std::byte* dst, size_t n, uint64_t at, bool direct) {
    return system_read(fd, dst, direct ? n / 2 : n, at, direct);
}

int64_t wrong_when_direct(int fd, std::byte* dst, size_t n, uint64_t at, bool direct) {
    const int64_t got = system_read(fd, dst, n, at, direct);
    if (direct && got > 0) dst[got - 1] ^= std::byte{1};
    return got;
}

bool is_direct(int fd) {
    return (fcntl(fd, F_GETFL) & O_DIRECT) != 0;
}

// Why this machine's temporary folder allows no direct reads, which the tests of direct files need; empty if it does.
std::string direct_refused() {
    const TempFile temp(8192);
    return temp.open(Access::direct).fallback_reason();
}

TEST(File, Buffered) {
    const TempFile temp(10000);
    const File f = temp.open(Access::buffered);
    struct stat st = {};
    ASSERT_EQ(stat(temp.path().c_str(), &st), 0);
    EXPECT_FALSE(f.direct());
    EXPECT_FALSE(is_direct(f.fd()));
    EXPECT_EQ(f.path(), temp.path());
    EXPECT_EQ(f.size_at_open(), 10000U);
    EXPECT_EQ(f.device(), st.st_dev);
    EXPECT_EQ(f.inode(), st.st_ino);
    EXPECT_EQ(f.offset_align(), 1U);
    EXPECT_EQ(f.mem_align(), 1U);
    EXPECT_EQ(f.fallback_reason(), "");
    EXPECT_NE(fcntl(f.fd(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(File, Direct) {
    if (const std::string why = direct_refused(); !why.empty()) GTEST_SKIP() << "temporary folder: " << why;
    for (const uint64_t size : {0U, 1U, 511U, 4096U, 4097U, 100000U}) {
        const TempFile temp(size);
        const File f = temp.open(Access::direct);
        EXPECT_TRUE(f.direct()) << size << ": " << f.fallback_reason();
        EXPECT_TRUE(is_direct(f.fd()));
        EXPECT_NE(fcntl(f.fd(), F_GETFD) & FD_CLOEXEC, 0);
        EXPECT_EQ(f.fallback_reason(), "");
        EXPECT_EQ(f.size_at_open(), size);
        EXPECT_TRUE(is_power_of_two(f.offset_align()));
        EXPECT_TRUE(is_power_of_two(f.mem_align()));
        EXPECT_GT(f.offset_align(), 1U);
    }
}

TEST(File, AlignmentIsTheKernels) {
    if (const std::string why = direct_refused(); !why.empty()) GTEST_SKIP() << "temporary folder: " << why;
    const TempFile temp(100000);
    OpenCalls calls;
    calls.direct_alignment = [](int) { return DirectAlignment{true, 512, 1024}; };
    Result<File> f = File::open(temp.path(), Access::direct, calls);
    ASSERT_TRUE(f);
    EXPECT_EQ(f->mem_align(), 512U);
    EXPECT_EQ(f->offset_align(), 1024U);
    calls.direct_alignment = [](int) { return DirectAlignment{}; };
    f = File::open(temp.path(), Access::direct, calls);
    ASSERT_TRUE(f);
    EXPECT_EQ(f->mem_align(), 4096U);
    EXPECT_EQ(f->offset_align(), 4096U);
}

TEST(File, FallsBackAndSaysWhy) {
    const TempFile temp(100000);
    struct Case {
        OpenCalls calls;
        const char* why;
    };
    std::vector<Case> cases(8);
    cases[0].calls.set_direct = [](int fd, bool on) { return on ? EINVAL : system_set_direct(fd, on); };
    cases[0].why = "refuses O_DIRECT: Invalid argument";
    cases[1].calls.direct_alignment = [](int) { return DirectAlignment{true, 0, 0}; };
    cases[1].why = "cannot be read directly";
    cases[2].calls.direct_alignment = [](int) { return DirectAlignment{true, 513, 512}; };
    cases[2].why = "alignment of 513 bytes in memory";
    cases[3].calls.direct_alignment = [](int) { return DirectAlignment{true, 512, 1U << 30U}; };
    cases[3].why = "1073741824 in the file";
    cases[4].calls.read = [](int fd, std::byte* dst, size_t n, uint64_t at, bool direct) -> int64_t {
        return direct ? -EINVAL : system_read(fd, dst, n, at, direct);
    };
    cases[4].why = "direct trial read of 4096 bytes at offset 49152 failed: Invalid argument";
    cases[5].calls.read = short_when_direct;
    cases[5].why = "gave 2048 bytes where a buffered one gave 4096";
    cases[6].calls.read = wrong_when_direct;
    cases[6].why = "other bytes";
    cases[7].calls.read = [](int, std::byte*, size_t, uint64_t, bool) -> int64_t { return -EIO; };
    cases[7].why = "failed even without O_DIRECT";
    for (Case& c : cases) {
        // A file system without direct reads would refuse before the fault under test.
        if (c.calls.set_direct == system_set_direct) {
            c.calls.set_direct = [](int, bool) { return 0; };
        }
        if (c.calls.direct_alignment == system_direct_alignment) {
            c.calls.direct_alignment = [](int) { return DirectAlignment(); };
        }
        const Result<File> f = File::open(temp.path(), Access::direct, c.calls);
        ASSERT_TRUE(f) << f.status().message();
        EXPECT_FALSE(f->direct());
        EXPECT_EQ(f->offset_align(), 1U);
        EXPECT_EQ(f->mem_align(), 1U);
        EXPECT_TRUE(has(f->fallback_reason(), c.why)) << f->fallback_reason();
    }
}

TEST(File, FallbackLeavesDirectMode) {
    const TempFile temp(100000);
    OpenCalls calls;
    calls.read = wrong_when_direct;
    Result<File> f = File::open(temp.path(), Access::direct, calls);
    ASSERT_TRUE(f);
    EXPECT_FALSE(is_direct(f->fd()));
    // If that fails, no File may claim to be buffered.
    calls.set_direct = [](int, bool on) { return on ? 0 : EPERM; };
    f = File::open(temp.path(), Access::direct, calls);
    ASSERT_FALSE(f);
    EXPECT_EQ(f.status().code(), Code::io_error);
    EXPECT_TRUE(has(f.status().message(), temp.path()));
}

// Whether tmpfs reads directly depends on the kernel; either way the file must open and say the truth.
TEST(File, OnMemoryFileSystem) {
    if (access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "no memory file system";
    const TempFile temp(100000, "/dev/shm");
    const File f = temp.open(Access::direct);
    EXPECT_EQ(f.direct(), is_direct(f.fd()));
    EXPECT_EQ(f.direct(), f.fallback_reason().empty());
    const Buffer buffer(4096);
    EXPECT_EQ(system_read(f.fd(), buffer.data(), 4096, 8192, f.direct()), 4096);
    EXPECT_EQ(first_wrong(buffer.span(), 8192), 4096U);
}

TEST(File, ErrorsNameThePath) {
    const std::string dir = ::testing::TempDir();
    Result<File> f = File::open(dir + "/no-such-file", Access::direct);
    ASSERT_FALSE(f);
    EXPECT_EQ(f.status().code(), Code::not_found);
    EXPECT_TRUE(has(f.status().message(), "no-such-file"));
    EXPECT_TRUE(has(f.status().message(), std::strerror(ENOENT)));

    f = File::open(dir, Access::buffered);
    ASSERT_FALSE(f);
    EXPECT_EQ(f.status().code(), Code::invalid_argument);
    EXPECT_TRUE(has(f.status().message(), dir));
    EXPECT_TRUE(has(f.status().message(), std::strerror(EISDIR)));

    f = File::open("/dev/null", Access::direct);
    ASSERT_FALSE(f);
    EXPECT_EQ(f.status().code(), Code::invalid_argument);

    f = File::open("", Access::direct);
    ASSERT_FALSE(f);

    const TempFile temp(10);
    ASSERT_EQ(chmod(temp.path().c_str(), 0), 0);
    f = File::open(temp.path(), Access::buffered);
    if (geteuid() != 0) {  // nothing is unreadable for root
        ASSERT_FALSE(f);
        EXPECT_EQ(f.status().code(), Code::io_error);
        EXPECT_TRUE(has(f.status().message(), std::strerror(EACCES)));
    }
}

// Opening one would block until somebody writes.
TEST(File, FifoIsRefusedAtOnce) {
    const std::string path = ::testing::TempDir() + "/sluice-fifo-" + std::to_string(getpid());
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    const Result<File> f = File::open(path, Access::direct);
    unlink(path.c_str());
    ASSERT_FALSE(f);
    EXPECT_EQ(f.status().code(), Code::invalid_argument);
}

TEST(File, Moves) {
    const TempFile temp(100);
    File a = temp.open(Access::buffered);
    const int fd = a.fd();
    File b = std::move(a);
    EXPECT_EQ(b.fd(), fd);
    EXPECT_EQ(a.fd(), -1);  // NOLINT(bugprone-use-after-move)
    b = temp.open(Access::buffered);
    EXPECT_NE(b.fd(), -1);
    b = File();
    EXPECT_EQ(fcntl(fd, F_GETFD), -1);
}

TEST(File, Simulated) {
    const File a = File::simulated("a", 123, 512, 4);
    const File b = File::simulated("b", 123);
    EXPECT_EQ(a.fd(), -1);
    EXPECT_EQ(a.size_at_open(), 123U);
    EXPECT_TRUE(a.direct());
    EXPECT_FALSE(b.direct());
    EXPECT_EQ(a.offset_align(), 512U);
    EXPECT_EQ(a.mem_align(), 4U);
    EXPECT_NE(a.inode(), b.inode());
}

}  // namespace
}  // namespace sluice::io
