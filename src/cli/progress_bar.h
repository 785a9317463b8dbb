// Owns: one line on standard error that says how far a long task is.
// Keeps: it is drawn on a terminal only, at most ten times a second, never wider than it, and is gone when the task is
// over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/clock.h"

namespace sluice::cli {

// What is said of a task of which `done` of `total` bytes are over after `seconds`, in at most `columns` columns, all
// of it in ASCII. Where there is little room the bar becomes shorter; then the speed is left out, the bar and the
// bytes, in this order. How long it will still take is kept to the last.
std::string progress_line(const std::string& what, uint64_t done, uint64_t total, double seconds, size_t columns);
// The same of a task that is measured in parts of 1; `doing` is what it is at.
std::string progress_line(const std::string& what, double part, const std::string& doing, size_t columns);

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
    static void draw(const std::string& line);
    std::string what_;
    bool on_terminal_;
    bool drawn_ = false;
    Nanos start_ = 0;
    Nanos last_ = 0;
};

}  // namespace sluice::cli
