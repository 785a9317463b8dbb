// Owns: which pieces the vocabulary has, and their order.
#include "tokenizer.h"

#include <gguf.h>

#include <array>
#include <set>
#include <string_view>

namespace sluice::fixture {

namespace {

constexpr std::string_view space = "\xe2\x96\x81";  // SentencePiece's mark for a blank

// Enough English for prompts of ordinary words to become tokens longer than a letter.
constexpr std::array<std::string_view, 40> words = {
    "the",  "and",  "of",    "to",    "in",   "is",   "that", "it",   "for",   "was",    "on",    "are",  "with", "as",
    "his",  "they", "be",    "at",    "one",  "have", "this", "from", "or",    "had",    "by",    "word", "but",  "not",
    "what", "all",  "water", "river", "gate", "flow", "tell", "me",   "stone", "expert", "model", "time"};

// llama.cpp's token types.
constexpr int32_t type_normal = 1;
constexpr int32_t type_unknown = 2;
constexpr int32_t type_control = 3;
constexpr int32_t type_byte = 6;

class Builder {
  public:
    explicit Builder(uint32_t n_vocab) : n_vocab_(n_vocab) {}

    void add(std::string piece, int32_t type) {
        if (out_.pieces.size() == n_vocab_ || !seen_.insert(piece).second) return;
        // A tokenizer merges the best score first, so earlier pieces win.
        out_.scores.push_back(type == type_normal ? -static_cast<float>(out_.pieces.size()) : 0.0F);
        out_.pieces.push_back(std::move(piece));
        out_.types.push_back(type);
    }

    [[nodiscard]] bool full() const { return out_.pieces.size() == n_vocab_; }
    Vocabulary take() { return std::move(out_); }

  private:
    uint32_t n_vocab_;
    std::set<std::string> seen_;
    Vocabulary out_;
};

}  // namespace

Vocabulary make_vocabulary(uint32_t n_vocab) {
    Builder builder(n_vocab);
    builder.add("<unk>", type_unknown);
    builder.add("<s>", type_control);
    builder.add("</s>", type_control);
    constexpr std::string_view digits = "0123456789ABCDEF";
    for (unsigned byte = 0; byte < 256; ++byte) {
        builder.add(std::string("<0x") + digits[byte >> 4] + digits[byte & 15] + ">", type_byte);
    }
    builder.add(std::string(space), type_normal);
    for (char c = '!'; c <= '~'; ++c) builder.add(std::string(1, c), type_normal);
    // Every prefix of a word is a piece, or merging could never reach the word.
    for (const std::string_view word : words) {
        for (size_t length = 1; length <= word.size(); ++length) {
            builder.add(std::string(space) + std::string(word.substr(0, length)), type_normal);
        }
    }
    // Then all strings of two, three and four letters, as far as the size asks for them.
    constexpr std::string_view letters = "etaoinshrdlucmfwypvbgkjqxz";
    std::vector<std::string> shorter;
    for (const char c : letters) shorter.emplace_back(1, c);
    while (!builder.full()) {
        std::vector<std::string> longer;
        for (const std::string& head : shorter) {
            for (const char c : letters) longer.push_back(head + c);
        }
        for (const std::string& piece : longer) builder.add(piece, type_normal);
        shorter = std::move(longer);
    }
    return builder.take();
}

bool is_unspeakable(uint32_t token) {
    if (token < token_first_byte) return true;
    if (token >= token_first_piece) return false;
    const uint32_t byte = token - token_first_byte;
    return byte < 0x20 || byte >= 0x7f;
}

void add_tokenizer(gguf_context* gguf, const Vocabulary& vocabulary) {
    std::vector<const char*> pieces;
    pieces.reserve(vocabulary.pieces.size());
    for (const std::string& piece : vocabulary.pieces) pieces.push_back(piece.c_str());

    gguf_set_val_str(gguf, "tokenizer.ggml.model", "llama");
    gguf_set_arr_str(gguf, "tokenizer.ggml.tokens", pieces.data(), pieces.size());
    gguf_set_arr_data(gguf, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, vocabulary.scores.data(),
                      vocabulary.scores.size());
    gguf_set_arr_data(gguf, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, vocabulary.types.data(),
                      vocabulary.types.size());
    gguf_set_val_u32(gguf, "tokenizer.ggml.unknown_token_id", token_unknown);
    gguf_set_val_u32(gguf, "tokenizer.ggml.bos_token_id", token_begin);
    gguf_set_val_u32(gguf, "tokenizer.ggml.eos_token_id", token_end);
    gguf_set_val_bool(gguf, "tokenizer.ggml.add_bos_token", true);
    gguf_set_val_bool(gguf, "tokenizer.ggml.add_eos_token", false);
    gguf_set_val_bool(gguf, "tokenizer.ggml.add_space_prefix", true);
    gguf_set_val_str(gguf, "tokenizer.chat_template",
                     "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
                     "{% if add_generation_prompt %}assistant:{% endif %}");
}

}  // namespace sluice::fixture
