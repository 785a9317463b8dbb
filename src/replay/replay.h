// Owns: what a cache would have done with recorded routes: the real one under any policy and budget, and the best that
// any could have done.
// Keeps: the same routes, pool and rule give the same counts; decode and prompts are counted apart.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cache/policy.h"
#include "cache/slot_cache.h"
#include "replay/routes.h"
#include "sched/profile.h"

namespace sluice::replay {

// How the slots are cut: as in the engine, from a budget of bytes; or a number of slots for all layers together, each
// of which takes any expert, which is what papers about caches of experts reckon with.
struct Pool {
    std::vector<uint32_t> class_of_set;
    std::vector<uint32_t> slots;  // by class
    uint64_t bytes = 0;           // of all slots
    [[nodiscard]] uint32_t n_slots() const;
};
Pool pool_of_slots(const Routes& routes, uint64_t slots);
// Errors: the budget holds no record; the trace does not say how large experts are.
Result<Pool> pool_of_bytes(const Routes& routes, uint64_t budget);

struct Rule {
    cache::Policy policy = cache::Policy::reuse;
    cache::Tuning tuning;
    cache::Seat prompt_seat = cache::Seat::guest;  // of what a prompt reads
    // `hinted`: what is known of the future, exactly: which experts the next layers will choose, and which the layer
    // itself will in the next tokens.
    uint32_t known_layers = 0, known_tokens = 0;
    // `stall`: a read of n bytes takes the latency and n / `read_bytes_per_ns`.
    double read_bytes_per_ns = 2;
    Nanos read_latency = 80'000;
    // What --profile would have told it at the start, from routes of the same model. Outlives the replay.
    const sched::Profile* profile = nullptr;
};
inline Rule rule_of(cache::Policy policy) {
    Rule rule;
    rule.policy = policy;
    return rule;
}

struct Counts {
    uint64_t tokens = 0, lookups = 0, hits = 0, bytes = 0;  // bytes: that had to be read
    uint64_t evictions = 0, rereads = 0;
    [[nodiscard]] double hit_rate() const {
        return lookups == 0 ? 0 : static_cast<double>(hits) / static_cast<double>(lookups);
    }
    [[nodiscard]] double bytes_per_token() const {
        return tokens == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(tokens);
    }
};
struct Outcome {
    Counts decode, prompt;
};

// What the profile of one run over these routes would be.
sched::Profile profile_of(const Routes& routes);
// Without what comes after so many tokens of decode.
Routes first_tokens(const Routes& routes, uint64_t tokens);
// Its decode from there on, as a turn of its own without a prompt.
Routes later_tokens(const Routes& routes, uint64_t tokens);

// Tells `stall` what a byte of each layer's experts costs to read, in parts of what one of the first layer's does.
// Without sizes in the trace it tells nothing.
void tell_costs(cache::Order& order, const Routes& routes, double bytes_per_ns, Nanos latency);
// Whether experts compete for slots only with others of their size, as far as sizes are known: then `stall` is `reuse`.
bool sizes_are_apart(const Routes& routes, const Pool& pool);

// One lookup per distinct expert, layer and batch.
Outcome replay(const Routes& routes, const Pool& pool, const Rule& rule);

// Belady's rule: who is used again last goes first. With bypass a record need not stay after its own visit, which is
// what a cache can do whose victim may be who has just come.
enum class Bypass : uint8_t { no, yes };
Outcome optimum(const Routes& routes, const Pool& pool, Bypass bypass);

// What a budget of this cache hits: by slots per layer, from 1 up to all experts, for one rule. For who plans.
struct CurvePoint {
    double share = 0;  // of all records that have a slot
    double hit_rate = 0;
};
std::vector<CurvePoint> hit_curve(const Routes& routes, const Rule& rule);

// Part of the way from the control to the optimum, 0 to 1; less than 0: worse than the control.
inline double gap_closed(const Counts& control, const Counts& rule, const Counts& best) {
    const double gap = best.hit_rate() - control.hit_rate();
    return gap <= 0 ? 0 : (rule.hit_rate() - control.hit_rate()) / gap;
}

}  // namespace sluice::replay
