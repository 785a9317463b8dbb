#include "store/sums.h"

#include "base/crc32c.h"

namespace sluice::store {
namespace {

constexpr std::string_view kMagic = "SLUISUMS";
constexpr uint32_t kVersion = 1;

}  // namespace

std::string sums_path(const model::GgufIndex& index) {
    return index.files()[0].path + ".sluice-sums";
}

// magic, version, the source, the number of sums, the sums, CRC-32C of all before.
std::string encode_sums(const Sums& sums) {
    std::string out(kMagic);
    put_number(out, kVersion);
    put_source(out, sums.source);
    put_number(out, uint64_t{sums.values.size()});
    for (const uint32_t v : sums.values) put_number(out, v);
    put_number(out, crc32c(bytes_of(out)));
    return out;
}

Result<Sums> parse_sums(std::string_view bytes) {
    if (!bytes.starts_with(kMagic)) return error(Code::corrupt, "this is no file of checksums");
    if (bytes.size() < kMagic.size() + 2 * sizeof(uint32_t) || bytes.size() > kMaxSumsBytes)
        return error(Code::corrupt, "its size is wrong");
    ByteReader end(bytes.substr(bytes.size() - sizeof(uint32_t)));
    bytes.remove_suffix(sizeof(uint32_t));
    if (crc32c(bytes_of(bytes)) != end.number<uint32_t>())
        return error(Code::corrupt, "it is damaged: its own checksum differs");
    ByteReader in(bytes.substr(kMagic.size()));
    if (const auto version = in.number<uint32_t>(); version != kVersion)
        return error(Code::unsupported, "it has version {}; this Sluice reads {}", version, kVersion);
    auto source = take_source(in);
    if (!source.ok()) return source.status();
    const auto n = in.number<uint64_t>();
    if (n != source->n_components() || in.left() != n * sizeof(uint32_t))
        return error(Code::corrupt, "it has not one checksum for each component of each expert");
    Sums sums;
    sums.source = std::move(*source);
    sums.values.reserve(n);
    for (uint64_t i = 0; i < n; ++i) sums.values.push_back(in.number<uint32_t>());
    return sums;
}

Result<std::vector<uint32_t>> load_sums(const model::GgufIndex& index, const model::Geometry& geometry) {
    const std::string path = sums_path(index);
    const auto bytes = read_whole(path, kMaxSumsBytes);
    if (!bytes.ok()) return bytes.status();
    auto sums = parse_sums(*bytes);
    if (!sums.ok()) return sums.status().within(path);
    const auto now = describe(index, geometry);
    if (!now.ok()) return now.status();
    if (!same_model(sums->source, *now)) {
        return error(same_shape(sums->source, *now) ? Code::conflict : Code::unsupported,
                     "{}: it was made from other contents than {} has now", path, index.files()[0].path);
    }
    return std::move(sums->values);
}

Status save_sums(Files& files, const model::GgufIndex& index, const Sums& sums) {
    const std::string bytes = encode_sums(sums);
    if (bytes.size() > kMaxSumsBytes) return error(Code::unsupported, "{} has too many experts", index.files()[0].path);
    return replace_file(files, sums_path(index), bytes_of(bytes));
}

}  // namespace sluice::store
