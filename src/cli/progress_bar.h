// Owns: one line on standard error that says how far a long task is.
// Keeps: it is drawn on a terminal only, at most ten times a second, and is gone when the task is over.
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
    void clear();

  private:
    std::string what_;
    bool on_terminal_;
    bool drawn_ = false;
    Nanos start_ = 0;
    Nanos last_ = 0;
};

}  // namespace sluice::cli
