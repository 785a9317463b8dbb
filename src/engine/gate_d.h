// Owns: gate d, asked of one model and the drive it lies on: could acting on guesses of the routers' choices pay at
// all? Keeps: nothing is acted on; what is measured is a run that only guesses, so a yes allows trying and a no ends
// the matter.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/workload.h"
#include "machine/gate.h"
#include "machine/verdict.h"
#include "sluice/sluice.h"

namespace sluice::engine {

struct GateD {
    std::string model;
    WorkloadShape shape{.prompt = 32, .decode = 64};
    Config config;
    std::vector<int> shares{25, 50, 75};  // of all experts that the cache holds, in percent
    std::function<bool()> stop;           // true: end with Code::cancelled
    std::function<void(double part, const std::string& doing)> progress;
};

Result<machine::GateVerdict> gate_d(const GateD& asked);
// Whether the drive under `path`, by its verdict, lets anything be read early at all.
machine::GateCheck early_reads_check(const std::string& path, const Result<machine::Verdict>& drive);

}  // namespace sluice::engine
