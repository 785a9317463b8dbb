// Owns: one line on standard error that says how far a long task is.
// Keeps: it is drawn on a terminal only, at most ten times a second, never wider than it, and is gone when the task is
// over.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"

namespace sluice::cli {

class ProgressBar {
  public:
    explicit ProgressBar(std::string what);
    ~ProgressBar() { clear(); }
    ProgressBar(const ProgressBar&) = delete;
    ProgressBar& operator=(const ProgressBar&) = delete;

    void show(uint64_t done, uint64_t total);
    // Of a task that is measured in time, not in bytes; `doing` is what it is at.
    void show(double part, const std::string& doing);
    void clear();

  private:
    // Whether a line is due now.
    bool due(bool over);
    [[nodiscard]] std::string bar(double part) const;
    static void draw(std::string line);  // all of it in ASCII
    std::string what_;
    bool on_terminal_;
    bool drawn_ = false;
    Nanos start_ = 0;
    Nanos last_ = 0;
};

}  // namespace sluice::cli
