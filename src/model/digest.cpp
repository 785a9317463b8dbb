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

struct Range {
    uint64_t begin, end;
};

// The header of each file, its size, and samples spread over what `parts_of` says of it.
template <typename PartsOf>
Result<std::string> digest(const GgufIndex& index, const PartsOf& parts_of) {
    const std::unique_ptr<XXH3_state_t, FreeState> state(XXH3_createState());
    if (state == nullptr) return error(Code::no_memory, "no memory for a digest");
    XXH3_64bits_reset(state.get());
    std::vector<char> buffer(kPiece);
    for (uint32_t f = 0; f < index.files().size(); ++f) {
        const FileEntry& file = index.files()[f];
        const int fd = open(file.path.c_str(), O_RDONLY | O_CLOEXEC);
        if (fd < 0) return error(Code::io_error, "cannot open {}: {}", file.path, std::strerror(errno));
        XXH3_64bits_update(state.get(), &file.size, sizeof file.size);
        Status s = add(state.get(), fd, file.path, 0, file.data_offset, buffer);
        const std::vector<Range> parts = parts_of(f);
        uint64_t data = 0;
        for (const Range& r : parts) data += r.end - r.begin;
        const uint64_t step = std::max<uint64_t>(data / kSamples, 1);
        size_t part = 0;
        uint64_t before = 0;  // bytes of the parts before this one
        for (uint64_t i = 0; s.ok() && i < kSamples && i * step < data; ++i) {
            while (i * step - before >= parts[part].end - parts[part].begin) {
                before += parts[part].end - parts[part].begin;
                ++part;
            }
            const uint64_t at = parts[part].begin + (i * step - before);
            s = add(state.get(), fd, file.path, at, std::min<uint64_t>(kSampleBytes, parts[part].end - at), buffer);
        }
        close(fd);
        if (!s.ok()) return s;
    }
    return fmt::format("{:016x}", XXH3_64bits_digest(state.get()));
}

}  // namespace

Result<std::string> sampled_digest(const GgufIndex& index) {
    return digest(index, [&](uint32_t f) {
        const FileEntry& file = index.files()[f];
        return std::vector<Range>{{std::min(file.data_offset, file.size), file.size}};
    });
}

Result<std::string> dense_digest(const GgufIndex& index, const Geometry& geometry) {
    return digest(index, [&](uint32_t f) {
        std::vector<Range> experts;
        for (const ExpertSet& set : geometry.sets) {
            for (const ExpertTensor& t : set.tensors) {
                if (t.file == f) experts.push_back({t.offset, t.expert_offset(set.n_expert)});
            }
        }
        std::sort(experts.begin(), experts.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
        std::vector<Range> parts;
        uint64_t at = index.files()[f].data_offset;
        for (const Range& e : experts) {
            if (e.begin > at) parts.push_back({at, e.begin});
            at = std::max(at, e.end);
        }
        if (at < index.files()[f].size) parts.push_back({at, index.files()[f].size});
        return parts;
    });
}

}  // namespace sluice::model
