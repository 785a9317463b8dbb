// Owns: the one interface through which bytes come off a drive.
// Keeps: every submitted read completes exactly once, with all the bytes it needs or with an error; a short read,
// EINTR or EAGAIN is the engine's business and never the caller's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "io/file.h"

namespace sluice::io {

// Whether somebody waits for a read, or only may want it later. Told to the drive where its scheduler listens; engines
// begin reads in the order of submission all the same.
enum class Priority : uint8_t { exact, speculative };

// One read. `offset`, `length` and `dst` obey file->offset_align() and file->mem_align() (both 1 when buffered).
// `length` may reach past the end of the file (rounding up); `need` <= `length` says how many bytes, counted from
// `offset`, must really arrive. Bytes after `need` are undefined.
struct ReadOp {
    const File* file = nullptr;  // outlives the read
    uint64_t offset = 0;
    uint32_t length = 0;
    uint32_t need = 0;
    std::byte* dst = nullptr;  // stays valid until the completion was returned
    uint64_t tag = 0;          // handed back unchanged
    Priority priority = Priority::exact;
};

struct Completion {
    uint64_t tag = 0;
    int error = 0;       // 0, or an errno; a file that ends before `need` bytes is ENODATA
    uint32_t bytes = 0;  // bytes that arrived, >= need when error is 0
};

// What an engine has been asked for since it was made. Counted by the engine itself, so that whoever accounts for bytes
// can be checked against it.
struct EngineTotals {
    uint64_t reads = 0;
    uint64_t bytes = 0;    // their lengths, alignment included
    uint64_t retries = 0;  // attempts beyond one per read: short, interrupted or refused; of reads that are over
};

// Used by one thread at a time.
class Engine {
  public:
    virtual ~Engine() = default;
    // Queues every read of the batch, in this order; more than the device's depth is held back inside. Does not block
    // on the device. Total outstanding reads are bounded by max_outstanding(); exceeding it is a caller's bug.
    virtual void submit(std::span<const ReadOp> batch) = 0;
    // Blocks until at least one outstanding read has completed, then returns as many completions as are there and fit.
    // Returns 0 only if nothing is outstanding. Completions come in any order.
    virtual size_t wait(std::span<Completion> out) = 0;
    // Like wait(), but gives up after about `most`, and returns 0 then. Reads go on meanwhile.
    virtual size_t wait_for(std::span<Completion> out, [[maybe_unused]] Nanos most) { return wait(out); }
    // The same without blocking: what has completed by now, if anything. Only wait() gives up reads that the kernel
    // will not take, so who polls must sometimes wait.
    virtual size_t poll(std::span<Completion> out) = 0;
    // Announces memory into which much will be read, so that an engine may prepare it for good; this can touch and pin
    // all of it. From here to the engine's end it stays mapped, and no page of it is given back to the kernel.
    // Reads work the same without. An error says why it could not be prepared, once in an engine's life.
    virtual Status register_memory(std::span<std::byte>) { return {}; }
    [[nodiscard]] virtual size_t outstanding() const = 0;
    [[nodiscard]] virtual const char* name() const = 0;
    [[nodiscard]] virtual const EngineTotals& totals() const = 0;

    static constexpr size_t max_outstanding() { return 4096; }
};

// `mmap` copies from a mapping of the file, through the page cache: for comparison.
enum class EngineKind { automatic, io_uring, pread, mmap };

struct EngineOptions {
    EngineKind kind = EngineKind::automatic;
    // Reads in flight at the device: ring depth or pool threads. 1..64.
    unsigned lanes = 8;
    // The drive's scheduler tells reads apart by priority (mq-deadline, bfq): speculative ones get the idle class.
    bool priorities = false;
};

struct MadeEngine {
    std::unique_ptr<Engine> engine;
    std::string note;  // why it is not the kind that was hoped for; empty otherwise
};

// `automatic` prefers io_uring and falls back to the pool when the kernel refuses a ring (old kernel, container
// filter, memlock limit), with the reason in `note`. An explicit kind never falls back.
Result<MadeEngine> make_engine(const EngineOptions& options);

}  // namespace sluice::io
