// Owns: gate b: whether recorded routes leave room for drafted tokens that are verified in blocks.
// Keeps: the answer follows from the traces' contents and the settings alone; the same ones give the same verdict.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "machine/gate.h"

namespace sluice::replay {

// Their figures must fit in a verdict.
inline constexpr size_t kMostGateTraces = 4;
inline constexpr uint64_t kMostTraceBytes = uint64_t{1} << 30U;

struct GateB {
    std::vector<std::string> traces;
    uint32_t slots = 0;     // per layer, of the cache that the blocks are tried with; 0: a quarter of the experts
    double accepted = 0.9;  // the greatest chance that one drafted token is right which is thought plausible, < 1
    std::function<bool()> stopped;
    std::function<void(double part, const std::string& doing)> progress;
};
Result<machine::GateVerdict> gate_b(const GateB& asked);

}  // namespace sluice::replay
