// Owns: what the tests of this room share: files with known bytes, aligned memory, engines of every kind.
// Keeps: every byte of a test file tells its place, so that a byte from elsewhere cannot pass for it.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "io/engine.h"
#include "io/file.h"
#include "io/mmap_engine.h"
#include "io/pool_engine.h"
#include "io/sim_engine.h"
#include "io/uring_engine.h"
#include "tests/io/refused.h"

namespace sluice::io::testing_support {

inline std::byte byte_at(uint64_t offset) {
    uint64_t x = offset + 0x9E3779B97F4A7C15U;
    x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
    return static_cast<std::byte>(x >> 56U);
}

inline std::vector<std::byte> pattern(uint64_t bytes) {
    std::vector<std::byte> v(bytes);
    for (uint64_t i = 0; i < bytes; ++i) v[i] = byte_at(i);
    return v;
}

// The first place in `got`, read from `offset`, that is wrong, or got.size().
inline size_t first_wrong(std::span<const std::byte> got, uint64_t offset) {
    for (size_t i = 0; i < got.size(); ++i) {
        if (got[i] != byte_at(offset + i)) return i;
    }
    return got.size();
}

class TempFile {
  public:
    explicit TempFile(uint64_t bytes, std::string dir = ::testing::TempDir()) {
        path_ = std::move(dir) + "/sluice-io-XXXXXX";
        const int fd = mkstemp(path_.data());
        if (fd < 0) std::abort();
        const std::vector<std::byte> content = pattern(bytes);
        size_t done = 0;
        while (done < content.size()) {
            const ssize_t n = write(fd, content.data() + done, content.size() - done);
            if (n <= 0) std::abort();
            done += static_cast<size_t>(n);
        }
        if (fsync(fd) != 0) std::abort();
        close(fd);
    }
    ~TempFile() { unlink(path_.c_str()); }
    TempFile(const TempFile&) = delete;
    TempFile& operator=(const TempFile&) = delete;

    [[nodiscard]] const std::string& path() const { return path_; }
    void truncate(uint64_t bytes) const {
        if (::truncate(path_.c_str(), static_cast<off_t>(bytes)) != 0) std::abort();
    }
    [[nodiscard]] File open(Access access) const {
        Result<File> f = File::open(path_, access);
        EXPECT_TRUE(f) << f.status().message();
        return std::move(f).value();
    }

  private:
    std::string path_;
};

// Page-aligned heap memory: unlike a mapping, sanitizers watch it.
class Buffer {
  public:
    explicit Buffer(size_t bytes)
        : size_(bytes), data_(static_cast<std::byte*>(std::aligned_alloc(4096, align_up(bytes, 4096)))) {
        std::fill_n(data_.get(), align_up(bytes, 4096), std::byte{0xEE});
    }
    [[nodiscard]] std::byte* data() const { return data_.get(); }
    [[nodiscard]] size_t size() const { return size_; }
    [[nodiscard]] std::span<std::byte> span() const { return {data_.get(), size_}; }

