#include "cache/echo.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace sluice::cache {
namespace {

// Resemblance is taken over about three layers: of fewer one hears too little, of more what they say of this one.
constexpr double kKeep = 2.0 / 3;
// A token after the one that followed is worth so much of it, the next one so much of that: what is kept is kept for
// more than one token.
constexpr double kFollows = 0.5;

}  // namespace

Echo::Echo(std::span<const uint32_t> experts_of_set, double sharpness, double prompt_share)
    : prompt_share_(prompt_share),
      columns_(experts_of_set.size() * kTokens),
      told_(experts_of_set.size(), 0),
      new_(experts_of_set.size(), 1) {
    uint32_t most = 0;
    for (const uint32_t n : experts_of_set) most = std::max(most, n);
    assert(most <= UINT16_MAX + 1U);
    chosen_.assign(most, 0);
    for (size_t i = 0; i < worth_.size(); ++i)
        worth_[i] = std::exp(sharpness * (static_cast<double>(i) / static_cast<double>(worth_.size() - 1) - 1));
}

void Echo::visit(uint32_t set, uint32_t tokens, bool prompt) {
    assert(set < told_.size());
    if (token_ == 0 || set <= set_) {
        for (uint32_t i = 0; i < std::min(tokens, kTokens); ++i) prompt_[(token_ + tokens - i) % kTokens] = prompt;
        token_ += tokens;
    }
    set_ = set;
    // A layer may compute fewer tokens than the others (the last one of a prompt does): of the rest it says nothing.
    const uint64_t first = std::max(told_[set] + 1, token_ >= kTokens ? token_ - kTokens + 1 : 1);
    for (uint64_t t = first; t <= token_; ++t) column(set, t).n = 0;
    new_[set] = first;
    told_[set] = token_;
}

void Echo::use(uint32_t set, uint32_t expert, uint32_t age) {
    if (age >= token_ || token_ - age < new_[set]) return;
    Column& c = column(set, token_ - age);
    if (c.n < kUses) c.experts[c.n++] = static_cast<uint16_t>(expert);
}

uint32_t Echo::reach() const {
    return token_ == 0 ? 0 : static_cast<uint32_t>(std::min<uint64_t>(token_, kTokens)) - 1;
}

void Echo::listen(uint32_t set) {
    const Column& now = column(set, token_);
    if (token_ == 0 || now.n == 0) return;
    for (uint32_t i = 0; i < now.n; ++i) chosen_[now.experts[i]] = 1;
    for (uint32_t back = 1; back <= reach(); ++back) {
        const Column& then = column(set, token_ - back);
        uint32_t same = 0;
        for (uint32_t i = 0; i < then.n; ++i) same += chosen_[then.experts[i]];
        resembles_[back] = kKeep * resembles_[back] + (1 - kKeep) * std::min(1.0, static_cast<double>(same) / now.n);
    }
    for (uint32_t i = 0; i < now.n; ++i) chosen_[now.experts[i]] = 0;
}

bool Echo::expect(uint32_t set, std::span<double> chance) const {
    double all = 0;
    for (uint32_t back = reach(); back >= 1 && all == 0; --back) all += column(set, token_ + 1 - back).n;
    if (all == 0) return false;
    std::fill(chance.begin(), chance.end(), 0.0);
    all = 0;
    double worth = 0;
    for (uint32_t back = reach(); back >= 1; --back) {
        // What came after that token, and what came after tokens before it.
        const uint64_t after = token_ + 1 - back;
        worth = kFollows * worth + worth_[static_cast<size_t>(resembles_[back] * 256)];
        const Column& c = column(set, after);
        if (c.n == 0) continue;
        const double share = prompt_[after % kTokens] != 0 ? prompt_share_ * worth : worth;
        all += share;
        for (uint32_t i = 0; i < c.n; ++i) chance[c.experts[i]] += share;
    }
    if (!(all > 0)) return false;
    for (double& p : chance) p /= all;
    return true;
}

}  // namespace sluice::cache
