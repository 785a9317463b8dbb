// Owns: an invented stream of router choices with the shape of a real one: some experts are popular, and those of the
// last token tend to come again.
// Keeps: integers only, so that a seed gives the same stream on every machine. Skew and repetition were chosen, not
// measured: the stream is good for what a decision costs and says nothing about hit rates.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "tests/models/random.h"

namespace sluice::micro {

struct RouteShape {
    uint32_t layers = 48;
    uint32_t experts = 128;
    uint32_t used = 8;
    uint32_t tokens = 64;
};

// Expert numbers, `used` distinct ones for each token and layer, token by token.
inline std::vector<uint32_t> route_stream(const RouteShape& shape, uint64_t seed) {
    fixture::Random random(seed);
    std::vector<uint64_t> below(shape.experts);  // sum of the weights up to and with this rank
    uint64_t sum = 0;
    for (uint32_t rank = 0; rank < shape.experts; ++rank) below[rank] = sum += 65536 / (rank + 8);

    std::vector<std::vector<uint32_t>> by_rank(shape.layers, std::vector<uint32_t>(shape.experts));
    for (std::vector<uint32_t>& experts : by_rank) {
        std::iota(experts.begin(), experts.end(), 0U);
        for (uint32_t i = shape.experts - 1; i > 0; --i) std::swap(experts[i], experts[random.next() % (i + 1)]);
    }

    std::vector<std::vector<uint32_t>> last(shape.layers);
    std::vector<uint32_t> stream;
    for (uint32_t token = 0; token < shape.tokens; ++token) {
        for (uint32_t layer = 0; layer < shape.layers; ++layer) {
            std::vector<uint32_t> chosen;
            for (const uint32_t expert : last[layer]) {
                if (random.next() % 8 < 3) chosen.push_back(expert);
            }
            while (chosen.size() < shape.used) {
                const auto rank = std::upper_bound(below.begin(), below.end(), random.next() % sum) - below.begin();
                const uint32_t expert = by_rank[layer][static_cast<size_t>(rank)];
                if (std::find(chosen.begin(), chosen.end(), expert) == chosen.end()) chosen.push_back(expert);
            }
            stream.insert(stream.end(), chosen.begin(), chosen.end());
            last[layer] = std::move(chosen);
        }
    }
    return stream;
}

}  // namespace sluice::micro
