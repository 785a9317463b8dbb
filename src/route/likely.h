// Owns: what a predictor says of one layer: which experts its router will choose.
// Keeps: the most likely one first, and no expert twice.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace sluice::route {

struct Likely {
    uint32_t expert = 0;
    // The share that it is expected to have in what the layer's experts add up to; without weights, 1 over their
    // number. In [0, 1].
    float weight = 0;
};
// Of all that a layer is expected to choose.
using LikelyExperts = std::vector<Likely>;

// LikelyExperts for set `to` while set `from` computes; empty: no idea. For tests, in place of a predictor.
using Guesser = std::function<void(uint32_t from, uint32_t to, LikelyExperts& out)>;

}  // namespace sluice::route
