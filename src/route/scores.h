// Owns: how good guesses of the routers' choices were: against what the routers chose, and against what that would have
// been worth to who reads experts from a drive.
// Keeps: what could not be guessed is counted under its reason and is part of no rate; every number is of guesses that
// were made before the choice was known. Nothing allocates after construction.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "route/calibration.h"

namespace sluice::route {

// All are scored on the same choices.
enum class Predictor : uint8_t {
    stale1,     // the layer's own router on the hidden state of the layer before
    stale2,     // of the second before
    stale4,     // of the fourth before
    trained,    // of the layer before, corrected by what was trained (route/trained_gate); only where there is that
    previous,   // what the layer chose for the token before
    popular,    // what it chose most often, where older choices count less
    attention,  // the layer's own router on the state that its attention is given
    control,    // no guess: the layer's own router on its own hidden state. Less than all is this probe being wrong
};
inline constexpr std::array kAllPredictors{Predictor::stale1,    Predictor::stale2,   Predictor::stale4,
                                           Predictor::trained,   Predictor::previous, Predictor::popular,
                                           Predictor::attention, Predictor::control};
inline constexpr size_t kPredictors = kAllPredictors.size();
const char* name(Predictor p);
// How many layers ahead of the choice it guesses; 0: it does not look at a hidden state of an earlier layer.
int depth(Predictor p);

// Why there is no guess.
enum class Unranked : uint8_t {
    first_layers,  // there is no layer so far before it
    first_token,   // nothing is known yet
    no_router,     // the choice does not come from a router that can be run again, or its hidden state was not there
};
inline constexpr size_t kUnranked = 3;

struct Guess {
    std::span<const int32_t> experts;   // the likeliest first
    std::span<const float> confidence;  // of each, 0 to 1; empty: none was given
    std::span<const uint8_t> absent;    // of each: it was not in the cache when the guess was made; empty: not known
    Nanos idle = 0;                     // of the drive, from the guess to the choice
};

struct Chosen {
    std::span<const int32_t> experts;
    std::span<const uint8_t> missing;  // of each: it is not in the cache now
    Nanos read = 0;                    // that reading one of the layer's experts takes; 0: not known
};

// How often what was said to be this likely came true.
struct Bin {
    uint64_t said = 0, came = 0;
    double confidence = 0;  // sum of what was said
};
inline constexpr size_t kBins = 10;

struct Score {
    uint64_t routings = 0, whole = 0;  // choices with a guess; those named completely
    uint64_t slots = 0, hits = 0;      // experts in these choices; those named
    // Of the chosen ones, those that had to be read; of these, those that were named; and those that reading the absent
    // ones of the guess, one after the other and only while the drive is idle, would have had there by then.
    uint64_t missing = 0, missing_named = 0, missing_in_time = 0;
    uint64_t absent = 0, absent_chosen = 0;  // reads that acting on the whole guess would have caused; those of use
    std::array<uint64_t, kUnranked> unranked{};

    // Of an empty sum: -1.
    [[nodiscard]] double overlap() const { return ratio(hits, slots); }
    [[nodiscard]] double whole_rate() const { return ratio(whole, routings); }
    [[nodiscard]] double recall() const { return ratio(missing_named, missing); }
    [[nodiscard]] double timely_recall() const { return ratio(missing_in_time, missing); }
    [[nodiscard]] double precision() const { return ratio(absent_chosen, absent); }
    // Somebody was to make this guess.
    [[nodiscard]] bool asked() const { return routings + not_ranked() > 0; }
    [[nodiscard]] uint64_t not_ranked() const { return unranked[0] + unranked[1] + unranked[2]; }
    void add(const Score& other);

  private:
    static double ratio(uint64_t part, uint64_t whole) {
        return whole == 0 ? -1 : static_cast<double>(part) / static_cast<double>(whole);
    }
};

class Scores {
  public:
    Scores() = default;
    explicit Scores(size_t sets) : sets_(sets) {}

    void score(Predictor p, size_t set, const Guess& guess, const Chosen& choice);
    void not_ranked(Predictor p, size_t set, Unranked why);
    // What a guess, or the control, took to make.
    void spent(Predictor p, Nanos time);
    // The stale gate named these, by its router in 8 bits; `exact`: the same in full, which took `time`.
    void compared(std::span<const int32_t> named, std::span<const int32_t> exact, Nanos time);

    // Of routers in 8 bits against the same in full; none where no router has such a copy.
    struct Exact {
        uint64_t guesses = 0, slots = 0, agreed = 0;
        Nanos time = 0;  // of all in full
    };
    [[nodiscard]] const Exact& exact() const { return exact_; }

    [[nodiscard]] size_t sets() const { return sets_.size(); }
    [[nodiscard]] const Score& of(Predictor p, size_t set) const { return sets_[set][index(p)]; }
    [[nodiscard]] Score total(Predictor p) const;
    [[nodiscard]] std::span<const Bin> calibration(Predictor p) const { return bins_[index(p)]; }
    // All guesses together.
    [[nodiscard]] Nanos time(Predictor p) const { return costs_[index(p)].time; }
    // Mean over all guesses; -1: none was timed.
    [[nodiscard]] double cost(Predictor p) const;
    // How sure the guess's expert of this rank is, from how often that rank was right so far. Half where nothing is
    // known.
    [[nodiscard]] float confidence(Predictor p, size_t rank) const { return ranks_[index(p)].sure(rank); }

  private:
    static size_t index(Predictor p) { return static_cast<size_t>(p); }

    struct Cost {
        Nanos time = 0;
        uint64_t guesses = 0;
    };
    std::vector<std::array<Score, kPredictors>> sets_;
    std::array<std::array<Bin, kBins>, kPredictors> bins_{};
    std::array<Calibration, kPredictors> ranks_{};
    std::array<Cost, kPredictors> costs_{};
    Exact exact_;
};

}  // namespace sluice::route
