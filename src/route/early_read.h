// Owns: whether an expert is read before its layer has chosen it.
// Keeps: a function of its arguments alone; what cannot be there in time, or removes no wait, is not read.
#pragma once

namespace sluice::route {

// Times are of any unit, the same for all.
struct EarlyRead {
    double sure = 0;     // the chance that the layer chooses it, as such guesses have come true so far
    double removes = 0;  // of the layer's wait, if it does
    double read = 0;     // that reading it takes
    double slack = 0;    // between its end and the layer's turn
    double delay = 0;    // of what the layer waits for, if the read is in vain and still under way then
};

// The wait that it is expected to remove against the one that it is expected to cause: it is at the drive for that part
// of the time until the layer comes, or a little later, in which it is read.
inline bool worth_reading(const EarlyRead& r) {
    if (r.slack < 0 || r.read <= 0) return false;
    return r.sure * r.removes > (1 - r.sure) * r.delay * r.read / (r.read + r.slack);
}

}  // namespace sluice::route
