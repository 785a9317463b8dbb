// Owns: what recorded routes say about reading experts, whatever the cache: how much of a token's choice the tokens
// before had, how many experts a block of tokens needs together, how skewed layers are, and from how many accepted
// tokens on it pays to verify a block.
// Keeps: only decode counts, within one turn; the numbers are of the choices alone, except where a pool is named.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "replay/replay.h"
#include "replay/routes.h"

namespace sluice::replay {

struct Spread {
    double least = 0, median = 0, most = 0, mean = 0;
};
Spread spread_of(std::vector<double> values);

struct Lag {
    uint32_t tokens = 0;
    double overlap = 0;  // part of a token's experts that the one so many before had in the same layer, mean
    Spread layers;       // the same by layer
};

struct Block {
    uint32_t tokens = 0;
    double experts = 0;  // distinct per layer, mean over blocks and layers
    double share = 0;    // of what its tokens would read one by one
    // So many tokens have to come out of a block for it to read no more than decoding them one by one would, in bytes
    // if the trace tells all sizes (R94), else in experts: without a cache, and with the pool.
    double break_even = 0;
    double break_even_cached = 0;
};

struct LayerSkew {
    int32_t layer = 0;
    uint32_t distinct = 0;
    double hottest = 0;    // part of all choices that the eight most chosen have
    double effective = 0;  // experts: the exponential of the entropy
};

struct Study {
    uint64_t tokens = 0;   // of decode
    double per_token = 0;  // experts per layer: the top-k, if every token has it
    bool weighed = false;  // blocks are compared by bytes
    std::vector<Lag> lags;
    std::vector<Block> blocks;
    std::vector<LayerSkew> layers;
};

// Routes whose decode goes in blocks of so many tokens, as a verifier of drafts would compute them; what is left over
// at the end of a turn goes as it is.
Routes in_blocks(const Routes& routes, uint32_t tokens);

// `pool`: for the break-even with a cache.
Study study(const Routes& routes, std::span<const uint32_t> lags, std::span<const uint32_t> blocks, const Pool& pool,
            const Rule& rule);

// Tokens that come out of a block of `tokens` in the mean, if each draft is right with this chance, and wrong ones end
// it: the first is never a draft.
double tokens_out(uint32_t tokens, double chance);

}  // namespace sluice::replay
