// Owns: what this process may use and what it uses besides experts: the one budget of all models' slots, and the
// buffers that llama.cpp has but did not touch yet.
// Keeps: a buffer that cannot fit is refused before it is touched, with the sum; experts make room for one that can.
#pragma once

#include <ggml-backend.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/status.h"
#include "cache/shared_budget.h"
#include "sluice/sluice.h"

namespace sluice::backend {

struct Joined {
    std::unique_ptr<cache::BudgetShare> share;
    std::string why;  // its limit is what it is
};
// A model's slots join the process's budget: at least `least` bytes, at most `most`; `told`: that is the user's number.
// The first to join makes the budget from his configuration. Error `no_memory`, with the sum, if the process cannot
// stay within --ram.
Result<Joined> join_budget(const Config& config, uint64_t least, uint64_t most, bool told);

// What the program is going to make of the next model that it loads, if it knows that before.
struct ContextPlan {
    uint64_t context = 0, compute = 0;  // bytes
    uint64_t batch = 0;                 // tokens of one graph at most
};
void plan_context(std::optional<ContextPlan> plan);
std::optional<ContextPlan> planned_context();

struct ModelNeed {
    uint64_t dense = 0;         // bytes of weights that every token needs
    uint64_t header_bytes = 0;  // of its files
    uint64_t own_buffers = 0;   // of ours, beside its slots
    uint64_t least = 0;         // that its experts get along with
    uint64_t full = 0;          // and take at most
};
// Before anything of a model is read: whether what is known of its needs can fit.
Status check_model_fits(const Config& config, const ModelNeed& model);

// A model whose experts are going to need at least `least` bytes. While there is one, llama.cpp's buffers are looked
// at.
class StreamedModel {
  public:
    StreamedModel(const Config& config, uint64_t least);
    ~StreamedModel();
    StreamedModel(const StreamedModel&) = delete;
    StreamedModel& operator=(const StreamedModel&) = delete;

  private:
    uint64_t least_;
};

// llama.cpp wants a buffer: false if it cannot fit. Experts step down for it.
bool admit_buffer(size_t bytes);
// It has got one, and is going to touch it; and has given it back.
void note_buffer(const void* begin, size_t bytes);
void forget_buffer(const void* begin);
// Bytes of such buffers, and of those what is not touched yet.
struct HostBuffers {
    uint64_t bytes = 0, untouched = 0;
};
HostBuffers host_buffers();

// Called when the budget's limit fell and its holders may be idle.
void set_limit_follower(void (*follow)());

void set_experts_limit(std::optional<uint64_t> bytes);
// Half of what experts hold, or could, from now on; where no model runs yet, of what the first one could.
void halve_experts();
// Looks at memory if it is time to. For a thread beside the computing ones.
void look_at_memory();

}  // namespace sluice::backend
