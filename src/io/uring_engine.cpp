#include "io/uring_engine.h"

#include <liburing.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "base/log.h"
#include "io/read_table.h"

namespace sluice::io {
namespace {

// A kernel short of memory refuses to take reads for a while. With none of ours under way there is nothing to wait
// for, so it is asked again this often, this far apart, before every queued read fails.
constexpr unsigned max_refusals = 200;
constexpr std::chrono::milliseconds refusal_pause(1);

class UringEngine final : public Engine {
  public:
    UringEngine(unsigned lanes, const UringCalls& calls) : calls_(calls), lanes_(lanes) {}

    Status start() {
        if (const int r = calls_.init(lanes_, &ring_); r < 0) {
            return error(Code::unsupported, "the kernel refuses an io_uring: {}", std::strerror(-r));
        }
        open_ = true;
        // Rings are older than plain reads on them.
        io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
        const bool can_read = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ) != 0;
        if (probe != nullptr) io_uring_free_probe(probe);
        if (!can_read) return error(Code::unsupported, "this kernel's io_uring has no plain reads");
        return {};
    }

    ~UringEngine() override {
        // Reads still held back or only prepared were never shown to the kernel; those under way own their buffers
        // until they end.
        while (in_kernel_ > 0) {
            await_kernel();
            io_uring_cqe* cqe = nullptr;
            while (in_kernel_ > 0 && io_uring_peek_cqe(&ring_, &cqe) == 0) {
                io_uring_cqe_seen(&ring_, cqe);
                --in_kernel_;
            }
        }
        if (open_) io_uring_queue_exit(&ring_);
    }
    UringEngine(const UringEngine&) = delete;
    UringEngine& operator=(const UringEngine&) = delete;

    void submit(std::span<const ReadOp> batch) override {
        for (const ReadOp& op : batch) reads_.push_back(waiting_, reads_.add(op));
        advance(0);
    }

    size_t wait(std::span<Completion> out) override {
        assert(!out.empty());
        for (;;) {
            reap();
            // The device gets its next reads before the caller gets busy with these.
            advance(over_.empty() && reads_.size() > 0 ? 1 : 0);
            if (!over_.empty()) return reads_.hand_out(over_, out);
            if (reads_.size() == 0) return 0;
        }
    }

    [[nodiscard]] size_t outstanding() const override { return reads_.size(); }
    [[nodiscard]] const EngineTotals& totals() const override { return reads_.totals(); }
    [[nodiscard]] const char* name() const override { return "io_uring"; }

  private:
    // Takes what the kernel has finished.
    void reap() {
        io_uring_cqe* cqe = nullptr;
        while (in_kernel_ > 0 && io_uring_peek_cqe(&ring_, &cqe) == 0) {
            const auto i = static_cast<ReadTable::Index>(cqe->user_data);
            const int result = calls_.result(cqe->res);
            io_uring_cqe_seen(&ring_, cqe);
            --in_kernel_;
            if (reads_[i].take(result)) {
                reads_.push_back(over_, i);
            } else {
                reads_.push_front(waiting_, i);  // it has waited longest
            }
        }
    }

    // Fills the ring from what is held back, and gives it to the kernel. With `wait_for`, sleeps until something may
    // have finished.
    void advance(unsigned wait_for) {
        if (broken_ != 0) {
            fail_all(waiting_);
            if (wait_for > 0 && over_.empty() && in_kernel_ > 0) await_kernel();
            return;
        }
        while (!waiting_.empty() && in_kernel_ + prepared_count_ < lanes_) {
            io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
            if (sqe == nullptr) break;  // cannot be: the ring has at least `lanes_` entries
            const ReadTable::Index i = reads_.pop_front(waiting_);
            const PartialRead& read = reads_[i];
            io_uring_prep_read(sqe, read.op().file->fd(), read.dst(), read.length(), read.offset());
            io_uring_sqe_set_data64(sqe, i);
            reads_.push_back(prepared_, i);
            ++prepared_count_;
        }
        if (prepared_count_ == 0 && wait_for == 0) return;

        const unsigned asked = prepared_count_;
        const int r = calls_.submit(&ring_, wait_for);
        for (int n = 0; n < r && prepared_count_ > 0; ++n) {
            (void)reads_.pop_front(prepared_);
            --prepared_count_;
            ++in_kernel_;
        }
        if (r > 0 || (r == 0 && asked == 0)) {
            refusals_ = 0;
            return;
        }
        if (r == -EINTR) return;
        if (r == 0 || r == -EAGAIN || r == -EBUSY || r == -ENOMEM) {
            if (wait_for == 0) return;  // wait() will insist
            if (in_kernel_ > 0) {
                await_kernel();
                return;
            }
            if (++refusals_ < max_refusals) {
                std::this_thread::sleep_for(refusal_pause);
                return;
            }
        }
        // EAGAIN is the engine's business, not a reason that a caller could act on.
        broken_ = r == 0 || r == -EAGAIN || r == -EBUSY ? EIO : -r;
        log(LogLevel::error, "the kernel takes no more reads: {}", std::strerror(broken_));
        // What stays behind in the ring is never submitted, because a broken ring is not submitted to again.
        fail_all(prepared_);
        prepared_count_ = 0;
        fail_all(waiting_);
    }

    void fail_all(ReadTable::Chain& chain) {
        while (!chain.empty()) {
            const ReadTable::Index i = reads_.pop_front(chain);
            reads_[i].fail(broken_);
            reads_.push_back(over_, i);
        }
    }

    // Sleeps until a read that the kernel holds may have finished; submits nothing.
    void await_kernel() {
        io_uring_cqe* cqe = nullptr;
        const int r = io_uring_wait_cqe(&ring_, &cqe);
        if (r == 0 || r == -EINTR || r == -EAGAIN || r == -EBUSY) return;
        // The kernel will write into buffers and there is no way left to learn when. Going on would hand out memory
        // that changes under its new owner.
        log(LogLevel::error, "lost contact with reads under way: {}", std::strerror(-r));
        std::abort();
    }

    const UringCalls calls_;
    const unsigned lanes_;
    io_uring ring_ = {};
    bool open_ = false;
    int broken_ = 0;  // the errno with which the kernel stopped taking reads

    ReadTable reads_;
    ReadTable::Chain waiting_;   // held back
    ReadTable::Chain prepared_;  // in the ring, not taken by the kernel yet
    ReadTable::Chain over_;      // to be handed out
    unsigned prepared_count_ = 0;
    unsigned in_kernel_ = 0;
    unsigned refusals_ = 0;
};

}  // namespace

// No flags: the engine may move between threads, which the single-issuer modes forbid.
int system_uring_init(unsigned entries, io_uring* ring) {
    return io_uring_queue_init(entries, ring, 0);
}

int system_uring_submit(io_uring* ring, unsigned wait_for) {
    return io_uring_submit_and_wait(ring, wait_for);
}

Result<std::unique_ptr<Engine>> make_uring_engine(unsigned lanes, const UringCalls& calls) {
    auto engine = std::make_unique<UringEngine>(lanes, calls);
    if (Status s = engine->start(); !s) return s;
    return std::unique_ptr<Engine>(std::move(engine));
}

}  // namespace sluice::io
