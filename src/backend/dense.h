// Owns: the memory of dense weights: how the CPU backend's buffers over a MoE model's mapping are filled.
// Keeps: in mode anon a dense tensor's data never lies in the mapping, so neither memory pressure nor a truncated file
// reaches it after loading; expert bytes are never read here.
#pragma once

#include <ggml-backend.h>

#include <memory>

#include "backend/mapping.h"
#include "backend/model_state.h"
#include "sluice/sluice.h"

namespace sluice::backend {

// Takes over `buffer`, which lies over `mapping` of `model`. The model stays alive as long as the buffer.
Status adopt_dense_buffer(ggml_backend_buffer_t buffer, std::shared_ptr<ModelState> model, const MappedFile& mapping,
                          const Config& config);

// Read-ahead over the dense parts of a mapping that will be read through it: those bound for repacking, or all of them.
// The loader turned read-ahead off for the whole mapping when it was told of NUMA.
void advise_dense(const ModelState& model, const MappedFile& mapping, DenseWeights mode);

// A model without experts is left to stock behaviour: the whole mapping is read ahead again.
void restore_read_ahead(const MappedFile& mapping);

// Bytes read into memory of our own, by all loads.
uint64_t dense_bytes_loaded();

}  // namespace sluice::backend
