#include "machine/kept_json.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>

#include "machine/text.h"

namespace sluice::machine {

std::string dump(const Json& j, int indent) {
    return j.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string digest_of(const Json& j) {
    const std::string text = dump(j, -1);
    return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

Result<std::string> read_kept(const std::string& path) {
    struct stat st = {};
    if (stat(path.c_str(), &st) != 0) {
        return error(errno == ENOENT || errno == ENOTDIR ? Code::not_found : Code::io_error, "cannot open {}: {}", path,
                     std::strerror(errno));
    }
    const auto text = read_text(path);
    if (!text) return error(Code::io_error, "cannot read {}", path);
    return *text;
}

}  // namespace sluice::machine
