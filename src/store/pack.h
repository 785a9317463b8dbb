// Owns: the format of a pack, a copy of a model in which every matrix of every expert starts at a multiple of 4096 and
// has a checksum: MODEL.sluice, the manifest, and MODEL.sluice.1, .2 ..., the data.
// Keeps: nothing of a manifest is believed before its checksum fits, every field is in range, and all that follows from
// other fields does; what is rewritten in it is always the older one of its two slots.
//
// docs/store.md describes the bytes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/geometry.h"
#include "store/copy.h"
#include "store/files.h"
#include "store/record_store.h"
#include "store/source.h"

namespace sluice::store {

enum class Layout : uint32_t {
    layer,      // expert after expert, each with all its matrices
    component,  // of each layer first the matrices that lead up to the activation, expert after expert, then all down
};
const char* layout_name(Layout layout);
std::optional<Layout> parse_layout(std::string_view name);

inline constexpr uint64_t kPackAlign = 4096;
inline constexpr uint64_t kMaxManifestBytes = uint64_t{256} << 20U;

struct PackShape {
    Layout layout = Layout::component;
    uint64_t split = 0;       // no data file is larger; 0: there is one
    bool keeps_dense = true;  // what is no expert too, so that the pack alone gives the model back
};

struct PackMap {
    CopyMap map;
    std::vector<Piece> steps;  // where step 0 (dense bytes; may be empty) and 1 + set lie
};
// invalid_argument if a layer is larger than a data file may be.
Result<PackMap> map_pack(const Parts& parts, const PackShape& shape);

struct Manifest {
    uint64_t generation = 0;
    PackShape shape;
    Source source;                  // of the model before anything was taken out of it
    std::string dense_digest;       // model::dense_digest
    bool reclaimed = false;         // experts were, or are about to be, taken out of the model's own files
    std::vector<int64_t> modified;  // when the model's files were last changed, in ns, as of the last step
    uint32_t done = 0;              // steps whose bytes are in the data files, durably
    std::vector<uint32_t> sums;     // by part; 0 for those of later steps
};

// One slot's bytes. The same number for each generation of one pack.
std::string encode_manifest(const Manifest& manifest);
// Errors are sentences to be put behind "PATH: ".
Result<Manifest> parse_slot(std::string_view bytes, uint32_t slot);

struct ReadManifest {
    Manifest manifest;
    uint64_t slot_bytes = 0;
    std::string note;  // what is wrong with the other slot; empty if nothing
};
// Of the whole file's bytes: the newer slot that is sound.
Result<ReadManifest> parse_manifest(std::string_view bytes);
// Whether this is a manifest's file with its slots, of which perhaps none is sound.
bool begun_slots(std::string_view bytes);
// not_found if there is none.
Result<ReadManifest> read_manifest(const std::string& path);
bool looks_like_manifest(const std::string& path);

// Of a split set, beside its first file.
std::string pack_path(const model::GgufIndex& index);
std::string partial_path(const std::string& pack);
std::string data_path(const std::string& pack, uint32_t file);  // file counts from 0, its name from 1
std::vector<std::string> data_paths(const std::string& pack, const PackMap& map);
std::string guard_path(const std::string& gguf);
// A file that is being unpacked. Downloaders use .partial.
std::string unpack_path(const std::string& gguf);

// The first kPackAlign bytes of a data file; no other pack has the same ones.
std::string data_header(const Manifest& manifest, const PackMap& map, uint32_t file);
// Whether a file is soundly something else than the data file with this header: another pack's, or a model.
bool foreign_data(const std::string& path, const std::string& header);

// Whose pack it may be.
struct Identity {
    const model::GgufIndex* index = nullptr;
    const model::Geometry* geometry = nullptr;
    Source source;          // as the files are now
    bool skeleton = false;  // there are holes where experts should be
};
Result<Identity> identify(const model::GgufIndex& index, const model::Geometry& geometry);
bool is_skeleton(const model::GgufIndex& index, const model::Geometry& geometry);
// By any sign: holes, the note that `pack --reclaim` leaves, or layers whose experts are zeros, as a copy has them that
// was made without the holes.
bool experts_taken_out(const model::GgufIndex& index, const model::Geometry& geometry);
// Error, in words, if the pack was made from another model (unsupported) or from other contents of the same shape
// (conflict).
Status belongs(const Manifest& manifest, const Identity& identity);

// The data files, with what is wrong with each: missing, of another size, of another pack. `manifest_path` may be that
// of a partial pack.
Copy open_pack_copy(const std::string& pack, const Manifest& manifest, const PackMap& map,
                    io::Access access = io::Access::direct);

struct PackHolder {
    Holder holder;               // shares
    std::vector<uint32_t> sums;  // of the experts, in the order of records
    bool reclaimed = false;
    std::string digest;  // model::sampled_digest of the whole model
};
// Looks at no expert's bytes. not_found if there is no such pack; corrupt if it is damaged or incomplete; unsupported
// if it is another model's. Says through `note` what is worth knowing although it works.
Result<PackHolder> open_pack(const std::string& path, const Identity& identity, io::Access access, std::string* note);

}  // namespace sluice::store
