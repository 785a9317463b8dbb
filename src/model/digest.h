// Owns: a short name for the contents of a model, for telling two runs' models apart.
// Keeps: the same files give the same digest wherever they lie and whatever they are called.
#pragma once

#include <string>

#include "base/status.h"
#include "model/geometry.h"
#include "model/gguf.h"

namespace sluice::model {

// XXH3-64 in hexadecimal, over each file's header, size and 64 samples of 4 KiB spread over it. No proof against
// tampering: bytes between the samples may differ. Reads at most the headers and 256 KiB per file, through the page
// cache.
Result<std::string> sampled_digest(const GgufIndex& index);

// The same, but of the samples only what is no expert: it stays when the experts' bytes are taken out of the files.
Result<std::string> dense_digest(const GgufIndex& index, const Geometry& geometry);

}  // namespace sluice::model
