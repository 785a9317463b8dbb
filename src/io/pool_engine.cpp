#include "io/pool_engine.h"

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "io/priority_class.h"
#include "io/read_table.h"

namespace sluice::io {
namespace {

// Blocks signals for the threads started in its lifetime (a thread inherits its maker's mask): handlers belong on the
// program's own threads. Signals that a thread raises by its own fault stay deliverable, so that crash reports and
// sanitizers see them.
class SignalsBlocked {
  public:
    SignalsBlocked() {
        sigset_t all;
        sigfillset(&all);
        for (const int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) sigdelset(&all, s);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    SignalsBlocked(const SignalsBlocked&) = delete;
    SignalsBlocked& operator=(const SignalsBlocked&) = delete;

  private:
    sigset_t before_ = {};
};

// glibc has no names for these calls. An exact read has the class that the program was given (ionice).
int system_set_priority(Priority priority) {
    static const long own = syscall(SYS_ioprio_get, kPriorityOfProcess, 0);
    const long value = priority == Priority::speculative ? long{kIdlePriority} : std::max(own, 0L);
    return syscall(SYS_ioprio_set, kPriorityOfProcess, 0, value) == 0 ? 0 : errno;
}

class PoolEngine final : public Engine {
  public:
    PoolEngine(const PoolOptions& options, ReadCall read) : options_(options), read_(std::move(read)) {}

    Status start(unsigned lanes) {
        const SignalsBlocked blocked;
        try {
            threads_.reserve(lanes);
            for (unsigned i = 0; i < lanes; ++i) threads_.emplace_back([this, i] { run(i); });
        } catch (const std::system_error& e) {
            // The destructor ends those that did start.
            return error(Code::io_error, "cannot start reader thread {} of {}: {}", threads_.size() + 1, lanes,
                         e.code().message());
        }
        return {};
    }

    ~PoolEngine() override {
        {
            const std::lock_guard lock(mutex_);
            stop_ = true;  // reads that no thread has begun are dropped; begun ones are waited for
        }
        work_.notify_all();
        for (std::thread& t : threads_) t.join();
    }
    PoolEngine(const PoolEngine&) = delete;
    PoolEngine& operator=(const PoolEngine&) = delete;

    void submit(std::span<const ReadOp> batch) override {
        if (batch.empty()) return;
        {
            const std::lock_guard lock(mutex_);
            for (const ReadOp& op : batch) reads_.push_back(waiting_, reads_.add(op));
        }
        outstanding_ += batch.size();
        if (batch.size() >= threads_.size()) {
            work_.notify_all();
        } else {
            for (size_t i = 0; i < batch.size(); ++i) work_.notify_one();
        }
    }

    size_t wait(std::span<Completion> out) override { return hand_out(out, kForEver); }
    size_t wait_for(std::span<Completion> out, Nanos most) override { return hand_out(out, std::max<Nanos>(most, 0)); }
    size_t poll(std::span<Completion> out) override { return hand_out(out, 0); }

    [[nodiscard]] size_t outstanding() const override { return outstanding_; }
    // Only the thread that submits and waits changes them.
    [[nodiscard]] const EngineTotals& totals() const override { return reads_.totals(); }
    [[nodiscard]] const char* name() const override { return options_.name; }

  private:
    static constexpr Nanos kForEver = -1;

    size_t hand_out(std::span<Completion> out, Nanos most) {
        assert(!out.empty());
        if (outstanding_ == 0) return 0;
        std::unique_lock lock(mutex_);
        const auto some = [this] { return !over_.empty(); };
        if (most == kForEver) {
            finished_.wait(lock, some);
        } else if (most > 0) {
            finished_.wait_for(lock, std::chrono::nanoseconds(most), some);
        }
        const size_t n = reads_.hand_out(over_, out);
        outstanding_ -= n;
        return n;
    }

    void run(unsigned lane) {
        pthread_setname_np(pthread_self(), fmt::format("sluice-io-{}", lane).c_str());
        Priority priority = Priority::exact;
        std::unique_lock lock(mutex_);
        for (;;) {
            work_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
            if (stop_) return;
            const ReadTable::Index i = reads_.pop_front(waiting_);
            PartialRead read = reads_[i];  // a copy: the table belongs to the lock
            lock.unlock();
            // Refused or not, the bytes are the same.
            if (options_.priorities && read.op().priority != priority) {
                priority = read.op().priority;
                (void)options_.set_priority(priority);
            }
            while (!read.take(read_(*read.op().file, read.dst(), read.length(), read.offset()))) {
            }
            lock.lock();
            reads_[i] = read;
            reads_.push_back(over_, i);
            finished_.notify_one();
        }
    }

    const PoolOptions options_;
    const ReadCall read_;
    size_t outstanding_ = 0;  // the caller's thread only

    std::mutex mutex_;  // guards what follows
    std::condition_variable work_;
    std::condition_variable finished_;
    ReadTable reads_;
    ReadTable::Chain waiting_;
    ReadTable::Chain over_;
    bool stop_ = false;

    std::vector<std::thread> threads_;  // last: they use all of the above
};

}  // namespace

int64_t system_pread(const File& file, std::byte* dst, size_t length, uint64_t offset) {
    const ssize_t n = pread(file.fd(), dst, length, static_cast<off_t>(offset));
    return n >= 0 ? n : -errno;
}

Result<std::unique_ptr<Engine>> make_pool_engine(unsigned lanes, const PoolOptions& options, ReadCall read) {
    PoolOptions with_calls = options;
    if (with_calls.set_priority == nullptr) with_calls.set_priority = system_set_priority;
    auto pool = std::make_unique<PoolEngine>(with_calls, std::move(read));
    if (Status s = pool->start(lanes); !s) return s;
    return std::unique_ptr<Engine>(std::move(pool));
}

}  // namespace sluice::io
