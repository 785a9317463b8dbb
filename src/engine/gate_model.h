// Owns: what every gate that runs a model asks of its file first, and how such a gate's verdict begins.
// Keeps: the verdict names the model by size and digest, and every setting of the work that was run.
#pragma once

#include <string>

#include "base/status.h"
#include "engine/workload.h"
#include "machine/gate.h"
#include "model/geometry.h"

namespace sluice::engine {

struct GateModel {
    model::Geometry geometry;
    machine::GateVerdict verdict;  // gate, question, inputs and the shape's settings; nothing was asked yet
};

// Reads headers and samples of the model's files.
Result<GateModel> open_gate_model(const std::string& path, const WorkloadShape& shape, std::string gate,
                                  std::string question);

}  // namespace sluice::engine
