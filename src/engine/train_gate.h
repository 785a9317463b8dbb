// Owns: `sluice predict train`: from files of router inputs and the model's own routers to what its guesses are
// corrected by.
// Keeps: nothing is trained from a file of another model, or from a row that is not whole; the same files give the same
// result, whatever the number of threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "route/trained_gate.h"

namespace sluice::engine {

struct TrainGate {
    std::string model;
    std::vector<std::string> features;  // files of --route-features
    uint32_t rank = 32;
    uint64_t tokens = 8192;  // at most, the first ones
    unsigned threads = 0;    // 0: one for each core
    std::function<bool()> stop;
    std::function<void(double part, const std::string& doing)> progress;
};

struct GateTraining {
    route::TrainedGate gate;
    std::vector<int> layers;         // of each set
    std::vector<bool> trained;       // of each set: there was what to learn from
    uint64_t tokens = 0;             // those held out, too
    std::vector<std::string> notes;  // for people
};
Result<GateTraining> train_gate(const TrainGate& asked);

}  // namespace sluice::engine
