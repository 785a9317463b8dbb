// Owns: everything about a model, its drive and this machine that a prediction is made from.
// Keeps: headers and samples of dense weights are read, no expert is.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "cache/layout.h"
#include "machine/verdict.h"
#include "model/geometry.h"
#include "model/gguf.h"
#include "plan/predict.h"
#include "sluice/sluice.h"
#include "store/record_store.h"
#include "trace/book.h"

namespace sluice::cli {

struct PlanSubject {
    std::string path;  // the first file
    size_t files = 1;
    uint64_t header_bytes = 0;
    model::GgufIndex index;
    std::string read_from;  // empty: from there
    model::Geometry geometry;
    plan::Work work;
    std::vector<cache::SetShape> shapes;
    std::unique_ptr<store::RecordStore> store;
    std::vector<std::vector<bool>> converted;  // by set and component: slots have the CPU backend's own form
    std::string digest;
    std::string machine;  // processor and cores
    std::string drive;    // as its verdict is called; empty: not known
    std::optional<machine::Verdict> verdict;
    std::string no_verdict;  // why there is none

    // `repack`: experts are computed from the CPU backend's own forms where it has one.
    static Result<PlanSubject> open(const std::string& path, const Config& config, bool repack);

    [[nodiscard]] Result<cache::Layout> layout(uint64_t cache_bytes) const;
    [[nodiscard]] plan::Estimate estimate(const cache::Layout& layout, const plan::Setting& setting,
                                          const plan::History& history, const plan::Speeds* speeds) const;
};

// As plan::Setting has it.
std::string policy_name(const Config& config);

// Adds a line about a run to the user's history, with what would have been predicted before it. Does nothing where the
// user said so, for runs of a few tokens, and for those with settings that are only for comparison.
void remember_run(const std::string& model, const Config& config, bool repack, const trace::Book& book);

}  // namespace sluice::cli
