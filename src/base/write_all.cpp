#include "base/write_all.h"

#include <unistd.h>

#include <cerrno>

namespace sluice {

int write_all(int fd, std::string_view text) {
    while (!text.empty()) {
        const ssize_t n = ::write(fd, text.data(), text.size());
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return n < 0 ? errno : ENOSPC;
        text.remove_prefix(static_cast<size_t>(n));
    }
    return 0;
}

}  // namespace sluice
