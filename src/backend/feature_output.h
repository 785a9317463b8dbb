// Owns: "--route-features" as an output of the run record: what routers were given and chose, a row for each token that
// was computed alone (form: route/features.h).
// Keeps: the file grows no larger than it may, and that it is full is said once; rows are of one model, the first.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "model/geometry.h"
#include "model/gguf.h"
#include "route/features.h"
#include "trace/record_file.h"
#include "trace/recorder.h"

namespace sluice::backend {

// What rows of a model are made of. `digest` is its name in files.
route::FeatureShape feature_shape(const model::GgufIndex& index, const model::Geometry& geometry, std::string digest);

// The recorder calls it under its lock; begin() comes before the first row of the model.
class FeatureOutput {
  public:
    FeatureOutput(std::unique_ptr<trace::LineFile> file, uint64_t most) : file_(std::move(file)), most_(most) {}
    ~FeatureOutput();
    FeatureOutput(const FeatureOutput&) = delete;
    FeatureOutput& operator=(const FeatureOutput&) = delete;
    // The model that rows are of. Only the first call counts, of this or refuse(). What fails is what row() returns.
    void begin(const route::FeatureShape& shape);
    // There will be no rows, and why.
    void refuse(Status why);
    [[nodiscard]] bool begun() const { return row_.has_value(); }
    Status row(const trace::Row& row, const trace::Pass& pass);
    [[nodiscard]] uint64_t rows() const { return rows_; }

  private:
    std::unique_ptr<trace::LineFile> file_;
    uint64_t most_, bytes_ = 0, rows_ = 0;
    bool full_ = false;
    Status why_none_;
    route::FeatureShape shape_;
    std::optional<route::FeatureRow> row_;
};

// An output of the recorder that hands rows on.
std::unique_ptr<trace::EventSink> make_feature_sink(std::shared_ptr<FeatureOutput> output);

}  // namespace sluice::backend
