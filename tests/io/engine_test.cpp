// What is particular to one engine: making it, and faults that only a replaced system call can produce.
#include "io/engine.h"

#include <pthread.h>
#include <signal.h>
#include <sys/uio.h>

#include <array>
#include <map>
#include <mutex>

#include "base/log.h"
#include "io/read_table.h"
#include "tests/io/support.h"

namespace sluice::io {
namespace {

using namespace testing_support;

template <int Errno>
UringCalls refusing_ring() {
    UringCalls calls;
    calls.init = [](unsigned, io_uring*) { return -Errno; };
    return calls;
}

TEST(MakeEngine, LanesHaveBounds) {
    for (const unsigned lanes : {0U, 65U, 1000000U}) {
        for (const EngineKind kind :
             {EngineKind::automatic, EngineKind::io_uring, EngineKind::pread, EngineKind::mmap}) {
            const Result<MadeEngine> made = make_engine({kind, lanes});
            ASSERT_FALSE(made);
            EXPECT_EQ(made.status().code(), Code::invalid_argument);
        }
    }
    for (const unsigned lanes : {1U, 64U}) EXPECT_TRUE(make_engine({EngineKind::pread, lanes}));
}

TEST(MakeEngine, AutomaticAlwaysGivesOne) {
    const Result<MadeEngine> made = make_engine({});
    ASSERT_TRUE(made);
    // What the kernel refuses is the only reason for less, and it is said.
    const std::string refused = refused_by_kernel("io_uring");
    EXPECT_STREQ(made->engine->name(), refused.empty() ? "io_uring" : "pread");
    EXPECT_EQ(made->note.empty(), refused.empty()) << made->note;
    const Result<MadeEngine> pool = make_engine({EngineKind::pread, 2});
    ASSERT_TRUE(pool);
    EXPECT_STREQ(pool->engine->name(), "pread");
    EXPECT_EQ(pool->note, "");
}

TEST(MakeEngine, FallsBackOnlyWhenAutomatic) {
    for (const UringCalls& calls : {refusing_ring<ENOSYS>(), refusing_ring<EPERM>(), refusing_ring<ENOMEM>()}) {
        const Result<MadeEngine> made = make_engine({EngineKind::automatic, 4}, calls);
        ASSERT_TRUE(made);
        EXPECT_STREQ(made->engine->name(), "pread");
        EXPECT_NE(made->note.find("refuses an io_uring"), std::string::npos) << made->note;
        const Result<MadeEngine> wanted = make_engine({EngineKind::io_uring, 4}, calls);
        ASSERT_FALSE(wanted);
        EXPECT_EQ(wanted.status().code(), Code::unsupported);
    }
    const Result<MadeEngine> made = make_engine({EngineKind::automatic, 4}, refusing_ring<EPERM>());
    EXPECT_NE(made->note.find("Operation not permitted"), std::string::npos) << made->note;
}

// Reads 32 blocks; returns how many completed with each errno.
std::map<int, size_t> read_blocks(Engine& engine, const File& file, const Buffer& buffer) {
    std::vector<ReadOp> batch(32);
    for (size_t i = 0; i < batch.size(); ++i) {
        batch[i] = {&file, i * 4096, 4096, 4096, buffer.data() + i * 4096, i};
    }
    engine.submit(batch);
    std::map<int, size_t> errors;
    for (const Completion& c : drain(engine)) ++errors[c.error];
    return errors;
}

// The ring's submit call is a plain function, so its script is global; gtest runs one test at a time.
int scripted_result = 0;
unsigned scripted_times = 0;

int scripted_submit(io_uring* ring, unsigned wait_for) {
    if (scripted_times > 0) {
        --scripted_times;
        return scripted_result;
    }
    return system_uring_submit(ring, wait_for);
}

class Ring : public ::testing::Test {
  protected:
    void SetUp() override {
        SLUICE_SKIP_IF_REFUSED("io_uring");
        set_log_sink([](LogLevel, const std::string&) {});
        UringCalls calls;
        calls.submit = scripted_submit;
        scripted_times = 0;
        engine_ = take(make_uring_engine(8, calls));
        ASSERT_NE(engine_, nullptr);
    }
    void TearDown() override { set_log_sink(nullptr); }

