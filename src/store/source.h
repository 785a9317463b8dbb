// Owns: the description of a model by which a file of ours says what it was made from: a digest, the files' sizes, and
// where every expert lies in them. Also the bytes of that description.
// Keeps: a description that was read is sound before anybody computes with it: every expert lies inside its file, no
// two share a byte, and nothing is larger than the limits below.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/geometry.h"

namespace sluice::store {

struct SourceFile {
    std::string name;  // without directory
    uint64_t size = 0;
};

struct Source {
    std::string digest;  // model::sampled_digest
    std::vector<SourceFile> files;
    std::vector<model::ExpertSet> sets;  // `tensor` of the tensors is not kept

    // One per (record, component), in the order of records.
    [[nodiscard]] uint64_t n_components() const;
};

Result<Source> describe(const model::GgufIndex& index, const model::Geometry& geometry);

// Sizes and places are the same; the names of the files may differ.
bool same_shape(const Source& a, const Source& b);
// And so is the digest.
bool same_model(const Source& a, const Source& b);

inline std::span<const std::byte> bytes_of(std::string_view text) {
    return std::as_bytes(std::span(text.data(), text.size()));
}

// Little-endian numbers from bytes that nobody vouches for. After the first that is not there, all are 0.
class ByteReader {
  public:
    explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}
    template <typename T>
    T number() {
        T value{};
        const std::string_view raw = text(sizeof(T));
        if (ok_) __builtin_memcpy(&value, raw.data(), sizeof(T));
        return value;
    }
    std::string_view text(uint64_t length) {
        if (length > bytes_.size()) ok_ = false;
        if (!ok_) return {};
        const std::string_view out = bytes_.substr(0, length);
        bytes_.remove_prefix(length);
        return out;
    }
    [[nodiscard]] bool ok() const { return ok_; }
    [[nodiscard]] uint64_t left() const { return ok_ ? bytes_.size() : 0; }

  private:
    std::string_view bytes_;
    bool ok_ = true;
};

template <typename T>
void put_number(std::string& out, T value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

void put_source(std::string& out, const Source& source);
// Errors are sentences to be put behind "PATH: ".
Result<Source> take_source(ByteReader& in);

inline constexpr uint32_t kMaxSourceFiles = 65'535;
inline constexpr uint32_t kMaxSets = 2 * model::kMaxLayers;
inline constexpr uint64_t kMaxComponents = uint64_t{16} << 20U;
// A larger one could not be read in one piece.
inline constexpr uint64_t kMaxComponentBytes = uint64_t{1} << 31U;

}  // namespace sluice::store
