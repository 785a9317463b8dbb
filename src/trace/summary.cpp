#include "trace/summary.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "base/bytes.h"
#include "trace/caches.h"
#include "trace/json_values.h"
#include "trace/write.h"

namespace sluice::trace {
namespace {

using Value = std::optional<double>;

constexpr const char* kNotMeasured = "not measured";
// Parts of the wall time below this share are not worth a word.
constexpr double kWorthSaying = 0.005;

std::string spelled(Value v, int decimals, std::string_view unit, double by = 1) {
    return v ? fmt::format("{:.{}f}{}", *v * by, decimals, unit) : kNotMeasured;
}

std::string mib(Measure m) {
    return m.known() ? fmt::format("{:.1f} MiB", to_mib(static_cast<uint64_t>(std::max<int64_t>(0, m.value()))))
                     : kNotMeasured;
}

std::string count(Measure m) {
    return m.known() ? std::to_string(m.value()) : "?";
}

std::string speed(const Totals& t) {
    return spelled(figure("tokens_per_second", t), 2, " tok/s");
}

std::string percent(Measure part, Measure whole) {
    if (whole.or_zero() <= 0) return "none";
    return fmt::format("{:.1f} %", 100 * static_cast<double>(part.or_zero()) / static_cast<double>(whole.value()));
}

// The first one came out of the prompt's last batch.
int64_t generated(const Book& book) {
    Measure out = book.of(Phase::prefill).sum.output_tokens;
    out.add(book.of(Phase::decode).sum.output_tokens);
    return out.known() ? out.value() : counted_tokens(book.of(Phase::decode)).or_zero();
}

std::string where_it_goes(const Totals& t) {
    std::vector<std::pair<double, Part>> shares;
    for (size_t p = 0; p < kParts; ++p) {
        const Value share = share_of_wall(static_cast<Part>(p), t);
        if (share && *share > kWorthSaying) shares.emplace_back(*share, static_cast<Part>(p));
    }
    std::stable_sort(shares.begin(), shares.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    std::string out;
    for (const auto& [share, part] : shares)
        out += fmt::format("{}{} {:.1f} %", out.empty() ? "" : ", ", part_label(part), 100 * share);
    return out.empty() ? kNotMeasured : out;
}

// What the run's option of this name says; empty: nothing.
std::string option_in(const Json& header, const char* name) {
    if (!header.is_object() || !header.contains("options")) return {};
    const Json& options = header["options"];
    if (!options.is_object() || !options.contains(name) || !options[name].is_object()) return {};
    return text_in(options[name], "value");
}

uint64_t number_in(const std::string& text) {
    uint64_t n = 0;
    std::from_chars(text.data(), text.data() + text.size(), n);
    return n;
}

// What guesses were made by.
const char* predictor_in(const Json& header) {
    const std::string gate = option_in(header, "predict-prefetch"), last = option_in(header, "prefetch");
    if (!gate.empty() && gate != "off")
        return option_in(header, "predict-model").empty() ? "[stale-gate] " : "[trained] ";
    return last.empty() || last == "0" ? "" : "[prev-token] ";
}

// Which options changed what was computed, and how much of it.
std::string lossy_text(const Book& book, const SummaryExtras& extras) {
    std::string out;
    const auto name = [&](const std::string& n) { out += (out.empty() ? "" : ", ") + n; };
    for (const std::string& n : extras.lossy) name(n);
    if (const std::string names = lossy_in(book.header); !names.empty()) name(names);
    if (out.empty()) return "none";
    const Row& sum = book.of(Phase::decode).sum;
    const auto of = [](const Measure& m) { return static_cast<uint64_t>(m.or_zero()); };
    out += changed_text(of(sum.routed), of(sum.dropped), of(sum.substituted));
    if (sum.unedited.or_zero() > 0) out += fmt::format("; {} layer visits left as routed", sum.unedited.value());
    return out;
}

}  // namespace

std::string changed_text(uint64_t routed, uint64_t dropped, uint64_t substituted) {
    if (routed == 0) return "";
    const auto percent = [&](uint64_t n) { return 100.0 * static_cast<double>(n) / static_cast<double>(routed); };
    std::string out = fmt::format(": {:.1f} % of {} routed slots dropped", percent(dropped), routed);
    if (substituted > 0) out += fmt::format(", {:.1f} % substituted", percent(substituted));
    return out;
}

std::string route_ahead_text(uint32_t layers, const RouteAheadCounts& decode, uint64_t prompts) {
    std::string out = fmt::format(
        "{} layers early: {} routings committed, {} passed through ({} of the first {} layers, {} of prompts, {} of "
        "first tokens",
        layers, decode.committed, decode.passed + prompts, decode.below, layers, prompts, decode.first);
    const uint64_t told = decode.below + decode.first;
    if (decode.passed > told) out += fmt::format(", {} others", decode.passed - told);
    if (decode.slots == 0) return out + "); nothing was committed";
    return out + fmt::format("); committed selection agreed with the router on {:.1f} % of slots",
                             100 * static_cast<double>(decode.agreed) / static_cast<double>(decode.slots));
}

std::string summary_text(const Book& book, const SummaryExtras& extras) {
    const Totals& prefill = book.of(Phase::prefill);
    const Totals& decode = book.of(Phase::decode);
    const auto of_decode = [&](const char* name) { return figure(name, decode); };
    const std::string scope = text_in(book.header, "scope");
    const Measure load = measure_in(book.load, "load_ns");

    std::string out = fmt::format(
        "generated {} tokens at {} ({}), prompt {} tokens at {}, loaded in {}\n", generated(book), speed(decode),
        scope == "graph" ? "graph only" : "whole loop", counted_tokens(prefill).or_zero(), speed(prefill),
        load.known() ? fmt::format("{:.2f} s", static_cast<double>(load.value()) * 1e-9) : kNotMeasured);
    if (decode.rows > 0) {
        out += fmt::format("time:     {} per token: {}\n", spelled(of_decode("ms_per_token"), 1, " ms"),
                           where_it_goes(decode));
    }
    const Json cache = book.caches.empty() ? Json() : book.caches.back();
    const Json* first = first_cache(book, measure_in(cache, "model").or_zero());
    const Measure bytes = measure_in(cache, "bytes");
    const Measure at_first = first != nullptr ? measure_in(*first, "bytes") : bytes;
    out += fmt::format("experts:  cache {}{} holds {} of {}, decode hit rate {}, {} read per token ({} needed)\n",
                       mib(bytes), at_first == bytes ? "" : fmt::format(" (at first {})", mib(at_first)),
                       count(measure_in(cache, "slots")), count(measure_in(cache, "records")),
                       spelled(of_decode("hit_rate"), 1, " %", 100),
                       spelled(of_decode("physical_bytes_per_token"), 2, " MiB", 1.0 / (1 << 20)),
                       spelled(of_decode("logical_bytes_per_token"), 2, " MiB", 1.0 / (1 << 20)));
    const Measure macro = prefill.sum.blocks_macro, micro = prefill.sum.blocks_micro;
    if (macro.or_zero() + micro.or_zero() > 0) {
        out += fmt::format("prompt:   {} of {} layers read while the one before computed; {} read, hidden {}\n",
                           macro.or_zero(), macro.or_zero() + micro.or_zero(), mib(prefill.sum.exact_bytes),
                           spelled(figure("hidden_fraction", prefill), 0, " %", 100));
    }
    if (decode.rows > 0) {
        out += fmt::format(
            "waiting:  {} of decode time for reads, in {} of the layers; hidden {} of the reads' time; drive {}, read "
            "p50 {}, p99 {}\n",
            spelled(of_decode("exposed_wait_fraction"), 0, " %", 100),
            spelled(of_decode("layers_waiting_fraction"), 0, " %", 100),
            spelled(of_decode("hidden_fraction"), 0, " %", 100),
            spelled(of_decode("drive_bytes_per_second"), 0, " MiB/s", 1.0 / (1 << 20)),
            spelled(of_decode("read_p50_ms"), 2, " ms"), spelled(of_decode("read_p99_ms"), 2, " ms"));
        const std::string binds = what_binds(decode);
        out += binds.empty()
                   ? fmt::format("roofline: {}\n", kNotMeasured)
                   : fmt::format("roofline: {} binds: at most {} with all waiting hidden; a token takes {} more\n",
                                 binds == "drive" ? "the drive" : binds,
                                 spelled(of_decode("roofline_tokens_per_second"), 2, " tok/s"),
                                 spelled(of_decode("residual_fraction"), 0, " %", 100));
    }
    if (const Row& sum = decode.sum; sum.hints.known()) {
        out += fmt::format(
            "moe-prefetch: {}{} experts hinted, {} read for that, {} of it used, {} evicted unused; {} reads came "
            "late\n",
            predictor_in(book.header), sum.hints.value(), mib(sum.predicted_bytes),
            percent(sum.predicted_used, sum.predicted_bytes), mib(sum.rejected_bytes), sum.late.or_zero());
        if (sum.guess_on.known()) {
            out += fmt::format("moe-prefetch: auto acted on guesses in {} of {} tokens\n", sum.guess_on.value(),
                               sum.tokens.or_zero());
        }
    }
    if (const Row& sum = decode.sum; sum.ra_committed.known()) {
        const auto per_token = [&](Measure time) {
            const auto tokens = static_cast<double>(std::max<int64_t>(1, counted_tokens(decode).or_zero()));
            return static_cast<double>(time.or_zero()) * 1e-6 / tokens;
        };
        const auto of = [](const Measure& m) { return static_cast<uint64_t>(m.or_zero()); };
        const RouteAheadCounts counts{.committed = of(sum.ra_committed),
                                      .passed = of(sum.ra_passed),
                                      .below = of(sum.ra_passed_below),
                                      .first = of(sum.ra_passed_first),
                                      .slots = of(sum.ra_slots),
                                      .agreed = of(sum.ra_agreed)};
        const auto layers = static_cast<uint32_t>(number_in(option_in(book.header, "route-ahead")));
        out += fmt::format("moe-prefetch: [route-ahead] {} read early, {} of it used\n", mib(sum.ahead_bytes),
                           percent(sum.predicted_used, sum.ahead_bytes));
        out += fmt::format("moe-route-ahead: {}; per token {:.2f} ms ranking, {:.2f} ms asking, {:.2f} ms checking\n",
                           route_ahead_text(layers, counts, of(prefill.sum.ra_passed)), per_token(sum.ra_rank),
                           per_token(sum.ra_issue), per_token(sum.ra_watch));
    }
    const Measure rss = decode.sum.rss.known() ? decode.sum.rss : prefill.sum.rss;
    out += fmt::format("memory:   {} resident, peak {}, major faults per token {}\n", mib(rss), mib(extras.peak_bytes),
                       spelled(of_decode("major_faults_per_token"), 2, ""));
    out += fmt::format("lossy:    {}\n", lossy_text(book, extras));
    return out;
}

}  // namespace sluice::trace
