// Owns: which nodes of a graph Sluice computes: the expert matrices, what lies between them, and the shared expert with
// its gate, up to the sum of both.
// Keeps: a node is claimed only if the CPU backend, which computes it for us, supports it. The router is not claimed:
// it has to be over before experts can be asked for, so within our part it would be a launch of its own in every layer.
#pragma once

#include <ggml.h>

namespace sluice::backend {

using WeightTest = bool (*)(const ggml_tensor*);

// `node` as it stands in a graph (named, sources linked). `on_us(t)`: t is a weight in Sluice's buffer type.
// `dense_weights`: nodes over weights in other buffers may be claimed, too; not so where a GPU might take them.
bool is_ours(const ggml_tensor* node, WeightTest on_us, bool dense_weights);

}  // namespace sluice::backend
