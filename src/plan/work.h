// Owns: what one token of a model asks of the machine: which weights it computes with, and how many experts it wants.
// Keeps: all of it comes from the file's header.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "cache/layout.h"
#include "model/geometry.h"
#include "model/gguf.h"

namespace sluice::plan {

struct Work {
    // Bytes of weights that a token is multiplied with, by type.
    std::map<std::string, uint64_t> dense, experts;
    uint32_t layers = 0;
    uint64_t vocabulary = 0;  // 0: not known

    // Experts of one layer, or of one of its groups.
    struct Set {
        uint32_t n_expert = 0;
        uint32_t n_used = 0;
        uint64_t bytes = 0;  // of one expert
        uint32_t components = 0;
    };
    std::vector<Set> sets;
    uint64_t cycle_bytes = 0;      // of all experts that a token uses
    uint64_t expert_bytes = 0;     // of all experts
    uint64_t component_bytes = 0;  // of the size of read that most of these bytes come by

    // An expert's matrix of this type, as the model has most of them, and a dense one: what speed is measured with.
    struct Matrix {
        uint64_t ne0 = 0, ne1 = 0;
        uint64_t bytes = 0;
    };
    std::map<std::string, Matrix> expert_matrices, dense_matrices;
};
Work work_of(const model::GgufIndex& index, const model::Geometry& geometry);

// What a cache holds of each set, from 0 to 1: its class has so many slots for so many experts.
std::vector<double> shares_of(const cache::Layout& layout);

}  // namespace sluice::plan
