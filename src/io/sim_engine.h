// Owns: a read engine without a drive: it obeys the contract of Engine on a virtual clock, with latency, bandwidth,
// reordering and faults that a seed or a script decides.
// Keeps: the same seed, script and calls give the same completions at the same virtual times; what the device has begun
// it ends, whatever comes later (no preemption); a buffer holds garbage from submission until its read has completed,
// so that using it early shows.
#pragma once

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <span>
#include <vector>

#include "base/clock.h"
#include "io/engine.h"
#include "io/latency_table.h"
#include "io/read_table.h"

namespace sluice::io {

// What goes wrong with one read.
struct Fault {
    enum class Kind {
        none,
        short_read,   // the first attempt gives `bytes` only (at least 1, below the length); the engine reads on
        interrupted,  // `times` attempts end with EINTR; the engine repeats them
        again,        // the same with EAGAIN
        error,        // completes with `error_number`
        bit_flip,     // completes well, with bit `bit` of the needed bytes inverted
        truncated,    // the file ends `bytes` bytes after the read's offset
        stall,        // comes `delay` later
        never,        // the device forgets it, on its channel; SimOptions::timeout ends it with ETIMEDOUT
    };
    Kind kind = Kind::none;
    uint32_t bytes = 0;
    uint64_t bit = 0;  // modulo the bits that are needed
    unsigned times = 1;
    int error_number = EIO;
    Nanos delay = 0;

    static Fault short_read(uint32_t bytes) { return {.kind = Kind::short_read, .bytes = bytes}; }
    static Fault interrupted(unsigned times = 1) { return {.kind = Kind::interrupted, .times = times}; }
    static Fault again(unsigned times = 1) { return {.kind = Kind::again, .times = times}; }
    static Fault error(int error_number = EIO) { return {.kind = Kind::error, .error_number = error_number}; }
    static Fault stale() { return error(ESTALE); }  // the server gave the file's handle to another file
    static Fault bit_flip(uint64_t bit = 0) { return {.kind = Kind::bit_flip, .bit = bit}; }
    static Fault truncated(uint32_t bytes = 0) { return {.kind = Kind::truncated, .bytes = bytes}; }
    static Fault stall(Nanos delay) { return {.kind = Kind::stall, .delay = delay}; }
    static Fault never() { return {.kind = Kind::never}; }
};

// How probable each fault is for a read that the script does not mention. Their sum is at most 1.
struct FaultRates {
    double short_read = 0;
    double interrupted = 0;
    double again = 0;
    double error = 0;
    double bit_flip = 0;
    double truncated = 0;
    double stall = 0;
    Nanos stall_delay = 100'000'000;
    double stale = 0;
    double never = 0;
};

// Some reads take several times as long.
struct Tail {
    double share = 0;  // of all reads
    double times = 1;
};

// What all channels move together, as of a drive with a cache in front or of a virtual one with a limit: `burst` bytes
// at `burst_rate` if it has rested, else `sustained` ones per nanosecond. Reads under way have equal parts of it.
struct Bandwidth {
    double sustained = 0;  // bytes per nanosecond; 0: no limit
    double burst_rate = 0;
    uint64_t burst = 0;
    [[nodiscard]] bool limited() const { return sustained > 0; }
};

struct SimOptions {
    uint64_t seed = 1;
    // Reads that the device serves at once; the rest wait in order of submission.
    unsigned channels = 8;
    // One attempt takes latency + nanos_per_byte * its length, on its own channel, times 1 up to 1 + jitter.
    Nanos latency = 100'000;
    double nanos_per_byte = 1.0;
    double jitter = 0;
    // If it has a point, instead of latency and nanos_per_byte: the pace of a read, and with whatever comes and goes
    // the pace of all changes. Their depth is what the device serves, in reads of their own size: four of 64 KiB beside
    // one of 1 MiB are a quarter of a read to it, not four, and it is sixteen to each of them.
    LatencyTable table = {};
    // Each of other reads; their shares are at most 1 together.
    std::vector<Tail> tail = {};
    // An attempt also lasts until its bytes are through.
    Bandwidth bandwidth = {};
    // Of what waits, exact reads go to the device before speculative ones.
    bool priorities = false;
    // After this time at the device a read that never completes is given up, like a kernel does with a drive. Until
    // then it holds its channel; wait() comes to it when nothing else is left that could end.
    Nanos timeout = 30'000'000'000;
    // Hands out completions that are there together in a random order.
    bool shuffle = false;
    bool poison = true;
    // False: no byte is moved, and no file needs contents: for who only wants to know when reads end.
    bool moves = true;
    FaultRates rates = {};
};

struct SimCounters {
    uint64_t reads = 0;      // submitted
    uint64_t completed = 0;  // well
    uint64_t failed = 0;     // with an error
    uint64_t attempts = 0;   // at the device; more than completed + failed when something was retried
    uint64_t bytes = 0;      // moved by all attempts
    uint64_t faults = 0;     // reads that a fault was planned for
};

// One read of the past, by the order of submission.
struct SimRead {
    ReadOp op;
    Fault::Kind fault = Fault::Kind::none;
    Nanos submitted = 0;
    Nanos finished = -1;  // -1: not yet
    int error = 0;
    double times = 1;  // what the tail made of it
};

class SimEngine final : public Engine {
  public:
    // `clock` outlives the engine; wait() moves it when nothing has finished yet.
    explicit SimEngine(VirtualClock& clock, const SimOptions& options = {});

