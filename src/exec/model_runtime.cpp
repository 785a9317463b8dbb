#include "exec/model_runtime.h"

#include <chrono>

namespace sluice::exec {

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
