// Owns: in which folders the limits on this process are, by its groups' names and by what is mounted.
// Keeps: a process obeys the limits of its own group and of every group above it, so all of them are listed.
#pragma once

#include <string>
#include <vector>

namespace sluice::machine {

struct Hierarchy {
    int version = 2;                   // 1 or 2: the names of the files differ
    std::vector<std::string> folders;  // from the own group up to the root; they need not exist
};

// Where limits of "memory" or "cpu" can be, below `root`. Both versions when both are mounted: only one of them has the
// controller, which one shows in the files. Empty when /proc/self/cgroup says nothing.
std::vector<Hierarchy> hierarchies(const std::string& root, const std::string& controller);

}  // namespace sluice::machine
