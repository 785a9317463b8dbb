#include "machine/mounts.h"

#include <sstream>
#include <utility>

#include "machine/text.h"

namespace sluice::machine {
namespace {

// mountinfo writes blanks and backslashes as "\040".
std::string unescaped(const std::string& text) {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
        const auto octal = [&](size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '7'; };
        if (text[i] == '\\' && octal(i + 1) && octal(i + 2) && octal(i + 3)) {
            out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
            i += 3;
        } else {
            out += text[i];
        }
    }
    return out;
}

}  // namespace

std::vector<Mount> read_mounts(const std::string& root) {
    std::vector<Mount> mounts;
    std::istringstream lines(read_text(root + "/proc/self/mountinfo").value_or(""));
    std::string line;
    while (std::getline(lines, line)) {
        // "id parent major:minor root mount-point options... - type source options"
        std::istringstream words(line);
        std::string id, parent, inner, point, word, source;
        Mount m;
        if (!(words >> id >> parent >> m.device >> inner >> point)) continue;
        while (words >> word && word != "-") {
        }
        if (!(words >> m.file_system) || !is_name(m.file_system)) continue;
        words >> source >> m.options;
        m.inner = unescaped(inner);
        m.point = unescaped(point);
        m.source = unescaped(source);
        mounts.push_back(std::move(m));
    }
    return mounts;
}

bool is_below(const std::string& path, const std::string& folder) {
    return folder == "/" || path == folder || (path.starts_with(folder) && path[folder.size()] == '/');
}

}  // namespace sluice::machine
