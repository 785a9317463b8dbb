// Owns: laying out text for a terminal.
#pragma once

#include <string>

namespace sluice {

// The words of `text`, filled into lines of at most `width` columns (a longer word has a line of its own), each
// indented by `indent` blanks and ended by a newline.
std::string wrap_text(const std::string& text, size_t indent, size_t width);

}  // namespace sluice
