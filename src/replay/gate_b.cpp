#include "replay/gate_b.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <sstream>

#include "replay/study.h"
#include "store/files.h"

namespace sluice::replay {
namespace {

using machine::GateVerdict;
using machine::Outcome;

constexpr std::array<uint32_t, 6> kLags{1, 2, 4, 8, 16, 32};
constexpr std::array<uint32_t, 4> kBlocks{2, 3, 4, 5};
constexpr std::array<uint32_t, 8> kSlots{1, 2, 4, 8, 16, 32, 64, 128};
// Of one trace, besides two for each layer.
constexpr size_t kFigures = 80;
// Longer blocks than a recording holds several of say nothing.
constexpr uint64_t kLeastDecode = 16;

class Telling {
  public:
    Telling(GateVerdict& verdict, std::string of, const GateB& asked)
        : v_(verdict), of_(std::move(of)), asked_(asked) {}

    // False: experts were counted, not their bytes.
    bool tell(const Routes& routes) {
        const uint32_t slots = slots_of(routes);
        const Pool pool = pool_of_slots(routes, uint64_t{slots} * routes.sets.size());
        const Study s = study(routes, kLags, kBlocks, pool, {});
        figure("decode", static_cast<double>(s.tokens), "tokens");
        figure("experts of one token", s.per_token, "per layer");
        for (const Lag& l : s.lags) {
            // A lag as long as the recording: nothing was compared.
            if (l.tokens >= s.tokens) continue;
            figure(fmt::format("overlap at lag {}", l.tokens), 100 * l.overlap, "%");
            figure(fmt::format("overlap at lag {}, least layer", l.tokens), 100 * l.layers.least, "%");
            figure(fmt::format("overlap at lag {}, most", l.tokens), 100 * l.layers.most, "%");
        }
        blocks(s, slots);
        curves(routes);
        for (const LayerSkew& l : s.layers) {
            figure(fmt::format("layer {}: experts in effect", l.layer), l.effective, fmt::format("of {}", l.distinct));
            figure(fmt::format("layer {}: chosen of its hottest 8", l.layer), 100 * l.hottest, "%");
        }
        return s.weighed;
    }

  private:
    [[nodiscard]] uint32_t slots_of(const Routes& routes) const {
        uint32_t experts = 0;
        for (const RouteSet& set : routes.sets) experts = std::max(experts, set.n_expert);
        return asked_.slots > 0 ? std::min(asked_.slots, experts) : std::max(1U, experts / 4);
    }
    void figure(const std::string& name, double value, std::string unit) {
        v_.figures.push_back({of_ + name, value, std::move(unit)});
    }
    void blocks(const Study& s, uint32_t slots) {
        // What is left in the best case: tokens that come out, over tokens that have to.
        double alone = 0, cached = 0;
        std::string alone_found, cached_found;
        for (const Block& b : s.blocks) {
            const double out = tokens_out(b.tokens, asked_.accepted);
            figure(fmt::format("block of {}: experts together", b.tokens), b.experts, "per layer");
            figure(fmt::format("block of {}: share of its tokens' own", b.tokens), 100 * b.share, "%");
            figure(fmt::format("block of {}: breaks even at", b.tokens), b.break_even, "tokens");
            figure(fmt::format("block of {}: with the cache at", b.tokens), b.break_even_cached, "tokens");
            figure(fmt::format("block of {}: come out at best", b.tokens), out, "tokens");
            const auto judge = [&](double needed, double& best, std::string& found) {
                if (needed > 0) best = std::max(best, out / needed);
                found += fmt::format("{}{} of {}: {:.2f} are needed, {:.2f} come out", found.empty() ? "" : "; ",
                                     found.empty() ? "a block" : "one", b.tokens, needed, out);
            };
            judge(b.break_even, alone, alone_found);
            judge(b.break_even_cached, cached, cached_found);
        }
        const auto check = [&](const std::string& name, double best, std::string found) {
            const bool known = s.tokens >= kLeastDecode && best > 0;
            v_.checks.push_back(
                {of_ + name,
                 !known       ? Outcome::unknown
                 : best > 1.0 ? Outcome::yes
                              : Outcome::no,
                 known ? std::move(found)
                       : fmt::format("{} tokens of decode and no miss to save say nothing", s.tokens),
                 known ? "a block of which more tokens come out than it has to give"
                       : fmt::format("a recording of {} tokens or more, and a smaller cache", kLeastDecode)});
        };
        check("a block reads less than its tokens would", alone, std::move(alone_found));
        check(fmt::format("it does so with {} slots per layer", slots), cached, std::move(cached_found));
    }
    void curves(const Routes& routes) {
        uint32_t experts = 0;
        for (const RouteSet& set : routes.sets) experts = std::max(experts, set.n_expert);
        for (const uint32_t n : kSlots) {
            if (n >= experts) break;
            const Pool pool = pool_of_slots(routes, uint64_t{n} * routes.sets.size());
            const auto hits = [](const Counted& o) { return 100 * o.decode.hit_rate(); };
            figure(fmt::format("hits with {} slots per layer, lru", n),
                   hits(replay(routes, pool, rule_of(cache::Policy::lru))), "%");
            figure(fmt::format("hits with {} slots per layer, reuse", n), hits(replay(routes, pool, {})), "%");
            figure(fmt::format("hits with {} slots per layer, at best", n), hits(optimum(routes, pool, Bypass::yes)),
                   "%");
        }
    }
    using Counted = replay::Outcome;

