// Owns: `sluice replay`: what caches of several sizes would have done with recorded routes.
#include "replay/replay.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>

#include "base/bytes.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/replay_timed.h"
#include "model/geometry.h"
#include "model/gguf.h"

namespace sluice::cli {
namespace {

using replay::Counts;
using replay::Outcome;
using replay::Pool;
using replay::Routes;
using replay::Rule;

constexpr size_t kMostBudgets = 256;

struct Asked {
    std::vector<std::string> traces;
    std::string model;
    std::vector<Rule> rules;
    std::vector<uint32_t> slots;    // per layer
    std::vector<uint64_t> budgets;  // bytes
    cache::Seat prompt = cache::Seat::guest;
    cache::Tuning tuning;
    std::vector<uint32_t> known_layers, known_tokens;
    std::string profile;  // a trace
    std::optional<uint64_t> skip, tokens;
    TimedAsked timed;
    bool csv = false;
};

std::vector<std::string> split(const std::string& text) {
    std::vector<std::string> out;
    for (size_t begin = 0; begin <= text.size();) {
        const size_t end = std::min(text.find(',', begin), text.size());
        out.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return out;
}

template <typename T>
std::optional<T> number(const std::string& text) {
    T value{};
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (problem != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
}

// "4,6,8-12": numbers and ranges.
Result<std::vector<uint32_t>> numbers(const std::string& flag, const std::string& text) {
    std::vector<uint32_t> out;
    for (const std::string& part : split(text)) {
        const size_t dash = part.find('-');
        const auto first = number<uint32_t>(part.substr(0, dash));
        const auto last = dash == std::string::npos ? first : number<uint32_t>(part.substr(dash + 1));
        if (!first || !last || *first == 0 || *last < *first || *last - *first >= kMostBudgets ||
            out.size() + (*last - *first) >= kMostBudgets)
            return error(Code::invalid_argument, "{} {}: numbers and ranges such as 4,6,8-12, at most {} in all", flag,
                         text, kMostBudgets);
        for (uint32_t n = *first; n <= *last; ++n) out.push_back(n);
    }
    return out;
}

Status tune(cache::Tuning& tuning, const std::string& text) {
    for (const std::string& part : split(text)) {
        const size_t equals = part.find('=');
        const std::string name = part.substr(0, equals);
        const std::string digits = equals == std::string::npos ? "" : part.substr(equals + 1);
        const auto value = number<double>(digits);
        double* const field = name == "short"    ? &tuning.short_half_life
                              : name == "long"   ? &tuning.long_half_life
                              : name == "share"  ? &tuning.short_share
                              : name == "phase"  ? &tuning.phase
                              : name == "prompt" ? &tuning.prompt_share
                              : name == "echo"   ? &tuning.echo_share
                              : name == "sharp"  ? &tuning.echo_sharpness
                                                 : nullptr;
        const bool half_life = name == "short" || name == "long";
        if (field == nullptr || !value || !(*value >= (half_life ? 0.01 : 0.0)) || *value > 1e6 ||
            ((name == "share" || name == "echo") && *value > 1) || (name == "sharp" && *value > 100))
            return error(
                Code::invalid_argument,
                "--tune {}: short=, long= (half-lives in tokens), share= (of the short one, 0 to 1), phase=, "
                "prompt=, echo= (share of what followed on tokens that chose alike, 0 to 1), sharp= (0 to 100)",
                part);
        *field = *value;
    }
    return {};
}

Result<Asked> parse(const std::vector<std::string>& arguments) {
    Asked asked;
    std::vector<std::string> policies{"lru", "reuse"};
    bool compute_given = false;
    for (size_t i = 0; i < arguments.size(); ++i) {
        const std::string& a = arguments[i];
        if (a == "--csv") {
            asked.csv = true;
        } else if (a.starts_with("--")) {
            if (i + 1 == arguments.size()) return error(Code::invalid_argument, "{} needs a value", a);
            const std::string& value = arguments[++i];
            Status status;
            if (a == "--model") {
                asked.model = value;
            } else if (a == "--policy") {
                policies = split(value);
            } else if (a == "--slots" || a == "--know-layers" || a == "--know-tokens" || a == "--foretell-layers") {
                auto list = numbers(a, value);
                if (!list.ok()) return list.status();
                (a == "--slots"         ? asked.slots
                 : a == "--know-layers" ? asked.known_layers
                 : a == "--know-tokens" ? asked.known_tokens
                                        : asked.timed.foretold) = std::move(*list);
            } else if (a == "--device") {
                status = parse_drive(asked.timed, value);
            } else if (a == "--compute") {
                status = parse_compute(asked.timed, value);
                compute_given = true;
            } else if (a == "--budget") {
                for (const std::string& part : split(value)) {
                    const auto bytes = parse_bytes(part, MiB);
                    if (!bytes || asked.budgets.size() == kMostBudgets)
                        return error(Code::invalid_argument, "--budget {}: sizes such as 512,2G", value);
                    asked.budgets.push_back(*bytes);
                }
            } else if (a == "--prompt") {
                if (value != "guests" && value != "members")
                    return error(Code::invalid_argument, "--prompt {}: guests or members", value);
                asked.prompt = value == "guests" ? cache::Seat::guest : cache::Seat::member;
            } else if (a == "--profile-of") {
                asked.profile = value;
            } else if (a == "--skip" || a == "--tokens") {
                const auto n = number<uint64_t>(value);
                if (!n) return error(Code::invalid_argument, "{} {}: a number of tokens", a, value);
                (a == "--skip" ? asked.skip : asked.tokens) = *n;
            } else if (a == "--tune") {
                status = tune(asked.tuning, value);
            } else {
                return error(Code::invalid_argument, "do not understand \"{}\"; sluice replay --help", a);
            }
            if (!status.ok()) return status;
        } else {
            asked.traces.push_back(a);
        }
    }
    if (asked.traces.empty()) return error(Code::invalid_argument, "which trace? sluice replay TRACE");
    if (policies.size() == 1 && policies[0] == "all") {
        // Without knowledge of the future `hinted` is the default.
        policies.clear();
        for (const std::string_view name : cache::kPolicyNames) {
            if (cache::policy_named(name) != cache::Policy::hinted) policies.emplace_back(name);
        }
    }
    for (const std::string& name : policies) {
        const auto policy = cache::policy_named(name);
        if (!policy) {
            std::string known;
            for (const std::string_view n : cache::kPolicyNames) known += known.empty() ? n : ", " + std::string(n);
            return error(Code::invalid_argument, "--policy {}: {} or all", name, known);
        }
        asked.rules.push_back(replay::rule_of(*policy));
    }
    for (const uint32_t n : asked.known_layers) {
        asked.rules.push_back(replay::rule_of(cache::Policy::hinted));
        asked.rules.back().known_layers = n;
    }
    for (const uint32_t n : asked.known_tokens) {
        asked.rules.push_back(replay::rule_of(cache::Policy::hinted));
        asked.rules.back().known_tokens = n;
    }
    if (!asked.timed.wanted && (compute_given || !asked.timed.foretold.empty()))
        return error(Code::invalid_argument, "{} has no effect without --device",
                     compute_given ? "--compute" : "--foretell-layers");
    if (asked.timed.wanted) {
        if (!asked.known_layers.empty() || !asked.known_tokens.empty() || !asked.profile.empty())
            return error(Code::invalid_argument,
                         "--know-layers, --know-tokens and --profile-of have no effect with "
                         "--device, which --foretell-layers has");
        for (const Rule& r : asked.rules) {
            if (r.policy == cache::Policy::hinted)
                return error(Code::invalid_argument, "--policy hinted has no effect with --device");
        }
    }
    for (Rule& r : asked.rules) {
        r.tuning = asked.tuning;
        r.prompt_seat = asked.prompt;
    }
    if (asked.slots.empty() && asked.budgets.empty())
        for (uint32_t n = 4; n <= 32; n += n < 8 ? 1 : 4) asked.slots.push_back(n);
    return asked;
}

std::string name_of(const Rule& rule) {
    if (rule.profile != nullptr) return "+profile";
    if (rule.known_layers > 0) return fmt::format("+{} layers", rule.known_layers);
    if (rule.known_tokens > 0) return fmt::format("+{} tokens", rule.known_tokens);
    return std::string(cache::name_of(rule.policy));
}

struct Place {
    std::string name;  // of the budget
    Pool pool;
};

Result<std::vector<Place>> places(const Routes& routes, const Asked& asked) {
    std::vector<Place> out;
    for (const uint32_t n : asked.slots) {
        out.push_back({fmt::format("{}", n), pool_of_slots(routes, uint64_t{n} * routes.sets.size())});
    }
    for (const uint64_t bytes : asked.budgets) {
        auto pool = pool_of_bytes(routes, bytes);
        if (!pool.ok()) return pool.status();
        out.push_back({human_bytes(bytes), std::move(*pool)});
    }
    return out;
}

void csv_row(const Routes& routes, const std::string& trace, const Place& place, const std::string& rule,
             const Outcome& o) {
    std::printf("%s,%s,%s,%u,%llu,%llu,%llu,%llu,%.6f,%.0f,%llu,%llu,%llu,%llu\n", trace.c_str(),
                routes.architecture.c_str(), rule.c_str(), place.pool.n_slots(),
                static_cast<unsigned long long>(place.pool.bytes), static_cast<unsigned long long>(o.decode.tokens),
                static_cast<unsigned long long>(o.decode.lookups), static_cast<unsigned long long>(o.decode.hits),
                o.decode.hit_rate(), o.decode.bytes_per_token(), static_cast<unsigned long long>(o.decode.evictions),
                static_cast<unsigned long long>(o.decode.rereads), static_cast<unsigned long long>(o.prompt.bytes),
                static_cast<unsigned long long>(o.prompt.hits));
}

int table(const Routes& routes, const std::string& trace, const Asked& asked) {
    auto all = places(routes, asked);
    if (!all.ok()) return fail(all.status(), kFailed);
    const auto control = std::find_if(asked.rules.begin(), asked.rules.end(),
                                      [](const Rule& r) { return r.policy == cache::Policy::lru; });
    std::vector<double> closed(asked.rules.size(), 0), worst(asked.rules.size(), 1);
    std::string head = fmt::format("{:>10}", asked.budgets.empty() ? "slots" : "budget");
    for (const Rule& r : asked.rules) head += fmt::format("{:>11}", name_of(r));
    head += fmt::format("{:>11}{:>11}", "best", "best stays");
    if (!asked.csv) {
        std::printf("%s: %s, %zu layers of %u experts, %llu tokens of decode; one token is %s\n", trace.c_str(),
                    routes.architecture.c_str(), routes.sets.size(), routes.sets[0].n_expert,
                    static_cast<unsigned long long>(routes.decode_tokens), human_bytes(routes.cycle_bytes()).c_str());
        std::printf("hit rates in decode, in percent%s\n\n%s\n",
                    asked.budgets.empty() ? ", by slots per layer (shared by all layers)" : "", head.c_str());
    }
    for (const Place& place : *all) {
        const Outcome best = optimum(routes, place.pool, replay::Bypass::yes);
        const Outcome stays = optimum(routes, place.pool, replay::Bypass::no);
        std::optional<Outcome> lru;
        if (control != asked.rules.end()) lru = replay::replay(routes, place.pool, *control);
        std::string line = fmt::format("{:>10}", place.name);
        for (size_t i = 0; i < asked.rules.size(); ++i) {
            const Rule& rule = asked.rules[i];
            const bool is_control = lru && rule.policy == cache::Policy::lru;
            const Outcome o = is_control ? *lru : replay::replay(routes, place.pool, rule);
            line += fmt::format("{:>11.2f}", 100 * o.decode.hit_rate());
            if (asked.csv) csv_row(routes, trace, place, name_of(rule), o);
            if (!lru) continue;
            closed[i] += gap_closed(lru->decode, o.decode, best.decode) / static_cast<double>(all->size());
            worst[i] = std::min(worst[i], o.decode.hit_rate() - lru->decode.hit_rate());
        }
        if (asked.csv) {
            csv_row(routes, trace, place, "best", best);
            csv_row(routes, trace, place, "best-stays", stays);
        } else {
            std::printf("%s%11.2f%11.2f\n", line.c_str(), 100 * best.decode.hit_rate(), 100 * stays.decode.hit_rate());
        }
    }
    if (asked.csv) return kOk;
    if (control != asked.rules.end()) {
        std::string gap = fmt::format("\n{:>10}", "gap closed"), least = fmt::format("{:>10}", "worst");
        for (size_t i = 0; i < asked.rules.size(); ++i) {
            gap += fmt::format("{:>10.1f}%", 100 * closed[i]);
            least += fmt::format("{:>+11.2f}", 100 * worst[i]);
        }
        std::printf("%s   of the way from lru to best, mean over the rows\n%s   points, against lru\n", gap.c_str(),
                    least.c_str());
    }
    const auto has = [&](auto&& test) { return std::any_of(asked.rules.begin(), asked.rules.end(), test); };
    const bool apart =
        std::all_of(all->begin(), all->end(), [&](const Place& p) { return sizes_are_apart(routes, p.pool); });
    if (apart && has([](const Rule& r) { return r.policy == cache::Policy::stall; }))
        std::printf("stall is reuse here: experts compete for slots only with others of their size\n");
    if (has([](const Rule& r) {
            return r.policy == cache::Policy::hinted && r.known_layers == 0 && r.known_tokens == 0;
        }))
        std::printf("hinted is reuse without --know-layers or --know-tokens\n");
    if (all->size() == 1) {
        std::printf("\n%-12s%16s%12s%12s%16s\n", "", "read per token", "evictions", "read again", "read by prompt");
        for (const Rule& rule : asked.rules) {
            const Outcome o = replay::replay(routes, (*all)[0].pool, rule);
            std::printf("%-12s%16s%12llu%12llu%16s\n", name_of(rule).c_str(),
                        human_bytes(static_cast<uint64_t>(o.decode.bytes_per_token())).c_str(),
                        static_cast<unsigned long long>(o.decode.evictions),
                        static_cast<unsigned long long>(o.decode.rereads), human_bytes(o.prompt.bytes).c_str());
        }
    }
    return kOk;
}

int timed_table(const Routes& routes, const std::string& trace, const model::Geometry* geometry, const Asked& asked) {
    const auto drive = drive_for(asked.timed, asked.model.empty() ? trace : asked.model);
    if (!drive.ok()) return fail(drive.status(), kFailed);
    std::vector<TimedPlace> places;
    for (const uint32_t n : asked.slots) {
        const auto bytes = replay::budget_of_slots(routes, geometry, n);
        if (!bytes.ok()) return fail(bytes.status(), kFailed);
        places.push_back({fmt::format("{} slots", n), *bytes});
    }
    for (const uint64_t bytes : asked.budgets) places.push_back({human_bytes(bytes), bytes});
    std::vector<replay::TimedRule> rules;
    for (const Rule& r : asked.rules) rules.push_back({r.policy, r.tuning, r.prompt_seat, 0});
    for (const uint32_t n : asked.timed.foretold)
        rules.push_back({cache::Policy::reuse, asked.tuning, asked.prompt, n});
    const auto text = timed_text(routes, trace, geometry, places, rules, *drive, asked.timed, asked.csv);
    if (!text.ok()) return fail(text.status(), kFailed);
    std::fputs(text->c_str(), stdout);
    return kOk;
}

void warn_of_lossy(const Routes& routes, const std::string& trace) {
    if (const std::string note = replay::lossy_note(routes, trace); !note.empty()) log(LogLevel::warn, "{}", note);
}

constexpr const char* kCsvHead =
    "trace,architecture,policy,slots,arena_bytes,tokens,lookups,hits,hit_rate,bytes_per_token,"
    "evictions,rereads,prompt_bytes,prompt_hits\n";

}  // namespace

int replay_command(std::vector<std::string> arguments) {
    if (asks_help(arguments)) return print_help(help_text(*find_command("replay")));
    auto asked = parse(arguments);
    if (!asked.ok()) return fail(asked.status(), kUsage);
    if (asked->csv) std::fputs(asked->timed.wanted ? timed_csv_head().c_str() : kCsvHead, stdout);
    bool first = true;
    for (const std::string& trace : asked->traces) {
        auto routes = replay::read_routes(trace);
        if (!routes.ok()) return fail(routes.status(), kFailed);
        warn_of_lossy(*routes, trace);
        std::optional<model::Geometry> geometry;
        if (!asked->model.empty()) {
            const auto index = model::GgufIndex::open(asked->model);
            if (!index.ok()) return fail(index.status(), kFailed);
            auto derived = model::derive_geometry(*index);
            if (!derived.ok()) return fail(derived.status(), kFailed);
            if (Status s = take_sizes(*routes, *derived); !s.ok()) return fail(s, kFailed);
            geometry = std::move(*derived);
        }
        Asked with = *asked;
        std::optional<sched::Profile> profile;
        if (!asked->profile.empty()) {
            auto past = replay::read_routes(asked->profile);
            if (!past.ok()) return fail(past.status(), kFailed);
            warn_of_lossy(*past, asked->profile);
            if (past->first != routes->first)
                return fail(error(Code::conflict, "{} and {} are of different models", asked->profile, trace), kFailed);
            profile = replay::profile_of(asked->skip ? first_tokens(*past, *asked->skip) : *past);
            if (profile->sets.empty())
                return fail(error(Code::invalid_argument, "{} has nothing for a profile", asked->profile), kFailed);
            with.rules.push_back(replay::rule_of(cache::Policy::reuse));
            with.rules.back().tuning = asked->tuning;
            with.rules.back().prompt_seat = asked->prompt;
            with.rules.back().profile = &*profile;
        }
        if (asked->skip) *routes = later_tokens(*routes, *asked->skip);
        if (asked->tokens) *routes = first_tokens(*routes, *asked->tokens);
        if (routes->decode_tokens == 0)
            return fail(error(Code::invalid_argument, "{} has no tokens of decode there", trace), kFailed);
        if (!first && !asked->csv) std::printf("\n");
        first = false;
        const int code = asked->timed.wanted ? timed_table(*routes, trace, geometry ? &*geometry : nullptr, with)
                                             : table(*routes, trace, with);
        if (code != kOk) return code;
    }
    return kOk;
}

}  // namespace sluice::cli
