// Owns: the numbers of a run that every output is made from.
// Keeps: counts only grow between two resets; prefill and decode never mix.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace sluice::trace {

// Layers' choices that were taken from an early ranking, and those left to their routers: all, and of these those in
// the first layers and in the first token after a prompt. Of the former, experts, and those that the router chose, too.
struct RouteAheadCounts {
    uint64_t committed = 0, passed = 0, below = 0, first = 0;
    uint64_t slots = 0, agreed = 0;

    RouteAheadCounts& operator+=(const RouteAheadCounts& o) {
        committed += o.committed;
        passed += o.passed;
        below += o.below;
        first += o.first;
        slots += o.slots;
        agreed += o.agreed;
        return *this;
    }
};

// Of one phase. A graph over one token is decode, anything wider is prefill.
struct PhaseCounters {
    uint64_t tokens = 0;   // rows that the first expert layer saw
    uint64_t lookups = 0;  // distinct experts per layer visit
    uint64_t hits = 0;     // of those, wholly resident at that moment
    uint64_t reads = 0;
    uint64_t logical_bytes = 0;   // expert bytes that were missing
    uint64_t physical_bytes = 0;  // bytes asked of the drive for them, alignment included
    Nanos read_wait = 0;          // compute stood still for these reads
    Nanos convert = 0;            // repacking what was read
    uint64_t blocks_micro = 0;    // layers of a prompt, by how their experts were read
    uint64_t blocks_macro = 0;
    uint64_t waves = 0;  // extra rounds of a layer that did not fit
    // Ranks that lossy options could have changed, and what they made of them.
    uint64_t routed = 0, dropped = 0, substituted = 0;
    RouteAheadCounts route_ahead;
};

struct Counters {
    PhaseCounters prefill;
    PhaseCounters decode;
    uint64_t evictions = 0;  // of the cache when the counts were last reset
    uint64_t rereads = 0;
    uint64_t records = 0;  // experts of the model, all layers
};

}  // namespace sluice::trace
