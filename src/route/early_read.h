// Owns: whether an expert is read before its layer has chosen it.
// Keeps: a function of its arguments alone; what cannot begin in time, or removes no wait, is not read.
#pragma once

#include <algorithm>

namespace sluice::route {

// Times are of any unit, the same for all.
struct EarlyRead {
    double sure = 0;     // the chance that the layer chooses it, as such guesses have come true so far
    double removes = 0;  // of the layer's wait, if it does and the read has ended by then
    double read = 0;     // that reading it takes
    double slack = 0;    // between its end and the layer's turn; below 0: so much of it comes later than that
    double delay = 0;    // of what the layer waits for, if the read is in vain and still under way then
};

// The wait that it is expected to remove against the one that it is expected to cause. It removes the part that is read
// before the layer comes; the rest is joined. It is at the drive for that part of the time until the layer comes, or a
// little later, in which it is read.
inline bool worth_reading(const EarlyRead& r) {
    if (r.read <= 0) return false;
    const double before = std::clamp(1 + r.slack / r.read, 0.0, 1.0);
    const double under_way = r.read / (r.read + std::max(0.0, r.slack));
    return r.sure * r.removes * before > (1 - r.sure) * r.delay * under_way;
}

}  // namespace sluice::route
