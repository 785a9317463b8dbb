// Owns: numbers of 16 bits (IEEE 754 binary16), as files hold them.
// Keeps: the nearest one is taken, of two equally near the even one; what is too large becomes the largest there is.
#pragma once

#include <bit>
#include <cstdint>

namespace sluice {

inline constexpr float kLargestHalf = 65504.0F;

inline uint16_t to_half(float number) {
    const auto bits = std::bit_cast<uint32_t>(number);
    const auto sign = static_cast<uint16_t>((bits >> 16U) & 0x8000U);
    const uint32_t size = bits & 0x7fffffffU;
    uint32_t half = 0;
    if (size > 0x7f800000U) {
        half = 0x7e00;  // not a number
    } else if (size > std::bit_cast<uint32_t>(kLargestHalf)) {
        half = 0x7bff;
    } else if (size >= 0x38800000U) {
        half = (size + 0xfffU + ((size >> 13U) & 1U) - 0x38000000U) >> 13U;
    } else {
        // Beside 0.5 the last place is 2^-24, which is what the smallest ones are counted in.
        half = std::bit_cast<uint32_t>(std::bit_cast<float>(size) + 0.5F) - 0x3f000000U;
    }
    return static_cast<uint16_t>(sign | half);
}

inline float from_half(uint16_t half) {
    const uint32_t sign = (half & 0x8000U) << 16U;
    const uint32_t size = half & 0x7fffU;
    uint32_t bits = 0;
    if (size >= 0x7c00U) {
        bits = 0x7f800000U | (size << 13U);
    } else if (size >= 0x400U) {
        bits = (size << 13U) + 0x38000000U;
    } else {
        bits = std::bit_cast<uint32_t>(static_cast<float>(size) * 0x1p-24F);
    }
    return std::bit_cast<float>(sign | bits);
}

}  // namespace sluice
