// Owns: what of a model is an expert and what is always needed.
// Keeps: everything is derived from the file's own tensors, never from a table of models; the bytes of all experts plus
// the dense bytes are all the tensor bytes of the file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/gguf.h"

namespace sluice::model {

enum class Component : uint8_t { gate, up, gate_up, down };
const char* component_name(Component component);

// One weight tensor that holds one slice per expert, its last dimension counting experts.
struct ExpertTensor {
    Component component = Component::gate;
    uint32_t tensor = 0;  // index into GgufIndex::tensors()
    uint32_t file = 0;
    uint64_t offset = 0;  // of expert 0, absolute
    uint64_t bytes_per_expert = 0;
    TypeId type = 0;
    uint64_t ne0 = 0, ne1 = 0;  // row length and rows of one expert

    [[nodiscard]] uint64_t expert_offset(uint32_t expert) const { return offset + expert * bytes_per_expert; }
};

// All experts that one router chooses from. A layer has one set, in a few architectures two ("exps" and "chexps").
struct ExpertSet {
    int layer = 0;
    std::string group;  // "exps" or "chexps"
    uint32_t n_expert = 0;
    uint32_t n_used = 0;                          // top-k of this layer, at most n_expert
    std::vector<ExpertTensor> tensors;            // 1..4, ordered by Component
    [[nodiscard]] uint64_t record_bytes() const;  // all components of one expert
};

struct Geometry {
    std::string architecture;
    uint32_t n_layer = 0;         // from the metadata; every set's layer is below it
    uint32_t n_expert_used = 0;   // top-k from the metadata; largest over layers
    std::vector<ExpertSet> sets;  // by layer, then group
    uint64_t expert_bytes = 0;    // of all experts of all sets
    uint64_t dense_bytes = 0;     // all other tensors
    uint64_t largest_record_bytes = 0;
    uint64_t cycle_bytes = 0;  // sum over sets of n_used records: one token, nothing cached
    [[nodiscard]] uint64_t n_records() const;
    [[nodiscard]] uint32_t n_expert_layers() const;  // layers with experts, in one set or two
};

// Parses "blk.<layer>.ffn_<component>_<group>.weight" with group exps or chexps. False for any other name; then the
// outputs are untouched. A layer has one spelling only: no sign, no leading zero.
bool parse_expert_tensor_name(std::string_view name, int& layer, Component& component, std::string& group);

// Error `unsupported` with one clear sentence when the file holds no experts at all, keeps each expert in a tensor of
// its own (old conversions), lacks the metadata above, or when its experts contradict each other or the metadata
// (different counts within a set, expert slices that are not whole blocks, top-k above every count).
Result<Geometry> derive_geometry(const GgufIndex& index);

// Nobody who sizes a table by n_layer can be made to allocate more than this.
inline constexpr uint32_t kMaxLayers = 65'536;

}  // namespace sluice::model