  private:
    struct Free {
        void operator()(std::byte* p) const { std::free(p); }
    };
    size_t size_;
    std::unique_ptr<std::byte, Free> data_;
};

struct Kind {
    const char* name;
    std::unique_ptr<Engine> (*make)(unsigned lanes);
};

// Simulated time belongs to the test, not to the engine; these tests do not look at it.
class OwningSim final : public Engine {
  public:
    explicit OwningSim(const SimOptions& options) : sim_(clock_, options) {}
    void submit(std::span<const ReadOp> batch) override { sim_.submit(batch); }
    size_t wait(std::span<Completion> out) override { return sim_.wait(out); }
    size_t wait_for(std::span<Completion> out, Nanos most) override { return sim_.wait_for(out, most); }
    size_t poll(std::span<Completion> out) override {
        clock_.advance_to(clock_.now() + 10'000);  // asking takes time, or it would be for ever too early
        return sim_.poll(out);
    }
    [[nodiscard]] size_t outstanding() const override { return sim_.outstanding(); }
    [[nodiscard]] const EngineTotals& totals() const override { return sim_.totals(); }
    [[nodiscard]] const char* name() const override { return sim_.name(); }

  private:
    VirtualClock clock_;
    SimEngine sim_;
};

inline std::unique_ptr<Engine> take(Result<std::unique_ptr<Engine>> made) {
    return made ? std::move(made).value() : nullptr;
}

inline std::unique_ptr<Engine> make_uring(unsigned lanes) {
    return take(make_uring_engine(lanes));
}

// A ring whose kernel interrupts, refuses, cancels and shortens.
inline std::unique_ptr<Engine> make_hostile_uring(unsigned lanes) {
    static std::mt19937 random;
    random.seed(9);
    UringCalls calls;
    calls.result = [](int result) {
        switch (random() % 6) {
            case 0:
                return -EINTR;
            case 1:
                return -EAGAIN;
            case 2:
                return -ECANCELED;
            case 3:
                return result > 512 ? result * 2 / 3 : result;
            default:
                return result;
        }
    };
    return take(make_uring_engine(lanes, calls));
}

inline std::unique_ptr<Engine> make_pool(unsigned lanes) {
    return take(make_pool_engine(lanes));
}

// pread at its worst: interrupts, refuses and shortens.
inline std::unique_ptr<Engine> make_hostile_pool(unsigned lanes) {
    return take(make_pool_engine(lanes, [](const File& f, std::byte* dst, size_t n, uint64_t at) -> int64_t {
        // Per thread, so that every read meets the same faults however the threads take turns.
        thread_local unsigned calls = 0;
        switch (calls++ % 5) {
            case 0:
                return -EINTR;
            case 1:
                return -EAGAIN;
            case 2:
            case 3: {
                // As a kernel would: the bytes that are not returned may have been written all the same.
                const int64_t got = system_pread(f, dst, n, at);
                return got > 1 ? got * 2 / 3 : got;
            }
            default:
                return system_pread(f, dst, n, at);
        }
    }));
}

inline std::unique_ptr<Engine> make_mmap(unsigned lanes) {
    return take(make_mmap_engine(lanes));
}

// Speculative reads in the drive's idle class.
inline std::unique_ptr<Engine> make_prioritised_uring(unsigned lanes) {
    return take(make_uring_engine(lanes, {}, true));
}
inline std::unique_ptr<Engine> make_prioritised_pool(unsigned lanes) {
    return take(make_pool_engine(lanes, {.priorities = true}));
}

inline std::unique_ptr<Engine> make_sim(unsigned lanes) {
    return std::make_unique<OwningSim>(SimOptions{.channels = lanes});
}

inline std::unique_ptr<Engine> make_stormy_sim(unsigned lanes) {
    SimOptions options;
    options.channels = lanes;
    options.seed = 7;
    options.jitter = 3;
    options.rates = {.short_read = 0.2, .interrupted = 0.2, .again = 0.2, .stall = 0.1};
    return std::make_unique<OwningSim>(options);
}

// With everything that real drives do to those who wait for them, except failing.
inline std::unique_ptr<Engine> make_realistic_sim(unsigned lanes) {
    SimOptions options;
    options.channels = lanes;
    options.seed = 11;
    options.table = LatencyTable({4096, 1 * MiB}, {1, 8}, {80'000, 200'000, 900'000, 5'000'000});
    options.tail = {{0.04, 5}, {0.01, 40}};
    options.bandwidth = {.sustained = 1, .burst_rate = 4, .burst = 256 * KiB};
    options.shuffle = true;
    options.priorities = true;
    return std::make_unique<OwningSim>(options);
}

inline std::vector<Kind> all_kinds() {
    return {{"uring", make_uring},
            {"hostile_uring", make_hostile_uring},
            {"prioritised_uring", make_prioritised_uring},
            {"pool", make_pool},
            {"hostile_pool", make_hostile_pool},
            {"prioritised_pool", make_prioritised_pool},
            {"mmap", make_mmap},
            {"sim", make_sim},
            {"stormy_sim", make_stormy_sim},
            {"realistic_sim", make_realistic_sim}};
}

// Waits until nothing is outstanding. Fails the test if a read completes twice.
inline std::vector<Completion> drain(Engine& engine, size_t at_once = 16) {
    std::vector<Completion> all;
    std::set<uint64_t> seen;
    std::vector<Completion> some(at_once);
    for (;;) {
        const size_t before = engine.outstanding();
        const size_t n = engine.wait(some);
        EXPECT_EQ(engine.outstanding(), before - n);
        if (n == 0) {
            EXPECT_EQ(before, 0U);
            return all;
        }
        for (size_t i = 0; i < n; ++i) {
            EXPECT_TRUE(seen.insert(some[i].tag).second) << "twice: " << some[i].tag;
            all.push_back(some[i]);
        }
    }
}

}  // namespace sluice::io::testing_support
