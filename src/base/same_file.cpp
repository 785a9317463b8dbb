#include "base/same_file.h"

#include <sys/stat.h>

#include <filesystem>

namespace sluice {

bool same_file(const std::string& a, const std::string& b) {
    std::error_code none;
    return a == b || (!a.empty() && std::filesystem::equivalent(a, b, none));
}

bool is_open_as(const std::string& path, int fd) {
    struct stat named {
    }, open{};
    return !path.empty() && ::stat(path.c_str(), &named) == 0 && ::fstat(fd, &open) == 0 && S_ISREG(named.st_mode) &&
           named.st_dev == open.st_dev && named.st_ino == open.st_ino;
}

}  // namespace sluice
