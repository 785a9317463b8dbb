// Owns: MODEL.sluice-sums, the checksums of a model's experts in a file beside it.
// Keeps: sums are used only for the model that they were made from, and only if their file is whole; both are checked
// before the first of them is believed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "store/files.h"
#include "store/source.h"

namespace sluice::store {

// One CRC-32C per (record, component), in the order of records.
struct Sums {
    Source source;
    std::vector<uint32_t> values;
};

// Of a split set, beside its first file.
std::string sums_path(const model::GgufIndex& index);

std::string encode_sums(const Sums& sums);
// Errors are sentences to be put behind "PATH: ".
Result<Sums> parse_sums(std::string_view bytes);

// not_found if there is no such file; corrupt if it is damaged; conflict if it belongs to other contents of the
// same shape, unsupported if to another model.
Result<std::vector<uint32_t>> load_sums(const model::GgufIndex& index, const model::Geometry& geometry);
Status save_sums(Files& files, const model::GgufIndex& index, const Sums& sums);

inline constexpr uint64_t kMaxSumsBytes = uint64_t{256} << 20U;

}  // namespace sluice::store
