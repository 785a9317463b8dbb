// Owns: how sure a guess's expert is, by its rank in the guess: as often as that rank was right so far.
// Keeps: where nothing is known, half for who only says so, and nothing for who acts on it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace sluice::route {

class Calibration {
  public:
    void note(size_t rank, bool right) {
        Rank& r = at(rank);
        ++r.guesses;
        r.right += right ? 1 : 0;
    }
    [[nodiscard]] float sure(size_t rank) const {
        const Rank& r = ranks_[std::min(rank, kRanks - 1)];
        return static_cast<float>(r.right + 1) / static_cast<float>(r.guesses + 2);
    }
    // The same as if it had been wrong kDoubt times before.
    [[nodiscard]] float proven(size_t rank) const {
        const Rank& r = ranks_[std::min(rank, kRanks - 1)];
        return static_cast<float>(r.right) / static_cast<float>(r.guesses + kDoubt);
    }
    static constexpr uint64_t kDoubt = 8;

  private:
    static constexpr size_t kRanks = 64;  // those beyond share the last one
    struct Rank {
        uint64_t guesses = 0, right = 0;
    };
    Rank& at(size_t rank) { return ranks_[std::min(rank, kRanks - 1)]; }
    std::array<Rank, kRanks> ranks_{};
};

}  // namespace sluice::route
