#include "route/popularity.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace sluice::route {

Popularity::Popularity(size_t n_expert, double half_life)
    : counts_(n_expert), order_(n_expert), growth_(std::exp2(1 / std::max(half_life, 1e-3))) {
    std::iota(order_.begin(), order_.end(), 0);
}

void Popularity::see(std::span<const int32_t> chosen) {
    ++tokens_;
    unit_ *= growth_;
    if (unit_ > 1e100) {
        for (double& c : counts_) c /= unit_;
        unit_ = 1;
    }
    for (const int32_t e : chosen) {
        if (e >= 0 && static_cast<size_t>(e) < counts_.size()) counts_[static_cast<size_t>(e)] += unit_;
    }
}

void Popularity::best(std::span<int32_t> out) {
    const size_t n = std::min(out.size(), order_.size());
    std::partial_sort(order_.begin(), order_.begin() + static_cast<ptrdiff_t>(n), order_.end(),
                      [this](int32_t a, int32_t b) {
                          const double x = counts_[static_cast<size_t>(a)], y = counts_[static_cast<size_t>(b)];
                          return x > y || (x == y && a < b);
                      });
    std::copy_n(order_.begin(), n, out.begin());
}

}  // namespace sluice::route
