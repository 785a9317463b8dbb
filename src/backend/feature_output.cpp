#include "backend/feature_output.h"

#include <fmt/format.h>

#include <utility>

#include "base/bytes.h"
#include "base/log.h"

namespace sluice::backend {
namespace {

class FeatureSink final : public trace::EventSink {
  public:
    explicit FeatureSink(std::shared_ptr<FeatureOutput> output) : output_(std::move(output)) {}
    Status events(const trace::Row& row, const trace::Pass& pass) override { return output_->row(row, pass); }

  private:
    std::shared_ptr<FeatureOutput> output_;
};

}  // namespace

route::FeatureShape feature_shape(const model::GgufIndex& index, const model::Geometry& geometry, std::string digest) {
    route::FeatureShape shape{.model = std::move(digest), .sets = {}};
    for (const model::ExpertSet& set : geometry.sets) {
        const model::TensorEntry* gate = index.find(fmt::format("blk.{}.ffn_gate_inp.weight", set.layer));
        // A second kind of experts may follow the choice of the first.
        const bool own = gate != nullptr && gate->ne[1] == set.n_expert && gate->ne[0] <= UINT32_MAX;
        shape.sets.push_back({.layer = static_cast<uint32_t>(set.layer),
                              .n_expert = set.n_expert,
                              .n_used = set.n_used,
                              .n_input = own ? static_cast<uint32_t>(gate->ne[0]) : 0});
    }
    return shape;
}

FeatureOutput::~FeatureOutput() {
    if (!begun() || rows_ > 0 || !why_none_.ok()) return;
    log(LogLevel::warn,
        "{} has no tokens: none was computed alone (of prompts that takes -b 1 -ub 1; of generated ones the last is "
        "not computed)",
        file_->path());
}

void FeatureOutput::begin(const route::FeatureShape& shape) {
    if (begun() || !why_none_.ok()) return;
    const auto header = route::feature_header(shape);
    if (!header.ok()) return refuse(header.status());
    shape_ = shape;
    row_.emplace(shape_);
    bytes_ = header->size();
    why_none_ = file_->write(*header);
}

void FeatureOutput::refuse(Status why) {
    if (!begun() && why_none_.ok()) why_none_ = std::move(why).within("--route-features");
}

Status FeatureOutput::row(const trace::Row& row, const trace::Pass& pass) {
    if (!why_none_.ok()) return why_none_;
    if (!begun() || row.model != trace::Measure(0) || pass.tokens != 1 || pass.router_inputs.empty() || full_)
        return {};
    const size_t bytes = route::feature_row_bytes(shape_);
    if (bytes_ + bytes > most_) {
        full_ = true;
        log(LogLevel::warn,
            "{} has reached {} with {} tokens; later ones are left out (--route-features-max allows more)",
            file_->path(), human_bytes(bytes_), rows_);
        return {};
    }
    row_->begin();
    const std::span<const float> numbers = pass.router_numbers;
    const std::span<const int32_t> chosen = pass.router_chosen;
    size_t number = 0, choice = 0;
    for (const trace::Pass::RouterInput& in : pass.router_inputs) {
        row_->put(in.set, numbers.subspan(number, in.numbers), chosen.subspan(choice, in.chosen));
        number += in.numbers;
        choice += in.chosen;
    }
    bytes_ += bytes;
    ++rows_;
    return file_->write(row_->end());
}

std::unique_ptr<trace::EventSink> make_feature_sink(std::shared_ptr<FeatureOutput> output) {
    return std::make_unique<FeatureSink>(std::move(output));
}

}  // namespace sluice::backend
