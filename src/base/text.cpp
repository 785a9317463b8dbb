#include "base/text.h"

namespace sluice {

std::string wrap_text(const std::string& text, size_t indent, size_t width) {
    std::string out;
    std::string line;
    for (size_t at = 0; at < text.size();) {
        size_t space = text.find(' ', at);
        if (space == std::string::npos) space = text.size();
        if (!line.empty() && indent + line.size() + 1 + (space - at) > width) {
            out += std::string(indent, ' ') + line + "\n";
            line.clear();
        }
        line += (line.empty() ? "" : " ") + text.substr(at, space - at);
        at = space + 1;
    }
    return out + std::string(indent, ' ') + line + "\n";
}

}  // namespace sluice
