// Owns: the small vocabulary of generated models.
// Keeps: it is a complete SentencePiece vocabulary: every text can be encoded (bytes 0..255 are tokens) and decodes to
// itself; ids do not change with the vocabulary's size, a bigger one only has more pieces.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

struct gguf_context;

namespace sluice::fixture {

struct Vocabulary {
    std::vector<std::string> pieces;
    std::vector<float> scores;
    std::vector<int32_t> types;  // llama.cpp's token types
};

inline constexpr uint32_t token_unknown = 0;
inline constexpr uint32_t token_begin = 1;
inline constexpr uint32_t token_end = 2;
inline constexpr uint32_t token_first_byte = 3;  // then 256 bytes, then pieces
inline constexpr uint32_t token_first_piece = token_first_byte + 256;

// The smallest vocabulary: specials, bytes and the single printable characters.
inline constexpr uint32_t min_vocab = 384;
inline constexpr uint32_t max_vocab = 65536;

Vocabulary make_vocabulary(uint32_t n_vocab);

// True for tokens a random model had better not say: the special ones, and bytes that alone are no printable text.
bool is_unspeakable(uint32_t token);

void add_tokenizer(gguf_context* gguf, const Vocabulary& vocabulary);

}  // namespace sluice::fixture
