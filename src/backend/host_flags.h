// Owns: noticing settings of the host program that would make llama.cpp read every expert at load, or that concern
// Sluice too.
// Keeps: each is named together with what to use instead.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace sluice::backend {

// Looks at a command line as the stock tools understand it, and at the LLAMA_ARG_ variables. A program that sets
// llama_model_params itself is not seen here; loading without mmap is also refused when the buffer is asked for.
Status check_host_flags(std::span<const std::string> arguments);
// Whether a command line, or LLAMA_ARG_LOG_VERBOSITY, asks llama.cpp for everything that it can say.
bool asks_verbose(std::span<const std::string> arguments);
// This process's own command line.
std::vector<std::string> own_arguments();

}  // namespace sluice::backend
