// Owns: work that is not a node of the model, done by the threads that compute the model.
// Keeps: no thread of our own; when run() returns, every part was done, whatever the abort callback says meanwhile.
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <functional>
#include <memory>

namespace sluice::exec {

// Used by one thread at a time, never from within a graph. Nothing allocates after the first run.
class PoolTask {
  public:
    // One of `n_threads` calls that run at the same time.
    using Work = std::function<void(int thread, int n_threads)>;

    // On the threads of `cpu`; nullptr: on the caller's alone.
    void run(ggml_backend_t cpu, const Work& work);

  private:
    struct FreeContext {
        void operator()(ggml_context* c) const { ggml_free(c); }
    };
    std::unique_ptr<ggml_context, FreeContext> context_;
    ggml_cgraph* graph_ = nullptr;
    const Work* work_ = nullptr;
};

// Writes rows of a weight in the form of the CPU backend's own buffer that `weight` is of: `raw` has all its bytes as
// the file has them. Rows of the form "CPU_REPACK" are converted in groups, by all threads of `cpu`.
void convert_rows(PoolTask& task, ggml_backend_t cpu, const ggml_tensor& weight, const std::byte* raw);

}  // namespace sluice::exec
