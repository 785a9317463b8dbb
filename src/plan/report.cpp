#include "plan/report.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "base/text.h"

namespace sluice::plan {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kWidth = 80;
constexpr size_t kRunsShown = 5;

// Three digits are more than is known.
std::string number(double x) {
    if (x == 0) return "0";
    return fmt::format("{:.{}f}", x, x < 1 ? 2 : x < 20 ? 1 : 0);
}

// A line without blanks at its end.
std::string trimmed(std::string line) {
    line.resize(line.find_last_not_of(' ') + 1);
    return line + '\n';
}

// "2025-03-01 12:00"
std::string minute(std::string at) {
    std::replace(at.begin(), at.end(), 'T', ' ');
    return at.substr(0, 16);
}

std::string between(const Range& r, double unit = 1) {
    const std::string low = number(r.low * unit);
    const std::string high = number(r.high * unit);
    return low == high ? low : fmt::format("{} to {}", low, high);
}

std::string speed(const std::optional<Range>& r) {
    if (!r) return "not known";
    return r->low == 0 ? fmt::format("at most {}", number(r->high)) : between(*r);
}

std::optional<Range> tokens_per_second(const Estimate& e) {
    return e.token ? std::optional(e.token->tokens_per_second) : std::nullopt;
}

double slots_per_layer(uint64_t slots, uint32_t layers) {
    return layers == 0 ? 0 : static_cast<double>(slots) / layers;
}

std::string memory_text(const Report& r) {
    const auto line = [](const char* name, uint64_t bytes, const std::string& what) {
        return trimmed(fmt::format("  {:<16}{:>11}  {}", name, human_bytes(bytes), what));
    };
    std::string out = "memory\n";
    out += line("dense weights", r.need.dense, "every token needs them");
    out += line("context", r.need.context, fmt::format("{} tokens (-c)", r.n_ctx));
    out += line("compute buffers", r.need.compute, "");
    out += line("the program", r.need.program, "about");
    out += line("expert cache", r.cache,
                fmt::format("{} of {} experts, {} per layer", r.slots, r.records,
                            number(slots_per_layer(r.slots, r.expert_layers))));
    out += line("together", r.together(),
                r.ram    ? fmt::format("of {}, of which a margin is kept", human_bytes(*r.ram))
                : r.free ? fmt::format("of {} that are free now", human_bytes(*r.free))
                         : "how much is free is unknown");
    return out;
}

std::string token_text(const Report& r) {
    const Estimate& e = r.estimate;
    const auto line = [](const char* name, const std::string& value, const std::string& from) {
        return trimmed(fmt::format("  {:<16}{:<34}{}", name, value, from));
    };
    std::string out = "a token\n";
    out += line("experts", fmt::format("{}", human_bytes(r.work.cycle_bytes)), "read from the file's header");
    out += line("found in cache", between(e.hits, 100) + " %", basis_name(e.hits_basis));
    out += line("read from drive", between(e.costs.read_bytes, 1.0 / MiB) + " MiB", "");
    out +=
        line("drive", e.costs.drive ? between(*e.costs.drive) + " GB/s" : "not measured",
             e.drive_basis == Basis::measured ? "measured " + r.drive_made.substr(0, 10) : basis_name(e.drive_basis));
    if (e.token && e.token->reads) out += line("reading", between(*e.token->reads, 1e-6) + " ms", "");
    out +=
        line("computing", e.token ? between(e.token->compute, 1e-6) + " ms" : "not known", basis_name(e.compute_basis));
    return out;
}

std::string binds_text(Binds binds) {
    switch (binds) {
        case Binds::drive:
            return "the drive binds";
        case Binds::compute:
            return "computing binds";
        case Binds::both:
            return "drive and computing take about as long";
        case Binds::unknown:
            break;
    }
    return "what binds is not known";
}

std::string assumptions(const Report& r) {
    const Estimate& e = r.estimate;
    std::string out = fmt::format("Decode of {} tokens after a prompt, with {} thread{}, nothing else running. ",
                                  r.setting.tokens, r.setting.threads, r.setting.threads == 1 ? "" : "s");
    if (e.hits_basis == Basis::past_runs) {
        out += "Hits as in past runs of this model, with other prompts. ";
    } else {
        out += "Hits between those of a router that chooses evenly and the best of three public models. ";
    }
    if (e.drive_basis == Basis::past_runs) {
        out += "Waiting for reads as in past runs. ";
    } else if (e.drive_basis == Basis::measured) {
        out += "At best the experts' arithmetic hides behind their reads, at worst nothing does. ";
    }
    if (e.runs_alike > 0)
        out += fmt::format("Narrowed by {} run{} with these settings. ", e.runs_alike, e.runs_alike == 1 ? "" : "s");
    if (e.scatter > 1)
        out += fmt::format("Speeds here differ from what was foretold by a factor of {} at times. ", number(e.scatter));
    return out;
}

std::string others_text(const Report& r) {
    std::string out = fmt::format("{:>12}  {:>9}  {:>14}  {:>16}\n", "cache", "per layer", "hits, %", "tok/s");
    for (const Report::Other& o : r.others) {
        out += fmt::format("{:>12}  {:>9}  {:>14}  {:>16}{}\n", human_bytes(o.cache),
                           number(slots_per_layer(o.slots, r.expert_layers)), between(o.estimate.hits, 100),
                           speed(tokens_per_second(o.estimate)),
                           o.cache == r.cache ? "  this plan"
                           : o.fits           ? ""
                                              : "  more than is free");
    }
    return out;
}

std::string runs_text(const Report& r) {
    std::string out = "past runs of this model here: predicted and measured, tok/s\n";
    if (r.runs.empty()) return out + "  none yet; each sluice run leaves one (--no-history: none)\n";
    const size_t first = r.runs.size() - std::min(kRunsShown, r.runs.size());
    for (size_t i = first; i < r.runs.size(); ++i) {
        const PastRun& p = r.runs[i];
        std::string predicted = p.predicted ? speed(p.predicted) : "no prediction";
        const char* verdict = !p.predicted                                ? ""
                              : p.predicted->holds(p.tokens_per_second()) ? "  within"
                              : p.tokens_per_second() < p.predicted->low  ? "  slower"
                                                                          : "  faster";
        out +=
            fmt::format("  {:<16}  {:>10}, {:>2} thread{}  {:>15}  {:>6}{}\n", minute(p.at), human_bytes(p.cache_bytes),
                        p.threads, p.threads == 1 ? " " : "s", predicted, number(p.tokens_per_second()), verdict);
    }
    const Score s = score_of(r.runs);
    if (s.of > 0) out += fmt::format("  {} of {} runs were within what was predicted\n", s.held, s.of);
    return out;
}

Json json(const std::optional<Range>& r) {
    return r ? Json::array({r->low, std::isfinite(r->high) ? Json(r->high) : Json()}) : Json();
}

Json json(const Estimate& e) {
    Json j;
    j["hit_rate"] = json(e.hits);
    j["hit_rate_basis"] = basis_name(e.hits_basis);
    j["read_bytes"] = json(e.costs.read_bytes);
    j["drive_bytes_per_s"] = e.costs.drive ? json(Range{e.costs.drive->low * 1e9, e.costs.drive->high * 1e9}) : Json();
    j["drive_basis"] = basis_name(e.drive_basis);
    j["read_ms"] =
        e.token && e.token->reads ? json(Range{e.token->reads->low * 1e-6, e.token->reads->high * 1e-6}) : Json();
    j["compute_ms"] = e.token ? json(Range{e.token->compute.low * 1e-6, e.token->compute.high * 1e-6}) : Json();
    j["compute_basis"] = basis_name(e.compute_basis);
    j["tokens_per_second"] = json(tokens_per_second(e));
    j["binds"] = binds_name(e.binds);
    j["runs_alike"] = e.runs_alike;
    j["scatter"] = e.scatter;
    return j;
}

}  // namespace

