// Owns: making a pack, all at once or going on with one that was interrupted, and giving back the room that the model's
// own files take for what the pack holds.
// Keeps: after a crash at any moment every byte of the model is in at least one place that was made durable and, before
// the other place was given up, read back and compared; a pack has its name only when it is complete.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "io/engine.h"
#include "model/geometry.h"
#include "store/files.h"
#include "store/pack.h"

namespace sluice::store {

struct PackJob {
    std::string out = {};               // the manifest; empty: beside the model
    std::optional<Layout> layout = {};  // unset: that of a pack that is begun, or the default
    std::optional<uint64_t> split = {};
    bool reclaim = false;                    // what the pack holds is taken out of the model's files, layer by layer
    io::Access access = io::Access::direct;  // how bytes are read, of the model and back from the pack
    Progress progress = {};
};

struct PackDone {
    std::string path;
    PackShape shape;
    uint64_t bytes = 0;       // of all data files
    uint32_t files = 0;       // data files
    uint32_t found = 0;       // steps that were there before
    uint32_t steps = 0;       // of a whole pack
    uint64_t given_back = 0;  // bytes of the model's files, now
    bool had_sums = false;    // what was read was compared with checksums made earlier
};

// The engine has nothing outstanding. An error leaves what there is, and the next call goes on from there.
Result<PackDone> make_pack(Files& files, const model::GgufIndex& index, const model::Geometry& geometry,
                           io::Engine& engine, const PackJob& job);

// The command that undoes reclaiming into this pack (empty: the one beside the model).
std::string way_back(const model::GgufIndex& index, const std::string& pack);

}  // namespace sluice::store
