#include "io/uring_engine.h"

#include <liburing.h>
#include <poll.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"
#include "io/priority_class.h"
#include "io/read_table.h"

namespace sluice::io {
namespace {

// A kernel short of memory refuses to take reads for a while. With none of ours under way there is nothing to wait
// for, so it is asked again this often, this far apart, before every queued read fails.
constexpr unsigned max_refusals = 200;
constexpr std::chrono::milliseconds refusal_pause(1);

// Files beyond these are read by descriptor. The kernel counts the table against the limit of open files.
constexpr unsigned max_files = 128;
// The kernel takes memory in pieces of at most this size, and this many of them.
constexpr size_t max_piece = 1 * GiB;
constexpr unsigned max_pieces = 1024;

class UringEngine final : public Engine {
  public:
    UringEngine(unsigned lanes, const UringCalls& calls, bool priorities)
        : calls_(calls), lanes_(lanes), priorities_(priorities) {}

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
        // Kernels before 5.19 have no tables with empty places. They read by descriptor.
        take_files_ = io_uring_register_files_sparse(&ring_, max_files) == 0;
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

    size_t wait_for(std::span<Completion> out, Nanos most) override {
        const Nanos end = SystemClock::instance().now() + most;
        for (;;) {
            const size_t n = poll(out);
            if (n > 0 || reads_.size() == 0) return n;
            // The kernel will not take what is prepared: only wait() gives that up, and soon.
            if (in_kernel_ == 0) return wait(out);
            const Nanos left = end - SystemClock::instance().now();
            if (left <= 0) return 0;
            pollfd ring = {.fd = ring_.ring_fd, .events = POLLIN, .revents = 0};
            (void)::poll(&ring, 1, static_cast<int>(std::min<Nanos>((left + 999'999) / 1'000'000, INT32_MAX)));
        }
    }

    size_t poll(std::span<Completion> out) override {
        assert(!out.empty());
        reap();
        advance(0);
        return reads_.hand_out(over_, out);
    }

    Status register_memory(std::span<std::byte> memory) override {
        if (memory.empty() || memory_refused_) return {};
        int result = 0;
        if (regions_.empty()) result = io_uring_register_buffers_sparse(&ring_, max_pieces);
        const size_t pieces = (memory.size() + max_piece - 1) / max_piece;
        if (result == 0 && pieces > max_pieces - pieces_) result = -ENOSPC;
        unsigned done = 0;
        for (; result >= 0 && done < pieces; ++done) {
            const size_t from = done * max_piece;
            const iovec piece = {memory.data() + from, std::min(max_piece, memory.size() - from)};
            result = calls_.register_memory(&ring_, pieces_ + done, &piece);
        }
        if (result < 0) {
            // All of it or nothing: half of a slab would make reads differ for no visible reason.
            const iovec nothing = {nullptr, 0};
            while (done-- > 1) (void)calls_.register_memory(&ring_, pieces_ + done - 1, &nothing);
            memory_refused_ = true;
            return error(Code::unsupported, "{} of memory cannot be registered for reading ({}{}); reads go without",
                         human_bytes(memory.size()), std::strerror(-result),
                         result == -ENOMEM || result == -EPERM ? "; the limit is ulimit -l" : "");
        }
        regions_.push_back({memory.data(), memory.size(), pieces_});
        pieces_ += static_cast<unsigned>(pieces);
        return {};
    }

    [[nodiscard]] size_t outstanding() const override { return reads_.size(); }
    [[nodiscard]] const EngineTotals& totals() const override { return reads_.totals(); }
    [[nodiscard]] const char* name() const override { return "io_uring"; }

  private:
    struct RegisteredMemory {
        std::byte* data;
        size_t bytes;
        unsigned first;  // its first piece
    };

    // The piece that all of [data, data + bytes) lies in, or -1.
    [[nodiscard]] int piece_of(const std::byte* data, size_t bytes) const {
        for (const RegisteredMemory& r : regions_) {
            const auto from = reinterpret_cast<uintptr_t>(data) - reinterpret_cast<uintptr_t>(r.data);  // wraps below
            if (from >= r.bytes || bytes > r.bytes - from) continue;
            if (from / max_piece != (from + bytes - 1) / max_piece) return -1;
            return static_cast<int>(r.first + from / max_piece);
        }
        return -1;
    }

    // The place of an open file in the ring's table, or -1. Places are never given to another file: reads that are
    // only prepared name them.
    int place_of(const File& file) {
        for (unsigned i = 0; i < files_; ++i) {
            if (file_serials_[i] == file.serial()) return static_cast<int>(i);
        }
        if (!take_files_ || files_ == max_files || file.fd() < 0) return -1;
        if (calls_.register_file(&ring_, files_, file.fd()) < 0) {
            take_files_ = false;
            return -1;
        }
        file_serials_[files_] = file.serial();
        return static_cast<int>(files_++);
    }

    void prepare(io_uring_sqe* sqe, const PartialRead& read) {
        const File& file = *read.op().file;
        const int place = place_of(file);
        const int fd = place >= 0 ? place : file.fd();
        const int piece = read.length() > 0 ? piece_of(read.dst(), read.length()) : -1;
        if (piece >= 0) {
            io_uring_prep_read_fixed(sqe, fd, read.dst(), read.length(), read.offset(), piece);
        } else {
            io_uring_prep_read(sqe, fd, read.dst(), read.length(), read.offset());
        }
        if (place >= 0) io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
        // 0 is the class that the program was given (ionice).
        if (priorities_ && read.op().priority == Priority::speculative) sqe->ioprio = kIdlePriority;
    }

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
            prepare(sqe, reads_[i]);
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
    const bool priorities_;
    io_uring ring_ = {};
    bool open_ = false;
    int broken_ = 0;  // the errno with which the kernel stopped taking reads

    bool take_files_ = false;
    std::array<uint64_t, max_files> file_serials_{};
    unsigned files_ = 0;
    std::vector<RegisteredMemory> regions_;
    unsigned pieces_ = 0;
    bool memory_refused_ = false;

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

int system_uring_register_memory(io_uring* ring, unsigned at, const iovec* piece) {
    return io_uring_register_buffers_update_tag(ring, at, piece, nullptr, 1);
}

int system_uring_register_file(io_uring* ring, unsigned at, int fd) {
    return io_uring_register_files_update(ring, at, &fd, 1);
}

Result<std::unique_ptr<Engine>> make_uring_engine(unsigned lanes, const UringCalls& calls, bool priorities) {
    auto engine = std::make_unique<UringEngine>(lanes, calls, priorities);
    if (Status s = engine->start(); !s) return s;
    return std::unique_ptr<Engine>(std::move(engine));
}

}  // namespace sluice::io
