#include "io/read_all.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <cstring>

namespace sluice::io {
namespace {

constexpr unsigned max_depth = 64;

// Chunks share the range's memory, so each must end where both the file and the memory are aligned.
uint32_t chunk_bytes(const File& file, uint32_t wanted) {
    const uint64_t align = std::max(file.offset_align(), file.mem_align());
    const uint64_t bounded = std::clamp<uint64_t>(wanted, 1, 1 * GiB);
    return static_cast<uint32_t>(align_up(bounded, align));
}

}  // namespace

std::optional<uint64_t> region_bytes(const File& file, uint64_t offset, uint64_t bytes) {
    const std::optional<uint64_t> end = checked_add(offset, bytes);
    const uint64_t align = file.offset_align();
    if (!end || *end > UINT64_MAX - align) return std::nullopt;
    return align_up(*end, align) - align_down(offset, align);
}

Result<std::byte*> read_exact(Engine& engine, const File& file, uint64_t offset, uint64_t bytes,
                              std::span<std::byte> region, const ReadExactOptions& options) {
    const std::optional<uint64_t> total = region_bytes(file, offset, bytes);
    // The kernel counts file offsets with a sign.
    if (!total || *total > INT64_MAX || offset > INT64_MAX - *total) {
        return error(Code::invalid_argument, "cannot read {} bytes at offset {} of {}: no file is that long", bytes,
                     offset, file.path());
    }
    if (region.size() < *total || reinterpret_cast<uintptr_t>(region.data()) % file.mem_align() != 0) {
        return error(Code::invalid_argument,
                     "cannot read {} bytes at offset {} of {}: it takes {} bytes of memory aligned to {}, not {} at {}",
                     bytes, offset, file.path(), *total, file.mem_align(), region.size(),
                     static_cast<const void*>(region.data()));
    }
    if (engine.outstanding() != 0) {
        return error(Code::internal, "cannot read {} bytes at offset {} of {}: {} other reads are under way", bytes,
                     offset, file.path(), engine.outstanding());
    }

    const uint64_t start = align_down(offset, file.offset_align());
    const uint64_t wanted_end = offset + bytes;
    const uint32_t chunk = chunk_bytes(file, options.chunk);
    const unsigned depth = std::clamp(options.depth, 1U, max_depth);

    uint64_t next = 0;  // bytes of the region that were submitted
    int failed = 0;
    uint64_t failed_tag = UINT64_MAX;  // tags are places in the region
    const auto make_op = [&] {
        ReadOp op;
        op.file = &file;
        op.offset = start + next;
        op.length = static_cast<uint32_t>(std::min<uint64_t>(chunk, *total - next));
        op.need = static_cast<uint32_t>(std::min<uint64_t>(op.length, wanted_end - op.offset));
        op.dst = region.data() + next;
        op.tag = next;
        return op;
    };
    std::array<Completion, max_depth> done;
    if (bytes == 0) next = *total;
    for (;;) {
        std::array<ReadOp, max_depth> batch;
        size_t n = 0;
        while (failed == 0 && next < *total && engine.outstanding() + n < depth) {
            batch[n] = make_op();
            next += batch[n].length;
            ++n;
        }
        if (n > 0) engine.submit(std::span(batch).first(n));
        // After a failure nothing new is asked for, but what is under way still has to come back.
        const size_t got = engine.wait(done);
        if (got == 0) break;
        for (const Completion& c : std::span(done).first(got)) {
            if (c.error != 0 && c.tag < failed_tag) {
                failed = c.error;
                failed_tag = c.tag;
            }
        }
    }
    if (failed != 0) {
        const uint64_t from = std::max(start + failed_tag, offset);
        const uint64_t to = std::min(start + failed_tag + chunk, wanted_end);
        Status s = read_error(file, from, to - from, failed);
        if (from == offset && to == wanted_end) return s;
        return s.within(fmt::format("reading {} bytes at offset {}", bytes, offset));
    }
    return region.data() + (offset - start);
}

Status read_error(const File& file, uint64_t offset, uint64_t bytes, int error_number) {
    std::string reason = std::strerror(error_number);
    if (error_number == ENODATA) {
        struct stat st = {};
        if (file.fd() >= 0 && fstat(file.fd(), &st) == 0) {
            reason = fmt::format("the file ends too early; it has {} bytes now and had {} when it was opened",
                                 st.st_size, file.size_at_open());
        } else {
            reason = fmt::format("the file ends too early; it had {} bytes when it was opened", file.size_at_open());
        }
    }
    return error(Code::io_error, "cannot read {} bytes at offset {} of {}: {}", bytes, offset, file.path(), reason);
}

}  // namespace sluice::io
