// What is stopped while it reads: 1,000 times at random moments, on the simulated device and by threads that read and
// that hang in reads. Nothing stays leased, memory does not grow, and the next request brings the right bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <random>

#include "io/pool_engine.h"
#include "tests/allocated.h"
#include "tests/sched/support.h"

namespace sluice::sched {
namespace {

constexpr int kCancels = 1000;

// Says stop from the n-th question on.
struct Patience {
    uint64_t left = 0;
    static bool asked(void* self) {
        auto& left = static_cast<Patience*>(self)->left;
        if (left == 0) return true;
        --left;
        return false;
    }
    Stop stop() { return {asked, this}; }
};

class CancelTest : public SimulatedModel {
  protected:
    // One request, as the executor makes it: in waves, in steps or in one wait; true if it came to its end.
    bool request(Fetcher& fetcher, std::vector<RecordId> want, bool in_steps, Stop stop) {
        std::span<RecordId> left(want);
        bool whole = true;
        while (whole && !left.empty()) {
            const size_t n = fetcher.lease(left);
            if (n == 0) {
                whole = fetcher.wait_for_any(nullptr, stop);
                continue;
            }
            const std::span<RecordId> wave = left.first(n);
            if (in_steps) {
                Batch batch;
                parts_.clear();
                for (const RecordId r : wave) parts_.push_back({r, kAll});
                fetcher.request(batch, parts_);
                while (whole && !batch.done()) whole = fetcher.wait_some(batch, nullptr, stop).ok();
                if (!batch.done()) fetcher.give_up(batch);
            } else {
                const Status s = fetcher.load(wave, kAll, nullptr, stop);
                EXPECT_TRUE(s.ok() || s.code() == Code::cancelled) << s.message();
                whole = s.ok();
            }
            if (whole) {
                for (const RecordId r : wave) expect_right(fetcher, r);
            }
            fetcher.release(wave);
            left = left.subspan(n);
        }
        return whole;
    }
    std::vector<RecordId> some_records(std::mt19937& random) const {
        const auto set = static_cast<uint32_t>(random() % 2);
        std::vector<RecordId> want;
        for (uint32_t e = 0; e < kExperts; ++e) {
            if (random() % 2 == 0) want.push_back(store_->record(set, e));
        }
        return want;
    }
    // Until nothing is at the device: what was given up ends by itself.
    static void settle(Fetcher& fetcher) {
        while (fetcher.scheduler().live() > 0) {
            fetcher.look();
            if (fetcher.scheduler().live() > 0 && !fetcher.wait_for_any()) break;
        }
    }
    std::vector<Scheduler::Part> parts_;
};

TEST_F(CancelTest, AThousandTimesAtRandomMoments) {
    for (const bool convert : {false, true}) {
        // Room for three experts of the large layer, or for five: of those who fit there would be none left to stop.
        for (const uint64_t budget : {3 * 3 * align_up(5003, 4096), 5 * 3 * align_up(5003, 4096)}) {
            auto fetcher = make(budget, {.channels = 2, .latency = 7'000'000, .jitter = 2, .shuffle = true}, convert);
            std::mt19937 random(5);
            int stopped = 0, tried = 0;
            for (; stopped < kCancels / 4 && tried < 4 * kCancels; ++tried) {
                Patience patience{random() % 6};
                stopped += request(*fetcher, some_records(random), tried % 2 == 0, patience.stop()) ? 0 : 1;
                // Only reads at the device still hold slots; nobody else does.
                ASSERT_LE(fetcher->cache().total_leases(), fetcher->scheduler().live());
                ASSERT_TRUE(request(*fetcher, some_records(random), tried % 3 == 0, {}));
            }
            EXPECT_EQ(stopped, kCancels / 4) << "of " << tried;
            settle(*fetcher);
            EXPECT_EQ(fetcher->cache().total_leases(), 0U);
            EXPECT_EQ(fetcher->scheduler().live(), 0U);
            EXPECT_EQ(engine_->outstanding(), 0U);
        }
    }
}

// The device has forgotten a read: the wait is given up all the same, and what others want comes.
TEST_F(CancelTest, AReadThatNeverComesDelaysNobodyElse) {
    auto fetcher = make(1 * MiB, {.channels = 4});
    engine_->fault_at(0, io::Fault::never());
    Patience patience{3};
    const Nanos before = clock_.now();
    EXPECT_FALSE(request(*fetcher, {store_->record(1, 0)}, false, patience.stop()));
    EXPECT_LT(clock_.now() - before, 1'000'000'000) << "not until the kernel gives the read up";
    EXPECT_EQ(fetcher->scheduler().live(), 1U) << "the device may still write into its slot";
    ASSERT_TRUE(request(*fetcher, {store_->record(1, 1), store_->record(0, 3)}, false, {}));
    EXPECT_EQ(fetcher->scheduler().live(), 1U);
    // Who wants it now waits for it, and asks again when it has failed.
    ASSERT_TRUE(request(*fetcher, {store_->record(1, 0)}, true, {}));
    EXPECT_EQ(fetcher->cache().total_leases(), 0U);
}

// With every slot taken by reads that were given up, the next request waits for one of them.
TEST_F(CancelTest, WhenEverySlotIsTakenByReadsGivenUpTheNextRequestWaits) {
    auto fetcher = make(3 * 3 * align_up(5003, 4096), {.channels = 8, .latency = 500'000'000});
    std::vector<RecordId> want;
    for (uint32_t e = 0; e < kExperts; ++e) want.push_back(store_->record(1, e));
    Patience none;
    EXPECT_FALSE(request(*fetcher, want, false, none.stop()));
    std::reverse(want.begin(), want.end());
    Patience some{2};
    EXPECT_FALSE(request(*fetcher, {store_->record(1, 5)}, false, some.stop()));
    ASSERT_TRUE(request(*fetcher, want, false, {}));
    EXPECT_EQ(fetcher->cache().total_leases(), 0U);
}

// Reads by threads. When so many have come, whoever waits is told to stop, by the thread that has read; those after it
// go on, or hang until they are let go.
class Reads {
  public:
    void plan(uint64_t until_stop, bool then_hang) {
        const std::lock_guard lock(mutex_);
        left_ = until_stop;
        hangs_ = then_hang;
        stop_.store(until_stop == 0, std::memory_order_relaxed);
    }
    // Nobody is told to stop, and nothing hangs any more.
    void open() {
        plan(UINT64_MAX, false);
        open_.notify_all();
    }
    int64_t read(std::span<const std::byte> contents, std::byte* dst, size_t length, uint64_t offset) {
        {
            std::unique_lock lock(mutex_);
            open_.wait(lock, [this] { return left_ > 0 || !hangs_; });
            if (left_ > 0 && --left_ == 0) stop_.store(true, std::memory_order_relaxed);
        }
        const size_t n = std::min<uint64_t>(length, contents.size() - std::min<uint64_t>(offset, contents.size()));
        std::copy_n(contents.begin() + static_cast<std::ptrdiff_t>(offset), n, dst);
        return static_cast<int64_t>(n);
    }
    Stop stop() {
        return {[](void* self) { return static_cast<Reads*>(self)->stop_.load(std::memory_order_relaxed); }, this};
    }

  private:
    std::mutex mutex_;
    std::condition_variable open_;
    uint64_t left_ = UINT64_MAX;
    bool hangs_ = false;
    std::atomic<bool> stop_{false};
};

// What is counted is what was stopped before its end, and the moments are numbers of reads: no clock decides anything.
TEST_F(CancelTest, AThousandTimesByThreadsThatRead) {
    Reads reads;
    const io::File* files[] = {&file_};
    store_ = std::make_unique<store::RecordStore>(store::RecordStore::over(geometry_, files));
    auto engine = io::make_pool_engine(3, {}, [&](const io::File&, std::byte* dst, size_t length, uint64_t offset) {
        return reads.read(contents_, dst, length, offset);
    });
    ASSERT_TRUE(engine.ok());
    Fetcher::Options options;
    options.slots.budget = 4 * 3 * align_up(5003, 4096);
    options.slots.min_slots = 2;
    auto made = Fetcher::create(*store_, **engine, SystemClock::instance(), std::move(options));
    ASSERT_TRUE(made.ok());
    Fetcher& fetcher = **made;
    std::mt19937 random(11);
    constexpr int kWarm = 50;
    int stopped = 0, while_hanging = 0, tried = 0;
    size_t before = 0;
    for (; stopped < kCancels && tried < 4 * kCancels; ++tried) {
        const bool hang = random() % 2 == 0;
        reads.plan(random() % 10, hang);
        if (!request(fetcher, some_records(random), tried % 2 == 0, reads.stop())) {
            ++stopped;
            while_hanging += hang ? 1 : 0;
        }
        EXPECT_LE(fetcher.cache().total_leases(), fetcher.scheduler().live());
        reads.open();
        settle(fetcher);
        ASSERT_EQ(fetcher.cache().total_leases(), 0U) << "after request " << tried;
        ASSERT_EQ(fetcher.scheduler().live(), 0U);
        ASSERT_EQ((*engine)->outstanding(), 0U);
        ASSERT_TRUE(request(fetcher, some_records(random), tried % 3 == 0, {}));
        ASSERT_FALSE(HasFailure()) << "after request " << tried;
        if (tried == kWarm) before = allocated();
        // The engine's list of reads and the test's own may have grown once more.
        if (tried > kWarm) {
            ASSERT_LE(allocated(), before + 4096) << "after request " << tried;
        }
    }
    EXPECT_EQ(stopped, kCancels) << "of " << tried;
    EXPECT_GT(while_hanging, kCancels / 4);
}

}  // namespace
}  // namespace sluice::sched
