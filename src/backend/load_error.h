// Owns: what went wrong while a model was being loaded. ggml cannot refuse a single tensor's memory, so the error waits
// here until the model's context is asked for, which can be refused.
// Keeps: the first error of a load is the one that is told. Thread-safe.
#pragma once

#include "base/status.h"

namespace sluice::backend {

// Logs the first error since the last take.
void report_load_error(Status status);
// The error, and none from then on; ok if there was none.
Status take_load_error();

}  // namespace sluice::backend
