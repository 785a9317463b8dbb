#include "io/latency_table.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace sluice::io {
namespace {

// Between which two points of a rising list `x` lies, and how far on the way from the first to the second.
struct Between {
    size_t below = 0, above = 0;
    double part = 0;
};

template <typename T>
Between locate(const std::vector<T>& points, double x) {
    const auto above = std::find_if(points.begin(), points.end(), [&](T p) { return static_cast<double>(p) >= x; });
    const auto i = static_cast<size_t>(above - points.begin());
    if (i == 0) return {};
    if (i == points.size()) return {i - 1, i - 1, 0};
    const auto low = static_cast<double>(points[i - 1]);
    return {i - 1, i, (x - low) / (static_cast<double>(points[i]) - low)};
}

template <typename T>
bool rises(const std::vector<T>& points) {
    return !points.empty() && std::adjacent_find(points.begin(), points.end(), std::greater_equal<>()) == points.end();
}

}  // namespace

LatencyTable::LatencyTable(std::vector<uint64_t> sizes, std::vector<uint32_t> depths, std::vector<Nanos> nanos)
    : sizes_(std::move(sizes)), depths_(std::move(depths)), nanos_(std::move(nanos)) {
    assert(rises(sizes_) && rises(depths_) && nanos_.size() == sizes_.size() * depths_.size());
}

Nanos LatencyTable::at(uint64_t bytes, double depth) const {
    const Between s = locate(sizes_, static_cast<double>(bytes));
    const Between d = locate(depths_, depth);
    const auto of_size = [&](size_t size) {
        const auto low = static_cast<double>(nanos_[size * depths_.size() + d.below]);
        const auto high = static_cast<double>(nanos_[size * depths_.size() + d.above]);
        return low + d.part * (high - low);
    };
    const double low = of_size(s.below);
    return static_cast<Nanos>(low + s.part * (of_size(s.above) - low));
}

}  // namespace sluice::io
