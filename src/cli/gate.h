// Owns: the table of gates behind `sluice gate`. A gate is one entry here and one function that measures.
// Keeps: measuring, judging and keeping are apart: the entry's function makes the verdict's inputs, settings, checks
// and figures; who made it, when, and where it is kept is the command's business.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "machine/gate.h"

namespace sluice::cli {

// What a gate's function may use while it measures.
struct GateHost {
    std::function<bool()> stopped;  // Ctrl-C: end with Code::cancelled
    std::function<void(double part, const std::string& doing)> progress;
};

struct Gate {
    const char* name;
    const char* arguments;  // for the usage line
    const char* summary;    // one line: the question
    const char* help;       // paragraphs
    // `arguments` without the command's own (--out, --json). invalid_argument: the command line is wrong.
    Result<machine::GateVerdict> (*measure)(std::vector<std::string> arguments, const GateHost& host);
};
std::span<const Gate> gates();

// Each in a file of its own.
Result<machine::GateVerdict> measure_gate_b(std::vector<std::string> arguments, const GateHost& host);
Result<machine::GateVerdict> measure_gate_c(std::vector<std::string> arguments, const GateHost& host);
Result<machine::GateVerdict> measure_gate_d(std::vector<std::string> arguments, const GateHost& host);

}  // namespace sluice::cli
