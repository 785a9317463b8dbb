// Owns: in which way the experts of a block are brought in, and the model of cost that chooses it for a prompt.
// Keeps: the choice is a pure function of what was measured; the length of a prompt decides nothing by itself; what was
// not measured speaks for reading only what a router chose; decode never reads ahead of a router.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"

namespace sluice::exec {

enum class Mode : uint8_t {
    decode,  // one token: each of its experts as it comes
    verify,  // a few rows that are no prompt (drafts, several sequences): all that any of them chose, once
    micro,   // a prompt: all that its rows chose, once, in the order of the file
    macro,   // a prompt: the whole layer in the order of the file, before its router has run, while the layer before
             // computes
};
const char* mode_name(Mode mode);

enum class PrefillMode : uint8_t { automatic, macro, micro };

// A batch of at most so many rows that nobody called a prompt is none.
inline constexpr int64_t kVerifyRows = 16;

// A block before its router has run.
struct Forecast {
    uint32_t missing = 0;          // experts that are not there
    uint32_t room = 0;             // of those, so many could be read now
    uint64_t bytes = 0;            // of one expert
    std::optional<double> chosen;  // the part of all experts that the rows are expected to choose
    double bytes_per_ns = 0;       // of reads of this size; 0: not known
    Nanos block = 0;               // arithmetic of a block over these rows
    Nanos between = 0;             // from a block's end to the next one's choice
};

struct Cost {
    uint64_t bytes = 0;  // to be read
    Nanos time = 0;      // from the end of one block to the end of the next
};
// `micro`: while what lies between computes nothing is read, then the chosen experts beside the block's arithmetic.
// `macro`: what there is room for is read whether it is chosen or not, then the others that are chosen. At most, that
// is: what is not at the drive when the router has chosen, and was not chosen, is not read.
Cost cost_of(Mode mode, const Forecast& f);
// How many of the missing experts are worth reading ahead of their router: with those it is macro. None (micro) when in
// doubt, since that reads less. Unless all are wanted so, the bytes that are expected to be read, at most, are 1.02
// times those of what is chosen.
uint32_t experts_ahead(const Forecast& f, PrefillMode wanted);
inline Mode choose_mode(const Forecast& f, PrefillMode wanted) {
    return experts_ahead(f, wanted) > 0 ? Mode::macro : Mode::micro;
}

// What earlier blocks of prompts have shown, by expert set and by how many rows there were, in powers of two. Not
// thread-safe; nothing allocates after construction.
class PromptBook {
  public:
    explicit PromptBook(uint32_t n_sets) : n_sets_(n_sets), shown_(n_sets) {}

    // `part` of a set's experts were chosen by `rows` rows of the pass.
    void chose(uint32_t set, int64_t rows, double part);
    void computed(uint32_t set, int64_t rows, Nanos block);
    // Reaching this set's choice took so long from the end of the block before.
    void reached(uint32_t set, int64_t rows, Nanos between);

    // The part of its experts that this set will choose, asked when the set before it has just chosen. As in its own
    // past, by as much more or less as the one before differs from its past; without a past as the one before, but then
    // of the last set nobody can tell: llama.cpp computes only rows there whose output is wanted.
    [[nodiscard]] std::optional<double> expected(uint32_t set, int64_t rows) const;
    // 0: not known.
    [[nodiscard]] Nanos block(uint32_t set, int64_t rows) const;
    [[nodiscard]] Nanos between(uint32_t set, int64_t rows) const;

  private:
    static constexpr size_t kClasses = 16;
    static size_t class_of(int64_t rows);
    struct Shown {
        float part = -1, part_before = -1;             // newest, and the one before; -1: never seen
        float block_per_row = 0, between_per_row = 0;  // ns; 0: never seen
    };
    [[nodiscard]] const Shown& at(uint32_t set, int64_t rows) const { return shown_[set][class_of(rows)]; }
    [[nodiscard]] Shown& at(uint32_t set, int64_t rows) { return shown_[set][class_of(rows)]; }

    uint32_t n_sets_;
    std::vector<std::array<Shown, kClasses>> shown_;
};

}  // namespace sluice::exec
