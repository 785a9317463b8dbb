#include "io/unreliable_engine.h"

#include <algorithm>
#include <array>
#include <cassert>

namespace sluice::io {

void UnreliableEngine::submit(std::span<const ReadOp> batch) {
    Unreliability& w = *what_;
    if (w.seen == 0) file_ = nullptr;
    for (const ReadOp& op : batch) {
        if (w.fail && w.seen == *w.fail) {
            file_ = op.file;
            offset_ = op.offset;
        }
        const bool fails = file_ != nullptr && op.file == file_ && op.offset == offset_ && w.failed < w.fails;
        if (fails) ++w.failed;
        reads_.push_back({.number = w.seen++, .tag = op.tag, .dst = op.dst, .need = op.need, .fails = fails});
    }
    inner_->submit(batch);
}

// What comes of a read that fails. Its memory is the engine's until then.
Completion UnreliableEngine::harmed(const Read& read, Completion done) const {
    switch (what_->harm) {
        case Harm::error:
            break;
        case Harm::cut:
            std::fill(read.dst + read.need / 2, read.dst + read.need, std::byte{0xA5});
            return {.tag = read.tag, .error = ENODATA, .bytes = read.need / 2};
        case Harm::wrong:
            if (done.error == 0 && read.need > 0) read.dst[read.need - 1] ^= std::byte{1};
            return done;
    }
    return {.tag = read.tag, .error = what_->error, .bytes = 0};
}

// What inner_ has given, by its reads.
void UnreliableEngine::take(std::span<const Completion> done) {
    for (const Completion& c : done) {
        const auto read =
            std::find_if(reads_.begin(), reads_.end(), [&](const Read& r) { return r.tag == c.tag && !r.done; });
        assert(read != reads_.end());
        read->done = read->fails ? harmed(*read, c) : c;
        ++come_;
    }
}

// The first reads in order of submission, or one that the seed decides.
size_t UnreliableEngine::hand_out(std::span<Completion> out, bool also_stuck) {
    if (what_->order_seed && seeded_ != what_->order_seed) random_.seed(*what_->order_seed);
    seeded_ = what_->order_seed;
    const auto able = [&](const Read& r) { return r.done && (also_stuck || what_->stick != r.number); };
    size_t n = 0;
    while (n < (seeded_ ? 1 : out.size())) {
        auto skip = std::count_if(reads_.begin(), reads_.end(), able);
        if (skip == 0) break;
        skip = seeded_ ? static_cast<std::ptrdiff_t>(random_() % static_cast<uint64_t>(skip)) : 0;
        auto read = std::find_if(reads_.begin(), reads_.end(), able);
        for (; skip > 0; --skip) read = std::find_if(read + 1, reads_.end(), able);
        what_->overtook += read != reads_.begin() ? 1 : 0;
        out[n++] = *read->done;
        reads_.erase(read);
        --come_;
    }
    return n;
}

size_t UnreliableEngine::wait(std::span<Completion> out) {
    std::array<Completion, kAtOnce> some;
    for (;;) {
        // What is mixed is all that is on its way.
        while (what_->order_seed && inner_->outstanding() > 0) take(std::span(some).first(inner_->wait(some)));
        if (const size_t n = hand_out(out, false); n > 0) return n;
        if (inner_->outstanding() == 0) return hand_out(out, true);
        take(std::span(some).first(inner_->wait(some)));
    }
}

size_t UnreliableEngine::wait_for(std::span<Completion> out, Nanos most) {
    std::array<Completion, kAtOnce> some;
    const SystemClock& clock = SystemClock::instance();
    const Nanos end = clock.now() + most;
    for (;;) {
        while (what_->order_seed && inner_->outstanding() > 0) take(std::span(some).first(inner_->wait(some)));
        if (const size_t n = hand_out(out, false); n > 0) return n;
        const Nanos left = end - clock.now();
        if (left <= 0 || inner_->outstanding() == 0) {
            // Only what is stuck can be left.
            if (come_ > 0 && ++what_->in_vain >= what_->stick_for) what_->stick.reset();
            return 0;
        }
        take(std::span(some).first(inner_->wait_for(some, left)));
    }
}

size_t UnreliableEngine::poll(std::span<Completion> out) {
    // In a drawn order nothing is there before somebody waits.
    if (what_->order_seed) return 0;
    std::array<Completion, kAtOnce> some;
    take(std::span(some).first(inner_->poll(some)));
    return hand_out(out, false);
}

}  // namespace sluice::io
