// Owns: how names that come from a file appear in messages.
// Keeps: nothing a file says can break a message's one line, drive a terminal or flood a log.
#pragma once

#include <string>
#include <string_view>

namespace sluice::model {

// In single quotes, at most about 100 characters; anything but plain printable ASCII becomes \xNN.
std::string quoted(std::string_view text);

}  // namespace sluice::model
