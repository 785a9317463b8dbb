#include "machine/cgroup.h"

#include <fmt/core.h>

#include <sstream>

#include "machine/text.h"

namespace sluice::machine {
namespace {

std::vector<std::string> upward(const std::string& mount, std::string group) {
    std::vector<std::string> folders;
    while (!group.empty() && group != "/") {
        folders.push_back(mount + group);
        group.resize(group.rfind('/'));
    }
    folders.push_back(mount);
    return folders;
}

}  // namespace

std::vector<Hierarchy> hierarchies(const std::string& root, const std::string& controller) {
    std::vector<Hierarchy> found;
    std::istringstream lines(read_text(root + "/proc/self/cgroup").value_or(""));
    std::string line;
    while (std::getline(lines, line)) {  // "number:controllers:/path"
        const size_t a = line.find(':');
        const size_t b = a == std::string::npos ? a : line.find(':', a + 1);
        if (b == std::string::npos) continue;
        const std::string controllers = line.substr(a + 1, b - a - 1);
        const std::string group = line.substr(b + 1);
        if (!group.starts_with('/')) continue;
        if (controllers.empty()) {
            found.push_back({2, upward(root + "/sys/fs/cgroup", group)});
        } else if (fmt::format(",{},", controllers).find(fmt::format(",{},", controller)) != std::string::npos) {
            found.push_back({1, upward(fmt::format("{}/sys/fs/cgroup/{}", root, controller), group)});
        }
    }
    return found;
}

}  // namespace sluice::machine
