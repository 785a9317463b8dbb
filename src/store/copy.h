// Owns: a model's bytes cut into parts that have a checksum each (every matrix of every expert, and blocks of all that
// is no expert), and where a group of files keeps each of them.
// Keeps: the parts are all bytes of the model's files, each once; a map's stretches lie inside the sizes that it
// states.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "io/engine.h"
#include "io/file.h"
#include "store/scan.h"
#include "store/source.h"

namespace sluice::store {

// A stretch of one file of a group.
struct Piece {
    uint32_t file = 0;
    uint64_t offset = 0;
    uint64_t bytes = 0;
};

// Where a group of files keeps a model's bytes.
struct CopyMap {
    struct Experts {  // of one tensor: expert e at offset + e * stride
        uint32_t file = 0;
        uint64_t offset = 0;
        uint64_t stride = 0;
    };
    std::vector<std::vector<Experts>> experts;  // [set][component]
    // What is no expert (headers, dense tensors, padding), one stretch after the other. Empty if the group does not
    // keep that.
    std::vector<Piece> dense;
    std::vector<uint64_t> file_bytes;
};

// The model's own files. Error if they are too large to be counted.
Result<CopyMap> map_gguf(const Source& source);

inline constexpr uint64_t kDenseBlock = MiB;
using PartId = uint64_t;

// Numbers the parts: first the blocks of dense bytes, then the experts' matrices in the order of records. Step 0 is
// all dense blocks, step 1 + s is set s.
class Parts {
  public:
    static Result<Parts> of(Source source);

    struct At {
        bool dense = false;
        uint64_t block = 0;
        uint32_t set = 0, expert = 0, component = 0;
    };
    [[nodiscard]] const Source& source() const { return source_; }
    [[nodiscard]] const CopyMap& gguf() const { return gguf_; }
    [[nodiscard]] PartId count() const { return first_.back(); }
    [[nodiscard]] uint64_t n_dense() const { return first_[1]; }
    [[nodiscard]] uint32_t n_steps() const { return static_cast<uint32_t>(first_.size()) - 1; }
    // first(n_steps()) is count().
    [[nodiscard]] PartId first(uint32_t step) const { return first_[step]; }
    [[nodiscard]] uint64_t step_bytes(uint32_t step) const;
    [[nodiscard]] At at(PartId part) const;
    [[nodiscard]] uint64_t bytes(PartId part) const;
    // "layer 3, expert 17, up", "dense bytes, block 2".
    [[nodiscard]] std::string name(PartId part) const;
    // Empty where the map does not keep the part.
    [[nodiscard]] std::vector<Piece> pieces(const CopyMap& map, PartId part) const;
    // "17 bytes at 4096 of PATH", with one such for every piece.
    [[nodiscard]] std::string place(const CopyMap& map, std::span<const std::string> paths, PartId part) const;

  private:
    Source source_;
    CopyMap gguf_;
    uint64_t dense_bytes_ = 0;
    std::vector<PartId> first_;
};

// What the bytes of a model must be.
struct Reference {
    Parts parts;
    std::vector<uint32_t> sums;  // CRC-32C by part
    bool knows_dense = false;    // the sums of dense blocks are there too
    uint32_t done = 0;           // steps whose sums are known
    [[nodiscard]] PartId first() const { return knows_dense ? 0 : parts.first(1); }
    [[nodiscard]] PartId last() const { return parts.first(done); }  // the one after
};

// A group of files, opened as far as they could be.
struct Copy {
    std::string name;  // as people know it: a path
    CopyMap map;
    std::vector<std::string> paths;
    std::vector<std::unique_ptr<io::File>> files;  // nullptr: `trouble` says why
    std::vector<Status> trouble;
    bool skeleton = false;  // its experts were taken out
    // None of its files could be opened.
    [[nodiscard]] bool missing() const;
    [[nodiscard]] bool holds(const Parts& parts, PartId part) const {
        return (!skeleton || part < parts.first(1)) && !parts.pieces(map, part).empty();
    }
};
Copy open_copy(std::string name, CopyMap map, std::vector<std::string> paths, io::Access access = io::Access::direct);

// Reads past the page cache where the file can be.
class PartReader {
  public:
    explicit PartReader(io::Engine& engine) : stretch_(engine) {}
    // The bytes stay until the next read.
    Result<std::span<const std::byte>> read(const Copy& copy, const Parts& parts, PartId part);
    // Error corrupt, naming part and place, if the bytes are others than `sum` says.
    Result<std::span<const std::byte>> read_checked(const Copy& copy, const Parts& parts, PartId part, uint32_t sum);

  private:
    StretchReader stretch_;
    std::vector<std::byte> joined_;
};

struct PartDamage {
    PartId part = 0;
    std::string what;  // one sentence that names part, file and place
};
struct CopyVerdict {
    uint64_t parts = 0;  // looked at
    uint64_t bytes = 0;
    std::vector<PartDamage> damage;
};
// All parts that the copy holds, or a sample of them. `done` and `total` of the progress count this copy's bytes.
Result<CopyVerdict> verify_copy(const Reference& reference, const Copy& copy, io::Engine& engine, Depth depth,
                                const Progress& progress);

// Whether some of [offset, offset + bytes) is not on the drive at all. False where the file system cannot tell.
bool has_hole(int fd, uint64_t offset, uint64_t bytes);
// Whether none of it is.
bool all_hole(int fd, uint64_t offset, uint64_t bytes);

}  // namespace sluice::store
