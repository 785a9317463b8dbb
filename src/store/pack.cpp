#include "store/pack.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "base/bytes.h"
#include "base/crc32c.h"
#include "model/digest.h"
#include "store/files.h"

namespace sluice::store {
namespace {

constexpr std::string_view kMagic = "SLUIPACK";
constexpr std::string_view kDataMagic = "SLUIDATA";
constexpr uint32_t kVersion = 1;
constexpr uint32_t kReclaimed = 1;
constexpr size_t kDigestLength = 16;
constexpr uint64_t kMostBytes = uint64_t{1} << 62U;

Status bad(const char* what) {
    return error(Code::corrupt, "it is damaged: {}", what);
}

// What never changes while a pack is made or used.
std::string description(const Manifest& m, const PackMap& map) {
    std::string out;
    put_number(out, static_cast<uint32_t>(m.shape.layout));
    put_number(out, uint32_t{m.shape.keeps_dense});
    put_number(out, m.shape.split);
    out += m.dense_digest;
    put_source(out, m.source);
    put_number(out, static_cast<uint32_t>(map.map.file_bytes.size()));
    for (const uint64_t bytes : map.map.file_bytes) put_number(out, bytes);
    return out;
}

// Types that Sluice knows, in whole blocks: what does not tile is no such matrix.
Status check_types(const Source& source) {
    for (const model::ExpertSet& set : source.sets) {
        for (const model::ExpertTensor& t : set.tensors) {
            const model::TypeTraits* traits = model::type_traits(t.type);
            if (traits == nullptr || t.bytes_per_expert % traits->block_bytes != 0)
                return bad("the matrices of an expert are not whole blocks of their type");
        }
    }
    return {};
}

Result<PackMap> map_of(const Manifest& m) {
    auto parts = Parts::of(m.source);
    if (!parts.ok()) return parts.status();
    return map_pack(*parts, m.shape);
}

bool is_zero(std::string_view bytes) {
    return std::all_of(bytes.begin(), bytes.end(), [](char c) { return c == 0; });
}

}  // namespace

const char* layout_name(Layout layout) {
    return layout == Layout::layer ? "layer" : "component";
}

std::optional<Layout> parse_layout(std::string_view name) {
    for (const Layout l : {Layout::layer, Layout::component}) {
        if (name == layout_name(l)) return l;
    }
    return std::nullopt;
}

Result<PackMap> map_pack(const Parts& parts, const PackShape& shape) {
    PackMap out;
    uint32_t file = 0;
    uint64_t at = kPackAlign;  // behind the file's header
    const auto room = [&](uint64_t bytes, const std::string& what) -> Result<Piece> {
        if (bytes > kMostBytes || at > kMostBytes) return error(Code::unsupported, "the model is too large");
        const uint64_t whole = align_up(bytes, kPackAlign);
        if (shape.split != 0 && at + whole > shape.split) {
            if (kPackAlign + whole > shape.split) {
                return error(Code::invalid_argument, "{} takes {} bytes, more than a file may have ({})", what,
                             kPackAlign + whole, shape.split);
            }
            out.map.file_bytes.push_back(at);
            ++file;
            at = kPackAlign;
        }
        const Piece piece{file, at, bytes};
        at += whole;
        return piece;
    };
    out.steps.emplace_back();
    if (shape.keeps_dense) {
        auto piece = room(parts.step_bytes(0), "what is no expert");
        if (!piece.ok()) return piece.status();
        out.steps[0] = *piece;
        if (piece->bytes > 0) out.map.dense.push_back(*piece);
    }
    for (const model::ExpertSet& set : parts.source().sets) {
        // Matrices in one group lie side by side for each expert; groups follow each other.
        std::array<uint64_t, 2> stride{};
        const auto group = [&](const model::ExpertTensor& t) {
            return shape.layout == Layout::component && t.component == model::Component::down ? 1U : 0U;
        };
        for (const model::ExpertTensor& t : set.tensors) stride[group(t)] += align_up(t.bytes_per_expert, kPackAlign);
        const auto bytes = checked_mul(stride[0] + stride[1], set.n_expert);
        if (!bytes) return error(Code::unsupported, "the model is too large");
        auto piece = room(*bytes, fmt::format("layer {}", set.layer));
        if (!piece.ok()) return piece.status();
        std::array<uint64_t, 2> next{piece->offset, piece->offset + stride[0] * set.n_expert};
        out.map.experts.emplace_back();
        for (const model::ExpertTensor& t : set.tensors) {
            const unsigned g = group(t);
            out.map.experts.back().push_back({piece->file, next[g], stride[g]});
            next[g] += align_up(t.bytes_per_expert, kPackAlign);
        }
        out.steps.push_back(*piece);
    }
    out.map.file_bytes.push_back(at);
    return out;
}

// Magic, version, flags, generation, steps done; the description; when the model's files were changed; the sums; zeros;
// CRC-32C of all before.
std::string encode_manifest(const Manifest& m) {
    const auto map = map_of(m);
    assert(map.ok());
    std::string out(kMagic);
    put_number(out, kVersion);
    put_number(out, m.reclaimed ? kReclaimed : 0U);
    put_number(out, m.generation);
    put_number(out, m.done);
    put_number(out, uint32_t{0});
    out += description(m, *map);
    for (const int64_t ns : m.modified) put_number(out, ns);
    put_number(out, uint64_t{m.sums.size()});
    for (const uint32_t sum : m.sums) put_number(out, sum);
    out.resize(align_up(out.size() + sizeof(uint32_t), kPackAlign) - sizeof(uint32_t), '\0');
    put_number(out, crc32c(bytes_of(out)));
    return out;
}

Result<Manifest> parse_slot(std::string_view bytes, uint32_t slot) {
    if (bytes.size() < kPackAlign || bytes.size() % kPackAlign != 0) return bad("its size is wrong");
    ByteReader end(bytes.substr(bytes.size() - sizeof(uint32_t)));
    bytes.remove_suffix(sizeof(uint32_t));
    if (crc32c(bytes_of(bytes)) != end.number<uint32_t>()) return bad("its own checksum differs");
    if (!bytes.starts_with(kMagic)) return error(Code::corrupt, "this is no manifest of a pack");
    ByteReader in(bytes.substr(kMagic.size()));
    if (const auto version = in.number<uint32_t>(); version != kVersion)
        return error(Code::unsupported, "it has version {}; this Sluice reads {}", version, kVersion);
    const auto flags = in.number<uint32_t>();
    if ((flags & ~kReclaimed) != 0) return error(Code::unsupported, "it has flags that this Sluice does not know");
    Manifest m;
    m.reclaimed = (flags & kReclaimed) != 0;
    m.generation = in.number<uint64_t>();
    if (m.generation == 0 || m.generation % 2 != slot) return bad("its generation is not of this slot");
    m.done = in.number<uint32_t>();
    if (in.number<uint32_t>() != 0) return bad("reserved bytes are in use");
    const auto layout = in.number<uint32_t>();
    if (layout > static_cast<uint32_t>(Layout::component)) return bad("its layout");
    m.shape.layout = static_cast<Layout>(layout);
    const auto keeps_dense = in.number<uint32_t>();
    if (keeps_dense > 1) return bad("its contents");
    m.shape.keeps_dense = keeps_dense == 1;
    m.shape.split = in.number<uint64_t>();
    m.dense_digest = in.text(kDigestLength);
    auto source = take_source(in);
    if (!source.ok()) return source.status();
    m.source = std::move(*source);
    if (Status s = check_types(m.source); !s.ok()) return s;
    const auto parts = Parts::of(m.source);
    if (!parts.ok()) return parts.status();
    const auto map = map_pack(*parts, m.shape);
    if (!map.ok()) return bad("its layout does not follow from its model");
    if (in.number<uint32_t>() != map->map.file_bytes.size()) return bad("the number of its files");
    for (const uint64_t wanted : map->map.file_bytes) {
        if (in.number<uint64_t>() != wanted) return bad("the sizes of its files");
    }
    for (size_t i = 0; i < m.source.files.size(); ++i) m.modified.push_back(in.number<int64_t>());
    const auto n = in.number<uint64_t>();
    if (n != parts->count() || in.left() / sizeof(uint32_t) < n) return bad("the number of its checksums");
    if (m.done > parts->n_steps()) return bad("the number of its steps");
    m.sums.reserve(n);
    for (uint64_t i = 0; i < n; ++i) m.sums.push_back(in.number<uint32_t>());
    if (std::any_of(m.sums.begin() + static_cast<std::ptrdiff_t>(parts->first(m.done)), m.sums.end(),
                    [](uint32_t sum) { return sum != 0; }))
        return bad("checksums of what is not there yet");
    if (!in.ok() || in.left() >= kPackAlign || !is_zero(in.text(in.left()))) return bad("its end");
    return m;
}

Result<ReadManifest> parse_manifest(std::string_view bytes) {
    if (bytes.empty() || bytes.size() > kMaxManifestBytes || bytes.size() % (2 * kPackAlign) != 0)
        return error(Code::corrupt, "this is no manifest of a pack: its size is wrong");
    const uint64_t half = bytes.size() / 2;
    std::array<std::optional<Manifest>, 2> slots;
    std::array<Status, 2> why;
    for (uint32_t i = 0; i < 2; ++i) {
        auto parsed = parse_slot(bytes.substr(i * half, half), i);
        if (parsed.ok()) {
            slots[i] = std::move(*parsed);
        } else {
            why[i] = parsed.status();
        }
    }
    if (!slots[0] && !slots[1]) {
        // The newer Sluice's version says more than its checksum, which fits.
        return why[0].code() == Code::unsupported ? why[0] : why[1];
    }
    ReadManifest out;
    out.slot_bytes = half;
    const uint32_t newer = !slots[0] ? 1 : !slots[1] ? 0 : slots[0]->generation > slots[1]->generation ? 0 : 1;
    const uint32_t older = 1 - newer;
    if (slots[older]) {
        const auto a = map_of(*slots[0]);
        const auto b = map_of(*slots[1]);
        if (!a.ok() || !b.ok() || description(*slots[0], *a) != description(*slots[1], *b))
            return bad("its two slots are of different packs");
    } else if (!is_zero(bytes.substr(older * half, half))) {
        out.note =
            fmt::format("one of its two slots cannot be used ({}); the other one is sound", why[older].message());
    }
    out.manifest = std::move(*slots[newer]);
    return out;
}

bool begun_slots(std::string_view bytes) {
    if (bytes.size() % (2 * kPackAlign) != 0) return false;
    const auto first = bytes.substr(0, bytes.size() / 2);
    const auto second = bytes.substr(bytes.size() / 2);
    const bool begun = first.starts_with(kMagic) || second.starts_with(kMagic);
    return begun && (first.starts_with(kMagic) || is_zero(first)) && (second.starts_with(kMagic) || is_zero(second));
}

Result<ReadManifest> read_manifest(const std::string& path) {
    const auto bytes = read_whole(path, kMaxManifestBytes);
    if (!bytes.ok()) return bytes.status();
    auto parsed = parse_manifest(*bytes);
    if (!parsed.ok()) return parsed.status().within(path);
    if (!parsed->note.empty()) parsed->note = path + ": " + parsed->note;
    return parsed;
}

bool looks_like_manifest(const std::string& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    std::array<char, 4> head{};
    const bool gguf = ::pread(fd, head.data(), head.size(), 0) == static_cast<ssize_t>(head.size()) &&
                      std::string_view(head.data(), head.size()) == "GGUF";
    ::close(fd);
    if (gguf) return false;
    // One of its slots may be damaged anywhere, also at its beginning.
    return path.ends_with(".sluice") || path.ends_with(".sluice.partial") || read_manifest(path).ok();
}

std::string pack_path(const model::GgufIndex& index) {
    return index.files()[0].path + ".sluice";
}

std::string partial_path(const std::string& pack) {
    return pack + ".partial";
}

std::string data_path(const std::string& pack, uint32_t file) {
    return fmt::format("{}.{}", pack, file + 1);
}

std::vector<std::string> data_paths(const std::string& pack, const PackMap& map) {
    std::vector<std::string> out;
    for (uint32_t f = 0; f < map.map.file_bytes.size(); ++f) out.push_back(data_path(pack, f));
    return out;
}

std::string guard_path(const std::string& gguf) {
    return gguf + ".reclaimed";
}

std::string unpack_path(const std::string& gguf) {
    return gguf + ".sluice-unpack";
}

std::string data_header(const Manifest& manifest, const PackMap& map, uint32_t file) {
    const std::string about = description(manifest, map);
    std::string out(kDataMagic);
    put_number(out, kVersion);
    put_number(out, file + 1);
    put_number(out, map.map.file_bytes[file]);
    put_number(out, uint64_t{XXH3_64bits(about.data(), about.size())});
    put_number(out, crc32c(bytes_of(out)));
    out.resize(kPackAlign, '\0');
    return out;
}

bool foreign_data(const std::string& path, const std::string& header) {
    struct stat st {};
    if (::stat(path.c_str(), &st) != 0) return false;
    if (!S_ISREG(st.st_mode)) return true;
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    std::string head(header.size(), '\0');
    const ssize_t n = ::pread(fd, head.data(), head.size(), 0);
    ::close(fd);
    head.resize(n > 0 ? static_cast<size_t>(n) : 0);
    if (head.starts_with("GGUF")) return true;
    const size_t checked = kDataMagic.size() + 2 * sizeof(uint32_t) + 2 * sizeof(uint64_t);
    if (!head.starts_with(kDataMagic) || head.size() < checked + sizeof(uint32_t)) return false;
    ByteReader sum(std::string_view(head).substr(checked));
    return crc32c(bytes_of(std::string_view(head).substr(0, checked))) == sum.number<uint32_t>() &&
           head.compare(0, checked, header, 0, checked) != 0;
}

bool is_skeleton(const model::GgufIndex& index, const model::Geometry& geometry) {
    for (uint32_t f = 0; f < index.files().size(); ++f) {
        const int fd = ::open(index.files()[f].path.c_str(), O_RDONLY | O_CLOEXEC);
        if (fd < 0) continue;
        bool hole = false;
        for (const model::ExpertSet& set : geometry.sets) {
            for (const model::ExpertTensor& t : set.tensors)
                hole = hole || (t.file == f && has_hole(fd, t.offset, t.bytes_per_expert * set.n_expert));
        }
        ::close(fd);
        if (hole) return true;
    }
    return false;
}

namespace {

// No layer of a real model has mostly experts of zeros. Three of each layer are looked at, or two if these are sound: a
// page each, in the middle, because the edges of a tensor stay when it is taken out.
bool has_empty_layer(const model::GgufIndex& index, const model::Geometry& geometry) {
    constexpr uint32_t kLookedAt = 3;
    std::array<char, 512> middle;
    std::optional<io::File> file;
    for (const model::ExpertSet& set : geometry.sets) {
        const model::ExpertTensor& t = set.tensors.back();
        if (const std::string& path = index.files()[t.file].path; !file || file->path() != path) {
            auto opened = io::File::open(path, io::Access::buffered);
            if (!opened.ok()) return false;  // whoever opens it in earnest says so
            file.emplace(std::move(*opened));
        }
        const auto want = static_cast<size_t>(std::min<uint64_t>(middle.size(), t.bytes_per_expert / 2));
        uint32_t empty = 0, sound = 0;
        for (uint32_t i = 1; i <= kLookedAt && empty < 2 && sound < 2; ++i) {
            const uint32_t e = set.n_expert * i / (kLookedAt + 1);
            const uint64_t at = t.expert_offset(e) + t.bytes_per_expert / 2 - want / 2;
            const ssize_t n = ::pread(file->fd(), middle.data(), want, static_cast<off_t>(at));
            const bool zero = n == static_cast<ssize_t>(want) &&
                              std::all_of(middle.begin(), middle.begin() + n, [](char c) { return c == 0; });
            ++(zero ? empty : sound);
        }
        if (empty > sound) return true;
    }
    return false;
}

}  // namespace

bool experts_taken_out(const model::GgufIndex& index, const model::Geometry& geometry) {
    return is_skeleton(index, geometry) || exists(guard_path(index.files()[0].path)) ||
           has_empty_layer(index, geometry);
}

Result<Identity> identify(const model::GgufIndex& index, const model::Geometry& geometry) {
    auto source = describe(index, geometry);
    if (!source.ok()) return source.status();
    return Identity{&index, &geometry, std::move(*source), is_skeleton(index, geometry)};
}

Status belongs(const Manifest& manifest, const Identity& identity) {
    const std::string& path = identity.index->files()[0].path;
    if (!same_shape(manifest.source, identity.source)) {
        return error(Code::unsupported, "it was made from another model than {}: sizes or places of tensors differ",
                     path);
    }
    if (manifest.source.digest == identity.source.digest) return {};
    // With the experts taken out, only the rest can tell. A model that has all of its experts is another one, also if
    // ours was reclaimed: one that was trained further may differ in nothing else.
    if (identity.skeleton) {
        const auto digest = model::dense_digest(*identity.index, *identity.geometry);
        if (!digest.ok()) return digest.status();
        if (*digest == manifest.dense_digest) return {};
    }
    return error(Code::conflict,
                 "it was made from other contents than {0} has now (if that was damaged: sluice repair {0})", path);
}

Copy open_pack_copy(const std::string& pack, const Manifest& manifest, const PackMap& map, io::Access access) {
    Copy copy = open_copy(pack, map.map, data_paths(pack, map), access);
    for (uint32_t f = 0; f < copy.files.size(); ++f) {
        if (copy.files[f] == nullptr) continue;
        const io::File& file = *copy.files[f];
        std::string head(kPackAlign, '\0');
        const int fd = ::open(copy.paths[f].c_str(), O_RDONLY | O_CLOEXEC);
        const ssize_t n = fd < 0 ? -1 : ::pread(fd, head.data(), head.size(), 0);
        if (fd >= 0) ::close(fd);
        if (file.size_at_open() != map.map.file_bytes[f]) {
            copy.trouble[f] = error(Code::corrupt, "{} has {} bytes, not the {} that its manifest states",
                                    copy.paths[f], file.size_at_open(), map.map.file_bytes[f]);
        } else if (n != static_cast<ssize_t>(head.size()) || head != data_header(manifest, map, f)) {
            copy.trouble[f] =
                error(Code::corrupt, "{} is no data file of this pack: its first bytes differ", copy.paths[f]);
        }
    }
    return copy;
}

Result<PackHolder> open_pack(const std::string& path, const Identity& identity, io::Access access, std::string* note) {
    auto read = read_manifest(path);
    if (!read.ok()) return read.status();
    Manifest& m = read->manifest;
    if (Status s = belongs(m, identity); !s.ok()) return s.within(path);
    const auto parts = Parts::of(m.source);
    if (!parts.ok()) return parts.status().within(path);
    const auto map = map_pack(*parts, m.shape);
    if (!map.ok()) return map.status().within(path);
    if (m.done != parts->n_steps()) {
        return error(Code::corrupt, "{} is not complete: {} of {} steps are done (sluice pack goes on with it)", path,
                     m.done, parts->n_steps());
    }
    Copy copy = open_pack_copy(path, m, *map, access);
    for (const Status& trouble : copy.trouble) {
        if (!trouble.ok()) return Status(Code::corrupt, trouble.message());
    }
    PackHolder out;
    out.holder.name = path;
    out.holder.shares = true;
    for (const auto& set : copy.map.experts) {
        out.holder.places.emplace_back();
        for (const CopyMap::Experts& e : set)
            out.holder.places.back().push_back({copy.files[e.file].get(), e.offset, e.stride});
    }
    out.holder.files = std::move(copy.files);
    out.sums.assign(m.sums.begin() + static_cast<std::ptrdiff_t>(parts->first(1)), m.sums.end());
    out.reclaimed = m.reclaimed;
    out.digest = m.source.digest;
    if (note != nullptr) {
        *note = read->note;
        for (const auto& f : out.holder.files) {
            if (access == io::Access::direct && !f->direct() && note->empty())
                *note = fmt::format("{} is read through the page cache: {}", f->path(), f->fallback_reason());
        }
    }
    return out;
}

}  // namespace sluice::store
