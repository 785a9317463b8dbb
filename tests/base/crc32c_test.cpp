#include "base/crc32c.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace sluice {
namespace {

uint32_t of(std::string_view text, uint32_t before = 0) {
    return crc32c(std::as_bytes(std::span(text.data(), text.size())), before);
}

// RFC 3720, B.4.
TEST(Crc32c, KnownVectors) {
    EXPECT_EQ(of(""), 0U);
    EXPECT_EQ(of("123456789"), 0xE3069283U);
    EXPECT_EQ(of(std::string(32, '\0')), 0x8A9136AAU);
    EXPECT_EQ(of(std::string(32, '\xFF')), 0x62A8AB43U);
    std::string up;
    for (char c = 0; c < 32; ++c) up += c;
    EXPECT_EQ(of(up), 0x46DD794EU);
    EXPECT_EQ(of(std::string(up.rbegin(), up.rend())), 0x113FDB5CU);
}

// Bit by bit, at every length and place that an implementation in blocks could get wrong.
TEST(Crc32c, AgreesWithTheDefinition) {
    std::string bytes(700, '\0');
    uint32_t x = 1;
    for (char& c : bytes) c = static_cast<char>((x = x * 1664525 + 1013904223) >> 24U);
    for (size_t at = 0; at < 9; ++at) {
        uint32_t state = ~0U;
        for (size_t n = 0; at + n < bytes.size(); ++n) {
            ASSERT_EQ(of(std::string_view(bytes).substr(at, n)), ~state) << "from " << at << ", " << n << " bytes";
            state ^= static_cast<unsigned char>(bytes[at + n]);
            for (int bit = 0; bit < 8; ++bit) state = (state >> 1U) ^ ((state & 1U) != 0 ? 0x82F63B78U : 0U);
        }
    }
}

TEST(Crc32c, APieceAtATimeGivesTheSame) {
    const std::string text = "the bytes of one expert, in two pieces";
    for (size_t cut = 0; cut <= text.size(); ++cut) {
        EXPECT_EQ(of(text.substr(cut), of(text.substr(0, cut))), of(text));
    }
}

}  // namespace
}  // namespace sluice
