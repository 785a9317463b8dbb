// Owns: fitting a correction (route/trained_gate) of one layer from what routers were given and chose.
// Keeps: the same samples give the same correction, bit for bit; a correction that is not better than none on tokens
// that it was not fitted to is not made; what is reported is of tokens that nothing was chosen by.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "route/trained_gate.h"

namespace sluice::route {

// A router as far as it decides who is named first: not what groups of experts it looks at, and how it weighs them.
struct RouterRule {
    enum class Scoring : uint8_t { softmax, sigmoid, root_softplus };
    size_t n_expert = 0, n_input = 0;
    std::vector<float> weight;       // [n_expert][n_input]
    std::vector<float> bias;         // added to each product; empty: none
    std::vector<float> choice_bias;  // added to each score, for the choice only; empty: none
    Scoring scoring = Scoring::softmax;

    // Those with the highest scores, best first; of equals the one with the lower number. `products` are the router's.
    void choose(std::span<const float> products, std::span<int32_t> chosen) const;
};

// Tokens in the order in which they came.
struct Samples {
    size_t tokens = 0, n_input = 0, n_used = 0;
    std::vector<float> from, to;  // [tokens][n_input]: what the router before was given, and this one
    std::vector<int32_t> chosen;  // [tokens][n_used]: by this one
};

// With fewer there is nothing to learn and nothing to judge it by.
inline constexpr size_t kLeastTokens = 64;
// The last fifth is held out. Of the rest the last fifth decides how much of the fit is used.
size_t tokens_trained(size_t tokens);

struct Fit {
    std::optional<Correction> correction;  // rounded
    HeldOut held_out;
};
// `samples` of the rule's shape, at least kLeastTokens.
Fit fit(const RouterRule& rule, const Samples& samples, uint32_t rank);

}  // namespace sluice::route
