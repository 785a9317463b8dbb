// Owns: which nodes of a graph Sluice computes: the expert matrices and what lies between them.
// Keeps: a node is claimed only if the CPU backend, which computes it for us, supports it.
#pragma once

#include <ggml.h>

namespace sluice::backend {

// `node` as it stands in a graph (named, sources linked). `on_us(t)`: t is a weight in Sluice's buffer type.
bool is_ours(const ggml_tensor* node, bool (*on_us)(const ggml_tensor*));

}  // namespace sluice::backend
