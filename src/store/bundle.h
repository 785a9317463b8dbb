// Owns: finding all that belongs to one model, from the name of its file or of its pack: its own files, the pack, and
// what their bytes must be.
// Keeps: it works from whatever is left: a model whose header is damaged is found by its pack, a pack by its model.
#pragma once

#include <optional>
#include <string>

#include "base/status.h"
#include "store/copy.h"
#include "store/pack.h"

namespace sluice::store {

struct Bundle {
    std::string gguf;           // the model's first file
    std::string pack;           // where its manifest lies; empty: there is no pack
    std::string manifest_path;  // as it is now: that of a pack that is being made has another name
    std::string note;           // what is wrong with the manifest although it can be used
    std::optional<Manifest> manifest;
    std::optional<PackMap> map;
    std::optional<Reference> reference;  // of the pack, else of MODEL.sluice-sums
    Copy own;
    std::optional<Copy> packed;
    [[nodiscard]] bool complete() const {
        return reference->done == reference->parts.n_steps() && manifest_path == pack;
    }
};

// What is wrong with the copy's files as such. What is yet to be written of a pack that is not complete is not.
std::vector<std::string> trouble_of(const Bundle& bundle, const Copy& copy);
// The command that goes on with a pack that is not complete.
std::string finishing(const Bundle& bundle);

// What is to be done about a model whose own files are not there although its pack is. OK if they are, or some of them.
Status missing_model(const Bundle& bundle);

// `pack`: where it is, if not beside the model. not_found if there is neither a pack nor a file of checksums.
Result<Bundle> find_bundle(const std::string& path, const std::string& pack, io::Access access);

// The same for who needs the pack: not_found, and what to do, if there is none.
Result<Bundle> find_packed(const std::string& path, const std::string& pack, io::Access access);

// The model to be packed; if the path is that of a pack, an error that names the model instead.
Result<model::GgufIndex> open_to_pack(const std::string& path);

// A copy of the model's file, or of its pack, for comparison; its shape is the bundle's. Its own checksums are not
// believed: the bundle's are.
Result<Copy> open_other(const Bundle& bundle, const std::string& path, io::Access access);

}  // namespace sluice::store
