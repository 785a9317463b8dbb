// Owns: Ctrl-C for commands that do one long thing: the first ends it at the next good moment, a second one the
// program.
#pragma once

#include <string>
#include <vector>

namespace sluice::cli {

// From here on SIGINT, SIGTERM and SIGHUP ask to stop.
void catch_interrupts();
bool interrupted();

// The command as it can be typed again: "sluice pack 'my model.gguf'".
std::string command_line(const char* command, const std::vector<std::string>& arguments);

}  // namespace sluice::cli
