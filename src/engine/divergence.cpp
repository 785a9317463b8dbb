#include "engine/divergence.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace sluice::engine {

void log_softmax(std::span<const float> logits, std::span<float> out) {
    assert(logits.size() == out.size());
    if (logits.empty()) return;
    const double largest = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float x : logits) sum += std::exp(x - largest);
    const double log_sum = std::log(sum);
    for (size_t i = 0; i < logits.size(); ++i) out[i] = static_cast<float>(logits[i] - largest - log_sum);
}

double divergence(std::span<const float> base, std::span<const float> other) {
    assert(base.size() == other.size());
    double sum = 0;
    for (size_t i = 0; i < base.size(); ++i) {
        const double p = std::exp(static_cast<double>(base[i]));
        if (p == 0) continue;
        sum += p * (static_cast<double>(base[i]) - static_cast<double>(other[i]));
    }
    return sum < 0 ? 0 : sum;  // by rounding; what is not a number stays none
}

size_t most_likely(std::span<const float> values) {
    return static_cast<size_t>(std::max_element(values.begin(), values.end()) - values.begin());
}

}  // namespace sluice::engine
