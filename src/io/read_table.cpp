#include "io/read_table.h"

#include <algorithm>
#include <cerrno>

#include "base/bytes.h"

namespace sluice::io {

bool PartialRead::take(int64_t result) {
    const auto over = [this](int error) {
        error_ = error;
        return true;
    };
    // ECANCELED: a ring drops what is left of a thread's reads when that thread ends. Nobody here cancels a read.
    ++attempts_;
    if (result == -EINTR || result == -EAGAIN || result == -ECANCELED) {
        return ++interruptions_ >= max_interruptions && over(EIO);
    }
    if (result < 0) return over(static_cast<int>(-result));
    assert(result <= length());

    const uint32_t reached = resume_ + static_cast<uint32_t>(result);
    const bool progress = reached > done_;
    done_ = std::max(done_, reached);
    if (done_ >= op_.need) return over(0);
    if (result == 0) return over(ENODATA);
    if (done_ >= op_.length) return over(EINVAL);  // need > length: never report bytes that did not come
    interruptions_ = 0;
    repeats_ = progress ? 0 : repeats_ + 1;
    if (repeats_ >= max_repeats) return over(ENODATA);
    const uint32_t align = std::max(op_.file->offset_align(), op_.file->mem_align());
    resume_ = static_cast<uint32_t>(align_down(done_, align));
    return false;
}

ReadTable::ReadTable() : slots_(Engine::max_outstanding()) {
    for (Index i = 0; i < slots_.size(); ++i) push_back(free_, i);
}

ReadTable::Index ReadTable::add(const ReadOp& op) {
    assert(used_ < Engine::max_outstanding());
    // Beyond the bound is a caller's bug; without asserts it costs an allocation rather than a lost read.
    if (free_.empty()) {
        slots_.emplace_back();
        push_back(free_, static_cast<Index>(slots_.size() - 1));
    }
    const Index i = pop_front(free_);
    slots_[i].read = PartialRead(op);
    ++used_;
    ++totals_.reads;
    totals_.bytes += op.length;
    return i;
}

void ReadTable::remove(Index i) {
    --used_;
    const unsigned attempts = slots_[i].read.attempts();
    totals_.retries += attempts > 1 ? attempts - 1 : 0;
    // To the front: a table that is mostly idle keeps touching the same few cache lines.
    push_front(free_, i);
}

void ReadTable::push_back(Chain& chain, Index i) {
    slots_[i].next = none;
    if (chain.empty()) {
        chain.head = i;
    } else {
        slots_[chain.tail].next = i;
    }
    chain.tail = i;
}

void ReadTable::push_front(Chain& chain, Index i) {
    slots_[i].next = chain.head;
    if (chain.empty()) chain.tail = i;
    chain.head = i;
}

ReadTable::Index ReadTable::pop_front(Chain& chain) {
    assert(!chain.empty());
    const Index i = chain.head;
    chain.head = slots_[i].next;
    if (chain.empty()) chain.tail = none;
    return i;
}

size_t ReadTable::hand_out(Chain& over, std::span<Completion> out) {
    size_t n = 0;
    while (n < out.size() && !over.empty()) {
        const Index i = pop_front(over);
        out[n++] = slots_[i].read.completion();
        remove(i);
    }
    return n;
}

}  // namespace sluice::io
