// Owns: the report as one HTML file.
// Keeps: the file needs nothing outside itself and asks for nothing; whatever a record holds, it is shown as text and
// never becomes markup or program.
#pragma once

#include <string>

#include "trace/book.h"

namespace sluice::report {

// `data`: of report_data().
std::string html_page(const trace::Json& data);

// For the text of an element, and for an attribute in double quotes.
std::string escape_html(std::string_view text);
// A JSON text that may stand between <script> and </script>.
std::string json_for_script(const trace::Json& data);

}  // namespace sluice::report
