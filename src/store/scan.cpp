#include "store/scan.h"

#include <algorithm>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "io/read_all.h"

namespace sluice::store {
namespace {

constexpr uint32_t kChunk = 256 * KiB;  // small, so that one component already keeps the drive busy
constexpr uint32_t kQuickExperts = 2;

}  // namespace

// Quick looks at the first and the last experts in turn, so that each place of a layer's stretch is met by some layer.
std::vector<uint32_t> experts_of(const model::ExpertSet& set, Depth depth) {
    std::vector<uint32_t> out;
    if (depth == Depth::full || set.n_expert <= kQuickExperts) {
        for (uint32_t e = 0; e < set.n_expert; ++e) out.push_back(e);
        return out;
    }
    const uint32_t first = (static_cast<uint32_t>(set.layer) * 7U) % set.n_expert;
    out = {first, (first + set.n_expert / 2) % set.n_expert};
    std::sort(out.begin(), out.end());
    return out;
}

Result<std::span<const std::byte>> StretchReader::read(const io::File& file, uint64_t offset, uint64_t bytes) {
    const auto room = io::region_bytes(file, offset, bytes);
    if (!room) return error(Code::corrupt, "{}: {} bytes at {} are beyond any file", file.path(), bytes, offset);
    if (region_.size() < *room) {
        auto region = Region::allocate(std::max<uint64_t>(*room, MiB), false);
        if (!region.ok()) return region.status();
        region_ = std::move(*region);
    }
    const auto at =
        io::read_exact(engine_, file, offset, bytes, {region_.data(), region_.size()}, {.depth = 8, .chunk = kChunk});
    if (!at.ok()) return at.status();
    return std::span<const std::byte>(*at, bytes);
}

Status scan(const RecordStore& store, io::Engine& engine, Depth depth, const Progress& progress, const Look& look) {
    const std::vector<model::ExpertSet>& sets = store.geometry().sets;
    uint64_t total = 0;
    for (const model::ExpertSet& set : sets) total += set.record_bytes() * experts_of(set, depth).size();
    uint64_t done = 0;
    StretchReader reader(engine);
    for (uint32_t s = 0; s < sets.size(); ++s) {
        for (const uint32_t e : experts_of(sets[s], depth)) {
            const RecordId record = store.record(s, e);
            if (progress && !progress(done, total)) return error(Code::cancelled, "stopped");
            for (uint32_t c = 0; c < store.n_components(s); ++c) {
                const Extent x = store.extent(record, c);
                if (Status status = look(record, c, reader.read(*x.file, x.offset, x.bytes)); !status.ok())
                    return status;
                done += x.bytes;
            }
        }
    }
    if (progress && !progress(total, total)) return error(Code::cancelled, "stopped");
    return {};
}

Result<std::vector<uint32_t>> compute_sums(const RecordStore& store, io::Engine& engine, const Progress& progress) {
    std::vector<uint32_t> sums;
    const Status s = scan(store, engine, Depth::full, progress,
                          [&](RecordId, uint32_t, const Result<std::span<const std::byte>>& bytes) {
                              if (bytes.ok()) sums.push_back(crc32c(*bytes));
                              return bytes.status();
                          });
    if (!s.ok()) return s;
    return sums;
}

Result<Verdict> verify(const RecordStore& store, io::Engine& engine, Depth depth, const Progress& progress) {
    Verdict verdict;
    const Status s =
        scan(store, engine, depth, progress,
             [&](RecordId record, uint32_t c, const Result<std::span<const std::byte>>& bytes) -> Status {
                 const Extent x = store.extent(record, c);
                 const auto wanted = store.checksum(record, c);
                 if (!wanted) return error(Code::internal, "a store without checksums is verified");
                 ++verdict.components;
                 verdict.bytes += x.bytes;
                 const RecordName name = store.name(record);
                 const std::string where = fmt::format(
                     "layer {}, expert {}, {}", name.layer, name.expert,
                     model::component_name(store.geometry().sets[store.set_of(record)].tensors[c].component));
                 if (!bytes.ok()) {
                     verdict.damage.push_back({record, c, where + ": " + bytes.status().message()});
                 } else if (crc32c(*bytes) != *wanted) {
                     verdict.damage.push_back({record, c,
                                               fmt::format("{}: {} bytes at {} of {} are not what they were", where,
                                                           x.bytes, x.offset, x.file->path())});
                 }
                 return {};
             });
    if (!s.ok()) return s;
    return verdict;
}

}  // namespace sluice::store
