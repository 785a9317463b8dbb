// Owns: the question whether two names, or a name and an open descriptor, are one file's.
// Keeps: links are others' names; devices, pipes and what is not there are nobody's file, since they have no bytes to
// lose.
#pragma once

#include <string>

namespace sluice {

// By name, or by what the names stand for.
bool same_file(const std::string& a, const std::string& b);
// Whether `fd` (STDIN_FILENO, STDOUT_FILENO, ...) reads or writes the plain file `path`.
bool is_open_as(const std::string& path, int fd);

}  // namespace sluice
