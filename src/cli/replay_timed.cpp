#include "cli/replay_timed.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/bytes.h"
#include "machine/verdict.h"

namespace sluice::cli {
namespace {

using replay::Timed;
using replay::TimedRule;

// Beyond any drive, and any token.
constexpr uint64_t kMostRate = uint64_t{1} << 44U;
constexpr double kMostMs = 1e6;
constexpr uint32_t kMostDepth = 1024;

std::vector<std::string_view> parts_of(std::string_view text) {
    std::vector<std::string_view> out;
    for (size_t comma = 0; comma != std::string_view::npos; text.remove_prefix(comma + 1)) {
        comma = text.find(',');
        out.push_back(text.substr(0, comma));
        if (comma == std::string_view::npos) break;
    }
    return out;
}

template <typename N>
std::optional<N> number(std::string_view text) {
    N n{};
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (problem != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return n;
}

// "80us", "0.1ms"
std::optional<Nanos> duration(std::string_view text) {
    const bool micro = text.ends_with("us");
    if (!micro && !text.ends_with("ms")) return std::nullopt;
    text.remove_suffix(2);
    const auto n = number<double>(text);
    if (!n || !(*n >= 0) || *n > kMostMs) return std::nullopt;
    return static_cast<Nanos>(*n * (micro ? 1e3 : 1e6));
}

std::string name_of(const TimedRule& rule) {
    return rule.foretold_layers > 0 ? fmt::format("+{} foretold", rule.foretold_layers)
                                    : std::string(cache::name_of(rule.policy));
}

double ms(double nanos) {
    return nanos * 1e-6;
}

std::string row(const std::string& place, const std::string& name, const Timed& t) {
    return fmt::format("{:>10}  {:<12}{:>8.2f}{:>14}{:>11.2f}{:>11.2f}{:>9.0f}{:>10.2f}\n", place, name,
                       t.lookups == 0 ? 0 : 100 * static_cast<double>(t.hits) / static_cast<double>(t.lookups),
                       human_bytes(static_cast<uint64_t>(t.per_token(static_cast<double>(t.read_bytes)))),
                       ms(t.per_token(static_cast<double>(t.stall))), ms(t.per_token(static_cast<double>(t.wall))),
                       100 * t.hidden(), t.tokens_per_second());
}

std::string csv_row(const std::string& trace, const std::string& name, const Timed& t) {
    return fmt::format("{},{},{},{},{},{},{},{:.0f},{:.0f},{:.6f},{:.6f},{:.4f},{:.6f}\n", trace, name, t.slots,
                       t.arena_bytes, t.tokens, t.lookups, t.hits, t.per_token(static_cast<double>(t.read_bytes)),
                       t.per_token(static_cast<double>(t.predicted_bytes)),
                       ms(t.per_token(static_cast<double>(t.stall))), ms(t.per_token(static_cast<double>(t.wall))),
                       t.hidden(), t.tokens_per_second());
}

}  // namespace

Status parse_drive(TimedAsked& asked, const std::string& text) {
    asked.wanted = true;
    if (text == "auto") {
        asked.drive.reset();
        return {};
    }
    const auto parts = parts_of(text);
    replay::Drive drive;
    const auto rate = parse_bytes(parts[0], MiB);
    const auto latency = parts.size() > 1 ? duration(parts[1]) : std::optional<Nanos>(0);
    const auto depth = parts.size() > 2 ? number<uint32_t>(parts[2]) : std::optional<uint32_t>(drive.depth);
    if (!rate || *rate == 0 || *rate > kMostRate || !latency || !depth || *depth == 0 || *depth > kMostDepth ||
        parts.size() > 3)
        return error(Code::invalid_argument,
                     "--device {}: auto, or bytes a second, the latency of a read and how many go at once, such as "
                     "2G,80us,8",
                     text);
    drive.bytes_per_ns = static_cast<double>(*rate) * 1e-9;
    drive.latency = *latency;
    drive.depth = *depth;
    asked.drive = drive;
    return {};
}

Status parse_compute(TimedAsked& asked, const std::string& text) {
    const auto parts = parts_of(text);
    const auto dense = number<double>(parts[0]);
    const auto experts = parts.size() > 1 ? number<double>(parts[1]) : std::optional<double>(0);
    const auto can_be = [](const std::optional<double>& n) { return n && *n >= 0 && *n <= kMostMs; };
    if (!can_be(dense) || !can_be(experts) || parts.size() > 2)
        return error(Code::invalid_argument,
                     "--compute {}: milliseconds of a token for all but its experts, and for these, such as 20,15",
                     text);
    asked.compute = {static_cast<Nanos>(*dense * 1e6), static_cast<Nanos>(*experts * 1e6)};
    return {};
}

Result<replay::Drive> drive_for(const TimedAsked& asked, const std::string& path) {
    if (asked.drive) return *asked.drive;
    const auto verdict = machine::find_verdict(path);
    if (!verdict.ok() || !verdict->derived) {
        return error(Code::not_found,
                     "{}; or --model MODEL for the drive that the model is on, or --device RATE,LATENCY,DEPTH",
                     verdict.ok() ? fmt::format("what sluice probe found of the drive under {} is not enough", path)
                                  : verdict.status().message());
    }
    return replay::drive_of(*verdict->derived);
}

std::string timed_csv_head() {
    return "trace,policy,slots,arena_bytes,tokens,lookups,hits,bytes_per_token,predicted_bytes_per_token,stall_ms,"
           "token_ms,hidden,tokens_per_second\n";
}

Result<std::string> timed_text(const replay::Routes& routes, const std::string& trace, const model::Geometry* geometry,
                               const std::vector<TimedPlace>& places, const std::vector<TimedRule>& rules,
                               const replay::Drive& drive, const TimedAsked& asked, bool csv) {
    std::string out;
    if (!csv) {
        out = fmt::format("{}: {}, {} tokens of decode; one token is {}\n", trace, routes.architecture,
                          routes.decode_tokens, human_bytes(routes.cycle_bytes()));
        out += fmt::format(
            "a drive of {}/s, {:.3f} ms a read, {} at once; computing takes {:.2f} ms of a token, its experts "
            "{:.2f}\n\n",
            human_bytes(static_cast<uint64_t>(drive.bytes_per_ns * 1e9)), ms(static_cast<double>(drive.latency)),
            drive.depth, ms(static_cast<double>(asked.compute.dense)), ms(static_cast<double>(asked.compute.experts)));
        out += fmt::format("{:>10}  {:<12}{:>8}{:>14}{:>11}{:>11}{:>9}{:>10}\n", "budget", "", "hits %", "read a token",
                           "stall ms", "token ms", "hidden %", "tok/s");
    }
    for (const TimedPlace& place : places) {
        bool first = true;
        for (const TimedRule& rule : rules) {
            const auto t = replay::replay_timed(routes, geometry, place.bytes, drive, asked.compute, rule);
            if (!t.ok()) return t.status();
            out += csv ? csv_row(trace, name_of(rule), *t) : row(first ? place.name : "", name_of(rule), *t);
            first = false;
        }
        const auto bound = replay::clairvoyant(routes, geometry, place.bytes, drive, asked.compute);
        if (!bound.ok()) return bound.status();
        out += csv ? csv_row(trace, "bound", *bound) : row("", "bound", *bound);
    }
    return out;
}

}  // namespace sluice::cli
