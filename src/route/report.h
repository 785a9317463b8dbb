// Owns: the lines in which scores are shown to people, and the same as JSON.
// Keeps: a rate of nothing is "-", never 0; a control that is not complete is said aloud.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "route/scores.h"

namespace sluice::route {

// `layers`: of each set. A line each, ends included; the table of layers comes last. Empty where nothing was scored.
std::vector<std::string> report_lines(const Scores& scores, std::span<const int> layers);

nlohmann::json report_json(const Scores& scores, std::span<const int> layers);

}  // namespace sluice::route
