// Owns: how far two distributions over the next token are apart.
// Keeps: equal inputs are exactly 0 apart; nothing throws; what is not a number stays none.
#pragma once

#include <cstddef>
#include <span>

namespace sluice::engine {

// The logarithms of the probabilities that logits mean; as many as these.
void log_softmax(std::span<const float> logits, std::span<float> out);

// Kullback-Leibler divergence of `other` from `base`, both logarithms of probabilities, in nats; never below 0.
double divergence(std::span<const float> base, std::span<const float> other);

// The first of the most likely.
size_t most_likely(std::span<const float> values);

}  // namespace sluice::engine
