#include "sched/drives.h"

#include <algorithm>

namespace sluice::sched {

Drives::Drives(const store::RecordStore& store) : store_(store), drives_(store.n_holders()) {
    for (size_t h = 0; h < drives_.size(); ++h) drives_[h].shares = store.holder(static_cast<HolderId>(h)).shares;
}

HolderId Drives::choose(RecordId record, uint32_t component, uint32_t bytes, uint8_t exhausted) const {
    if (drives_.size() == 1) return (exhausted & 1U) == 0 ? 0 : kNoHolder;
    // One whose speed nobody knows yet is taken for as fast as the fastest, so that it is tried.
    double fastest = 0;
    for (const Drive& d : drives_) fastest = std::max(fastest, d.speed());
    HolderId best = kNoHolder;
    uint32_t best_rank = 0;
    double best_time = 0;
    for (size_t i = 0; i < drives_.size(); ++i) {
        const auto h = static_cast<HolderId>(i);
        const Drive& d = drives_[i];
        if ((exhausted & (1U << i)) != 0 || store_.extent(record, component, h).file == nullptr) continue;
        const uint32_t rank = d.retired ? 2 : d.shares ? 0 : 1;
        const double speed = d.speed() > 0 ? d.speed() : fastest > 0 ? fastest : 1;
        const double time = (static_cast<double>(d.in_flight) + bytes) / speed;
        if (best != kNoHolder && (rank > best_rank || (rank == best_rank && time >= best_time))) continue;
        best = h;
        best_rank = rank;
        best_time = time;
    }
    return best;
}

void Drives::submitted(HolderId h, uint32_t bytes, Nanos now) {
    Drive& d = drives_[h];
    if (d.in_flight == 0) d.busy_since = now;
    d.in_flight += bytes;
}

void Drives::completed(HolderId h, uint32_t bytes, Nanos now) {
    Drive& d = drives_[h];
    d.in_flight -= std::min<uint64_t>(d.in_flight, bytes);
    d.bytes += bytes;
    d.busy += static_cast<double>(now - d.busy_since);
    d.busy_since = now;
    if (d.bytes > Drive::kMost) {
        d.bytes /= 2;
        d.busy /= 2;
    }
}

bool Drives::judged(HolderId h, bool good) {
    Drive& d = drives_[h];
    d.failures = good ? 0 : d.failures + 1;
    if (d.retired || d.failures < kRetireAfter) return false;
    const auto others = std::count_if(drives_.begin(), drives_.end(), [](const Drive& o) { return !o.retired; });
    if (others <= 1) return false;  // somebody has to
    d.retired = true;
    return true;
}

}  // namespace sluice::sched
