#include "model/text.h"

#include <fmt/core.h>

namespace sluice::model {

std::string quoted(std::string_view text) {
    constexpr size_t kShown = 100;
    std::string out = "'";
    for (const char c : text.substr(0, kShown)) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte >= 0x20 && byte < 0x7f) {
            out += c;
        } else {
            out += fmt::format("\\x{:02x}", static_cast<unsigned>(byte));
        }
    }
    if (text.size() > kShown) out += "...";
    return out + "'";
}

}  // namespace sluice::model
