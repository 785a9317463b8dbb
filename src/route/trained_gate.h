// Owns: what was learned of how one layer's hidden state becomes the next one's: a correction for each layer that the
// next layer's router is run on instead of the state itself, and the file of them.
// Keeps: a file that is cut off, changed, of another version or of another model is an error, never a guess; its sizes
// are checked before anything is sized by them. A correction says what is likely chosen, never what is computed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "route/features.h"

namespace sluice::route {

// Raised whenever a value changes its meaning.
inline constexpr uint32_t kTrainedVersion = 1;
inline constexpr uint32_t kMostRank = 512;
inline constexpr uint64_t kMostTrainedBytes = GiB;

// From what one router was given to what the next one of its kind will be: each number scaled and shifted on its own,
// and `rank` directions of the state that add to all.
struct Correction {
    uint32_t rank = 0;
    std::vector<float> scale, shift;  // [n]
    std::vector<float> down, up;      // [rank][n]
    bool operator==(const Correction&) const = default;

    [[nodiscard]] size_t n() const { return scale.size(); }
    // `to` may not be `from`. Both of n() numbers.
    void apply(std::span<const float> from, std::span<float> to) const;
    // To the numbers that a file can hold.
    void round();
    // Of memory.
    [[nodiscard]] uint64_t bytes() const {
        return (scale.size() + shift.size() + down.size() + up.size()) * sizeof(float);
    }
};

// Of experts that were chosen for tokens that training did not see, how many were named.
struct HeldOut {
    uint64_t slots = 0;
    uint64_t stale = 0;    // by the router on the state before
    uint64_t trained = 0;  // on the corrected one
    uint64_t control = 0;  // on its own: less than all is an inexact rule of the trainer's, not of the router
    bool operator==(const HeldOut&) const = default;
    void add(const HeldOut& o) {
        slots += o.slots;
        stale += o.stale;
        trained += o.trained;
        control += o.control;
    }
};

struct TrainedGate {
    struct Set {
        uint32_t n_expert = 0, n_input = 0;    // as the model has it
        uint32_t from = 0;                     // the set whose state is corrected
        std::optional<Correction> correction;  // none: the state as it is does as well
        HeldOut held_out;
        bool operator==(const Set&) const = default;
    };
    std::string model;    // digest
    uint64_t tokens = 0;  // that it was made from, without those held out
    std::vector<Set> sets;
    bool operator==(const TrainedGate&) const = default;

    [[nodiscard]] HeldOut held_out() const;
    [[nodiscard]] uint64_t bytes() const;  // of memory
    // What the router of `set` is to be run on, while `from` computes. nullptr: the state as it is.
    [[nodiscard]] const Correction* correction(uint32_t set, uint32_t from) const {
        if (set >= sets.size() || !sets[set].correction || sets[set].from != from) return nullptr;
        return &*sets[set].correction;
    }
};

// Fails where it would be too large. Corrections are rounded already.
Result<std::string> trained_bytes(const TrainedGate& gate);
// `invalid_argument`: no such file. `unsupported`: another version. `corrupt`: cut off or changed.
Result<TrainedGate> parse_trained(std::string_view bytes);
// `conflict` unless it was made for a model of this shape.
Status check_trained(const TrainedGate& gate, const FeatureShape& shape);

}  // namespace sluice::route
