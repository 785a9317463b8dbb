// Owns: `--csv`: the run as a table for spreadsheets and scripts.
// Keeps: lines that begin with # are no rows; a column that was not measured is empty, not 0; the names of plain.h come
// first, then all columns of the schema that are not among them.
#pragma once

#include <memory>

#include "trace/plain.h"
#include "trace/record_file.h"

namespace sluice::trace {

std::unique_ptr<Sink> make_csv_sink(std::unique_ptr<LineFile> file, Planned planned = {});

// The line with the names, with its newline.
std::string csv_header();

}  // namespace sluice::trace
