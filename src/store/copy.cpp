#include "store/copy.h"

#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>

#include "base/crc32c.h"
#include "base/memory.h"

namespace sluice::store {
namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 62U;
constexpr uint64_t kQuickDenseBlocks = 64;  // one block in so many

}  // namespace

Result<CopyMap> map_gguf(const Source& source) {
    CopyMap map;
    std::vector<Piece> experts;
    uint64_t total = 0;
    for (const SourceFile& f : source.files) {
        map.file_bytes.push_back(f.size);
        total += f.size;
        if (f.size > kMostBytes || total > kMostBytes) return error(Code::unsupported, "the model is too large");
    }
    for (const model::ExpertSet& set : source.sets) {
        map.experts.emplace_back();
        for (const model::ExpertTensor& t : set.tensors) {
            map.experts.back().push_back({t.file, t.offset, t.bytes_per_expert});
            experts.push_back({t.file, t.offset, t.bytes_per_expert * set.n_expert});
        }
    }
    std::sort(experts.begin(), experts.end(),
              [](const Piece& a, const Piece& b) { return std::pair(a.file, a.offset) < std::pair(b.file, b.offset); });
    auto next = experts.begin();
    for (uint32_t f = 0; f < source.files.size(); ++f) {
        uint64_t at = 0;
        for (; next != experts.end() && next->file == f; ++next) {
            if (next->offset > at) map.dense.push_back({f, at, next->offset - at});
            at = next->offset + next->bytes;
        }
        if (at < source.files[f].size) map.dense.push_back({f, at, source.files[f].size - at});
    }
    return map;
}

Result<Parts> Parts::of(Source source) {
    Parts parts;
    auto map = map_gguf(source);
    if (!map.ok()) return map.status();
    parts.gguf_ = std::move(*map);
    for (const Piece& p : parts.gguf_.dense) parts.dense_bytes_ += p.bytes;
    PartId n = 0;
    parts.first_.push_back(n);
    n += (parts.dense_bytes_ + kDenseBlock - 1) / kDenseBlock;
    for (const model::ExpertSet& set : source.sets) {
        parts.first_.push_back(n);
        n += uint64_t{set.n_expert} * set.tensors.size();
    }
    parts.first_.push_back(n);
    parts.source_ = std::move(source);
    return parts;
}

uint64_t Parts::step_bytes(uint32_t step) const {
    if (step == 0) return dense_bytes_;
    const model::ExpertSet& set = source_.sets[step - 1];
    return set.record_bytes() * set.n_expert;
}

Parts::At Parts::at(PartId part) const {
    assert(part < count());
    if (part < first_[1]) return {.dense = true, .block = part};
    const auto after = std::upper_bound(first_.begin() + 1, first_.end(), part);
    const auto set = static_cast<uint32_t>(after - first_.begin()) - 2;
    const uint64_t within = part - first_[set + 1];
    const uint64_t components = source_.sets[set].tensors.size();
    return {.set = set,
            .expert = static_cast<uint32_t>(within / components),
            .component = static_cast<uint32_t>(within % components)};
}

uint64_t Parts::bytes(PartId part) const {
    const At a = at(part);
    if (a.dense) return std::min(kDenseBlock, dense_bytes_ - a.block * kDenseBlock);
    return source_.sets[a.set].tensors[a.component].bytes_per_expert;
}

std::string Parts::name(PartId part) const {
    const At a = at(part);
    if (a.dense) return fmt::format("dense bytes, block {}", a.block);
    const model::ExpertSet& set = source_.sets[a.set];
    return fmt::format("layer {}{}, expert {}, {}", set.layer, set.group == "exps" ? "" : " (" + set.group + ")",
                       a.expert, model::component_name(set.tensors[a.component].component));
}

std::vector<Piece> Parts::pieces(const CopyMap& map, PartId part) const {
    const At a = at(part);
    if (!a.dense) {
        const CopyMap::Experts& e = map.experts[a.set][a.component];
        return {{e.file, e.offset + a.expert * e.stride, bytes(part)}};
    }
    std::vector<Piece> out;
    uint64_t skip = a.block * kDenseBlock;
    uint64_t wanted = bytes(part);
    for (const Piece& p : map.dense) {
        if (wanted == 0) break;
        if (skip >= p.bytes) {
            skip -= p.bytes;
            continue;
        }
        const uint64_t n = std::min(wanted, p.bytes - skip);
        out.push_back({p.file, p.offset + skip, n});
        wanted -= n;
        skip = 0;
    }
    return out;
}

