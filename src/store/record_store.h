// Owns: where the bytes of each record lie. In this version the GGUF itself is the store.
// Keeps: an extent it hands out lies inside its file as that was when the model was opened; files stay open, so that
// renaming or deleting the model does not pull it away from a running session.
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

// One record, seen by people: "layer 3, expert 17".
struct RecordName {
    int layer = 0;
    uint32_t expert = 0;
    std::string group;
};

// Immutable after open; thread-safe.
class RecordStore {
  public:
    // Opens every file that holds experts. Says through `note` if direct access could not be had for one of them.
    // Takes the checksums from MODEL.sluice-sums if that is there, whole and of these contents; warns if it is not.
    static Result<RecordStore> open(const model::GgufIndex& index, const model::Geometry& geometry, io::Access access,
                                    std::string* note);

    // For tests on a simulated device: the caller owns the files, one per file index.
    static RecordStore over(const model::Geometry& geometry, std::span<const io::File* const> files);

    [[nodiscard]] const model::Geometry& geometry() const { return geometry_; }
    // Whether every file of experts is read past the page cache.
    [[nodiscard]] bool direct() const;
    [[nodiscard]] uint32_t n_records() const { return static_cast<uint32_t>(set_of_.size()); }
    [[nodiscard]] RecordId record(uint32_t set, uint32_t expert) const { return first_record_[set] + expert; }
    [[nodiscard]] uint32_t set_of(RecordId record) const { return set_of_[record]; }
    [[nodiscard]] uint32_t expert_of(RecordId record) const { return record - first_record_[set_of_[record]]; }
    [[nodiscard]] RecordName name(RecordId record) const;
    [[nodiscard]] uint32_t n_components(uint32_t set) const {
        return static_cast<uint32_t>(geometry_.sets[set].tensors.size());
    }
    [[nodiscard]] Extent extent(RecordId record, uint32_t component) const;
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
    // Room that the aligned read of any expert of this component needs.
    [[nodiscard]] uint64_t aligned_capacity(uint32_t set, uint32_t component) const;

  private:
    RecordStore() = default;
    void number_records();

    model::Geometry geometry_;
    std::vector<std::unique_ptr<io::File>> owned_;
    std::vector<const io::File*> files_;  // by file index; nullptr where a file holds no experts
    std::vector<uint32_t> first_record_;  // by set
    std::vector<uint32_t> set_of_;        // by record
    std::vector<uint64_t> first_sum_;     // by set
    std::vector<uint32_t> sums_;          // empty, or one per (record, component)
};

}  // namespace sluice::store
