// Owns: how fast this processor computes with a model's weights: ggml's own products, measured for about a second.
// Keeps: nothing of the model is read, only its types and shapes are used; at most kMostWeights bytes are taken at
// once.
#pragma once

#include <string>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/status.h"
#include "plan/history.h"
#include "plan/work.h"

namespace sluice::engine {

inline constexpr uint64_t kMostWeights = 48 * MiB;

// One row through matrices of each type that the model has, as in decode, with so many threads. `repack`: in the form
// that the CPU backend makes of them at load. `machine` is only noted, and the date is left to the caller. Takes about
// `for_each` for each type; types of small vectors (norms, biases) are left out.
Result<plan::Speeds> measure_speeds(const plan::Work& work, unsigned threads, bool repack, const std::string& machine,
                                    Nanos for_each);

}  // namespace sluice::engine
