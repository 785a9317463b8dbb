#include "store/bundle.h"

#include <algorithm>
#include <filesystem>

#include "store/files.h"
#include "store/sums.h"

namespace sluice::store {
namespace {

std::string without(const std::string& path, std::string_view end) {
    return path.ends_with(end) ? path.substr(0, path.size() - end.size()) : path;
}

// The model's files by the names that they had, beside one of them.
std::vector<std::string> beside(const std::string& path, const Source& source) {
    const std::filesystem::path directory = std::filesystem::path(path).parent_path();
    std::vector<std::string> out;
    for (const SourceFile& f : source.files) out.push_back((directory / f.name).string());
    return out;
}

// What to do about a manifest that cannot be used at all. Without it nobody knows where an expert lies.
Status unusable(const Status& why, const std::string& manifest_path, const std::string& gguf) {
    if (why.code() != Code::corrupt) return why;
    const std::string pack = without(manifest_path, ".partial");
    const auto index = model::GgufIndex::open(gguf);
    const auto geometry = index.ok() ? model::derive_geometry(*index) : Result<model::Geometry>(index.status());
    // Only of a model that is known to be whole may the pack go.
    if (!geometry.ok() || experts_taken_out(*index, *geometry)) {
        return error(why.code(),
                     "{}; keep the pack's data files, and put a copy of {} back, or copy or download {} again",
                     why.message(), manifest_path, gguf);
    }
    return error(why.code(), "{}; the model is there: remove {} and its data files, then sluice pack {} makes it anew",
                 why.message(), manifest_path, pack == gguf + ".sluice" ? gguf : gguf + " --out " + pack);
}

Status with_pack(Bundle& b, const std::string& manifest_path, std::vector<std::string> own, io::Access access) {
    auto read = read_manifest(manifest_path);
    if (!read.ok()) {
        const std::string gguf = own.empty() ? without(without(manifest_path, ".partial"), ".sluice") : own[0];
        return unusable(read.status(), manifest_path, gguf);
    }
    b.note = read->note;
    b.manifest = std::move(read->manifest);
    const Manifest& m = *b.manifest;
    auto parts = Parts::of(m.source);
    if (!parts.ok()) return parts.status().within(manifest_path);
    auto map = map_pack(*parts, m.shape);
    if (!map.ok()) return map.status().within(manifest_path);
    b.map = std::move(*map);
    b.manifest_path = manifest_path;
    b.pack = without(manifest_path, ".partial");
    b.reference = Reference{std::move(*parts), m.sums, true, m.done};
    if (own.size() != m.source.files.size()) {
        const std::string one = own.empty() ? without(b.pack, ".sluice") : own[0];
        own = beside(one, m.source);
        if (own.size() == 1) own[0] = one;
    }
    b.gguf = own[0];
    b.own = open_copy(b.gguf, b.reference->parts.gguf(), std::move(own), access);
    b.own.skeleton = m.reclaimed;
    b.packed = open_pack_copy(b.pack, m, *b.map, access);
    return {};
}

Status with_sums(Bundle& b, const model::GgufIndex& index, io::Access access) {
    const std::string path = sums_path(index);
    const auto bytes = read_whole(path, kMaxSumsBytes);
    if (!bytes.ok()) return bytes.status();
    auto sums = parse_sums(*bytes);
    if (!sums.ok()) return sums.status().within(path);
    const auto geometry = model::derive_geometry(index);
    if (!geometry.ok()) return geometry.status();
    const auto now = describe(index, *geometry);
    if (!now.ok()) return now.status();
    if (!same_shape(*now, sums->source))
        return error(Code::unsupported, "{} was made from another model than {}", path, index.files()[0].path);
    auto parts = Parts::of(std::move(sums->source));
    if (!parts.ok()) return parts.status().within(path);
    std::vector<uint32_t> values(parts->first(1), 0);
    values.insert(values.end(), sums->values.begin(), sums->values.end());
    b.gguf = index.files()[0].path;
    b.reference = Reference{std::move(*parts), std::move(values), false, 0};
    b.reference->done = b.reference->parts.n_steps();
    std::vector<std::string> own;
    for (const model::FileEntry& f : index.files()) own.push_back(f.path);
    b.own = open_copy(b.gguf, b.reference->parts.gguf(), std::move(own), access);
    return {};
}

}  // namespace

Result<Bundle> find_bundle(const std::string& path, const std::string& pack, io::Access access) {
    Bundle b;
    if (pack.empty() && looks_like_manifest(path)) {
        Status s = with_pack(b, path, {}, access);
        if (!s.ok()) return s;
        return b;
    }
    const auto index = model::GgufIndex::open(path);
    std::vector<std::string> own;
    if (index.ok()) {
        for (const model::FileEntry& f : index->files()) own.push_back(f.path);
    } else {
        own.push_back(path);
    }
    std::string manifest = pack.empty() ? own[0] + ".sluice" : pack;
    if (!exists(manifest) && exists(partial_path(manifest))) manifest = partial_path(manifest);
    if (!pack.empty() || exists(manifest)) {
        Status s = with_pack(b, manifest, std::move(own), access);
        if (!s.ok()) return s;
        return b;
    }
    if (!index.ok()) return index.status();
    Status s = with_sums(b, *index, access);
    if (!s.ok()) return s;
    return b;
}

Result<Bundle> find_packed(const std::string& path, const std::string& pack, io::Access access) {
    auto found = find_bundle(path, pack, access);
    if (found.ok() && found->packed) return found;
    const auto index = model::GgufIndex::open(path);
    if (!index.ok() || !pack.empty() || exists(pack_path(*index)) || exists(partial_path(pack_path(*index))))
        return found.ok() ? error(Code::not_found, "there is no pack of {}", path) : found.status();
    const std::string& gguf = index->files()[0].path;
    const auto geometry = model::derive_geometry(*index);
    const bool taken_out = geometry.ok() ? experts_taken_out(*index, *geometry) : exists(guard_path(gguf));
    return error(Code::not_found, "there is no pack of {} beside it: {}", gguf,
                 taken_out ? "its experts were taken out; name the pack that has them with --pack PACK, or copy or "
                             "download the file again"
                           : "if there is one elsewhere, name it with --pack PACK");
}

Result<model::GgufIndex> open_to_pack(const std::string& path) {
    auto index = model::GgufIndex::open(path);
    if (index.ok() || !exists(path) || !looks_like_manifest(path)) return index;
    return error(Code::invalid_argument, "{0} is a pack; name the model: sluice pack {1}", path,
                 without(without(path, ".partial"), ".sluice"));
}

std::vector<std::string> trouble_of(const Bundle& bundle, const Copy& copy) {
    std::vector<std::string> out;
    if (bundle.packed && &copy == &*bundle.packed && !bundle.complete()) return out;
    for (const Status& s : copy.trouble) {
        if (!s.ok()) out.push_back(s.message());
    }
    return out;
}

std::string finishing(const Bundle& bundle) {
    const bool reclaims = bundle.manifest->reclaimed || !bundle.manifest->shape.keeps_dense;
    const std::string out = bundle.pack == bundle.gguf + ".sluice" ? "" : " --out " + bundle.pack;
    return fmt::format("sluice pack {}{}{}", reclaims ? "--reclaim " : "", bundle.gguf, out);
}

Status missing_model(const Bundle& bundle) {
    const bool gone = std::all_of(bundle.own.trouble.begin(), bundle.own.trouble.end(),
                                  [](const Status& s) { return s.code() == Code::not_found; });
    if (!bundle.packed || !gone) return {};
    if (!bundle.manifest->shape.keeps_dense)
        return error(Code::not_found, "{} is missing, and its pack has only the experts: put it back", bundle.gguf);
    return error(Code::not_found, "{} is missing; sluice unpack {} writes it", bundle.gguf, bundle.pack);
}

Result<Copy> open_other(const Bundle& bundle, const std::string& path, io::Access access) {
    const Source& source = bundle.reference->parts.source();
    if (looks_like_manifest(path)) {
        auto read = read_manifest(path);
        if (!read.ok()) return read.status();
        const Manifest& m = read->manifest;
        if (!same_shape(m.source, source))
            return error(Code::unsupported, "{} is a pack of another model than {}", path, bundle.gguf);
        const auto parts = Parts::of(m.source);
        if (!parts.ok()) return parts.status().within(path);
        const auto map = map_pack(*parts, m.shape);
        if (!map.ok()) return map.status().within(path);
        return open_pack_copy(without(path, ".partial"), m, *map, access);
    }
    const auto index = model::GgufIndex::open(path);
    std::vector<std::string> files;
    if (index.ok()) {
        for (const model::FileEntry& f : index->files()) files.push_back(f.path);
    }
    bool same = files.size() == source.files.size();
    for (size_t f = 0; same && f < files.size(); ++f) same = index->files()[f].size == source.files[f].size;
    if (!index.ok()) return index.status();
    if (!same) return error(Code::unsupported, "{} is no copy of {}: the files' sizes differ", path, bundle.gguf);
    return open_copy(path, bundle.reference->parts.gguf(), std::move(files), access);
}

}  // namespace sluice::store
