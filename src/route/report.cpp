#include "route/report.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace sluice::route {
namespace {

using enum Predictor;

std::string percent(double rate) {
    return rate < 0 ? "-" : fmt::format("{:.1f}", 100 * rate);
}

std::string percent_of(double rate) {
    return rate < 0 ? "-" : fmt::format("{:.1f} %", 100 * rate);
}

std::string headline(const Scores& s, Predictor p) {
    const Score t = s.total(p);
    return fmt::format("{} {} of routed slots ({} whole routings)", name(p), percent_of(t.overlap()),
                       percent_of(t.whole_rate()));
}

std::string scored(const Scores& s, Predictor p) {
    const Score t = s.total(p);
    return fmt::format("{} {} routings/{} slots", name(p), t.routings, t.slots);
}

std::string reads(const Scores& s, Predictor p) {
    const Score t = s.total(p);
    return fmt::format("{} names {} of {}, {} in time; of {} reads {} would have been of use", name(p),
                       percent_of(t.recall()), t.missing, percent_of(t.timely_recall()), t.absent,
                       percent_of(t.precision()));
}

std::string micros(double nanos) {
    return nanos < 0 ? "-" : fmt::format("{:.1f} us", nanos / 1e3);
}

// By tenths: what was said, how often it came true, of how many.
std::string calibration(const Scores& s, Predictor p) {
    std::string out;
    for (const Bin& b : s.calibration(p)) {
        if (b.said == 0) continue;
        const auto n = static_cast<double>(b.said);
        out += fmt::format("{}{:.0f} % came {:.0f} % of {}", out.empty() ? "" : ", ", 100 * b.confidence / n,
                           100 * static_cast<double>(b.came) / n, b.said);
    }
    return out.empty() ? "-" : out;
}

// Layers whose control is not complete.
std::string wrong_layers(const Scores& s, std::span<const int> layers) {
    constexpr int kShown = 8;
    std::string out;
    int n = 0;
    for (size_t set = 0; set < s.sets(); ++set) {
        const Score& c = s.of(control, set);
        if (c.routings == 0 || c.hits == c.slots) continue;
        if (++n <= kShown) out += fmt::format("{}{}", out.empty() ? "" : ", ", layers[set]);
    }
    return n > kShown ? out + fmt::format(" and {} more", n - kShown) : out;
}

nlohmann::json or_null(double v) {
    return v < 0 ? nlohmann::json(nullptr) : nlohmann::json(v);
}

nlohmann::json score_json(const Score& t) {
    return {{"routings", t.routings},
            {"whole", t.whole},
            {"slots", t.slots},
            {"hits", t.hits},
            {"missing", t.missing},
            {"missing_named", t.missing_named},
            {"missing_in_time", t.missing_in_time},
            {"absent", t.absent},
            {"absent_chosen", t.absent_chosen},
            {"not_ranked",
             {{"first_layers", t.unranked[0]}, {"first_token", t.unranked[1]}, {"no_router", t.unranked[2]}}}};
}

}  // namespace

