// Owns: one generation over llama.h: prompt in, text out as it comes, honest numbers at the end.
// Keeps: a row of the run record is one step of the whole loop (sampling and printing included), so speeds are those
// that a user sees; prefill and decode never mix; an interrupted or failed run still has its rows up to there.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "machine/usage.h"
#include "sluice/sluice.h"

struct common_params;

namespace sluice::engine {

struct Generation {
    Status status;             // of the run; the numbers below hold either way
    bool interrupted = false;  // stop was set
    bool context_full = false;
    int prompt_tokens = 0;
    int prompt_tokens_done = 0;  // of those, decoded
    int tokens = 0;              // generated, the end-of-text token not counted
    machine::Usage memory;       // when the last token was out, the model still loaded
};

struct GenerateOptions {
    std::string prompt;
    bool chat = false;  // put the prompt into the model's chat template as the user's message
    std::function<void(const std::string&)> on_text;  // pieces of valid UTF-8
    std::function<void()> on_end;                     // no text follows; the model is freed next. May be empty
    std::function<bool(float)> on_load;               // progress 0..1; returning false stops the load
    const std::atomic<bool>* stop = nullptr;          // may be set from a signal handler
};

// `params` as llama.cpp's own option parser left them. Loads the model, runs, frees everything. What it cost is in the
// process's run record, which is ended. After an interruption the process computes no more (backend::stop_all).
Generation generate(common_params& params, const GenerateOptions& options);

// Tries whether llama.cpp knows the model's architecture and vocabulary, without loading weights. One clear sentence
// otherwise.
Status check_model(const std::string& path);

}  // namespace sluice::engine
