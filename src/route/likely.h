// Owns: what a predictor says of one layer: which experts its router will choose.
// Keeps: the most likely one first, and no expert twice.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
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

// A ranking's experts by the shares that its weights, one for each expert, give them; of equal ones the first in rank
// first. Weights that give no shares (there are not as many, one is negative or none is greater than 0) are as equal
// ones.
void rank_by_share(std::span<const int32_t> experts, std::span<const float> weights, LikelyExperts& out);

// LikelyExperts for set `to` while set `from` computes; empty: no idea. For tests, in place of a predictor.
using Guesser = std::function<void(uint32_t from, uint32_t to, LikelyExperts& out)>;

}  // namespace sluice::route
