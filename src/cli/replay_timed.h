// Owns: the timed half of `sluice replay`: what its options mean, and its tables.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "replay/timed.h"

namespace sluice::cli {

struct TimedAsked {
    bool wanted = false;
    std::optional<replay::Drive> drive;  // absent: as probed
    replay::Compute compute;
    std::vector<uint32_t> foretold;  // layers
};
// "auto", or "RATE[,LATENCY[,DEPTH]]" such as 2G,80us,8.
Status parse_drive(TimedAsked& asked, const std::string& text);
// "DENSE[,EXPERTS]" in milliseconds of a token.
Status parse_compute(TimedAsked& asked, const std::string& text);
// The drive asked for, or the one that was probed under `path`.
Result<replay::Drive> drive_for(const TimedAsked& asked, const std::string& path);

struct TimedPlace {
    std::string name;  // of the budget
    uint64_t bytes = 0;
};
std::string timed_csv_head();
// The tables of one trace, or its rows for a spreadsheet.
Result<std::string> timed_text(const replay::Routes& routes, const std::string& trace, const model::Geometry* geometry,
                               const std::vector<TimedPlace>& places, const std::vector<replay::TimedRule>& rules,
                               const replay::Drive& drive, const TimedAsked& asked, bool csv);

}  // namespace sluice::cli
