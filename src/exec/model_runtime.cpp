#include "exec/model_runtime.h"

#include <chrono>

namespace sluice::exec {

void exchange_ways(ModelRuntime& a, ModelRuntime& b) {
    std::swap(a.fetcher, b.fetcher);
    std::swap(a.counted, b.counted);
    std::swap(a.overlap, b.overlap);
    std::swap(a.wave, b.wave);
    std::swap(a.prefill_mode, b.prefill_mode);
    std::swap(a.prompts, b.prompts);
    std::swap(a.follow_routers, b.follow_routers);
    std::swap(a.dials, b.dials);
    std::swap(a.shadow, b.shadow);
    std::swap(a.prefetch, b.prefetch);
    std::swap(a.trained, b.trained);
    std::swap(a.route_ahead, b.route_ahead);
    std::swap(a.trial, b.trial);
    std::swap(a.asked, b.asked);
    std::swap(a.scores, b.scores);
}

std::unique_lock<std::timed_mutex> claim(std::timed_mutex& mutex, Stop stop) {
    // As often as while waiting for a read.
    constexpr std::chrono::milliseconds kBetween(10);
    std::unique_lock lock(mutex, std::defer_lock);
    if (!stop.possible()) {
        lock.lock();
        return lock;
    }
    // By the system's clock: thread sanitizers do not know the call for the steady one. A clock that is set back makes
    // one wait longer, no more.
    while (!lock.try_lock_until(std::chrono::system_clock::now() + kBetween)) {
        if (stop()) break;
    }
    return lock;
}

}  // namespace sluice::exec
