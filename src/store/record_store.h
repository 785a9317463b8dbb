// Owns: where the bytes of each record lie: in the GGUF itself, and wherever else copies of them are held.
// Keeps: an extent it hands out lies inside its file as that was when the model was opened; files stay open, so that
// renaming or deleting the model does not pull it away from a running session; every holder has the same bytes for a
// component, as far as whoever opened it could tell.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "io/file.h"
#include "model/geometry.h"

namespace sluice::store {

struct Extent {
    const io::File* file = nullptr;
    uint64_t offset = 0;
    uint64_t bytes = 0;
};

// Where a holder keeps one tensor's experts: expert e at offset + e * stride.
struct Place {
    const io::File* file = nullptr;  // nullptr: this holder does not have them
    uint64_t offset = 0;
    uint64_t stride = 0;
};

// One copy of a model's experts. `places` and `sums` are as of the geometry that they were made for.
struct Holder {
    std::string name;  // as people know it: a path
    std::vector<std::unique_ptr<io::File>> files;
    std::vector<std::vector<Place>> places;  // [set][component]
    bool shares = false;                     // takes its part of all reads; otherwise only what others cannot give
};
using HolderId = uint8_t;
inline constexpr size_t kMaxHolders = 8;

// One record, seen by people: "layer 3, expert 17".
struct RecordName {
    int layer = 0;
    uint32_t expert = 0;
    std::string group;
};

// The experts as they lie in the model's own files. Says through `note` if direct access could not be had.
Result<Holder> open_gguf(const model::GgufIndex& index, const model::Geometry& geometry, io::Access access,
                         std::string* note);

struct OpenOptions {
    io::Access access = io::Access::direct;
    // "auto": the model's own files, with a pack beside them in reserve; the pack if the files' experts were taken out.
    // "gguf": the model's own files, an error if their experts were taken out. "pack": the pack beside the model, which
    // must be there, with the files in reserve. Else the manifest of such a pack elsewhere.
    std::string store = "auto";
    // Copies of the model (its first file) or of its pack, which take their part of the reads. An error if one cannot
    // be used.
    std::vector<std::string> mirrors = {};
};

// Set up by one thread, then immutable and thread-safe.
class RecordStore {
  public:
    // Over the copies that `options` names: the first, the reserve, mirrors. With the checksums of the pack, else those
    // of MODEL.sluice-sums if that is there, whole and of these contents. Warns of what is there but not used. An error
    // if no copy has all experts.
    static Result<RecordStore> open(const model::GgufIndex& index, const model::Geometry& geometry,
                                    const OpenOptions& options, std::string* note);

    // For tests on a simulated device: the caller owns the files, one per file index.
    static RecordStore over(const model::Geometry& geometry, std::span<const io::File* const> files);

    // Over this holder, which has every component.
    RecordStore(const model::Geometry& geometry, Holder first);
    // One more copy. At most kMaxHolders in all. Its components have the sizes of the geometry.
    void add_holder(Holder holder);
    [[nodiscard]] size_t n_holders() const { return holders_.size(); }
    [[nodiscard]] const Holder& holder(HolderId h) const { return holders_[h]; }

    [[nodiscard]] const model::Geometry& geometry() const { return geometry_; }
    // Whether every file that ordinary reads go to is read past the page cache.
    [[nodiscard]] bool direct() const;
    [[nodiscard]] uint32_t n_records() const { return static_cast<uint32_t>(set_of_.size()); }
    [[nodiscard]] RecordId record(uint32_t set, uint32_t expert) const { return first_record_[set] + expert; }
    [[nodiscard]] uint32_t set_of(RecordId record) const { return set_of_[record]; }
    [[nodiscard]] uint32_t expert_of(RecordId record) const { return record - first_record_[set_of_[record]]; }
    [[nodiscard]] RecordName name(RecordId record) const;
    [[nodiscard]] uint32_t n_components(uint32_t set) const {
        return static_cast<uint32_t>(geometry_.sets[set].tensors.size());
    }
    // Its file is nullptr where that holder does not have it; the first holder has everything.
    [[nodiscard]] Extent extent(RecordId record, uint32_t component, HolderId holder = 0) const;
    // CRC-32C of the extent's bytes; nullopt if nobody has made checksums of this model.
    [[nodiscard]] std::optional<uint32_t> checksum(RecordId record, uint32_t component) const {
        if (sums_.empty()) return std::nullopt;
        const uint32_t set = set_of_[record];
        return sums_[first_sum_[set] + uint64_t{expert_of(record)} * n_components(set) + component];
    }
    [[nodiscard]] bool has_checksums() const { return !sums_.empty(); }
    // One per (record, component), in the order of records.
    void set_checksums(std::vector<uint32_t> sums);

    // The aligned read that brings in an extent: [offset, offset + length) of the file, wanted bytes at `delta`.
    struct AlignedRead {
        uint64_t offset = 0;
        uint32_t length = 0;
        uint32_t need = 0;
        uint32_t delta = 0;
    };
    [[nodiscard]] static AlignedRead aligned(const Extent& extent);
    // Room that the aligned read of any expert of this component from this holder needs.
    [[nodiscard]] uint64_t aligned_capacity(uint32_t set, uint32_t component, HolderId holder = 0) const;

  private:
    void number_records();

    model::Geometry geometry_;
    std::vector<Holder> holders_;
    std::vector<uint32_t> first_record_;  // by set
    std::vector<uint32_t> set_of_;        // by record
    std::vector<uint64_t> first_sum_;     // by set
    std::vector<uint32_t> sums_;          // empty, or one per (record, component)
};

}  // namespace sluice::store
