// Owns: arithmetic on sizes and offsets that come from files or users, and their spelling for people.
// Keeps: nothing here overflows silently.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace sluice {

inline constexpr uint64_t KiB = 1024;
inline constexpr uint64_t MiB = 1024 * KiB;
inline constexpr uint64_t GiB = 1024 * MiB;

// nullopt when the sum or product does not fit.
inline std::optional<uint64_t> checked_add(uint64_t a, uint64_t b) {
    uint64_t r = 0;
    if (__builtin_add_overflow(a, b, &r)) return std::nullopt;
    return r;
}

inline std::optional<uint64_t> checked_mul(uint64_t a, uint64_t b) {
    uint64_t r = 0;
    if (__builtin_mul_overflow(a, b, &r)) return std::nullopt;
    return r;
}

// The same for amounts of which too large or too small is large or small enough: no more than 2^64 - 1, no less than 0.
inline uint64_t add_capped(uint64_t a, uint64_t b) {
    return checked_add(a, b).value_or(UINT64_MAX);
}
inline constexpr uint64_t sub_floored(uint64_t a, uint64_t b) {
    return a > b ? a - b : 0;
}

inline constexpr bool is_power_of_two(uint64_t n) {
    return n != 0 && (n & (n - 1)) == 0;
}

// `alignment` is a power of two.
inline constexpr uint64_t align_down(uint64_t n, uint64_t alignment) {
    assert(is_power_of_two(alignment));
    return n & ~(alignment - 1);
}

// `alignment` is a power of two and n is at least `alignment` below the top of the range.
inline constexpr uint64_t align_up(uint64_t n, uint64_t alignment) {
    assert(n <= UINT64_MAX - alignment);
    return align_down(n + alignment - 1, alignment);
}

inline double to_mib(uint64_t bytes) {
    return static_cast<double>(bytes) / static_cast<double>(MiB);
}

// "512 B", "12.3 KiB", "4.0 MiB", "17.28 GiB".
std::string human_bytes(uint64_t bytes);

// A size as a user types it: a number, whole or with a decimal fraction, then an optional suffix K, M or G (binary
// units; "KiB", "MB" and so on are accepted too). Without a suffix it counts `default_unit` bytes.
// nullopt for anything else: negative, empty, trailing text, not finite or above 2^62.
std::optional<uint64_t> parse_bytes(std::string_view text, uint64_t default_unit);

}  // namespace sluice
