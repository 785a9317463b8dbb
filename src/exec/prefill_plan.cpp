#include "exec/prefill_plan.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <utility>

namespace sluice::exec {
namespace {

// Macro has to promise at least this, since what it reads in vain also wears on slots and drive.
constexpr double kWorthIt = 0.98;
// Bytes read in vain, of those that are chosen: a prompt reads little more than it needs.
constexpr double kInVain = 0.02;
// A new value counts for so much.
constexpr float kWeight = 0.5F;

void blend(float& shown, double now) {
    shown = shown <= 0 ? static_cast<float>(now) : shown + kWeight * (static_cast<float>(now) - shown);
}

}  // namespace

const char* mode_name(Mode mode) {
    constexpr std::array<const char*, 4> kNames = {"decode", "verify", "micro", "macro"};
    return kNames[static_cast<size_t>(mode)];
}

Cost cost_of(Mode mode, const Forecast& f) {
    assert(mode == Mode::micro || mode == Mode::macro);
    const uint32_t ahead = mode == Mode::macro ? std::min(f.room, f.missing) : 0;
    const double chosen = static_cast<double>(f.missing - ahead) * f.chosen.value_or(1);
    const double bytes = (ahead + chosen) * static_cast<double>(f.bytes);
    const auto reading = [&](double of) { return f.bytes_per_ns > 0 ? of / f.bytes_per_ns : 0; };
    const auto block = static_cast<double>(f.block), between = static_cast<double>(f.between);
    const double after_router = between + std::max(block, reading(chosen * static_cast<double>(f.bytes)));
    return {static_cast<uint64_t>(bytes), static_cast<Nanos>(std::max(after_router, reading(bytes)))};
}

uint32_t experts_ahead(const Forecast& f, PrefillMode wanted) {
    const uint32_t room = std::min(f.room, f.missing);
    if (room == 0 || wanted == PrefillMode::micro) return 0;
    if (wanted == PrefillMode::macro) return room;
    if (!f.chosen || f.bytes_per_ns <= 0) return 0;
    Forecast ahead = f;
    const double in_vain = 1 - *f.chosen;  // of each that is read ahead
    if (in_vain > 0)
        ahead.room = static_cast<uint32_t>(std::min<double>(room, kInVain * *f.chosen * f.missing / in_vain));
    const auto macro = static_cast<double>(cost_of(Mode::macro, ahead).time);
    const auto micro = static_cast<double>(cost_of(Mode::micro, f).time);
    return macro < kWorthIt * micro ? std::min(room, ahead.room) : 0;
}

size_t PromptBook::class_of(int64_t rows) {
    return std::min<size_t>(std::bit_width(static_cast<uint64_t>(std::max<int64_t>(rows, 1))) - 1, kClasses - 1);
}

void PromptBook::chose(uint32_t set, int64_t rows, double part) {
    Shown& s = at(set, rows);
    s.part_before = std::exchange(s.part, static_cast<float>(part));
}

void PromptBook::computed(uint32_t set, int64_t rows, Nanos block) {
    blend(at(set, rows).block_per_row, static_cast<double>(block) / static_cast<double>(rows));
}

void PromptBook::reached(uint32_t set, int64_t rows, Nanos between) {
    blend(at(set, rows).between_per_row, static_cast<double>(between) / static_cast<double>(rows));
}

std::optional<double> PromptBook::expected(uint32_t set, int64_t rows) const {
    const double own = at(set, rows).part;
    const Shown* neighbour = set > 0 ? &at(set - 1, rows) : nullptr;
    if (own >= 0) {
        const bool both = neighbour != nullptr && neighbour->part >= 0 && neighbour->part_before > 0;
        return both ? std::min(1.0, own * neighbour->part / neighbour->part_before) : own;
    }
    if (neighbour == nullptr || set + 1 == n_sets_ || neighbour->part < 0) return std::nullopt;
    return neighbour->part;
}

// Where a set has not been measured, the one before will do.
Nanos PromptBook::block(uint32_t set, int64_t rows) const {
    float per_row = at(set, rows).block_per_row;
    if (per_row <= 0 && set > 0) per_row = at(set - 1, rows).block_per_row;
    return static_cast<Nanos>(static_cast<double>(per_row) * static_cast<double>(rows));
}

Nanos PromptBook::between(uint32_t set, int64_t rows) const {
    float per_row = at(set, rows).between_per_row;
    if (per_row <= 0 && set > 0) per_row = at(set - 1, rows).between_per_row;
    return static_cast<Nanos>(static_cast<double>(per_row) * static_cast<double>(rows));
}

}  // namespace sluice::exec
