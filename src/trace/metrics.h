// Owns: the metrics endpoint's text: the book as Prometheus reads it (text format 0.0.4).
// Keeps: counters only grow while the process lives; what was not measured has no line; buckets are always the same.
// docs/record.md has the names.
#pragma once

#include <mutex>
#include <string>
#include <string_view>

#include "trace/book.h"

namespace sluice::trace {

inline constexpr const char* kMetricsContentType = "text/plain; version=0.0.4; charset=utf-8";

// `newest`: the newest known value of each column whose total is `last`, of either phase.
std::string metrics_text(const Book& book, const Row& newest);
// For a run that is over: of decode where it has a value, else of prefill.
std::string metrics_text(const Book& book);

// The name of a column's metric: "wall_ns" is "sluice_wall_seconds_total".
std::string metric_name(const Column& column);

// Follows a run and answers from any thread.
class Metrics final : public Sink {
  public:
    Status begin(const Book& book) override;
    Status model(const Book& book, size_t number) override;
    Status cache(const Book& book, const Json& cache) override;
    Status load(const Book& book) override;
    Status row(const Book& book, const Row& row, std::string_view text) override;
    Status end(const Book& book) override;

    // Of the newest row. Made by the thread that asks, so that rows pay for no text nobody reads.
    [[nodiscard]] std::string text() const;

  private:
    Status take(const Book& book);

    mutable std::mutex mutex_;
    Book book_;
    Totals all_;  // of both phases, for the newest values
};

}  // namespace sluice::trace
