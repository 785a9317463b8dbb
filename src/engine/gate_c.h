// Owns: gate c, asked of one model: is what streaming computes what the resident model computes, whatever the cache,
// the order of arrival and the faults; and what does overlap gain? Keeps: the reference is stock llama.cpp in the same
// process, before Sluice is started, so it is asked once a process.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/workload.h"
#include "machine/gate.h"
#include "sluice/sluice.h"

namespace sluice::engine {

struct GateC {
    std::string model;
    WorkloadShape shape;
    Config config;       // what every streamed run has in common
    bool quick = false;  // fewer ways of streaming
    // How many runs with a drawn order of arrival, with failing reads, and with cancellations.
    int orders = 8, faults = 16, cancels = 16;
    uint64_t seed = 1;           // of all that is drawn
    std::function<bool()> stop;  // true: end with Code::cancelled
    std::function<void(double part, const std::string& doing)> progress;
};

Result<machine::GateVerdict> gate_c(const GateC& asked);

}  // namespace sluice::engine
