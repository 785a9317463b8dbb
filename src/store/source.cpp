#include "store/source.h"

#include <algorithm>
#include <bit>
#include <filesystem>

#include "base/bytes.h"
#include "model/digest.h"

namespace sluice::store {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");

constexpr uint32_t kMaxText = 255;

void put_text(std::string& out, const std::string& text) {
    put_number(out, static_cast<uint32_t>(text.size()));
    out += text;
}

std::string take_text(ByteReader& in) {
    const auto length = in.number<uint32_t>();
    return std::string(in.text(length <= kMaxText ? length : UINT64_MAX));
}

Status bad(const char* what) {
    return error(Code::corrupt, "its description of the model is damaged: {}", what);
}

bool is_plain_name(const std::string& name) {
    return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
           name.find('\0') == std::string::npos;
}

Status check(const Source& source) {
    struct Range {
        uint32_t file;
        uint64_t begin, end;
    };
    std::vector<Range> ranges;
    uint64_t components = 0;
    for (const SourceFile& f : source.files) {
        if (!is_plain_name(f.name) || f.size > INT64_MAX) return bad("a file");
    }
    for (const model::ExpertSet& set : source.sets) {
        if (set.layer < 0 || static_cast<uint32_t>(set.layer) >= model::kMaxLayers || set.n_expert == 0)
            return bad("a layer");
        components += uint64_t{set.n_expert} * set.tensors.size();
        if (components > kMaxComponents) return bad("too many experts");
        for (size_t i = 0; i < set.tensors.size(); ++i) {
            const model::ExpertTensor& t = set.tensors[i];
            if (t.component > model::Component::down || (i > 0 && t.component <= set.tensors[i - 1].component))
                return bad("components");
            if (t.file >= source.files.size() || t.bytes_per_expert == 0 || t.bytes_per_expert > kMaxComponentBytes)
                return bad("a tensor");
            const auto bytes = checked_mul(t.bytes_per_expert, set.n_expert);
            const auto end = bytes ? checked_add(t.offset, *bytes) : std::nullopt;
            if (!end || *end > source.files[t.file].size) return bad("a tensor outside its file");
            ranges.push_back({t.file, t.offset, *end});
        }
    }
    std::sort(ranges.begin(), ranges.end(),
              [](const Range& a, const Range& b) { return std::pair(a.file, a.begin) < std::pair(b.file, b.begin); });
    for (size_t i = 1; i < ranges.size(); ++i) {
        if (ranges[i].file == ranges[i - 1].file && ranges[i].begin < ranges[i - 1].end)
            return bad("two tensors share bytes");
    }
    return {};
}

}  // namespace

uint64_t Source::n_components() const {
    uint64_t n = 0;
    for (const model::ExpertSet& set : sets) n += uint64_t{set.n_expert} * set.tensors.size();
    return n;
}

Result<Source> describe(const model::GgufIndex& index, const model::Geometry& geometry) {
    Source source;
    auto digest = model::sampled_digest(index);
    if (!digest.ok()) return digest.status();
    source.digest = std::move(*digest);
    for (const model::FileEntry& f : index.files())
        source.files.push_back({std::filesystem::path(f.path).filename().string(), f.size});
    source.sets = geometry.sets;
    if (Status s = check(source); !s.ok())
        return error(Code::unsupported, "{} is too large to be described", index.files()[0].path);
    return source;
}

bool same_shape(const Source& a, const Source& b) {
    const auto tensor = [](const model::ExpertTensor& x, const model::ExpertTensor& y) {
        return x.component == y.component && x.type == y.type && x.file == y.file && x.offset == y.offset &&
               x.bytes_per_expert == y.bytes_per_expert;
    };
    const auto set = [&](const model::ExpertSet& x, const model::ExpertSet& y) {
        return x.layer == y.layer && x.group == y.group && x.n_expert == y.n_expert &&
               std::equal(x.tensors.begin(), x.tensors.end(), y.tensors.begin(), y.tensors.end(), tensor);
    };
    return std::equal(a.files.begin(), a.files.end(), b.files.begin(), b.files.end(),
                      [](const SourceFile& x, const SourceFile& y) { return x.size == y.size; }) &&
           std::equal(a.sets.begin(), a.sets.end(), b.sets.begin(), b.sets.end(), set);
}

bool same_model(const Source& a, const Source& b) {
    return a.digest == b.digest && same_shape(a, b);
}

void put_source(std::string& out, const Source& source) {
    put_text(out, source.digest);
    put_number(out, static_cast<uint32_t>(source.files.size()));
    for (const SourceFile& f : source.files) {
        put_text(out, f.name);
        put_number(out, f.size);
    }
    put_number(out, static_cast<uint32_t>(source.sets.size()));
    for (const model::ExpertSet& set : source.sets) {
        put_number(out, static_cast<int32_t>(set.layer));
        put_text(out, set.group);
        put_number(out, set.n_expert);
        put_number(out, static_cast<uint32_t>(set.tensors.size()));
        for (const model::ExpertTensor& t : set.tensors) {
            put_number(out, static_cast<uint32_t>(t.component));
            put_number(out, t.type);
            put_number(out, t.file);
            put_number(out, t.offset);
            put_number(out, t.bytes_per_expert);
        }
    }
}

Result<Source> take_source(ByteReader& in) {
    Source source;
    source.digest = take_text(in);
    const auto n_files = in.number<uint32_t>();
    if (!in.ok() || n_files == 0 || n_files > kMaxSourceFiles) return bad("the number of files");
    for (uint32_t i = 0; in.ok() && i < n_files; ++i) {
        SourceFile f;
        f.name = take_text(in);
        f.size = in.number<uint64_t>();
        source.files.push_back(std::move(f));
    }
    const auto n_sets = in.number<uint32_t>();
    if (!in.ok() || n_sets == 0 || n_sets > kMaxSets) return bad("the number of layers");
    for (uint32_t i = 0; in.ok() && i < n_sets; ++i) {
        model::ExpertSet set;
        set.layer = in.number<int32_t>();
        set.group = take_text(in);
        set.n_expert = in.number<uint32_t>();
        const auto n_tensors = in.number<uint32_t>();
        if (!in.ok() || n_tensors == 0 || n_tensors > 4) return bad("components");
        for (uint32_t k = 0; in.ok() && k < n_tensors; ++k) {
            model::ExpertTensor t;
            const auto component = in.number<uint32_t>();
            if (component > static_cast<uint32_t>(model::Component::down)) return bad("components");
            t.component = static_cast<model::Component>(component);
            t.type = in.number<uint32_t>();
            t.file = in.number<uint32_t>();
            t.offset = in.number<uint64_t>();
            t.bytes_per_expert = in.number<uint64_t>();
            set.tensors.push_back(t);
        }
        source.sets.push_back(std::move(set));
    }
    if (!in.ok()) return bad("it ends too early");
    if (Status s = check(source); !s.ok()) return s;
    return source;
}

}  // namespace sluice::store
