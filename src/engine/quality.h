// Owns: what a set of lossy options costs in quality: perplexity, divergence and agreement against the same model
// without them, token by token as in decode, and a battery of tasks with known answers.
// Keeps: every run sees the same tokens in the same order, begins with an empty cache, and loads the model anew; only
// tokens that went through the model one by one are scored, since lossy options of decode act on no others.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/stop.h"

struct common_params;

namespace sluice::engine {

// A text to be gone on with, and words of which one has to come soon.
struct Task {
    std::string prompt;
    std::vector<std::string> answers;
};
// Sequences, arithmetic, facts and copying, which models of any size and kind can be asked without a chat template.
std::vector<Task> built_in_battery();
// One task a line: the prompt, a tab, and answers with "|" between them; "\n" stands for a new line. Lines that begin
// with # are none.
Result<std::vector<Task>> parse_battery(std::string_view text, const std::string& name);

struct QualityPlan {
    std::string text;  // held out
    int prompt = 32;   // its first tokens, which go in as a prompt and are not scored
    int scored = 224;  // those after them
    std::vector<Task> battery;
    int answer_tokens = 12;
    Stop stop;
    std::function<void(double part, const std::string& doing)> progress;
};

struct Quality {
    int scored = 0;
    double perplexity = 0;
    double divergence = 0, divergence_max = 0;  // from the first run, per token, in nats
    double same_top = 0;                        // share of the tokens for which the most likely next one is the same
    int tasks = 0, right = 0, same_answer = 0;
    uint64_t tokens = 0;  // of decode that the following are about: the scored text's
    uint64_t bytes = 0;   // asked of the drive
    uint64_t routed = 0, dropped = 0, substituted = 0;
    uint64_t slots = 0, experts = 0;  // that the cache holds, and that there are
    Nanos time = 0;
};

// Runs of one model, the first of which the others are compared with.
class QualityRuns {
  public:
    // `plan` outlives this.
    explicit QualityRuns(const QualityPlan& plan) : plan_(plan) {}
    // `params` as llama.cpp's own option parser left them, for the configuration that sluice::start() was given last.
    Result<Quality> run(common_params& params);

  private:
    struct CloseFile {
        void operator()(std::FILE* f) const { std::fclose(f); }
    };
    Status text(void* context, Quality& out);
    Status battery(void* context, Quality& out);
    Status step(const std::string& doing);

    const QualityPlan& plan_;
    // Of the first run: the distributions after each scored token, in a file that nobody else sees, and the answers.
    std::unique_ptr<std::FILE, CloseFile> distributions_;
    std::vector<std::string> answers_;
    bool compares_ = false;
    double done_ = 0;
};

}  // namespace sluice::engine
