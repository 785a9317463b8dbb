// Owns: the words and tables in which `sluice probe` tells people what it measured.
// Keeps: every number is one of the verdict; what was not measured is a dash, what memory answered has a mark.
#pragma once

#include <cstddef>
#include <string>

#include "machine/verdict.h"

namespace sluice::cli {

// Tables are cut into several where they are wider than `width` columns.
std::string probe_text(const machine::Verdict& verdict, size_t width);

}  // namespace sluice::cli
