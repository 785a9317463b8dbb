// Owns: `--progress`: the run as lines for a front end that reads standard output.
// Keeps: each line is a word, a blank and one JSON object, valid UTF-8 whatever the text was; what was not measured is
// null. docs/record.md has the protocol.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "trace/plain.h"

namespace sluice::trace {

// Takes one line, with its newline, and flushes it.
using LineWriter = std::function<Status(std::string_view line)>;

std::unique_ptr<Sink> make_progress_sink(LineWriter write, Planned planned = {});

}  // namespace sluice::trace