Score score_of(const std::vector<PastRun>& runs) {
    Score s;
    for (const PastRun& r : runs) {
        if (!r.predicted) continue;
        ++s.of;
        s.held += r.predicted->holds(r.tokens_per_second()) ? 1 : 0;
    }
    return s;
}

std::string quoted_for_shell(const std::string& word) {
    const auto plain = [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               std::string_view("-_./=:,+@%").find(c) != std::string_view::npos;
    };
    if (!word.empty() && std::all_of(word.begin(), word.end(), plain)) return word;
    std::string out = "'";
    for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return out + "'";
}

std::string text_of(const Report& r) {
    std::string out =
        fmt::format("{}\n  {}, {} layers with {} experts, {} used per token{}\n", r.path, r.architecture,
                    r.expert_layers, r.n_expert, r.n_used, r.files > 1 ? fmt::format(", {} files", r.files) : "");
    if (!r.read_from.empty()) out += fmt::format("  experts are read from {}\n", r.read_from);
    out += "\n" + memory_text(r);
    if (!r.cache_why.empty()) out += wrap_text("The cache: " + r.cache_why + ".", 2, kWidth);
    out += "\n" + token_text(r);
    out +=
        fmt::format("\npredicted: {} tok/s; {}\n", speed(tokens_per_second(r.estimate)), binds_text(r.estimate.binds));
    out += wrap_text(assumptions(r), 2, kWidth);
    out += "\n" + others_text(r) + "\n" + runs_text(r);
    for (const std::string& n : r.notes) out += "\n" + wrap_text("note: " + n, 0, kWidth);
    return out + "\nrun it: " + r.command + "\n";
}

