// Owns: asking of llama.cpp, in a child process, what it would answer in this one by ending it.
// Keeps: this process is as it was, whatever happens to the child, and never waits for it longer than half a minute.
#pragma once

#include <functional>

namespace sluice::cli {

// Whether `what` ends in ggml's abort. What cannot be told (the child fails otherwise, or takes too long) is no.
bool aborts(const std::function<void()>& what);

}  // namespace sluice::cli