    // The bytes of a file, known by its address: do not move the File afterwards. A file without contents is read
    // through its descriptor.
    void set_contents(const File& file, std::vector<std::byte> contents);
    // Shortens the contents from now on, also for reads under way.
    void truncate(const File& file, uint64_t bytes);
    // The k-th read submitted in this engine's life, from 0, suffers `fault`, whatever the rates say.
    void fault_at(uint64_t k, const Fault& fault) { script_[k] = fault; }
    // It takes this many times as long, whatever the tail says.
    void slow_at(uint64_t k, double times) { slow_[k] = times; }

    void submit(std::span<const ReadOp> batch) override;
    size_t wait(std::span<Completion> out) override;
    // Moves the clock by `most` at the most.
    size_t wait_for(std::span<Completion> out, Nanos most) override;
    // Time stands still meanwhile.
    size_t poll(std::span<Completion> out) override;
    [[nodiscard]] size_t outstanding() const override { return reads_.size() + over_.size(); }
    [[nodiscard]] const EngineTotals& totals() const override { return reads_.totals(); }
    [[nodiscard]] const char* name() const override { return "simulated"; }

    [[nodiscard]] const SimCounters& counters() const { return counters_; }
    [[nodiscard]] const std::vector<SimRead>& history() const { return history_; }

  private:
    struct Accepted {
        ReadTable::Index slot = 0;
        uint64_t number = 0;  // in history_
        Fault fault;          // what is left of it
    };
    // On a channel.
    struct Active : Accepted {
        explicit Active(const Accepted& read) : Accepted(read) {}
        Nanos finish = 0;    // of the attempt under way, as things are; unknown while bytes have to get through
        Nanos least = 0;     // but not before this
        double to_move = 0;  // bytes that have to get through, where bandwidth is limited
        double times = 0;    // what jitter and tail make of the table's time; 0: the table does not matter any more
        double pace = 0;     // nanoseconds for the whole attempt beside what the device serves now
        double left = 1;     // part of the attempt still to be done
    };

    double uniform();  // [0, 1)
    Fault draw_fault(const ReadOp& op);
    double draw_times();
    void start_attempt(Active& read, Nanos at);
    void start_moving(Active& read);
    void begin(const Accepted& accepted, Nanos at);
    void begin_next(Nanos at);
    void run_until(Nanos t);
    [[nodiscard]] Nanos next_event() const;
    [[nodiscard]] Nanos next_through() const;
    void pass(Nanos to);
    void move_bytes(double nanos, Nanos to);
    void set_paces(Nanos at);
    int64_t attempt(const PartialRead& read, Fault& fault);
    int64_t read_contents(const File& file, std::byte* dst, uint64_t length, uint64_t offset) const;
    void finish(const Active& ended);
    size_t hand_out(std::span<Completion> out);

    VirtualClock& clock_;
    const SimOptions options_;
    std::mt19937_64 random_;
    std::map<const File*, std::vector<std::byte>> contents_;
    std::map<uint64_t, Fault> script_;
    std::map<uint64_t, double> slow_;

    ReadTable reads_;
    std::array<std::deque<Accepted>, 2> waiting_;  // by priority, where that counts
    std::vector<Active> active_;
    Nanos passed_ = 0;   // until when all reads have gone on
    double credit_ = 0;  // bytes that may still go at the burst's rate
    std::vector<Completion> over_;
    SimCounters counters_;
    std::vector<SimRead> history_;
};

}  // namespace sluice::io
