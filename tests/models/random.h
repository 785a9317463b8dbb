// Owns: the random numbers of generated models.
// Keeps: integer arithmetic up to the last multiplication, and no libm, so that a seed gives the same bits on every
// machine and compiler.
#pragma once

#include <cstdint>
#include <string_view>

namespace sluice::fixture {

// splitmix64: one multiplication-rich step per word, good enough to spread weights and cheap enough for gigabytes.
class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed) {}

    uint64_t next() {
        state_ += 0x9e3779b97f4a7c15ULL;
        return mix(state_);
    }

    // Nearly normal, mean 0 and variance 1: the sum of the four 16-bit quarters of one word. Bounded by 3.47, which
    // also keeps one odd weight from dominating a tiny model.
    float normal() {
        const uint64_t word = next();
        const int64_t sum =
            static_cast<int64_t>((word & 0xffff) + ((word >> 16) & 0xffff) + ((word >> 32) & 0xffff) + (word >> 48));
        constexpr float one_over_deviation = 1.0F / 37837.227F;  // sqrt(4 * (65536^2 - 1) / 12)
        return static_cast<float>(sum - 2 * 65535) * one_over_deviation;
    }

    // In [0, 1).
    float uniform() { return static_cast<float>(next() >> 40) * (1.0F / 16777216.0F); }

    static uint64_t mix(uint64_t z) {
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
        return z ^ (z >> 31);
    }

    // A seed of its own for everything that has a name, so that adding a tensor leaves all others as they were.
    static uint64_t seed_for(uint64_t seed, std::string_view name) {
        uint64_t hash = 0xcbf29ce484222325ULL;
        for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3ULL;
        return mix(hash ^ mix(seed + 0x632be59bd9b4e019ULL));
    }

  private:
    uint64_t state_;
};

}  // namespace sluice::fixture