    TempFile temp_{32 * 4096};
    File file_ = temp_.open(Access::direct);
    Buffer buffer_{32 * 4096};
    std::unique_ptr<Engine> engine_;
};

TEST_F(Ring, InsistsWhenTheKernelIsBusy) {
    for (const int result : {-EAGAIN, -EBUSY, -ENOMEM, -EINTR, 0}) {
        scripted_result = result;
        scripted_times = 5;
        EXPECT_EQ(read_blocks(*engine_, file_, buffer_), (std::map<int, size_t>{{0, 32}})) << result;
        EXPECT_EQ(scripted_times, 0U);
        EXPECT_EQ(first_wrong(buffer_.span(), 0), buffer_.size());
    }
}

TEST_F(Ring, InsistsOnlySoOften) {
    scripted_result = -EAGAIN;
    scripted_times = UINT32_MAX;
    EXPECT_EQ(read_blocks(*engine_, file_, buffer_), (std::map<int, size_t>{{EIO, 32}}));
}

TEST_F(Ring, BreaksWithoutLosingReads) {
    // Some reads are with the kernel when it happens.
    const ReadOp first = {&file_, 0, 4096, 4096, buffer_.data(), 1000};
    engine_->submit({&first, 1});
    scripted_result = -EBADF;
    scripted_times = 1;
    EXPECT_EQ(read_blocks(*engine_, file_, buffer_), (std::map<int, size_t>{{0, 1}, {EBADF, 32}}));
    // It stays broken, and says so.
    EXPECT_EQ(read_blocks(*engine_, file_, buffer_), (std::map<int, size_t>{{EBADF, 32}}));
}

TEST_F(Ring, EndsWithPreparedReads) {
    scripted_result = -EAGAIN;
    scripted_times = UINT32_MAX;
    const ReadOp op = {&file_, 0, 4096, 4096, buffer_.data(), 1};
    engine_->submit({&op, 1});
    engine_.reset();
    EXPECT_EQ(buffer_.data()[0], std::byte{0xEE});
}

// Which places of the ring's tables were filled, with how many bytes or which descriptor; and when that is refused.
struct Registered {
    std::map<unsigned, size_t> memory;
    std::map<unsigned, int> files;
    unsigned memory_left = UINT32_MAX;
    unsigned files_left = UINT32_MAX;
    bool pretend = false;  // memory is only written down
};
Registered registered;

class RegisteringRing : public Ring {
  protected:
    void SetUp() override {
        Ring::SetUp();
        registered = {};
        UringCalls calls;
        calls.register_memory = [](io_uring* ring, unsigned at, const iovec* piece) {
            if (piece->iov_len > 0 && registered.memory_left-- == 0) return -ENOMEM;
            registered.memory[at] = piece->iov_len;
            return registered.pretend ? 1 : system_uring_register_memory(ring, at, piece);
        };
        calls.register_file = [](io_uring* ring, unsigned at, int fd) {
            if (registered.files_left-- == 0) return -EMFILE;
            registered.files[at] = fd;
            return system_uring_register_file(ring, at, fd);
        };
        engine_ = take(make_uring_engine(8, calls));
    }
};

TEST_F(RegisteringRing, TakesFilesOnceAndMemoryWhenAsked) {
    ASSERT_TRUE(engine_->register_memory(buffer_.span()));
    EXPECT_EQ(registered.memory, (std::map<unsigned, size_t>{{0, buffer_.size()}}));
    for (int round = 0; round < 2; ++round)
        EXPECT_EQ(read_blocks(*engine_, file_, buffer_), (std::map<int, size_t>{{0, 32}}));
    EXPECT_EQ(registered.files, (std::map<unsigned, int>{{0, file_.fd()}}));
    EXPECT_EQ(first_wrong(buffer_.span(), 0), buffer_.size());
    engine_.reset();
}

TEST_F(RegisteringRing, SaysOnceThatMemoryIsRefused) {
    registered.memory_left = 1;
    ASSERT_TRUE(engine_->register_memory(buffer_.span().first(8192)));
    const Status s = engine_->register_memory(buffer_.span().subspan(8192, 4096));
    ASSERT_FALSE(s);
    EXPECT_EQ(s.code(), Code::unsupported);
    EXPECT_NE(s.message().find("ulimit -l"), std::string::npos) << s.message();
    EXPECT_TRUE(engine_->register_memory(buffer_.span().subspan(8192)));
    EXPECT_EQ(registered.memory, (std::map<unsigned, size_t>{{0, 8192}}));
    EXPECT_EQ(read_blocks(*engine_, file_, buffer_), (std::map<int, size_t>{{0, 32}}));
    EXPECT_EQ(first_wrong(buffer_.span(), 0), buffer_.size());
    engine_.reset();
}

// The kernel takes 1 GiB at a time.
TEST_F(RegisteringRing, TakesLargeMemoryWholeOrNotAtAll) {
    // Never touched: there is no such memory.
    const std::span<std::byte> large(buffer_.data(), 2 * GiB + 4096);
    registered.pretend = true;
    registered.memory_left = 2;
    EXPECT_FALSE(engine_->register_memory(large));
    EXPECT_EQ(registered.memory, (std::map<unsigned, size_t>{{0, 0}, {1, 0}}));
    SetUp();
    registered.pretend = true;
    EXPECT_TRUE(engine_->register_memory(large));
    EXPECT_EQ(registered.memory, (std::map<unsigned, size_t>{{0, 1 * GiB}, {1, 1 * GiB}, {2, 4096}}));
}

TEST_F(RegisteringRing, ReadsByDescriptorWhereFilesAreRefused) {
    registered.files_left = 0;
    for (int round = 0; round < 2; ++round)
        EXPECT_EQ(read_blocks(*engine_, file_, buffer_), (std::map<int, size_t>{{0, 32}}));
    EXPECT_EQ(first_wrong(buffer_.span(), 0), buffer_.size());
    EXPECT_TRUE(registered.files.empty());
}

std::vector<Priority> classes;

TEST(Pool, ChangesItsClassOnlyWhereItHelps) {
    const TempFile temp(32 * 4096);
    const File file = temp.open(Access::buffered);
    const Buffer buffer(32 * 4096);
    PoolOptions options;
    options.set_priority = [](Priority p) {
        classes.push_back(p);
        return EPERM;
    };
    for (const bool priorities : {false, true}) {
        options.priorities = priorities;
        classes.clear();
        auto engine = take(make_pool_engine(1, options));
        std::vector<ReadOp> batch(6);
        for (size_t i = 0; i < batch.size(); ++i) batch[i] = {&file, i * 4096, 4096, 4096, buffer.data() + i * 4096, i};
        batch[2].priority = batch[3].priority = batch[5].priority = Priority::speculative;
        engine->submit(batch);
        for (const Completion& c : drain(*engine)) EXPECT_EQ(c.error, 0);
        engine.reset();
        const std::vector<Priority> expected = {Priority::speculative, Priority::exact, Priority::speculative};
        EXPECT_EQ(classes, priorities ? expected : std::vector<Priority>());
    }
}

TEST(Mapped, IsMadeAndNamed) {
    SLUICE_SKIP_IF_REFUSED("mmap");
    const Result<MadeEngine> made = make_engine({EngineKind::mmap, 2});
    ASSERT_TRUE(made) << made.status().message();
    EXPECT_STREQ(made->engine->name(), "mmap");
}

// The mapping stays as long as the file was; its pages do not.
TEST(Mapped, SurvivesAFileCutToNothing) {
    SLUICE_SKIP_IF_REFUSED("mmap");
    const TempFile temp(32 * 4096);
    const File file = temp.open(Access::buffered);
    const Buffer buffer(32 * 4096);
    auto engine = make_mmap(2);
    ASSERT_NE(engine, nullptr);
    EXPECT_EQ(read_blocks(*engine, file, buffer), (std::map<int, size_t>{{0, 32}}));
    temp.truncate(4096 + 100);
    // Inside the page that the file ends in, the mapping has zeros where the file has nothing.
    EXPECT_EQ(read_blocks(*engine, file, buffer), (std::map<int, size_t>{{0, 1}, {ENODATA, 31}}));
    temp.truncate(0);
    EXPECT_EQ(read_blocks(*engine, file, buffer), (std::map<int, size_t>{{ENODATA, 32}}));
}

TEST(Pool, ThreadsAreNamedAndTakeNoSignals) {
    std::mutex mutex;
    std::string name;
    bool blocked = false;
    bool crash_blocked = true;
    auto engine = take(make_pool_engine(1, [&](const File&, std::byte*, size_t n, uint64_t) -> int64_t {
        char text[16] = {};
        sigset_t mask;
        pthread_getname_np(pthread_self(), text, sizeof text);
        pthread_sigmask(SIG_SETMASK, nullptr, &mask);
        const std::lock_guard lock(mutex);
        name = text;
        blocked = sigismember(&mask, SIGINT) == 1 && sigismember(&mask, SIGTERM) == 1;
        crash_blocked = sigismember(&mask, SIGSEGV) == 1;
        return static_cast<int64_t>(n);
    }));
    sigset_t own;
    pthread_sigmask(SIG_SETMASK, nullptr, &own);
    EXPECT_EQ(sigismember(&own, SIGINT), 0);
    const File file = File::simulated("f", 4096);
    std::array<std::byte, 16> memory;
    const ReadOp op = {&file, 0, 16, 16, memory.data(), 1};
    engine->submit({&op, 1});
    drain(*engine);
    const std::lock_guard lock(mutex);
    EXPECT_EQ(name, "sluice-io-0");
    EXPECT_TRUE(blocked);
    EXPECT_FALSE(crash_blocked);
}

// A read that hangs keeps nobody who limits his wait; when it comes, it is handed out.
TEST(Pool, AReadThatHangsIsWaitedForOnlySoLong) {
    const TempFile temp(2 * 4096);
    const File file = temp.open(Access::buffered);
    const Buffer buffer(2 * 4096);
    std::mutex hang;
    std::unique_lock held(hang);
    auto engine = take(make_pool_engine(2, [&](const File& f, std::byte* dst, size_t n, uint64_t at) -> int64_t {
        if (at == 0) const std::lock_guard until_let_go(hang);
        return system_pread(f, dst, n, at);
    }));
    const std::array<ReadOp, 2> ops = {
        {{&file, 0, 4096, 4096, buffer.data(), 1}, {&file, 4096, 4096, 4096, buffer.data() + 4096, 2}}};
    engine->submit(ops);
    std::array<Completion, 4> out;
    size_t n = 0;
    while (n == 0) n = engine->wait_for(out, 1'000'000);
    EXPECT_EQ(n, 1U);
    EXPECT_EQ(out[0].tag, 2U);
    EXPECT_EQ(engine->wait_for(out, 1'000'000), 0U);
    EXPECT_EQ(engine->outstanding(), 1U);
    held.unlock();
    EXPECT_EQ(engine->wait(out), 1U);
    EXPECT_EQ(out[0].tag, 1U);
}

TEST(Pool, ErrorsReachTheirReads) {
    const TempFile temp(32 * 4096);
    const File file = temp.open(Access::buffered);
    const Buffer buffer(32 * 4096);
    auto engine = take(make_pool_engine(4, [](const File& f, std::byte* dst, size_t n, uint64_t at) -> int64_t {
        if (at == 8192) return -EIO;
        if (at == 12288) return -EAGAIN;  // for ever
        return system_pread(f, dst, n, at);
    }));
    EXPECT_EQ(read_blocks(*engine, file, buffer), (std::map<int, size_t>{{0, 30}, {EIO, 2}}));
}

// A file that shrinks between two attempts of one read.
TEST(Pool, FileShrinksBetweenAttempts) {
    const TempFile temp(32 * KiB);
    for (const Access access : {Access::buffered, Access::direct}) {
        temp.truncate(32 * KiB);
        const File file = temp.open(access);
        const Buffer buffer(32 * KiB);
        auto engine = take(make_pool_engine(1, [&](const File& f, std::byte* dst, size_t n, uint64_t at) -> int64_t {
            const int64_t got = system_pread(f, dst, n, at);
            if (at != 0) return got;
            temp.truncate(10000);
            return got / 2 - 100;
        }));
        const ReadOp op = {&file, 0, 32 * KiB, 32 * KiB, buffer.data(), 1};
        engine->submit({&op, 1});
        const std::vector<Completion> all = drain(*engine);
        ASSERT_EQ(all.size(), 1U);
        EXPECT_EQ(all[0].error, ENODATA);
    }
}

}  // namespace
}  // namespace sluice::io
