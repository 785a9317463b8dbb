// Owns: writing to a descriptor to the end.
#pragma once

#include <string_view>

namespace sluice {

// All of `text`, however many calls that takes. 0, or an errno; some of it may be written then.
int write_all(int fd, std::string_view text);

}  // namespace sluice
