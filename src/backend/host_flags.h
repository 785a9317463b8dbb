// Owns: noticing settings of the host program that would make llama.cpp read every expert at load.
// Keeps: each is named together with what to use instead.
#pragma once

#include <span>
#include <string>

#include "base/status.h"

namespace sluice::backend {

// Looks at a command line as the stock tools understand it, and at the LLAMA_ARG_ variables. A program that sets
// llama_model_params itself is not seen here; loading without mmap is also refused when the buffer is asked for.
Status check_host_flags(std::span<const std::string> arguments);
// The same for this process's own command line.
Status check_own_host_flags();

}  // namespace sluice::backend
