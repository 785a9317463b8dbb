#include "base/bytes.h"

#include <fmt/core.h>

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

namespace sluice {

std::string human_bytes(uint64_t bytes) {
    const double n = static_cast<double>(bytes);
    if (bytes < KiB) return fmt::format("{} B", bytes);
    if (bytes < MiB) return fmt::format("{:.1f} KiB", n / static_cast<double>(KiB));
    if (bytes < GiB) return fmt::format("{:.1f} MiB", n / static_cast<double>(MiB));
    return fmt::format("{:.2f} GiB", n / static_cast<double>(GiB));
}

std::optional<uint64_t> parse_bytes(std::string_view text, uint64_t default_unit) {
    // from_chars would take "inf", "nan" and hexadecimal floats, so the first character decides.
    if (text.empty() || (std::isdigit(static_cast<unsigned char>(text[0])) == 0 && text[0] != '.')) return std::nullopt;
    double number = 0;
    const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
    if (ec != std::errc() || !std::isfinite(number) || number < 0) return std::nullopt;

    std::string suffix(end, text.data() + text.size());
    for (char& c : suffix) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    uint64_t unit = default_unit;
    struct Unit {
        const char* letter;
        uint64_t bytes;
    };
    constexpr std::array<Unit, 3> units{{{"k", KiB}, {"m", MiB}, {"g", GiB}}};
    if (!suffix.empty()) {
        unit = 0;
        for (const Unit& u : units) {
            const std::string letter = u.letter;
            if (suffix == letter || suffix == letter + "b" || suffix == letter + "ib") unit = u.bytes;
        }
        if (unit == 0) return std::nullopt;
    }
    const double bytes = std::ceil(number * static_cast<double>(unit));
    if (bytes > 0x1p62) return std::nullopt;
    return static_cast<uint64_t>(bytes);
}

}  // namespace sluice
