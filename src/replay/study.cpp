#include "replay/study.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>

namespace sluice::replay {
namespace {

using Experts = std::vector<uint32_t>;  // sorted

// By turn, then set, then token.
using Turn = std::vector<std::vector<Experts>>;

std::vector<Turn> decode_of(const Routes& routes) {
    std::vector<Turn> turns;
    uint32_t turn = 0;
    for (const Pass& pass : routes.passes) {
        if (pass.prompt) continue;
        if (turns.empty() || pass.turn != turn) turns.emplace_back(routes.sets.size());
        turn = pass.turn;
        for (uint32_t v = pass.begin; v < pass.end; ++v) {
            const Visit& visit = routes.visits[v];
            std::vector<Experts>& tokens = turns.back()[visit.set];
            const size_t first = tokens.size();
            tokens.resize(first + visit.tokens);
            for (uint32_t i = visit.begin; i < visit.end; ++i) {
                const Choice& c = routes.choices[i];
                tokens[first + c.token].push_back(c.expert);
            }
            for (size_t t = first; t < tokens.size(); ++t) std::sort(tokens[t].begin(), tokens[t].end());
        }
    }
    return turns;
}

size_t in_both(const Experts& a, const Experts& b) {
    size_t n = 0;
    for (auto x = a.begin(), y = b.begin(); x != a.end() && y != b.end();) {
        if (*x == *y) ++n;
        const bool first = *x <= *y, second = *y <= *x;
        if (first) ++x;
        if (second) ++y;
    }
    return n;
}

Lag lag_of(const std::vector<Turn>& turns, size_t n_sets, uint32_t tokens) {
    std::vector<double> layers;
    double shared = 0, all = 0;
    for (size_t s = 0; s < n_sets; ++s) {
        double here = 0, chosen = 0;
        for (const Turn& turn : turns) {
            for (size_t t = tokens; t < turn[s].size(); ++t) {
                here += static_cast<double>(in_both(turn[s][t], turn[s][t - tokens]));
                chosen += static_cast<double>(turn[s][t].size());
            }
        }
        if (chosen > 0) layers.push_back(here / chosen);
        shared += here;
        all += chosen;
    }
    return {.tokens = tokens, .overlap = all > 0 ? shared / all : 0, .layers = spread_of(std::move(layers))};
}

// Mean number of distinct experts in all runs of so many tokens, in one layer; and their mean weight.
struct Together {
    double experts = 0, weight = 0;
};
Together together(const std::vector<Turn>& turns, uint32_t tokens, const std::vector<double>& weights) {
    Together sum;
    double n = 0;
    Experts all;
    for (const Turn& turn : turns) {
        for (size_t s = 0; s < turn.size(); ++s) {
            const std::vector<Experts>& set = turn[s];
            for (size_t t = 0; t + tokens <= set.size(); ++t) {
                all.clear();
                for (size_t i = t; i < t + tokens; ++i) all.insert(all.end(), set[i].begin(), set[i].end());
                std::sort(all.begin(), all.end());
                const auto distinct = static_cast<double>(std::unique(all.begin(), all.end()) - all.begin());
                sum.experts += distinct;
                sum.weight += distinct * weights[s];
                ++n;
            }
        }
    }
    return n > 0 ? Together{sum.experts / n, sum.weight / n} : Together();
}

LayerSkew skew_of(const std::vector<Turn>& turns, size_t set, const RouteSet& what) {
    std::vector<double> uses(what.n_expert, 0);
    for (const Turn& turn : turns) {
        for (const Experts& token : turn[set]) {
            for (const uint32_t e : token) ++uses[e];
        }
    }
    std::sort(uses.begin(), uses.end(), std::greater<>());
    const double all = std::accumulate(uses.begin(), uses.end(), 0.0);
    LayerSkew out{.layer = what.layer};
    if (all == 0) return out;
    double entropy = 0;
    for (size_t i = 0; i < uses.size() && uses[i] > 0; ++i) {
        ++out.distinct;
        if (i < 8) out.hottest += uses[i] / all;
        entropy -= uses[i] / all * std::log(uses[i] / all);
    }
    out.effective = std::exp(entropy);
    return out;
}

}  // namespace

Spread spread_of(std::vector<double> values) {
    if (values.empty()) return {};
    std::sort(values.begin(), values.end());
    const size_t n = values.size();
    return {.least = values.front(),
            .median = n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2,
            .most = values.back(),
            .mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(n)};
}

double tokens_out(uint32_t tokens, double chance) {
    double sum = 0, all_right = 1;
    for (uint32_t i = 0; i < tokens; ++i) {
        sum += all_right;
        all_right *= chance;
    }
    return sum;
}

Routes in_blocks(const Routes& routes, uint32_t tokens) {
    assert(tokens > 0);
    Routes out = routes;
    out.choices.clear();
    out.visits.clear();
    out.passes.clear();
    for (size_t p = 0; p < routes.passes.size();) {
        const Pass& first = routes.passes[p];
        size_t end = p + 1;
        uint32_t n = first.tokens;
        const auto joins = [&](const Pass& next) {
            return !first.prompt && !next.prompt && next.turn == first.turn && n + next.tokens <= tokens;
        };
        while (end < routes.passes.size() && joins(routes.passes[end])) n += routes.passes[end++].tokens;
        out.passes.push_back({.prompt = first.prompt,
                              .turn = first.turn,
                              .begin = static_cast<uint32_t>(out.visits.size()),
                              .end = 0,
                              .tokens = n});
        for (uint32_t set = 0; set < routes.sets.size(); ++set) {
            Visit merged{.set = set,
                         .begin = static_cast<uint32_t>(out.choices.size()),
                         .end = static_cast<uint32_t>(out.choices.size()),
                         .tokens = 0};
            for (size_t q = p; q < end; ++q) {
                for (uint32_t v = routes.passes[q].begin; v < routes.passes[q].end; ++v) {
                    const Visit& visit = routes.visits[v];
                    if (visit.set != set) continue;
                    for (uint32_t i = visit.begin; i < visit.end; ++i)
                        out.choices.push_back({routes.choices[i].expert, merged.tokens + routes.choices[i].token});
                    merged.tokens += visit.tokens;
                }
            }
            merged.end = static_cast<uint32_t>(out.choices.size());
            if (merged.tokens > 0) out.visits.push_back(merged);
        }
        out.passes.back().end = static_cast<uint32_t>(out.visits.size());
        p = end;
    }
    return out;
}

Study study(const Routes& routes, std::span<const uint32_t> lags, std::span<const uint32_t> blocks, const Pool& pool,
            const Rule& rule) {
    const std::vector<Turn> turns = decode_of(routes);
    Study out;
    out.tokens = routes.decode_tokens;
    std::vector<double> weights;
    for (const RouteSet& s : routes.sets) weights.push_back(static_cast<double>(s.expert_bytes));
    out.weighed = std::find(weights.begin(), weights.end(), 0) == weights.end();
    if (!out.weighed) std::fill(weights.begin(), weights.end(), 1);
    const Together one = together(turns, 1, weights);
    out.per_token = one.experts;
    for (const uint32_t n : lags) out.lags.push_back(lag_of(turns, routes.sets.size(), n));
    const Counts alone = replay(routes, pool, rule).decode;
    const auto read = [&](const Counts& c) { return static_cast<double>(out.weighed ? c.bytes : c.lookups - c.hits); };
    const double missed = read(alone);
    for (const uint32_t n : blocks) {
        Block b;
        b.tokens = n;
        const Together block = together(turns, n, weights);
        b.experts = block.experts;
        if (one.weight > 0) {
            b.break_even = block.weight / one.weight;
            b.share = b.break_even / n;
        }
        const Counts in = replay(in_blocks(routes, n), pool, rule).decode;
        if (missed > 0) b.break_even_cached = read(in) * n / missed;
        out.blocks.push_back(b);
    }
    for (size_t s = 0; s < routes.sets.size(); ++s) out.layers.push_back(skew_of(turns, s, routes.sets[s]));
    return out;
}

}  // namespace sluice::replay
