// Owns: what a context of a model will take, asked of llama.cpp itself.
// Keeps: no weight is read and none is given memory; only the header and the vocabulary are loaded. The numbers are the
// same whether Sluice is registered or not.
#pragma once

#include <cstdint>

#include "base/status.h"

struct common_params;

namespace sluice::engine {

// Of the host.
struct ContextMemory {
    uint64_t context = 0;  // KV cache, recurrent state
    uint64_t compute = 0;  // buffers of the graph
};

// `params` as llama.cpp's own option parser left them.
Result<ContextMemory> context_memory(const common_params& params);

}  // namespace sluice::engine
