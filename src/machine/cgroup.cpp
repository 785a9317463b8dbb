#include "machine/cgroup.h"

#include <fmt/core.h>

#include <optional>
#include <sstream>

#include "machine/mounts.h"
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

bool lists(const std::string& words, const std::string& word) {
    return fmt::format(",{},", words).find(fmt::format(",{},", word)) != std::string::npos;
}

// The mount that shows the group and the most of what is above it. In a container that can be a part of the hierarchy
// only, with the group's name still counted from the real root, or from another place in a namespace of its own.
std::optional<Mount> mount_with(const std::vector<Mount>& mounts, const std::string& file_system,
                                const std::string& controller, const std::string& group) {
    std::optional<Mount> best;
    for (const Mount& m : mounts) {
        if (best && m.point == best->point) best.reset();  // it lies below this one
        if (m.file_system != file_system || (!controller.empty() && !lists(m.options, controller))) continue;
        if (!is_below(group, m.inner) || (best && best->inner.size() <= m.inner.size())) continue;
        best = m;
    }
    return best;
}

// From the group up to the root. Where no mount is known to show it, it is looked for in `usual`.
std::vector<std::string> folders_of(const std::string& root, const std::optional<Mount>& mount,
                                    const std::string& usual, const std::string& group) {
    if (!mount) return upward(root + usual, group);
    return upward(root + mount->point, mount->inner == "/" ? group : group.substr(mount->inner.size()));
}

}  // namespace

std::vector<Hierarchy> hierarchies(const std::string& root, const std::string& controller) {
    std::vector<Hierarchy> found;
    const std::vector<Mount> mounts = read_mounts(root);
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
            found.push_back({2, folders_of(root, mount_with(mounts, "cgroup2", "", group), "/sys/fs/cgroup", group)});
        } else if (lists(controllers, controller)) {
            found.push_back({1, folders_of(root, mount_with(mounts, "cgroup", controller, group),
                                           "/sys/fs/cgroup/" + controller, group)});
        }
    }
    return found;
}

}  // namespace sluice::machine
