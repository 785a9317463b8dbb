// Owns: threads that compute for nothing, so that reads can be measured on a busy machine.
// Keeps: they end with their owner, and take no signals.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "base/status.h"

namespace sluice::machine {

class ComputeLoad {
  public:
    ComputeLoad() = default;
    ComputeLoad(const ComputeLoad&) = delete;
    ComputeLoad& operator=(const ComputeLoad&) = delete;
    ~ComputeLoad() { stop(); }

    // Each multiplies and adds over a few megabytes of its own, which loads the memory bus as decoding does.
    Status start(unsigned threads);
    void stop();
    // Rounds over their memory so far, of all.
    [[nodiscard]] uint64_t rounds() const { return rounds_.load(std::memory_order_relaxed); }

  private:
    void run();
    std::atomic<bool> stop_{false};
    std::atomic<uint64_t> rounds_{0};
    std::vector<std::thread> threads_;
};

}  // namespace sluice::machine
