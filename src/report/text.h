// Owns: the report in words and tables, for a terminal and, being Markdown, for a pull request.
// Keeps: the same values as the page; what was not measured is said so; whatever a record holds stays within its cell
// and cannot steer a terminal.
#pragma once

#include <optional>
#include <string>

#include "trace/book.h"

namespace sluice::report {

// `data`: of report_data().
std::string text_report(const trace::Json& data);

// A number of a figure with its unit: "12.3 ms", "45.6 %" (of fractions), "not measured".
std::string spell_figure(const trace::Json& value, const std::string& unit, bool fraction);

}  // namespace sluice::report
