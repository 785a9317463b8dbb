// Owns: one fixed piece of work over llama.h, a prompt and some greedy tokens, and digests of everything that came out
// of it: what two runs are compared by.
// Keeps: the same model, shape and arithmetic give the same digests, whatever is streamed how.
#pragma once

#include <llama.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/decoder.h"

namespace sluice::engine {

struct WorkloadShape {
    int prompt = 32;  // tokens, at least 1
    int decode = 8;   // tokens after the first
    int ubatch = 512;
    int threads = 1;
    bool repack = false;
};

// All that a later token could depend on: the memory of every sequence up to `n_seq` and where each ends.
Result<uint64_t> state_digest(llama_context* ctx, int n_seq = 1);

struct WorkloadResult {
    std::vector<uint64_t> logits;  // a digest per step; the first is the prompt's last token
    uint64_t state = 0;
    Nanos prefill = 0, decode = 0;  // wall time
    [[nodiscard]] bool same(const WorkloadResult& other) const {
        return logits == other.logits && state == other.state;
    }
};

// A model and one context. What llama.cpp says while loading is kept, for the sentence of an error.
class Workload {
  public:
    static Result<Workload> load(const std::string& path, const WorkloadShape& shape);

    // From an empty memory to the last token. `code` of an error: cancelled after an abort, else what went wrong.
    Result<WorkloadResult> run();

    // The same in steps: begin() clears the memory, go_on() does what is left, until it is done or a decode fails.
    // Then it can be called again.
    void begin();
    Decoded go_on();
    std::function<void()> before_decode;  // called before each
    // Of what go_on() has brought to its end.
    Result<WorkloadResult> result() const;
    [[nodiscard]] const UndoCosts& undo_costs() const { return decoder_->costs(); }
    [[nodiscard]] bool restores() const { return decoder_->restores(); }
    [[nodiscard]] llama_context* context() const { return context_.get(); }

  private:
    struct FreeModel {
        void operator()(llama_model* m) const { llama_model_free(m); }
    };
    struct FreeContext {
        void operator()(llama_context* c) const { llama_free(c); }
    };
    explicit Workload(const WorkloadShape& shape) : shape_(shape) {}
    WorkloadShape shape_;
    std::unique_ptr<llama_model, FreeModel> model_;
    std::unique_ptr<llama_context, FreeContext> context_;
    std::unique_ptr<Decoder> decoder_;
    std::vector<llama_token> tokens_;  // to be decoded next
    WorkloadResult so_far_;
};

}  // namespace sluice::engine
