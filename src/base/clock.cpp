#include "base/clock.h"

#include <chrono>
#include <ctime>

namespace sluice {

Nanos SystemClock::now() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

const SystemClock& SystemClock::instance() {
    static const SystemClock clock;
    return clock;
}

std::string utc_text(uint64_t seconds_ago) {
    const std::time_t then = std::time(nullptr) - static_cast<std::time_t>(seconds_ago);
    std::tm parts = {};
    gmtime_r(&then, &parts);
    char text[32];
    return std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts) > 0 ? text : "";
}

}  // namespace sluice
