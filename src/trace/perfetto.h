// Owns: the picture of one row as Chrome trace events, for Perfetto's and Chrome's viewers (`--token-trace`).
// Keeps: spans of one thread of the picture never overlap; times are microseconds since the row began.
#pragma once

#include <string>

#include "trace/events.h"

namespace sluice::trace {

// A thread "compute" with the parts of the time, and as many threads "reads, lane N" as reads were on their way at
// once.
std::string perfetto_json(const Capture& capture);

}  // namespace sluice::trace
