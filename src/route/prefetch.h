// Owns: what is done about a guess: which experts keep their slots for it, and which are read early.
// Keeps: a function of its arguments alone; never more reads than allowed, and no expert twice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "route/likely.h"

namespace sluice::route {

struct Limits {
    uint32_t reads = UINT32_MAX;  // at most, of experts that are not there
    // Where the layer drops experts that are not there and weigh less: reading those early would undo just that. The
    // first one is never dropped.
    float drop_below = 0;
};

// Of a layer's guess: whether the one that is so many places behind the most likely is not left to dropping.
[[nodiscard]] inline bool is_kept(size_t place, float weight, float drop_below) {
    return place == 0 || !(weight < drop_below);
}

// The guesses to act on, most likely first: all that are there, and of the others as many as may be read.
// `resident(expert)`: it is there.
template <typename Resident>
void choose_prefetch(std::span<const Likely> guesses, const Limits& limits, Resident&& resident, LikelyExperts& out) {
    out.clear();
    uint32_t reads = 0;
    for (size_t i = 0; i < guesses.size(); ++i) {
        const Likely& g = guesses[i];
        if (!resident(g.expert)) {
            if (reads == limits.reads || !is_kept(i, g.weight, limits.drop_below)) continue;
            ++reads;
        }
        out.push_back(g);
    }
}

// The layers whose experts are guessed while set `from` computes: the next `depth` ones, the first again after the last
// (of the next token), but never `from` itself.
template <typename F>
void for_sets_ahead(uint32_t from, uint32_t depth, uint32_t n_sets, F&& f) {
    for (uint32_t d = 1; d <= depth && d < n_sets; ++d) f((from + d) % n_sets);
}

}  // namespace sluice::route
