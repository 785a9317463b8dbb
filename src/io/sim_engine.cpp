#include "io/sim_engine.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "io/pool_engine.h"

namespace sluice::io {
namespace {

constexpr int poison_byte = 0xDB;
constexpr Nanos no_event = std::numeric_limits<Nanos>::max();
// Less than this of a byte or of a nanosecond is an error of rounding.
constexpr double nothing = 1e-3;

// Bytes that get through in `nanos`, and the time that bytes need.
double moved_in(const Bandwidth& b, double credit, double nanos) {
    if (b.burst_rate <= b.sustained) return b.sustained * nanos;
    const double burst = std::min(nanos, credit / (b.burst_rate - b.sustained));
    return b.burst_rate * burst + b.sustained * (nanos - burst);
}
double time_to_move(const Bandwidth& b, double credit, double bytes) {
    if (b.burst_rate <= b.sustained) return bytes / b.sustained;
    const double burst = credit / (b.burst_rate - b.sustained);
    if (bytes <= b.burst_rate * burst) return bytes / b.burst_rate;
    return burst + (bytes - b.burst_rate * burst) / b.sustained;
}

}  // namespace

SimEngine::SimEngine(VirtualClock& clock, const SimOptions& options)
    : clock_(clock),
      options_(options),
      random_(options.seed),
      passed_(clock.now()),
      credit_(static_cast<double>(options.bandwidth.burst)) {
    assert(options.channels > 0 && options.latency >= 0 && options.nanos_per_byte >= 0 && options.jitter >= 0);
    assert(options.bandwidth.sustained >= 0 && options.timeout >= 0);
}

void SimEngine::set_contents(const File& file, std::vector<std::byte> contents) {
    contents_[&file] = std::move(contents);
}

void SimEngine::truncate(const File& file, uint64_t bytes) {
    std::vector<std::byte>& contents = contents_[&file];
    if (bytes < contents.size()) contents.resize(bytes);
}

void SimEngine::submit(std::span<const ReadOp> batch) {
    // Channels that became free in the past take what waited then, not what comes now.
    run_until(clock_.now());
    for (const ReadOp& op : batch) {
        Accepted read;
        read.slot = reads_.add(op);
        read.number = counters_.reads++;
        const auto scripted = script_.find(read.number);
        read.fault = scripted != script_.end() ? scripted->second : draw_fault(op);
        if (read.fault.kind != Fault::Kind::none) ++counters_.faults;
        double times = options_.tail.empty() ? 1 : draw_times();
        if (const auto slow = slow_.find(read.number); slow != slow_.end()) times = slow->second;
        history_.push_back({op, read.fault.kind, clock_.now(), -1, 0, times});
        if (options_.poison && options_.moves && op.length > 0) std::memset(op.dst, poison_byte, op.length);
        if (active_.size() < options_.channels) {
            begin(read, clock_.now());
        } else {
            waiting_[options_.priorities && op.priority == Priority::speculative ? 1 : 0].push_back(read);
        }
    }
}

size_t SimEngine::wait(std::span<Completion> out) {
    assert(!out.empty());
    run_until(clock_.now());
    while (over_.empty() && !active_.empty()) {
        clock_.advance_to(next_event());
        run_until(clock_.now());
    }
    return hand_out(out);
}

size_t SimEngine::wait_for(std::span<Completion> out, Nanos most) {
    assert(!out.empty());
    const Nanos end = clock_.now() + most;
    run_until(clock_.now());
    while (over_.empty() && !active_.empty() && clock_.now() < end) {
        clock_.advance_to(std::min(next_event(), end));
        run_until(clock_.now());
    }
    return hand_out(out);
}

size_t SimEngine::poll(std::span<Completion> out) {
    assert(!out.empty());
    run_until(clock_.now());
    return hand_out(out);
}

size_t SimEngine::hand_out(std::span<Completion> out) {
    const size_t n = std::min(out.size(), over_.size());
    for (size_t i = 0; i < n; ++i) {
        size_t pick = 0;
        if (options_.shuffle) pick = static_cast<size_t>(uniform() * static_cast<double>(over_.size()));
        out[i] = over_[pick];
        over_.erase(over_.begin() + static_cast<std::ptrdiff_t>(pick));
    }
    return n;
}

// Not a standard distribution: those differ between libraries.
double SimEngine::uniform() {
    return static_cast<double>(random_() >> 11U) * 0x1.0p-53;
}

Fault SimEngine::draw_fault(const ReadOp& op) {
    const FaultRates& rates = options_.rates;
    double u = uniform();
    const auto hit = [&u](double rate) {
        if (u < rate) return true;
        u -= rate;
        return false;
    };
    const auto below = [this](uint64_t n) { return static_cast<uint64_t>(uniform() * static_cast<double>(n)); };
    if (hit(rates.short_read)) return Fault::short_read(static_cast<uint32_t>(below(op.length)));
    if (hit(rates.interrupted)) return Fault::interrupted();
    if (hit(rates.again)) return Fault::again();
    if (hit(rates.error)) return Fault::error();
    if (hit(rates.bit_flip)) return Fault::bit_flip(below(uint64_t{8} * op.need));
    if (hit(rates.truncated)) return Fault::truncated(static_cast<uint32_t>(below(op.need)));
    if (hit(rates.stall)) return Fault::stall(rates.stall_delay);
    if (hit(rates.stale)) return Fault::stale();
    if (hit(rates.never)) return Fault::never();
    return {};
}

double SimEngine::draw_times() {
    double u = uniform();
    for (const Tail& tail : options_.tail) {
        if (u < tail.share) return tail.times;
        u -= tail.share;
    }
    return 1;
}

void SimEngine::start_attempt(Active& read, Nanos at) {
    const uint32_t length = reads_[read.slot].length();
    const double nanos = static_cast<double>(options_.latency) + options_.nanos_per_byte * length;
    const double times = (1.0 + options_.jitter * uniform()) * history_[read.number].times;
    read.least = read.finish = at + static_cast<Nanos>(nanos * times);
    if (!options_.table.empty()) {
        read.times = times;
        read.left = 1;
        set_paces(at);
    }
}

void SimEngine::start_moving(Active& read) {
    read.to_move = reads_[read.slot].length();
    if (read.to_move > 0) read.finish = no_event;
}

void SimEngine::begin(const Accepted& accepted, Nanos at) {
    pass(at);
    Active& read = active_.emplace_back(accepted);
    start_attempt(read, at);
    if (read.fault.kind == Fault::Kind::stall || read.fault.kind == Fault::Kind::never) {
        read.times = read.pace = 0;
        read.least += read.fault.delay;
        if (read.fault.kind == Fault::Kind::never) read.least = at + options_.timeout;
        read.finish = read.least;
    }
    if (options_.bandwidth.limited() && read.fault.kind != Fault::Kind::never) start_moving(read);
}

void SimEngine::begin_next(Nanos at) {
    for (std::deque<Accepted>& waiting : waiting_) {
        if (waiting.empty()) continue;
        const Accepted next = waiting.front();
        waiting.pop_front();
        begin(next, std::max(at, history_[next.number].submitted));
        return;
    }
}

// All reads under way go on, until a time that is not beyond the next event.
void SimEngine::pass(Nanos to) {
    if (to <= passed_) return;
    const auto nanos = static_cast<double>(to - passed_);
    if (options_.bandwidth.limited()) move_bytes(nanos, to);
    for (Active& a : active_) {
        if (a.pace > 0) a.left = std::max(0.0, a.left - nanos / a.pace);
    }
    passed_ = to;
}

void SimEngine::move_bytes(double nanos, Nanos to) {
    const Bandwidth& b = options_.bandwidth;
    const auto moving = std::count_if(active_.begin(), active_.end(), [](const Active& a) { return a.to_move > 0; });
    double moved = 0;
    if (moving > 0) {
        const double part = moved_in(b, credit_, nanos) / static_cast<double>(moving);
        for (Active& a : active_) {
            if (a.to_move == 0) continue;
            moved += std::min(part, a.to_move);
            a.to_move -= part;
            if (a.to_move > nothing) continue;
            a.to_move = 0;
            a.finish = std::max(a.least, to);
        }
    }
    credit_ = std::clamp(credit_ + b.sustained * nanos - moved, 0.0, static_cast<double>(b.burst));
}

// What the device serves has changed.
void SimEngine::set_paces(Nanos at) {
    if (options_.table.empty()) return;
    double bytes = 0;
    for (const Active& a : active_) {
        if (a.fault.kind != Fault::Kind::never) bytes += reads_[a.slot].length();
    }
    for (Active& a : active_) {
        if (a.times == 0) continue;
        const uint32_t length = std::max<uint32_t>(reads_[a.slot].length(), 1);
        a.pace = static_cast<double>(options_.table.at(length, bytes / length)) * a.times;
        a.least = at + static_cast<Nanos>(std::ceil(a.left * a.pace - nothing));
        if (a.to_move == 0) a.finish = a.least;
    }
}

// When the bytes of the next read are through.
Nanos SimEngine::next_through() const {
    if (!options_.bandwidth.limited()) return no_event;
    double least = 0;
    int moving = 0;
    for (const Active& a : active_) {
        if (a.to_move == 0) continue;
        least = moving++ == 0 ? a.to_move : std::min(least, a.to_move);
    }
    if (moving == 0) return no_event;
    const double nanos = std::ceil(time_to_move(options_.bandwidth, credit_, least * moving));
    return passed_ + std::max<Nanos>(static_cast<Nanos>(nanos), 1);
}

Nanos SimEngine::next_event() const {
    Nanos at = next_through();
    for (const Active& a : active_) at = std::min(at, a.finish);
    return at;
}

// Plays everything that the device does up to `t`, in the order in which it happens.
void SimEngine::run_until(Nanos t) {
    for (;;) {
        const auto first = std::min_element(active_.begin(), active_.end(), [](const Active& a, const Active& b) {
            return std::pair(a.finish, a.number) < std::pair(b.finish, b.number);
        });
        const Nanos done = first == active_.end() ? no_event : first->finish;
        if (const Nanos through = next_through(); through < done && through <= t) {
            pass(through);
            continue;
        }
        pass(std::min(done, t));
        if (done > t) return;
        PartialRead& read = reads_[first->slot];
        if (!read.take(attempt(read, first->fault))) {
            start_attempt(*first, done);
            first->least = first->finish = std::max(first->least, done + 1);  // time passes even for a free device
            if (options_.bandwidth.limited()) start_moving(*first);
            continue;
        }
        const Active ended = *first;
        active_.erase(first);
        finish(ended);
        set_paces(done);
        begin_next(done);
    }
}

int64_t SimEngine::attempt(const PartialRead& read, Fault& fault) {
    ++counters_.attempts;
    uint64_t limit = read.length();  // bytes that this attempt may give
    switch (fault.kind) {
        case Fault::Kind::interrupted:
        case Fault::Kind::again:
            if (fault.times == 0) break;
            --fault.times;
            return fault.kind == Fault::Kind::again ? -EAGAIN : -EINTR;
        case Fault::Kind::error:
            return -fault.error_number;
        case Fault::Kind::short_read:
            if (limit > 1) limit = std::clamp<uint64_t>(fault.bytes, 1, limit - 1);
            fault.kind = Fault::Kind::none;
            break;
        case Fault::Kind::truncated: {
            const uint64_t end = read.op().offset + fault.bytes;
            limit = std::min(limit, end > read.offset() ? end - read.offset() : 0);
            break;
        }
        case Fault::Kind::never:
            return -ETIMEDOUT;
        case Fault::Kind::none:
        case Fault::Kind::bit_flip:
        case Fault::Kind::stall:
            break;
    }
    // Always in full, because a real direct file allows nothing else; what did not "arrive" turns to garbage again.
    int64_t result = read_contents(*read.op().file, read.dst(), read.length(), read.offset());
    if (result > static_cast<int64_t>(limit)) {
        if (options_.poison && options_.moves)
            std::memset(read.dst() + limit, poison_byte, static_cast<uint64_t>(result) - limit);
        result = static_cast<int64_t>(limit);
    }
    if (result > 0) counters_.bytes += static_cast<uint64_t>(result);
    return result;
}

int64_t SimEngine::read_contents(const File& file, std::byte* dst, uint64_t length, uint64_t offset) const {
    if (!options_.moves) {
        const uint64_t size = file.size_at_open();
        return static_cast<int64_t>(std::min(length, size - std::min(size, offset)));
    }
    const auto found = contents_.find(&file);
    if (found == contents_.end()) return system_pread(file, dst, length, offset);
    const std::vector<std::byte>& bytes = found->second;
    if (offset >= bytes.size()) return 0;
    const uint64_t n = std::min<uint64_t>(length, bytes.size() - offset);
    if (n > 0) std::memcpy(dst, bytes.data() + offset, n);
    return static_cast<int64_t>(n);
}

void SimEngine::finish(const Active& ended) {
    const ReadOp& op = reads_[ended.slot].op();
    const Completion completion = reads_[ended.slot].completion();
    if (ended.fault.kind == Fault::Kind::bit_flip && completion.error == 0 && op.need > 0) {
        const uint64_t bit = ended.fault.bit % (uint64_t{8} * op.need);
        op.dst[bit / 8] ^= std::byte{1} << (bit % 8);
    }
    ++(completion.error == 0 ? counters_.completed : counters_.failed);
    history_[ended.number].finished = ended.finish;
    history_[ended.number].error = completion.error;
    over_.push_back(completion);
    reads_.remove(ended.slot);
}

}  // namespace sluice::io
