// Owns: how long recorded routes would have taken: the real cache and scheduler on a simulated drive and a virtual
// clock, and what no way of reading could be faster than.
// Keeps: the same routes and settings give the same times, to the nanosecond; only decode is timed.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/status.h"
#include "machine/verdict.h"
#include "model/geometry.h"
#include "replay/replay.h"
#include "replay/routes.h"

namespace sluice::replay {

// A read of n bytes takes `latency` and n / `bytes_per_ns` alone; of those at the drive together, at most `depth`, no
// more than `bytes_per_ns` get through.
struct Drive {
    double bytes_per_ns = 0;
    Nanos latency = 0;
    uint32_t depth = 8;
    // For predictions (sched::DeviceModel); 0: none are read.
    uint32_t chunk = 256 * KiB;
    uint64_t window = 1 * MiB;
};
// Of a drive that was probed.
Drive drive_of(const machine::Derived& found);

// Of one token: all that is not an expert's arithmetic, spread evenly over the layers, and that of its experts, spread
// over its choices.
struct Compute {
    Nanos dense = 0, experts = 0;
};

struct TimedRule {
    cache::Policy policy = cache::Policy::reuse;
    cache::Tuning tuning;
    cache::Seat prompt_seat = cache::Seat::guest;
    // With each layer's reads, the scheduler is told which experts the next so many layers will want: exactly, as no
    // predictor could. It reads them where exact reads leave room.
    uint32_t foretold_layers = 0;
    Nanos foretold_cost = 0;               // that telling takes whoever computes, in each layer
    uint64_t foretold_right = UINT64_MAX;  // tokens of decode; from then on others are told, as a bad predictor would
    bool foretold_auto = false;            // only in tokens in which a route::Trial acts
    // Each layer of a token is committed to its choice so many layers before it (docs/prefetch.md): 0: when it comes.
    uint32_t committed_layers = 0;
};

struct Timed {
    uint64_t tokens = 0, lookups = 0, hits = 0;
    uint64_t read_bytes = 0,
             predicted_bytes = 0;              // from the drive, alignment included; the second is part of the first
    uint64_t early_bytes = 0, early_used = 0;  // of decode: asked for since a choice was committed; then chosen
    // Of the whole replay, prompts too: reads given to the drive, and experts that came into the cache. An expert is as
    // many reads as it has matrices, but for predictions, which go in chunks; more is something read twice.
    uint64_t reads = 0, brought = 0;
    uint64_t told_tokens = 0;  // that acted on what they were told
    Nanos wall = 0;            // of all tokens
    Nanos stall = 0;           // of it, with nothing to do but wait for a read
    Nanos reading = 0;         // of it, with a read at the drive
    uint64_t slots = 0, arena_bytes = 0;

    [[nodiscard]] double per_token(double of_all) const {
        return tokens == 0 ? 0 : of_all / static_cast<double>(tokens);
    }
    [[nodiscard]] double tokens_per_second() const {
        return wall == 0 ? 0 : static_cast<double>(tokens) * 1e9 / static_cast<double>(wall);
    }
    // Of the time with reads at the drive, the part in which something was computed.
    [[nodiscard]] double hidden() const {
        return reading == 0 ? 0 : 1 - static_cast<double>(stall) / static_cast<double>(reading);
    }
};

// `geometry`: of the model; absent: each expert is three matrices of one size, behind each other in the file. Errors:
// the budget holds no record; the trace does not say how large experts are; no memory for the slots' addresses.
Result<Timed> replay_timed(const Routes& routes, const model::Geometry* geometry, uint64_t budget, const Drive& drive,
                           const Compute& compute, const TimedRule& rule);

// A budget with which every layer could have so many experts in memory, all sharing.
Result<uint64_t> budget_of_slots(const Routes& routes, const model::Geometry* geometry, uint32_t per_layer);

// What nothing can be faster than, with all of the future known and any number of reads ahead: the fewest bytes that
// such a cache reads (`optimum` with bypass) at the drive's full speed, or the arithmetic, whichever is longer.
Result<Timed> clairvoyant(const Routes& routes, const model::Geometry* geometry, uint64_t budget, const Drive& drive,
                          const Compute& compute);

}  // namespace sluice::replay
