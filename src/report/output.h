// Owns: putting a report where it is to be: a file, standard output, or a picture drawn by a browser.
// Keeps: a file is whole or as it was before; a failure leaves nothing behind; a browser is never waited for without
// bound.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace sluice::report {

// Into a temporary file beside it, then renamed. "-" is standard output; a device or pipe is written to as it is.
Status write_whole(const std::string& path, std::string_view text);

// The Chromium that is here: $CHROME if that is set (then nothing else), or the first of its usual names on PATH.
Result<std::string> find_browser();

// Draws the page as PNG, 1400 pixels wide and as high as it is. `patience`: for each of the browser's two runs.
Status draw_png(const std::string& browser, std::string_view html, const std::string& path,
                std::chrono::seconds patience = std::chrono::seconds(90));

}  // namespace sluice::report
