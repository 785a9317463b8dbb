// Owns: the rules by which a lossy dial changes which experts run for one token in one layer (docs/lossy.md).
// Keeps: a function of its arguments alone; what is not a number, or less than nothing, is left as the router had it;
// ranks that stay keep their order and their weights' proportions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sluice::route {

// What a run may do to its routings. All off: nothing is ever changed.
struct Dials {
    double substitute = 0;  // an expert that is there for one that is not, if its weight is at most this share less
    double drop_cold = 0;   // experts that are not there and weigh less than this of an equal part are left out

    [[nodiscard]] bool any() const { return substitute > 0 || drop_cold > 0; }
    // Where a layer chooses `n` experts: the share of their weights below which one that is not there is dropped.
    [[nodiscard]] float drop_below(size_t n) const {
        return n == 0 ? 0 : static_cast<float>(drop_cold / static_cast<double>(n));
    }
};

// One token's choice in one layer, by rank. `weights` are the final ones, which multiply the experts' results.
struct Choice {
    std::span<int32_t> experts;
    std::span<float> weights;
    std::span<uint8_t> resident;  // 1: computing it costs no read
};

// Weights that a rule can be applied to: all finite, none negative, and not all 0.
[[nodiscard]] bool weights_tell(std::span<const float> weights);

// An expert that was not chosen and is resident, and the weight that the router has for it in the measure of the row's.
struct Candidate {
    int32_t expert = 0;
    float weight = 0;
    bool taken = false;
};
// Gives each rank whose expert is not resident, the first rank first, the heaviest candidate that is left (among equals
// the first), if that weighs no less than 1 - `share` of what it replaces. Experts and `resident` change, weights do
// not: the router's own for the new experts belong there. Returns how many ranks changed.
size_t substitute(Choice choice, double share, std::span<Candidate> candidates);

// A rank is dropped if its expert is not resident, its weight is less than `share` of an equal part (strictly), and it
// is not the first of those with the largest weight. `dropped` gets 1 for each such rank and 0 for the others; returns
// how many there are. An equal part is 1 / ranks, or where weights do not sum to 1, the same share of their sum.
// The weights of dropped ranks become 0, the others grow so that the sum stays.
size_t drop_cold(Choice choice, double share, std::span<uint8_t> dropped);

// Puts dropped ranks behind the others; both keep their order. `order` gets, by new rank, the old one. Returns how many
// ranks are left in front.
size_t move_dropped_last(Choice choice, std::span<const uint8_t> dropped, std::vector<int32_t>& order);

}  // namespace sluice::route
