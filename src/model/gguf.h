// Owns: the index of a GGUF model -- which tensor lies where -- over one file or a split set.
// Keeps: every tensor of an opened index lies wholly inside its file as it was at open, and no two tensors share a byte
// or a name; no size or offset read from a file is used before it was checked. Only a prefix of each file is read, the
// header and at most as much again (but at least 256 KiB where there is that much); payload is never looked at.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"

namespace sluice::model {

// ggml's numbering of tensor types, as stored in files.
using TypeId = uint32_t;

struct TypeTraits {
    const char* name = nullptr;  // as ggml spells it: "q4_K"
    uint32_t block_elements = 0;
    uint32_t block_bytes = 0;
};

// nullptr for a number that this version of ggml (0.25.1) does not know.
const TypeTraits* type_traits(TypeId type);

struct TensorEntry {
    std::string name;
    uint32_t file = 0;    // index into GgufIndex::files()
    uint64_t offset = 0;  // absolute, in that file
    uint64_t bytes = 0;   // exact, without padding
    TypeId type = 0;
    uint32_t n_dims = 0;
    std::array<uint64_t, 4> ne{1, 1, 1, 1};
};

struct FileEntry {
    std::string path;
    uint64_t size = 0;
    uint64_t device = 0;
    uint64_t inode = 0;
    uint64_t data_offset = 0;  // where tensor data begins
};

// A value of which only the length is kept.
struct Omitted {
    uint64_t length = 0;  // elements of an array, bytes of a string
};

// Scalars and strings (up to 1 MiB) are kept as they are; of arrays only the length is kept, except for short arrays of
// integers or booleans (at most 1024 elements), which hold per-layer values.
using MetaValue = std::variant<uint64_t, int64_t, double, bool, std::string, std::vector<int64_t>, Omitted>;

struct ParsedHeader;

class GgufIndex {
  public:
    // `path` names a single file, or any shard of a split set ("NAME-00001-of-00005.gguf"); the whole set is opened.
    // A shard that is missing, renamed, duplicated, from another set or truncated is named in the error.
    static Result<GgufIndex> open(const std::string& path);

    // The last step of open: an index from headers already parsed, headers[i] being that of files[i] (same count, at
    // least one). Metadata are those of the first. Checks tensors against their file's size and against each other.
    static Result<GgufIndex> assemble(std::vector<FileEntry> files, std::vector<ParsedHeader> headers);

    [[nodiscard]] const std::vector<FileEntry>& files() const { return files_; }
    [[nodiscard]] const std::vector<TensorEntry>& tensors() const { return tensors_; }
    [[nodiscard]] const TensorEntry* find(std::string_view tensor_name) const;

    // general.architecture; "" when absent.
    [[nodiscard]] std::string architecture() const;
    // nullptr when absent.
    [[nodiscard]] const MetaValue* meta(std::string_view key) const;
    // "<architecture>.<key>" as an unsigned number; of a per-layer array the largest element. nullopt when absent,
    // negative or not an integer.
    [[nodiscard]] std::optional<uint64_t> arch_number(std::string_view key) const;
    // Bytes before tensor data, over all files.
    [[nodiscard]] uint64_t header_bytes() const;

  private:
    std::vector<FileEntry> files_;
    std::vector<TensorEntry> tensors_;  // by file, then in the order of its table
    std::map<std::string, size_t, std::less<>> by_name_;
    std::map<std::string, MetaValue, std::less<>> meta_;
};

// One file's header and tensor table, parsed from memory: the part that faces hostile bytes, and what the fuzzer runs.
// `head` is a prefix of the file; needs_more says that the prefix was too short to hold the whole header.
struct ParsedHeader {
    std::map<std::string, MetaValue, std::less<>> meta;
    // Each is sound in itself (shape, type, alignment; offset + bytes does not overflow) and its offset is absolute;
    // none is checked against the file's size or the others yet, and `file` is not set.
    std::vector<TensorEntry> tensors;
    uint64_t data_offset = 0;
};
struct ParseOutcome {
    bool needs_more = false;
    ParsedHeader header;
};
// Errors do not know the path: they are sentences to be put behind "PATH: ".
Result<ParseOutcome> parse_gguf_header(std::string_view head);

// What a header may ask for at most. Far above any real model, far below what would exhaust a machine.
inline constexpr uint64_t kMaxTensors = 1'000'000;  // of a whole split set
inline constexpr uint64_t kMaxMetaPairs = 100'000;
inline constexpr uint64_t kMaxKeyLength = 65'535;
inline constexpr uint64_t kMaxNameLength = 255;  // of a tensor; ggml itself stops at 63
inline constexpr uint64_t kMaxStringLength = uint64_t{64} << 20U;
inline constexpr uint64_t kMaxKeptString = uint64_t{1} << 20U;
inline constexpr uint64_t kMaxArrayLength = uint64_t{1} << 28U;
inline constexpr uint64_t kMaxKeptArray = 1024;
inline constexpr uint32_t kMaxDims = 4;
inline constexpr uint64_t kMaxAlignment = uint64_t{1} << 30U;
inline constexpr uint64_t kMaxHeaderBytes = uint64_t{256} << 20U;

}  // namespace sluice::model
