#include "model/digest.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

namespace sluice::model {
namespace {

constexpr uint64_t kSamples = 64;
constexpr size_t kSampleBytes = 4096;
constexpr size_t kPiece = size_t{1} << 20U;

struct FreeState {
    void operator()(XXH3_state_t* s) const { XXH3_freeState(s); }
};

// Adds [offset, offset + bytes) of the file, or as much of it as there is.
Status add(XXH3_state_t* state, int fd, const std::string& path, uint64_t offset, uint64_t bytes,
           std::vector<char>& buffer) {
    while (bytes > 0) {
        const ssize_t n =
            pread(fd, buffer.data(), std::min<uint64_t>(bytes, buffer.size()), static_cast<off_t>(offset));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return error(Code::io_error, "cannot read {} at {}: {}", path, offset, std::strerror(errno));
        if (n == 0) break;
        XXH3_64bits_update(state, buffer.data(), static_cast<size_t>(n));
        offset += static_cast<uint64_t>(n);
        bytes -= static_cast<uint64_t>(n);
    }
    return {};
}

}  // namespace

Result<std::string> sampled_digest(const GgufIndex& index) {
    const std::unique_ptr<XXH3_state_t, FreeState> state(XXH3_createState());
    if (state == nullptr) return error(Code::no_memory, "no memory for a digest");
    XXH3_64bits_reset(state.get());
    std::vector<char> buffer(kPiece);
    for (const FileEntry& file : index.files()) {
        const int fd = open(file.path.c_str(), O_RDONLY | O_CLOEXEC);
        if (fd < 0) return error(Code::io_error, "cannot open {}: {}", file.path, std::strerror(errno));
        XXH3_64bits_update(state.get(), &file.size, sizeof file.size);
        Status s = add(state.get(), fd, file.path, 0, file.data_offset, buffer);
        const uint64_t data = file.size > file.data_offset ? file.size - file.data_offset : 0;
        const uint64_t step = std::max<uint64_t>(data / kSamples, 1);
        for (uint64_t i = 0; s.ok() && i < kSamples && i * step < data; ++i) {
            s = add(state.get(), fd, file.path, file.data_offset + i * step, kSampleBytes, buffer);
        }
        close(fd);
        if (!s.ok()) return s;
    }
    return fmt::format("{:016x}", XXH3_64bits_digest(state.get()));
}

}  // namespace sluice::model
