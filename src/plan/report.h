// Owns: what `sluice plan` says, as text and as JSON.
// Keeps: at most 80 columns, but for names that are longer; what is not known says so, or is null.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cache/process_need.h"
#include "plan/predict.h"

namespace sluice::plan {

// Of past runs of a model that had a prediction, how many it held.
struct Score {
    size_t held = 0;
    size_t of = 0;
};

struct Report {
    std::string path;
    std::string architecture;
    std::string read_from;  // if not from `path`
    size_t files = 1;
    uint32_t expert_layers = 0;
    uint32_t n_expert = 0;  // of a layer; the most
    uint32_t n_used = 0;
    Work work;

    cache::ProcessNeed need;
    uint64_t cache = 0;            // for experts
    std::optional<uint64_t> ram;   // that it may take all in all, if that was told
    std::optional<uint64_t> free;  // memory now
    [[nodiscard]] uint64_t together() const { return need.total() + cache; }
    std::string cache_why;
    uint32_t n_ctx = 0;
    uint64_t slots = 0, records = 0;
    uint64_t least_cache = 0, full_cache = 0;

    Setting setting;
    Estimate estimate;
    struct Other {
        uint64_t cache = 0;
        uint64_t slots = 0;
        Estimate estimate;
        bool fits = true;  // into what is free
    };
    std::vector<Other> others;  // this cache among them

    std::string drive_made;     // when the verdict was; empty: there is none
    std::string drive_missing;  // why
    std::vector<PastRun> runs;  // of this model here, the oldest first
    std::vector<std::string> notes;
    std::string command;
};

Score score_of(const std::vector<PastRun>& runs);

std::string text_of(const Report& report);
std::string json_of(const Report& report);

// For a shell, in quotes if need be.
std::string quoted_for_shell(const std::string& word);

}  // namespace sluice::plan
