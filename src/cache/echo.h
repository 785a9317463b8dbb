// Owns: the choices of the last tokens in every layer, and how much each of them resembles the present one.
// Keeps: what it says is a function of the calls alone; nothing allocates after construction; a visit costs a fixed
// number of tokens, whatever came before.
//
// Text repeats itself, and where it does, routers choose alike: what followed last time is likely to follow again. A
// past token counts the more, the more of its experts the present one has chosen, too, in the layers just before. Those
// that came after such tokens are then what the layer's next token is expected to choose.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace sluice::cache {

class Echo {
  public:
    static constexpr uint32_t kTokens = 128;  // that are remembered, the present one among them
    static constexpr uint32_t kUses = 16;     // of a token in a layer; of more than so many these are remembered

    // Experts of each set; `sharpness`: a token that resembles the present one wholly counts exp(sharpness) times as
    // much as one that has nothing in common with it; `prompt_share`: what a token of a prompt counts.
    Echo(std::span<const uint32_t> experts_of_set, double sharpness, double prompt_share);

    // As of cache::Order. A set that does not come after the one before begins the next tokens.
    void visit(uint32_t set, uint32_t tokens, bool prompt);
    void use(uint32_t set, uint32_t expert, uint32_t age);
    // The uses of the set's visit are told: compares its last token with those before. Once per visit.
    void listen(uint32_t set);
    // The chance of each of the set's experts to be chosen by its next token. False, and nothing written, if no past
    // token tells.
    bool expect(uint32_t set, std::span<double> chance) const;

  private:
    struct Column {  // one token in one set
        uint16_t n = 0;
        std::array<uint16_t, kUses> experts{};
    };
    [[nodiscard]] const Column& column(uint32_t set, uint64_t token) const {
        return columns_[size_t{set} * kTokens + token % kTokens];
    }
    [[nodiscard]] Column& column(uint32_t set, uint64_t token) {
        return columns_[size_t{set} * kTokens + token % kTokens];
    }
    // How many tokens back there is something to be compared.
    [[nodiscard]] uint32_t reach() const;

    double prompt_share_;
    std::array<double, 257> worth_{};          // of a resemblance, in parts of 256
    std::vector<Column> columns_;              // by set and token
    std::vector<uint64_t> told_;               // by set: the last token whose choices have their column
    std::vector<uint64_t> new_;                // by set: the first token of its present visit
    std::array<uint8_t, kTokens> prompt_{};    // by token
    std::array<double, kTokens> resembles_{};  // by distance, 0 to 1: the token so far back, over the last few visits
    std::vector<uint8_t> chosen_;              // by expert, all 0 between calls
    uint64_t token_ = 0;                       // the present one, counted from 1
    uint32_t set_ = 0;                         // visited last
};

}  // namespace sluice::cache
