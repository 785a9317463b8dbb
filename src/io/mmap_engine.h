// Owns: the read engine that copies out of a mapping of the file, as programs do that map a model; for comparison.
// Keeps: a file that shrinks or fails under the mapping is an error of its read, never a signal.
#pragma once

#include <memory>

#include "base/status.h"
#include "io/engine.h"

namespace sluice::io {

// `lanes` threads, 1..64. A file is mapped from its first read to the engine's end. An error where the kernel does not
// let a process copy its own memory by process_vm_readv.
Result<std::unique_ptr<Engine>> make_mmap_engine(unsigned lanes);

}  // namespace sluice::io