std::vector<std::string> report_lines(const Scores& s, std::span<const int> layers) {
    const bool with_trained = s.total(trained).asked();
    const Score stale = s.total(stale1), before = s.total(previous), own = s.total(control);
    if (stale.routings + before.routings + own.routings + stale.not_ranked() + own.not_ranked() == 0) return {};
    std::vector<std::string> out;
    out.push_back(
        fmt::format("moe-predict: {} | {} | {}", headline(s, stale1), headline(s, previous), headline(s, control)));
    out.push_back(fmt::format("moe-predict: {} | {} | {} | {}", headline(s, stale2), headline(s, stale4),
                              headline(s, popular), headline(s, attention)));
    if (with_trained) out.push_back(fmt::format("moe-predict: {}", headline(s, trained)));
    out.push_back(
        fmt::format("moe-predict: scored: {}, {}, {}; the stale gate could not rank {} routings: {} of the first "
                    "layer, {} of the first token, {} whose router or hidden state is not known",
                    scored(s, stale1), scored(s, previous), scored(s, control), stale.not_ranked(), stale.unranked[0],
                    stale.unranked[1], stale.unranked[2]));
    std::string line = "moe-predict: of what had to be read: ";
    bool first = true;
    for (const Predictor p : kAllPredictors) {
        if (p == control || (p == trained && !with_trained)) continue;
        line += (first ? "" : " | ") + reads(s, p);
        first = false;
    }
    out.push_back(line);
    out.push_back(
        fmt::format("moe-predict: each guess took: stale gate {}, {}previous token {}, popularity {}; control {}",
                    micros(s.cost(stale1)), with_trained ? fmt::format("trained {}, ", micros(s.cost(trained))) : "",
                    micros(s.cost(previous)), micros(s.cost(popular)), micros(s.cost(control))));
    if (const Scores::Exact& e = s.exact(); e.guesses > 0) {
        out.push_back(
            fmt::format("moe-predict: guesses run routers in 8 bits: {} of the {} experts that the same in full "
                        "names for the same states; in full one took {}",
                        percent_of(static_cast<double>(e.agreed) / static_cast<double>(e.slots)), e.slots,
                        micros(static_cast<double>(e.time) / static_cast<double>(e.guesses))));
    }
    out.push_back(fmt::format("moe-predict: stale gate, how sure and how right: {}", calibration(s, stale1)));
    if (with_trained)
        out.push_back(fmt::format("moe-predict: trained, how sure and how right: {}", calibration(s, trained)));
    if (own.routings > 0 && own.hits < own.slots) {
        out.push_back(
            fmt::format("moe-predict: the control should be 100 % and is {:.3f} %, in layers {}: what is replayed "
                        "is not what this model's routers do, so read the others against it",
                        100 * own.overlap(), wrong_layers(s, layers)));
    }
    const auto of_trained = [&](const std::string& text) { return with_trained ? fmt::format(" {:>7}", text) : ""; };
    out.push_back(fmt::format(" layer   stale{}    prev    ctrl  routings", of_trained("trained")));
    for (size_t set = 0; set < s.sets(); ++set) {
        const uint64_t routings =
            std::max({s.of(control, set).routings, s.of(stale1, set).routings, s.of(previous, set).routings});
        out.push_back(fmt::format("{:>6} {:>7}{} {:>7} {:>7} {:>9}", layers[set], percent(s.of(stale1, set).overlap()),
                                  of_trained(percent(s.of(trained, set).overlap())),
                                  percent(s.of(previous, set).overlap()), percent(s.of(control, set).overlap()),
                                  routings));
    }
    return out;
}

nlohmann::json report_json(const Scores& s, std::span<const int> layers) {
    nlohmann::json all = nlohmann::json::object();
    for (const Predictor p : kAllPredictors) {
        const Score t = s.total(p);
        if (p == trained && !t.asked()) continue;
        nlohmann::json j = score_json(t);
        j["overlap"] = or_null(t.overlap());
        j["whole_rate"] = or_null(t.whole_rate());
        j["recall"] = or_null(t.recall());
        j["timely_recall"] = or_null(t.timely_recall());
        j["precision"] = or_null(t.precision());
        j["cost_ns"] = or_null(s.cost(p));
        if (const Scores::Exact& e = s.exact(); p == stale1 && e.guesses > 0) {
            j["exact"] = {{"guesses", e.guesses},
                          {"slots", e.slots},
                          {"agreed", e.agreed},
                          {"cost_ns", static_cast<double>(e.time) / static_cast<double>(e.guesses)}};
        }
        nlohmann::json bins = nlohmann::json::array();
        for (const Bin& b : s.calibration(p))
            bins.push_back({{"said", b.said},
                            {"came", b.came},
                            {"confidence", b.said == 0 ? 0 : b.confidence / static_cast<double>(b.said)}});
        j["calibration"] = std::move(bins);
        nlohmann::json by_layer = nlohmann::json::array();
        for (size_t set = 0; set < s.sets(); ++set) {
            nlohmann::json l = score_json(s.of(p, set));
            l["layer"] = layers[set];
            by_layer.push_back(std::move(l));
        }
        j["layers"] = std::move(by_layer);
        all[name(p)] = std::move(j);
    }
    return all;
}

}  // namespace sluice::route
