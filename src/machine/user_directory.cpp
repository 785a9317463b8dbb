#include "machine/user_directory.h"

#include <cstdlib>
#include <optional>

namespace sluice::machine {

Result<std::string> user_directory() {
    const auto set = [](const char* name) -> std::optional<std::string> {
        const char* text = std::getenv(name);
        return text != nullptr && *text != '\0' ? std::optional<std::string>(text) : std::nullopt;
    };
    if (const auto own = set("SLUICE_CACHE_DIR")) return *own;
    // The standard says that what is not absolute does not count.
    if (const auto xdg = set("XDG_CACHE_HOME"); xdg && xdg->starts_with('/')) return *xdg + "/sluice";
    if (const auto home = set("HOME")) return *home + "/.cache/sluice";
    return error(Code::not_found, "none of SLUICE_CACHE_DIR, XDG_CACHE_HOME and HOME says where verdicts are kept");
}

}  // namespace sluice::machine
