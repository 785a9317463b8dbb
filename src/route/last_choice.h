// Owns: what each layer's router chose for the last token: the predictor that needs nothing but memory.
// Keeps: bounded memory; ranks as the router gave them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "route/likely.h"

namespace sluice::route {

class LastChoice {
  public:
    explicit LastChoice(size_t n_sets) : chosen_(n_sets) {}

    // `experts` in the order of the router's ranks.
    void note(uint32_t set, std::span<const uint32_t> experts) { chosen_[set].assign(experts.begin(), experts.end()); }
    [[nodiscard]] std::span<const uint32_t> of(uint32_t set) const { return chosen_[set]; }
    // The same again; nothing before the first token.
    void guess(uint32_t set, LikelyExperts& out) const {
        out.clear();
        const float share = chosen_[set].empty() ? 0 : 1 / static_cast<float>(chosen_[set].size());
        for (const uint32_t e : chosen_[set]) out.push_back({e, share});
    }

  private:
    std::vector<std::vector<uint32_t>> chosen_;
};

}  // namespace sluice::route