std::string Parts::place(const CopyMap& map, std::span<const std::string> paths, PartId part) const {
    std::string out;
    for (const Piece& p : pieces(map, part)) {
        out += fmt::format("{}{} bytes at {} of {}", out.empty() ? "" : " and ", p.bytes, p.offset, paths[p.file]);
    }
    return out;
}

bool Copy::missing() const {
    return std::all_of(files.begin(), files.end(), [](const auto& f) { return f == nullptr; });
}

Copy open_copy(std::string name, CopyMap map, std::vector<std::string> paths, io::Access access) {
    Copy copy;
    copy.name = std::move(name);
    copy.map = std::move(map);
    copy.paths = std::move(paths);
    for (const std::string& path : copy.paths) {
        auto file = io::File::open(path, access);
        // Our memory gives no more alignment than this.
        if (file.ok() && std::max(file->mem_align(), file->offset_align()) > kDirectAlign)
            file = io::File::open(path, io::Access::buffered);
        copy.trouble.push_back(file.ok() ? Status() : file.status());
        copy.files.push_back(file.ok() ? std::make_unique<io::File>(std::move(*file)) : nullptr);
    }
    return copy;
}

Result<std::span<const std::byte>> PartReader::read(const Copy& copy, const Parts& parts, PartId part) {
    const std::vector<Piece> pieces = parts.pieces(copy.map, part);
    if (pieces.empty()) return error(Code::not_found, "{} does not keep {}", copy.name, parts.name(part));
    joined_.clear();
    for (const Piece& p : pieces) {
        if (copy.files[p.file] == nullptr) return copy.trouble[p.file];
        auto bytes = stretch_.read(*copy.files[p.file], p.offset, p.bytes);
        if (!bytes.ok() || pieces.size() == 1) return bytes;
        joined_.insert(joined_.end(), bytes->begin(), bytes->end());
    }
    return std::span<const std::byte>(joined_);
}

Result<std::span<const std::byte>> PartReader::read_checked(const Copy& copy, const Parts& parts, PartId part,
                                                            uint32_t sum) {
    auto bytes = read(copy, parts, part);
    if (!bytes.ok()) return bytes.status().within(parts.name(part));
    if (crc32c(*bytes) == sum) return bytes;
    return error(Code::corrupt, "{}: {} are not what they were", parts.name(part),
                 parts.place(copy.map, copy.paths, part));
}

Result<CopyVerdict> verify_copy(const Reference& reference, const Copy& copy, io::Engine& engine, Depth depth,
                                const Progress& progress) {
    const Parts& parts = reference.parts;
    std::vector<PartId> wanted;
    uint64_t total = 0;
    for (PartId p = reference.first(); p < reference.last(); ++p) {
        if (p >= parts.first(1) && copy.skeleton) break;
        const Parts::At a = parts.at(p);
        if (depth == Depth::quick) {
            if (a.dense && a.block % kQuickDenseBlocks != 0) continue;
            if (!a.dense) {
                const std::vector<uint32_t> sample = experts_of(parts.source().sets[a.set], depth);
                if (!std::binary_search(sample.begin(), sample.end(), a.expert)) continue;
            }
        }
        if (!copy.holds(parts, p)) continue;
        wanted.push_back(p);
        total += parts.bytes(p);
    }
    CopyVerdict verdict;
    PartReader reader(engine);
    for (const PartId p : wanted) {
        if (progress && !progress(verdict.bytes, total)) return error(Code::cancelled, "stopped");
        const auto bytes = reader.read_checked(copy, parts, p, reference.sums[p]);
        if (!bytes.ok()) verdict.damage.push_back({p, bytes.status().message()});
        ++verdict.parts;
        verdict.bytes += parts.bytes(p);
    }
    if (progress && !progress(total, total)) return error(Code::cancelled, "stopped");
    return verdict;
}

bool has_hole(int fd, uint64_t offset, uint64_t bytes) {
    const off_t at = ::lseek(fd, static_cast<off_t>(offset), SEEK_HOLE);
    const off_t end = ::lseek(fd, 0, SEEK_END);  // which counts as a hole
    return at >= 0 && at < end && static_cast<uint64_t>(at) < offset + bytes;
}

bool all_hole(int fd, uint64_t offset, uint64_t bytes) {
    const off_t at = ::lseek(fd, static_cast<off_t>(offset), SEEK_DATA);
    return at < 0 ? errno == ENXIO : static_cast<uint64_t>(at) >= offset + bytes;
}

}  // namespace sluice::store
