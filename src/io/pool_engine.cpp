#include "io/pool_engine.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

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

class PoolEngine final : public Engine {
  public:
    explicit PoolEngine(ReadCall read) : read_(std::move(read)) {}

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

    size_t wait(std::span<Completion> out) override {
        assert(!out.empty());
        if (outstanding_ == 0) return 0;
        std::unique_lock lock(mutex_);
        finished_.wait(lock, [this] { return !over_.empty(); });
        const size_t n = reads_.hand_out(over_, out);
        outstanding_ -= n;
        return n;
    }

    [[nodiscard]] size_t outstanding() const override { return outstanding_; }
    // Only the thread that submits and waits changes them.
    [[nodiscard]] const EngineTotals& totals() const override { return reads_.totals(); }
    [[nodiscard]] const char* name() const override { return "pread"; }

  private:
    void run(unsigned lane) {
        pthread_setname_np(pthread_self(), fmt::format("sluice-io-{}", lane).c_str());
        std::unique_lock lock(mutex_);
        for (;;) {
            work_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
            if (stop_) return;
            const ReadTable::Index i = reads_.pop_front(waiting_);
            PartialRead read = reads_[i];  // a copy: the table belongs to the lock
            lock.unlock();
            while (!read.take(read_(*read.op().file, read.dst(), read.length(), read.offset()))) {
            }
            lock.lock();
            reads_[i] = read;
            reads_.push_back(over_, i);
            finished_.notify_one();
        }
    }

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

Result<std::unique_ptr<Engine>> make_pool_engine(unsigned lanes, ReadCall read) {
    auto pool = std::make_unique<PoolEngine>(std::move(read));
    if (Status s = pool->start(lanes); !s) return s;
    return std::unique_ptr<Engine>(std::move(pool));
}

}  // namespace sluice::io
