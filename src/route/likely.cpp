#include "route/likely.h"

#include <utility>

#include "route/dials.h"

namespace sluice::route {

void rank_by_share(std::span<const int32_t> experts, std::span<const float> weights, LikelyExperts& out) {
    out.clear();
    const bool weighed = weights.size() == experts.size() && weights_tell(weights);
    double sum = 0;
    for (const float w : weights) sum += static_cast<double>(w);
    for (size_t k = 0; k < experts.size(); ++k) {
        const double share = weighed ? static_cast<double>(weights[k]) / sum : 1 / static_cast<double>(experts.size());
        out.push_back({static_cast<uint32_t>(experts[k]), static_cast<float>(share)});
    }
    // Few enough for the simplest sort, which keeps the order of equals and takes no memory.
    for (size_t k = 1; k < out.size(); ++k) {
        for (size_t j = k; j > 0 && out[j - 1].weight < out[j].weight; --j) std::swap(out[j - 1], out[j]);
    }
}

}  // namespace sluice::route
