// Owns: a model of a few layers that exists as bytes only: experts of mixed sizes, their checksums, and the routes that
// a router with favourites would take through them.
// Keeps: the same seed gives the same bytes and routes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "base/crc32c.h"
#include "base/ids.h"
#include "model/geometry.h"
#include "store/record_store.h"

namespace sluice::sched {

struct LayerSizes {
    uint64_t gate = 0, up = 0, down = 0;  // bytes of one expert's; gate 0: fused into up
};

struct LayeredModel {
    LayeredModel(uint32_t n_expert, uint32_t n_used, std::span<const LayerSizes> layers, uint64_t seed) {
        uint64_t at = 777;  // no alignment knows of it
        for (size_t l = 0; l < layers.size(); ++l) {
            model::ExpertSet set;
            set.layer = static_cast<int>(l);
            set.group = "exps";
            set.n_expert = n_expert;
            set.n_used = n_used;
            const auto add = [&](model::Component component, uint64_t bytes) {
                model::ExpertTensor t;
                t.component = component;
                t.offset = at;
                t.bytes_per_expert = bytes;
                at += bytes * n_expert + 33;
                set.tensors.push_back(t);
            };
            if (layers[l].gate > 0) {
                add(model::Component::gate, layers[l].gate);
                add(model::Component::up, layers[l].up);
            } else {
                add(model::Component::gate_up, layers[l].up);
            }
            add(model::Component::down, layers[l].down);
            geometry.sets.push_back(std::move(set));
        }
        geometry.n_layer = static_cast<uint32_t>(layers.size());
        geometry.n_expert_used = n_used;
        std::mt19937_64 random(seed);
        contents.resize(at + 100);
        for (std::byte& b : contents) b = static_cast<std::byte>(random() >> 56U);
    }

    [[nodiscard]] std::span<const std::byte> bytes(const store::RecordStore& store, RecordId r, uint32_t c) const {
        const store::Extent e = store.extent(r, c);
        return std::span(contents).subspan(e.offset, e.bytes);
    }
    // As the store keeps them.
    [[nodiscard]] std::vector<uint32_t> sums(const store::RecordStore& store) const {
        std::vector<uint32_t> all;
        for (RecordId r = 0; r < store.n_records(); ++r) {
            for (uint32_t c = 0; c < store.n_components(store.set_of(r)); ++c)
                all.push_back(crc32c(bytes(store, r, c)));
        }
        return all;
    }

    model::Geometry geometry;
    std::vector<std::byte> contents;
};

// For each token and each set the experts that it uses. Experts of a set differ in popularity as 1/rank, and a token
// keeps each of the token before with a probability of one third: what published traces look like.
inline std::vector<std::vector<std::vector<uint32_t>>> skewed_routes(const model::Geometry& geometry, uint32_t tokens,
                                                                     uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto uniform = [&] { return static_cast<double>(random() >> 11U) * 0x1.0p-53; };
    std::vector<std::vector<uint32_t>> by_rank;
    for (const model::ExpertSet& set : geometry.sets) {
        std::vector<uint32_t>& order = by_rank.emplace_back(set.n_expert);
        for (uint32_t e = 0; e < set.n_expert; ++e) order[e] = e;
        for (uint32_t e = set.n_expert; e-- > 1;) std::swap(order[e], order[random() % (e + 1)]);
    }
    std::vector<std::vector<std::vector<uint32_t>>> routes(tokens);
    for (uint32_t t = 0; t < tokens; ++t) {
        for (size_t s = 0; s < geometry.sets.size(); ++s) {
            const model::ExpertSet& set = geometry.sets[s];
            std::vector<uint32_t> chosen;
            if (t > 0) {
                for (const uint32_t e : routes[t - 1][s]) {
                    if (uniform() < 1.0 / 3) chosen.push_back(e);
                }
            }
            while (chosen.size() < set.n_used) {
                // The inverse of the sum of 1/rank is near an exponential.
                const double rank = std::exp(uniform() * std::log(static_cast<double>(set.n_expert) + 1)) - 1;
                const uint32_t e = by_rank[s][std::min(static_cast<uint32_t>(rank), set.n_expert - 1)];
                if (std::find(chosen.begin(), chosen.end(), e) == chosen.end()) chosen.push_back(e);
            }
            routes[t].push_back(std::move(chosen));
        }
    }
    return routes;
}

}  // namespace sluice::sched
