// Owns: what the program does about memory while nothing is computed: it looks whether others need it, and listens to
// SIGUSR1 and SIGUSR2.
// Keeps: only the program does this; a plug-in installs no signal handlers and has no thread.
#pragma once

namespace sluice::cli {

// From now on both signals wait for watch_memory(): unhandled, either would end the program. First thing in a command
// that will call it.
void catch_memory_signals();
// From now until the process ends: SIGUSR1 halves the memory that experts hold, for good; SIGUSR2 lets them grow again.
// What came before is done in its order.
void watch_memory();

}  // namespace sluice::cli
