// Owns: going through the bytes of a store's experts, all of them or a sample, for checksums.
// Keeps: bytes are read the way experts are read, so past the page cache if the store is; a component that cannot be
// read is reported and does not end the scan.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/memory.h"
#include "base/status.h"
#include "io/engine.h"
#include "store/record_store.h"

namespace sluice::store {

// Told how far it is, in bytes; false ends it with Code::cancelled.
using Progress = std::function<bool(uint64_t done, uint64_t total)>;

// Reads any stretch into memory of its own, which grows as needed.
class StretchReader {
  public:
    explicit StretchReader(io::Engine& engine) : engine_(engine) {}
    // The bytes stay until the next read.
    Result<std::span<const std::byte>> read(const io::File& file, uint64_t offset, uint64_t bytes);

  private:
    io::Engine& engine_;
    Region region_;
};

enum class Depth { quick, full };  // quick: at most two experts of each layer, or those of a small model
// Which experts that are, ascending.
std::vector<uint32_t> experts_of(const model::ExpertSet& set, Depth depth);

// Every component looked at, in the order of records. `bytes` is an error if they cannot be read. An error that `look`
// returns ends the scan.
using Look = std::function<Status(RecordId, uint32_t component, const Result<std::span<const std::byte>>& bytes)>;
Status scan(const RecordStore& store, io::Engine& engine, Depth depth, const Progress& progress, const Look& look);

// One CRC-32C per (record, component), in the order of records.
Result<std::vector<uint32_t>> compute_sums(const RecordStore& store, io::Engine& engine, const Progress& progress);

struct Damage {
    RecordId record = 0;
    uint32_t component = 0;
    std::string what;  // one sentence that names file and place
};
struct Verdict {
    uint64_t components = 0;  // looked at
    uint64_t bytes = 0;
    std::vector<Damage> damage;
};
// The store has checksums.
Result<Verdict> verify(const RecordStore& store, io::Engine& engine, Depth depth, const Progress& progress);

}  // namespace sluice::store
