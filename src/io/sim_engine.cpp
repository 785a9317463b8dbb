#include "io/sim_engine.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include "io/pool_engine.h"

namespace sluice::io {
namespace {

constexpr int poison_byte = 0xDB;

}  // namespace

SimEngine::SimEngine(VirtualClock& clock, const SimOptions& options)
    : clock_(clock), options_(options), random_(options.seed) {
    assert(options.channels > 0 && options.latency >= 0 && options.nanos_per_byte >= 0 && options.jitter >= 0);
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
        Active read;
        read.slot = reads_.add(op);
        read.number = counters_.reads++;
        const auto scripted = script_.find(read.number);
        read.fault = scripted != script_.end() ? scripted->second : draw_fault(op);
        if (read.fault.kind != Fault::Kind::none) ++counters_.faults;
        history_.push_back({op, read.fault.kind, clock_.now(), -1, 0});
        if (options_.poison && op.length > 0) std::memset(op.dst, poison_byte, op.length);
        if (active_.size() < options_.channels) {
            begin(read, clock_.now());
        } else {
            waiting_.push_back(read);
        }
    }
}

size_t SimEngine::wait(std::span<Completion> out) {
    assert(!out.empty());
    run_until(clock_.now());
    while (over_.empty() && !active_.empty()) {
        const auto first = std::min_element(active_.begin(), active_.end(),
                                            [](const Active& a, const Active& b) { return a.finish < b.finish; });
        clock_.advance_to(first->finish);
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
    return {};
}

Nanos SimEngine::service_time(const PartialRead& read) {
    const double nanos = static_cast<double>(options_.latency) + options_.nanos_per_byte * read.length();
    return static_cast<Nanos>(nanos * (1.0 + options_.jitter * uniform()));
}

void SimEngine::begin(Active read, Nanos at) {
    read.finish = at + service_time(reads_[read.slot]);
    if (read.fault.kind == Fault::Kind::stall) read.finish += read.fault.delay;
    active_.push_back(read);
}

// Plays everything that the device does up to `t`, in the order in which it happens.
void SimEngine::run_until(Nanos t) {
    for (;;) {
        const auto first = std::min_element(active_.begin(), active_.end(), [](const Active& a, const Active& b) {
            return std::pair(a.finish, a.number) < std::pair(b.finish, b.number);
        });
        if (first == active_.end() || first->finish > t) return;
        PartialRead& read = reads_[first->slot];
        if (!read.take(attempt(read, first->fault))) {
            first->finish += std::max<Nanos>(service_time(read), 1);  // time passes even for a free device
            continue;
        }
        const Active ended = *first;
        active_.erase(first);
        finish(ended);
        if (!waiting_.empty()) {
            const Active next = waiting_.front();
            waiting_.pop_front();
            begin(next, std::max(ended.finish, history_[next.number].submitted));
        }
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
        case Fault::Kind::none:
        case Fault::Kind::bit_flip:
        case Fault::Kind::stall:
            break;
    }
    // Always in full, because a real direct file allows nothing else; what did not "arrive" turns to garbage again.
    int64_t result = read_contents(*read.op().file, read.dst(), read.length(), read.offset());
    if (result > static_cast<int64_t>(limit)) {
        if (options_.poison) std::memset(read.dst() + limit, poison_byte, static_cast<uint64_t>(result) - limit);
        result = static_cast<int64_t>(limit);
    }
    if (result > 0) counters_.bytes += static_cast<uint64_t>(result);
    return result;
}

int64_t SimEngine::read_contents(const File& file, std::byte* dst, uint64_t length, uint64_t offset) const {
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
