#include "route/dials.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace sluice::route {
namespace {

// Sums that differ from 1 by no more than this are 1: rounding, not another kind of gating.
constexpr double kRounding = 1e-3;

double sum_of(std::span<const float> weights) {
    double sum = 0;
    for (const float w : weights) sum += w;
    return sum;
}

}  // namespace

bool weights_tell(std::span<const float> weights) {
    const bool sound = std::all_of(weights.begin(), weights.end(), [](float w) { return std::isfinite(w) && w >= 0; });
    return sound && sum_of(weights) > 0;
}

size_t substitute(Choice choice, double share, std::span<Candidate> candidates) {
    if (share <= 0 || !weights_tell(choice.weights)) return 0;
    size_t n = 0;
    for (size_t k = 0; k < choice.experts.size(); ++k) {
        if (choice.resident[k] != 0) continue;
        Candidate* best = nullptr;
        for (Candidate& c : candidates) {
            if (!c.taken && std::isfinite(c.weight) && (best == nullptr || c.weight > best->weight)) best = &c;
        }
        if (best == nullptr) break;
        if (best->weight < (1 - share) * choice.weights[k]) continue;
        best->taken = true;
        choice.experts[k] = best->expert;
        choice.resident[k] = 1;
        ++n;
    }
    return n;
}

size_t drop_cold(Choice choice, double share, std::span<uint8_t> dropped) {
    const std::span<float> weights = choice.weights;
    assert(choice.experts.size() == weights.size() && choice.resident.size() == weights.size() &&
           dropped.size() == weights.size());
    std::fill(dropped.begin(), dropped.end(), uint8_t{0});
    if (share <= 0 || weights.size() < 2 || !weights_tell(weights)) return 0;
    const double sum = sum_of(weights);
    const double whole = std::abs(sum - 1) <= kRounding ? 1.0 : sum;
    const double threshold = share * whole / static_cast<double>(weights.size());
    const auto best = static_cast<size_t>(std::max_element(weights.begin(), weights.end()) - weights.begin());
    size_t n = 0;
    double kept = 0;
    for (size_t k = 0; k < weights.size(); ++k) {
        if (k != best && choice.resident[k] == 0 && weights[k] < threshold) {
            dropped[k] = 1;
            ++n;
        } else {
            kept += weights[k];
        }
    }
    if (n == 0) return 0;
    const double grows = sum / kept;
    for (size_t k = 0; k < weights.size(); ++k)
        weights[k] = dropped[k] != 0 ? 0.0F : static_cast<float>(weights[k] * grows);
    return n;
}

size_t move_dropped_last(Choice choice, std::span<const uint8_t> dropped, std::vector<int32_t>& order) {
    const size_t n = dropped.size();
    order.clear();
    for (const uint8_t wanted : {uint8_t{0}, uint8_t{1}}) {
        for (size_t k = 0; k < n; ++k) {
            if (dropped[k] == wanted) order.push_back(static_cast<int32_t>(k));
        }
    }
    // Each kept rank moves to the front of the dropped ones before it.
    size_t kept = 0;
    for (size_t k = 0; k < n; ++k) {
        if (dropped[k] != 0) continue;
        std::rotate(choice.experts.begin() + static_cast<std::ptrdiff_t>(kept),
                    choice.experts.begin() + static_cast<std::ptrdiff_t>(k),
                    choice.experts.begin() + static_cast<std::ptrdiff_t>(k + 1));
        std::rotate(choice.weights.begin() + static_cast<std::ptrdiff_t>(kept),
                    choice.weights.begin() + static_cast<std::ptrdiff_t>(k),
                    choice.weights.begin() + static_cast<std::ptrdiff_t>(k + 1));
        ++kept;
    }
    return kept;
}

}  // namespace sluice::route
