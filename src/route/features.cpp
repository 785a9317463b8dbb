#include "route/features.h"

#include <algorithm>
#include <cmath>

#include "base/crc32c.h"
#include "base/half.h"
#include "base/little_endian.h"

namespace sluice::route {
namespace {

// "SLUICERF", version, digest of the model, sets; for each set layer, experts, those used, numbers; length and text of
// the run's lossy options; CRC-32C of all that. Then rows: for each set 1 or 0 (its part is known), the experts that
// were chosen, and what its router was given, two bytes for each; CRC-32C of the row. Little-endian.
constexpr std::string_view kMagic = "SLUICERF";
constexpr size_t kDigest = 16;
constexpr size_t kBeforeSets = kMagic.size() + sizeof(uint32_t) + kDigest + sizeof(uint32_t);
constexpr size_t kSetBytes = 4 * sizeof(uint32_t);
constexpr size_t kSum = sizeof(uint32_t);
constexpr uint32_t kMostSets = 65536;
constexpr uint32_t kMostExperts = 65536;  // their numbers have two bytes
constexpr uint32_t kMostInput = 1U << 20U;
constexpr size_t kMostRow = size_t{1} << 30U;

static_assert(kBeforeSets + kMostSets * kSetBytes + sizeof(uint32_t) + kMostFeatureLossy + kSum <= kMostFeatureHeader);

bool sound(const FeatureShape::Set& s) {
    return s.n_expert >= 1 && s.n_expert <= kMostExperts && s.n_used >= 1 && s.n_used <= s.n_expert &&
           s.n_input <= kMostInput;
}

void put_half(std::string& out, size_t at, uint16_t half) {
    out[at] = static_cast<char>(half & 0xffU);
    out[at + 1] = static_cast<char>(half >> 8U);
}

uint16_t half_at(std::string_view bytes, size_t at) {
    return static_cast<uint16_t>(static_cast<unsigned char>(bytes[at]) | static_cast<unsigned char>(bytes[at + 1])
                                                                             << 8U);
}

}  // namespace

Result<std::string> feature_header(const FeatureShape& shape) {
    const bool good = shape.model.size() == kDigest && !shape.sets.empty() && shape.sets.size() <= kMostSets &&
                      std::all_of(shape.sets.begin(), shape.sets.end(), sound);
    if (!good || feature_row_bytes(shape) > kMostRow)
        return error(Code::unsupported, "the layers of this model are more than a file of router inputs can describe");
    std::string out(kMagic);
    put_number(out, kFeatureVersion);
    out += shape.model;
    put_number(out, static_cast<uint32_t>(shape.sets.size()));
    for (const FeatureShape::Set& s : shape.sets) {
        put_number(out, s.layer);
        put_number(out, s.n_expert);
        put_number(out, s.n_used);
        put_number(out, s.n_input);
    }
    const std::string_view lossy = std::string_view(shape.lossy).substr(0, kMostFeatureLossy);
    put_number(out, static_cast<uint32_t>(lossy.size()));
    out += lossy;
    put_number(out, crc32c(out));
    return out;
}

Result<FeatureShape> parse_feature_header(std::string_view head) {
    if (!head.starts_with(kMagic)) return error(Code::invalid_argument, "it is no file of --route-features");
    const Status broken = error(Code::corrupt, "its header is cut off or was changed");
    NumberReader in{head.substr(kMagic.size())};
    const auto version = in.take<uint32_t>();
    if (in.ok && version != kFeatureVersion)
        return error(Code::unsupported, "it is of version {}, not {}", version, kFeatureVersion);
    FeatureShape shape;
    shape.model = in.take_bytes(kDigest);
    const auto sets = in.take<uint32_t>();
    if (!in.ok || sets == 0 || sets > kMostSets) return broken;
    const size_t lossy_at = kBeforeSets + sets * kSetBytes;
    if (head.size() < lossy_at + sizeof(uint32_t)) return broken;
    NumberReader lossy{head.substr(lossy_at)};
    const auto lossy_bytes = lossy.take<uint32_t>();
    if (lossy_bytes > kMostFeatureLossy) return broken;
    const size_t body = lossy_at + sizeof(uint32_t) + lossy_bytes;
    if (head.size() < body + kSum) return broken;
    shape.lossy = lossy.take_bytes(lossy_bytes);
    NumberReader sum{head.substr(body)};
    if (sum.take<uint32_t>() != crc32c(head.substr(0, body))) return broken;
    for (uint32_t i = 0; i < sets; ++i) {
        FeatureShape::Set s;
        s.layer = in.take<uint32_t>();
        s.n_expert = in.take<uint32_t>();
        s.n_used = in.take<uint32_t>();
        s.n_input = in.take<uint32_t>();
        if (!sound(s)) return broken;
        shape.sets.push_back(s);
    }
    if (feature_row_bytes(shape) > kMostRow) return broken;
    return shape;
}

size_t feature_header_bytes(const FeatureShape& shape) {
    return kBeforeSets + shape.sets.size() * kSetBytes + sizeof(uint32_t) +
           std::min(shape.lossy.size(), kMostFeatureLossy) + kSum;
}

size_t feature_bytes(const FeatureShape::Set& set) {
    return sizeof(uint16_t) * (1 + size_t{set.n_used} + set.n_input);
}

size_t feature_offset(const FeatureShape& shape, uint32_t set) {
    size_t at = 0;
    for (uint32_t s = 0; s < set; ++s) at += feature_bytes(shape.sets[s]);
    return at;
}

size_t feature_row_bytes(const FeatureShape& shape) {
    return feature_offset(shape, static_cast<uint32_t>(shape.sets.size())) + kSum;
}

FeatureRow::FeatureRow(const FeatureShape& shape) : shape_(shape) {
    for (uint32_t s = 0; s < shape.sets.size(); ++s) begin_.push_back(feature_offset(shape, s));
    begin();
}

void FeatureRow::begin() {
    bytes_.assign(feature_row_bytes(shape_) - kSum, '\0');
}

void FeatureRow::put(uint32_t set, std::span<const float> input, std::span<const int32_t> chosen) {
    if (set >= shape_.sets.size()) return;
    const FeatureShape::Set& s = shape_.sets[set];
    if (s.n_input == 0 || input.size() != s.n_input || chosen.size() != s.n_used) return;
    for (const int32_t e : chosen) {
        if (e < 0 || static_cast<uint32_t>(e) >= s.n_expert) return;
    }
    size_t at = begin_[set];
    put_half(bytes_, at, 1);
    for (const int32_t e : chosen) put_half(bytes_, at += 2, static_cast<uint16_t>(e));
    for (const float x : input) put_half(bytes_, at += 2, to_half(x));
}

std::string_view FeatureRow::end() {
    put_number(bytes_, crc32c(bytes_));
    return bytes_;
}

bool is_feature_row(std::string_view row) {
    if (row.size() < kSum) return false;
    const std::string_view body = row.substr(0, row.size() - kSum);
    NumberReader sum{row.substr(body.size())};
    return sum.take<uint32_t>() == crc32c(body);
}

bool read_feature(const FeatureShape::Set& set, std::string_view part, std::span<float> input,
                  std::span<int32_t> chosen) {
    if (part.size() != feature_bytes(set) || input.size() != set.n_input || chosen.size() != set.n_used ||
        half_at(part, 0) != 1)
        return false;
    size_t at = 0;
    for (int32_t& e : chosen) {
        e = half_at(part, at += 2);
        if (static_cast<uint32_t>(e) >= set.n_expert) return false;
    }
    bool finite = true;
    for (float& x : input) {
        x = from_half(half_at(part, at += 2));
        finite = finite && std::isfinite(x);
    }
    return finite;
}

}  // namespace sluice::route
