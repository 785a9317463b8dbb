#include "route/worth.h"

#include <algorithm>

namespace sluice::route {

Worth worth(const Scores& scores, Predictor p, const TokenTimes& times) {
    const Score s = scores.total(p);
    Worth w;
    if (times.tokens <= 0 || s.routings == 0) return w;
    const uint64_t all = s.routings + s.not_ranked();
    // Layers that were not ranked wait as before.
    const double ranked = static_cast<double>(s.routings) / static_cast<double>(all);
    w.removed = s.missing == 0 ? 0 : times.wait * ranked * s.timely_recall();
    w.cost = std::max(0.0, scores.cost(p)) * static_cast<double>(s.routings) / times.tokens;
    const double speculated = static_cast<double>(s.absent) / times.tokens * times.read;
    // What it reads of use is not read later.
    const double saved = static_cast<double>(s.absent_chosen) / times.tokens * times.read;
    w.overflow = std::max(0.0, speculated - times.idle - saved);
    w.overfetch = s.missing == 0 ? 0 : static_cast<double>(s.absent - s.absent_chosen) / static_cast<double>(s.missing);
    return w;
}

}  // namespace sluice::route
