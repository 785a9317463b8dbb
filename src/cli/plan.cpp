// Owns: `sluice plan`: what a model would take and how fast it would be here, before anything is loaded.
// Keeps: no expert is read and no weight is loaded; nothing is written but the processor's speed, to the history.
#include <arg.h>
#include <common.h>
#include <fmt/ranges.h>
#include <log.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

#include "backend/model_state.h"
#include "backend/options.h"
#include "backend/process_memory.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "cache/budget.h"
#include "cli/commands.h"
#include "cli/plan_subject.h"
#include "engine/compute_speed.h"
#include "engine/generate.h"
#include "machine/facts.h"
#include "machine/memory_room.h"
#include "plan/report.h"

extern char** environ;

namespace sluice::cli {
namespace {

constexpr uint64_t kUsualTokens = 256;
constexpr uint64_t kDay = 86'400;
constexpr double kBusy = 0.75;  // of the cores, in the last minute
constexpr Nanos kForEachType = 150'000'000;

struct Asked {
    bool json = false;
    bool chat = false;  // as sluice run has it: the prompt goes into a template, and is longer by that
    Config config;
    std::vector<std::string> rest;  // for llama.cpp
};

// Takes the model's bare name and our own flags out; the rest is as for sluice run.
Result<Asked> parse(std::vector<std::string> arguments) {
    Asked asked;
    asked.chat = take_switch(arguments, "--chat");
    if (Status s = backend::read_environment(asked.config, environ, backend::Place::run); !s.ok()) return s;
    if (Status s = backend::take_options(asked.config, arguments, backend::Place::run, nullptr, nullptr, true); !s.ok())
        return s;
    for (size_t i = 0; i < arguments.size(); ++i) {
        std::string& a = arguments[i];
        if (a == "--json") {
            asked.json = true;
        } else if (asked.rest.empty() && !a.starts_with('-')) {
            asked.rest.insert(asked.rest.end(), {"-m", a});
        } else {
            asked.rest.push_back(a);
        }
    }
    if (Status s = backend::validate(asked.config); !s.ok()) return s;
    if (const auto lossy = backend::lossy_options(asked.config); !lossy.empty()) {
        return error(Code::invalid_argument,
                     "plan knows what the routers choose, not what {} makes of it: leave it out; sluice quality "
                     "measures what it saves",
                     fmt::join(lossy, " "));
    }
    if (!names_model(asked.rest)) return error(Code::invalid_argument, "which model? sluice plan MODEL");
    return asked;
}

// The speeds of a day ago are good enough; others are measured, and remembered for the next time, with whether the
// machine was busy.
std::optional<plan::Speeds> speeds_for(const PlanSubject& subject, unsigned threads, bool repack,
                                       const plan::History& history, std::vector<std::string>& notes) {
    const machine::Facts facts = machine::read_facts();
    const bool busy = facts.load && *facts.load > kBusy * static_cast<double>(facts.cores_allowed.value_or(1));
    constexpr const char* kSlower =
        "Other programs kept this machine busy when its processor was measured ({}), so it looks slower than it is.";
    const plan::Speeds* known = plan::find_speeds(history, subject.work, subject.machine, threads);
    if (known != nullptr && plan::still_good(*known, utc_text(kDay), busy)) {
        if (known->busy) notes.push_back(fmt::format(fmt::runtime(kSlower), known->at));
        return *known;
    }
    if (plan::computed_before(history, subject.digest, subject.machine, threads)) return std::nullopt;
    if (busy) notes.push_back(fmt::format(fmt::runtime(kSlower), "now"));
    auto measured = engine::measure_speeds(subject.work, threads, repack, subject.machine, kForEachType);
    if (!measured.ok()) {
        notes.push_back("The processor could not be measured: " + measured.status().message() + ".");
        return std::nullopt;
    }
    measured->busy = busy;
    measured->at = utc_text();
    const auto path = plan::history_path();
    const auto line = plan::line_of(*measured);
    if (path.ok() && line.ok()) (void)plan::append_line(*path, *line);
    return std::move(*measured);
}

// Sizes to compare: a part of what all experts take, each with at least one.
std::vector<uint64_t> other_caches(const plan::Report& r) {
    std::vector<uint64_t> sizes{r.cache};
    for (const double part : {0.1, 0.25, 0.5, 0.75, 1.0}) {
        const auto size = std::max(r.least_cache, static_cast<uint64_t>(part * static_cast<double>(r.full_cache)));
        const bool near = std::any_of(sizes.begin(), sizes.end(), [&](uint64_t s) {
            return static_cast<double>(s) < 1.1 * static_cast<double>(size) &&
                   static_cast<double>(size) < 1.1 * static_cast<double>(s);
        });
        if (!near) sizes.push_back(part == 1.0 ? r.full_cache : size);
    }
    std::sort(sizes.begin(), sizes.end());
    return sizes;
}

// As options read it: whole mebibytes, or kibibytes.
std::string size_text(uint64_t bytes) {
    return bytes >= MiB && bytes % MiB == 0 ? fmt::format("{}", bytes / MiB)
                                            : fmt::format("{}K", (bytes + KiB - 1) / KiB);
}

Config without_sizes(Config config) {
    config.ram_bytes = config.cache_bytes = config.cache_floor_bytes = config.cache_ceil_bytes = std::nullopt;
    return config;
}

std::string command_for(const Asked& asked, const plan::Report& r, bool all_fit) {
    std::string out = "sluice run";
    std::vector<std::string> words = asked.rest;
    const auto has = [&](std::initializer_list<std::string_view> flags) {
        return std::any_of(words.begin(), words.end(), [&](const std::string& w) {
            return std::find(flags.begin(), flags.end(), w) != flags.end();
        });
    };
    const bool prompt = has({"-p", "--prompt", "-f", "--file"});
    if (!has({"-t", "--threads"})) words.insert(words.end(), {"-t", fmt::format("{}", r.setting.threads)});
    for (const std::string& w : words) out += " " + plan::quoted_for_shell(w);
    if (asked.chat) out += " --chat";
    // What was told is told again; what was chosen is named, so that the run is the one that was planned.
    const Config& c = asked.config;
    for (const std::string& w : backend::as_flags(without_sizes(c))) out += " " + plan::quoted_for_shell(w);
    if (c.ram_bytes) out += " --ram " + size_text(*c.ram_bytes);
    if (c.cache_floor_bytes) out += " --cache-floor-mb " + size_text(*c.cache_floor_bytes);
    if (c.cache_ceil_bytes) out += " --cache-ceil-mb " + size_text(*c.cache_ceil_bytes);
    const uint64_t whole = r.cache >= MiB ? align_down(r.cache, MiB) : r.cache;
    if (c.cache_bytes || !(c.ram_bytes || c.cache_floor_bytes || c.cache_ceil_bytes))
        out += " --cache-mb " + size_text(c.cache_bytes ? *c.cache_bytes : all_fit ? align_up(r.cache, MiB) : whole);
    return prompt ? out : out + " -p 'your prompt'";
}

// How much the cache gets, and why: as the program chooses when its first token runs (backend/process_memory.cpp), with
// what everything else is going to take instead of what it takes.
Status choose_cache(plan::Report& r, const Asked& asked) {
    const Config& c = asked.config;
    const machine::MemoryRoom room = machine::read_memory_room("");
    const uint64_t rest = r.need.total();
    r.free = room.free();
    r.ram = c.ram_bytes;
    const uint64_t full = r.full_cache;
    const uint64_t most = std::min(full, c.cache_bytes.value_or(c.cache_ceil_bytes.value_or(full)));
    const uint64_t least =
        c.cache_bytes ? most : std::max(r.least_cache, std::min(most, c.cache_floor_bytes.value_or(0)));
    r.cache = std::max(most, least);
    r.cache_why = r.cache == full ? "all experts fit" : c.cache_bytes ? "as told" : "the ceiling";
    if (c.ram_bytes) {
        const auto left = cache::room_for_experts(r.need, *c.ram_bytes, least, full);
        if (!left.ok()) return left.status();
        if (*left < r.cache) {
            r.cache = *left;
            r.cache_why = "what the rest leaves of --ram";
        }
    }
    if (!c.cache_bytes && !c.ram_bytes && r.free && (*r.free < rest || *r.free - rest < least)) {
        return error(
            Code::no_memory,
            "{} are free now, which is too little: {} = {}, and the cache needs at least {}; a shorter context "
            "(-c) or smaller batches (-ub) take less",
            human_bytes(*r.free), r.need.text(), human_bytes(rest), human_bytes(least));
    }
    if (!c.cache_bytes) {
        // What is free once all else is there.
        const cache::AutoBudget chosen = cache::choose_budget(room.after(rest), c.ram_bytes.has_value(), least, full);
        if (chosen.bytes < r.cache) {
            r.cache = chosen.bytes;
            r.cache_why = chosen.why;
        }
    }
    if (r.free && r.together() > *r.free) {
        r.notes.push_back(
            fmt::format("All of it is {}, and only {} are free now. What is over would be swapped, or the kernel would "
                        "end the program.",
                        human_bytes(r.together()), human_bytes(*r.free)));
    }
    return {};
}

int plan_with(Asked& asked) {
    common_params params;
    common_init();
    params.verbosity = 1;
    std::string program = "sluice plan";
    std::vector<std::string> arguments = asked.rest;
    std::vector<char*> argv = argv_of(program, arguments);
    if (!common_params_parse(static_cast<int>(argv.size()) - 1, argv.data(), params, LLAMA_EXAMPLE_COMPLETION))
        return kUsage;
    choose_context(asked.rest, params);

    const auto subject = PlanSubject::open(params.model.path, asked.config, !params.no_extra_bufts);
    if (!subject.ok()) return fail(subject.status(), kFailed);
    if (Status s = engine::check_model(subject->path); !s.ok()) return fail(s, kFailed);
    params.model.path = subject->path;
    const auto context = context_plan(params, asked.chat);
    if (!context.ok()) return fail(context.status(), kFailed);
    const auto trained = backend::read_trained(subject->index, subject->geometry, asked.config.predict_model);
    if (!trained.ok()) return fail(trained.status(), kFailed);

    plan::Report r;
    r.path = subject->path;
    r.files = subject->files;
    r.read_from = subject->read_from;
    r.architecture = subject->geometry.architecture;
    r.expert_layers = static_cast<uint32_t>(subject->geometry.sets.size());
    for (const model::ExpertSet& s : subject->geometry.sets) r.n_expert = std::max(r.n_expert, s.n_expert);
    r.n_used = subject->geometry.n_expert_used;
    r.work = subject->work;
    r.records = subject->geometry.n_records();
    r.least_cache = cache::minimum_budget(subject->shapes);
    r.full_cache = cache::full_budget(subject->shapes);
    r.n_ctx = static_cast<uint32_t>(std::max(0, params.n_ctx));
    r.need = {.dense = subject->geometry.dense_bytes,
              .context = context->context,
              .compute = context->compute,
              .program = cache::program_need(
                  subject->header_bytes,
                  backend::own_buffers_need(subject->index, *subject->store, subject->converted, context->batch) +
                      backend::guessing_need(subject->index, subject->geometry, asked.config, *trained))};
    if (Status s = choose_cache(r, asked); !s.ok()) return fail(s, kFailed);
    const auto layout = subject->layout(r.cache);
    if (!layout.ok()) return fail(layout.status(), kFailed);
    for (const cache::SizeClass& c : layout->classes) r.slots += c.n_slots;

    const auto threads = static_cast<unsigned>(std::max(1, params.cpuparams.n_threads));
    r.setting = {.threads = threads,
                 .lanes = asked.config.io_threads,
                 .tokens = params.n_predict > 0 ? static_cast<uint64_t>(params.n_predict) : kUsualTokens,
                 .policy = policy_name(asked.config)};
    const auto path = plan::history_path();
    const plan::History history = path.ok() ? plan::read_history(*path) : plan::History();
    const auto speeds = speeds_for(*subject, threads, !params.no_extra_bufts, history, r.notes);
    const plan::Speeds* known = speeds ? &*speeds : nullptr;
    r.estimate = subject->estimate(*layout, r.setting, history, known);
    for (const uint64_t size : other_caches(r)) {
        const auto other = subject->layout(size);
        if (!other.ok()) continue;
        plan::Report::Other o{.cache = size, .slots = 0, .estimate = {}, .fits = true};
        for (const cache::SizeClass& c : other->classes) o.slots += c.n_slots;
        o.estimate = subject->estimate(*other, r.setting, history, known);
        o.fits = !r.free || r.need.total() + size <= *r.free;
        r.others.push_back(std::move(o));
    }
    for (const plan::PastRun& p : history.runs) {
        if (p.model == subject->digest && p.machine == subject->machine) r.runs.push_back(p);
    }
    if (subject->verdict) {
        r.drive_made = subject->verdict->made;
    } else {
        r.notes.push_back(fmt::format("{}. Until then nothing is known of it but from runs.", subject->no_verdict));
    }
    r.command = command_for(asked, r, r.slots == r.records);
    std::fputs((asked.json ? plan::json_of(r) : plan::text_of(r)).c_str(), stdout);
    return kOk;
}

}  // namespace

int plan_command(std::vector<std::string> arguments) {
    if (asks_help(arguments)) return print_help(help_text(*find_command("plan")));
    auto asked = parse(std::move(arguments));
    if (!asked.ok()) return fail(asked.status(), kUsage);
    return plan_with(*asked);
}

}  // namespace sluice::cli