std::string json_of(const Report& r) {
    Json j;
    j["format"] = "sluice-plan";
    j["version"] = 1;
    j["path"] = r.path;
    j["architecture"] = r.architecture;
    j["read_from"] = r.read_from.empty() ? r.path : r.read_from;
    j["expert_layers"] = r.expert_layers;
    j["experts_per_layer"] = r.n_expert;
    j["experts_used"] = r.n_used;
    j["token_cycle_bytes"] = r.work.cycle_bytes;
    j["memory"] = {{"dense_bytes", r.need.dense},
                   {"context_bytes", r.need.context},
                   {"compute_bytes", r.need.compute},
                   {"program_bytes", r.need.program},
                   {"cache_bytes", r.cache},
                   {"total_bytes", r.together()},
                   {"free_bytes", r.free ? Json(*r.free) : Json()}};
    j["context_tokens"] = r.n_ctx;
    j["cache"] = {{"experts_held", r.slots},
                  {"experts", r.records},
                  {"per_layer", slots_per_layer(r.slots, r.expert_layers)},
                  {"smallest_bytes", r.least_cache},
                  {"full_bytes", r.full_cache},
                  {"why", r.cache_why}};
    j["threads"] = r.setting.threads;
    j["reads_in_flight"] = r.setting.lanes;
    j["tokens"] = r.setting.tokens;
    j["token"] = json(r.estimate);
    j["drive_measured"] = r.drive_made.empty() ? Json() : Json(r.drive_made);
    j["caches"] = Json::array();
    for (const Report::Other& o : r.others) {
        j["caches"].push_back({{"cache_bytes", o.cache}, {"experts_held", o.slots}, {"fits", o.fits}});
        j["caches"].back().update(json(o.estimate));
    }
    j["past_runs"] = Json::array();
    for (const PastRun& p : r.runs) {
        j["past_runs"].push_back({{"at", p.at},
                                  {"cache_bytes", p.cache_bytes},
                                  {"threads", p.threads},
                                  {"tokens", p.tokens},
                                  {"predicted", json(p.predicted)},
                                  {"measured", p.tokens_per_second()}});
    }
    const Score s = score_of(r.runs);
    j["predictions"] = {{"held", s.held}, {"of", s.of}};
    j["notes"] = r.notes;
    j["command"] = r.command;
    // Names from a file need not be valid UTF-8.
    return j.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace sluice::plan
