// Owns: bringing a model's bytes back: damaged parts from another copy, the model's own files from its pack.
// Keeps: only bytes whose checksum is right are written, and only where they belong; what was written is read back and
// compared before anything relies on it; a crash at any moment leaves nothing worse than it was.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "io/engine.h"
#include "store/bundle.h"
#include "store/files.h"

namespace sluice::store {

struct RepairJob {
    std::vector<std::string> from = {};  // other copies, of the model or of its pack
    bool sure = false;                   // even if so much differs that it may be another model
    io::Access access = io::Access::direct;
    Progress progress = {};
};
struct Repaired {
    uint64_t looked_at = 0;            // parts
    std::vector<std::string> mended;   // one sentence each
    std::vector<std::string> missing;  // files that are not there and were not made anew, and what to do
    uint64_t lost_parts = 0;           // what nobody has
    std::vector<std::string> lost;     // the same by stretches of the model's files, and what to fetch
};
Result<Repaired> repair(Files& files, Bundle bundle, io::Engine& engine, const RepairJob& job);

struct Unpacked {
    std::vector<std::string> paths;
    uint64_t bytes = 0;  // written
    std::string pack;    // the manifest as it is named, also if the pack is not complete
    bool complete = true;
};
// New files in this directory, which get their names when all of them are whole. What is there already must be right.
// What it made and could not finish it removes, unless the process dies.
Result<Unpacked> unpack_into(Files& files, const Bundle& bundle, const std::string& directory, io::Engine& engine,
                             io::Access access, const Progress& progress);
// Fills the holes of the model's own files, and removes the notes beside them.
Result<Unpacked> unpack_in_place(Files& files, Bundle bundle, io::Engine& engine, io::Access access,
                                 const Progress& progress);

}  // namespace sluice::store
