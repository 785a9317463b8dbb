// Owns: what is mounted where, as /proc/self/mountinfo tells this process.
// Keeps: the kernel's order: of two mounts at one point the later one lies on top.
#pragma once

#include <string>
#include <vector>

namespace sluice::machine {

struct Mount {
    std::string device;  // "259:2"
    std::string inner;   // the folder of the file system that is mounted
    std::string point;   // where it is mounted
    std::string file_system;
    std::string source;   // "/dev/sda2", "host:/share"
    std::string options;  // of the file system: "rw,memory"
};

// Below `root` ("" for the real /proc; tests give a folder). What is not understood is left out.
std::vector<Mount> read_mounts(const std::string& root);

// Whether `path` is `folder` or something in it; both absolute.
bool is_below(const std::string& path, const std::string& folder);

}  // namespace sluice::machine