    GateVerdict& v_;
    std::string of_;
    const GateB& asked_;
};

Result<Routes> take(const std::string& path, GateVerdict& v) {
    auto text = store::read_whole(path, kMostTraceBytes);
    if (!text.ok()) return text.status();
    v.inputs.push_back({v.inputs.empty() ? "trace" : fmt::format("trace {}", v.inputs.size() + 1), path, text->size(),
                        fmt::format("{:016x}", XXH3_64bits(text->data(), text->size()))});
    std::istringstream in(std::move(*text));
    return read_routes(in, path);
}

}  // namespace

Result<GateVerdict> gate_b(const GateB& asked) {
    if (asked.traces.empty() || asked.traces.size() > kMostGateTraces)
        return error(Code::invalid_argument, "a gate takes 1 to {} traces", kMostGateTraces);
    if (!(asked.accepted >= 0 && asked.accepted < 1))
        return error(Code::invalid_argument, "a chance of a right draft is from 0 to below 1");
    GateVerdict v;
    v.gate = "b";
    v.question =
        "Can a block of drafted tokens, verified together, read fewer experts per token than decoding them one by one?";
    v.settings = {{"accept", fmt::format("{}", asked.accepted)},
                  {"slots", asked.slots == 0 ? "a quarter of the experts" : std::to_string(asked.slots)}};
    std::vector<Routes> all;
    size_t figures = 0;
    for (const std::string& path : asked.traces) {
        auto routes = take(path, v);
        if (!routes.ok()) return routes.status();
        figures += kFigures + 2 * routes->sets.size();
        all.push_back(std::move(*routes));
    }
    if (figures > machine::kMostGateEntries)
        return error(Code::invalid_argument, "these traces have too many layers for one verdict: ask about fewer");
    bool weighed = true;
    for (size_t i = 0; i < all.size(); ++i) {
        if (asked.stopped && asked.stopped()) return error(Code::cancelled, "interrupted");
        if (asked.progress) asked.progress(static_cast<double>(i) / static_cast<double>(all.size()), asked.traces[i]);
        weighed = Telling(v, all.size() == 1 ? "" : v.inputs[i].name + ": ", asked).tell(all[i]) && weighed;
    }
    v.notes = {
        fmt::format("Compared are {}; what computing a block and making its drafts cost is left out, so yes is no "
                    "promise of a speed, and no is an end.",
                    weighed ? "bytes of experts" : "numbers of experts where a trace does not tell their sizes"),
        fmt::format("Come out at best: if each draft is right with a chance of {}, wrong ones end the block, and the "
                    "first token is never a draft.",
                    asked.accepted)};
    for (size_t i = 0; i < all.size(); ++i) {
        if (std::string note = lossy_note(all[i], v.inputs[i].name); !note.empty()) v.notes.push_back(note + ".");
    }
    return v;
}

}  // namespace sluice::replay
