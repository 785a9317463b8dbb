// Owns: the reads that an engine has accepted and not yet handed back, and how far each of them has come.
// Keeps: all engines agree on what a short, interrupted or ending read means, because only PartialRead decides; and no
// memory is allocated per read, because the table holds Engine::max_outstanding() of them from the start.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "io/engine.h"

namespace sluice::io {

// One ReadOp on its way. The engine asks for offset()/length()/dst(), performs one system read of that, and gives the
// result to take(), until take() says that the read is over.
class PartialRead {
  public:
    // Attempts in a row that may end with EINTR, EAGAIN or ECANCELED before the read fails with EIO.
    static constexpr unsigned max_interruptions = 256;
    // A direct read cannot ask for what follows an unaligned byte: it has to repeat the block before. If that block
    // stops at the same byte this many times in a row, the file ends there.
    static constexpr unsigned max_repeats = 8;

    PartialRead() = default;
    explicit PartialRead(const ReadOp& op) : op_(op) { assert(op.file != nullptr && op.need <= op.length); }

    [[nodiscard]] const ReadOp& op() const { return op_; }
    [[nodiscard]] uint64_t offset() const { return op_.offset + resume_; }
    [[nodiscard]] uint32_t length() const { return op_.length - resume_; }
    [[nodiscard]] std::byte* dst() const { return op_.dst + resume_; }

    // `result`: bytes that one read gave, or minus an errno. True when the read is over.
    bool take(int64_t result);
    // Ends the read with an errno.
    void fail(int error) { error_ = error; }
    // Only when the read is over.
    [[nodiscard]] Completion completion() const { return {op_.tag, error_, done_}; }
    // Results taken so far.
    [[nodiscard]] unsigned attempts() const { return attempts_; }

  private:
    ReadOp op_;
    uint32_t done_ = 0;    // bytes from op_.offset on that arrived
    uint32_t resume_ = 0;  // where the next attempt starts: done_, rounded down to what the file's alignment allows
    int error_ = 0;
    unsigned attempts_ = 0;
    unsigned interruptions_ = 0;
    unsigned repeats_ = 0;
};

// Reads by index, and first-in-first-out chains of them. Not thread-safe.
class ReadTable {
  public:
    using Index = uint32_t;

    // Links through the table; a read is in one chain at most.
    struct Chain {
        Index head = none;
        Index tail = none;
        [[nodiscard]] bool empty() const { return head == none; }
    };

    ReadTable();

    Index add(const ReadOp& op);
    void remove(Index i);
    PartialRead& operator[](Index i) { return slots_[i].read; }
    [[nodiscard]] size_t size() const { return used_; }
    [[nodiscard]] const EngineTotals& totals() const { return totals_; }

    void push_back(Chain& chain, Index i);
    void push_front(Chain& chain, Index i);
    // The chain is not empty.
    Index pop_front(Chain& chain);
    // Removes up to out.size() reads that are over, from the front of the chain, and reports them.
    size_t hand_out(Chain& over, std::span<Completion> out);

  private:
    static constexpr Index none = UINT32_MAX;
    struct Slot {
        PartialRead read;
        Index next = none;
    };
    std::vector<Slot> slots_;
    Chain free_;
    size_t used_ = 0;
    EngineTotals totals_;
};

}  // namespace sluice::io
