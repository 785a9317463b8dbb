// Owns: where Sluice keeps what it has found out for its user.
#pragma once

#include <string>

#include "base/status.h"

namespace sluice::machine {

// $SLUICE_CACHE_DIR, else $XDG_CACHE_HOME/sluice, else ~/.cache/sluice. It need not exist.
Result<std::string> user_directory();

}  // namespace sluice::machine
