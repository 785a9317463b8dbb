// Owns: how long each layer computes, as measured while running; the base of every deadline.
// Keeps: bounded memory; without a measurement there is no estimate.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"

namespace sluice::sched {

// By expert set. Not thread-safe; nothing allocates after construction.
class LayerClock {
  public:
    explicit LayerClock(uint32_t n_sets) : layers_(n_sets) {}

    // From this set's experts being asked for to the next set's being asked for, without waiting for reads.
    void note(uint32_t set, Nanos compute) {
        Layer& l = layers_[set];
        l.ewma = l.n == 0 ? static_cast<double>(compute) : l.ewma + kWeight * (static_cast<double>(compute) - l.ewma);
        l.recent[l.n++ % kRecent] = compute;
    }

    [[nodiscard]] uint32_t n_sets() const { return static_cast<uint32_t>(layers_.size()); }
    [[nodiscard]] std::optional<Nanos> typical(uint32_t set) const {
        const Layer& l = layers_[set];
        return l.n == 0 ? std::nullopt : std::optional<Nanos>(static_cast<Nanos>(l.ewma));
    }
    // Nine of ten recent visits took at most this.
    [[nodiscard]] std::optional<Nanos> p90(uint32_t set) const {
        const Layer& l = layers_[set];
        if (l.n == 0) return std::nullopt;
        std::array<Nanos, kRecent> sorted = l.recent;
        const size_t n = std::min<size_t>(l.n, kRecent);
        const size_t at = (n * 9 + 9) / 10 - 1;
        std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(at),
                         sorted.begin() + static_cast<std::ptrdiff_t>(n));
        return sorted[at];
    }
    // When `to` will ask for its experts, seen from `from` having just done so at `now`. Sets are visited in rising
    // order and begin again after the last. Null while a layer between has never been measured.
    [[nodiscard]] std::optional<Nanos> expected(uint32_t from, uint32_t to, Nanos now) const {
        Nanos at = now;
        uint32_t s = from;
        do {
            const auto t = typical(s);
            if (!t) return std::nullopt;
            at += *t;
            s = s + 1 == layers_.size() ? 0 : s + 1;
        } while (s != to);
        return at;
    }

  private:
    static constexpr double kWeight = 0.125;
    static constexpr size_t kRecent = 32;
    struct Layer {
        double ewma = 0;
        uint64_t n = 0;
        std::array<Nanos, kRecent> recent{};
    };
    std::vector<Layer> layers_;
};

}  // namespace sluice::sched
