#include "engine/gate_d.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "backend/device.h"
#include "base/bytes.h"
#include "engine/gate_model.h"

namespace sluice::engine {
namespace {

using machine::GateVerdict;
using machine::Outcome;
using route::Predictor;

// What one run with guesses told.
struct Seen {
    backend::Predictions predictions;
    route::TokenTimes times;
};

bool ask_stop(void* stop) {
    const auto& f = *static_cast<const std::function<bool()>*>(stop);
    return f && f();
}

Result<Seen> run_once(const GateD& asked, uint64_t cache_bytes) {
    Config config = asked.config;
    config.cache_bytes = cache_bytes;
    config.predict_log = true;
    std::string why;
    if (!start(config, &why)) return error(Code::unsupported, "{}", why);
    // llama.cpp would only say that it could not be loaded.
    if (Status s = backend::check_model(asked.model, config); !s.ok()) return s;
    auto workload = Workload::load(asked.model, asked.shape);
    if (!workload.ok()) return workload.status();
    std::function<bool()> stop = asked.stop;
    llama_set_abort_callback(workload->context(), ask_stop, &stop);
    reset_stats();
    // The drive's time until the prompt is done, which is when the second decode begins.
    int decodes = 0;
    Nanos busy_before = 0;
    workload->before_decode = [&] {
        if (++decodes != 2) return;
        if (const auto now = backend::predictions()) busy_before = now->busy;
    };
    const auto got = workload->run();
    if (!got.ok()) return got.status();
    auto predictions = backend::predictions();
    if (!predictions) return error(Code::unsupported, "{} has no experts whose routers could be followed", asked.model);
    Nanos guessing = predictions->scores.exact().time;
    for (const Predictor p : route::kAllPredictors) guessing += predictions->scores.time(p);
    Seen seen{.predictions = std::move(*predictions), .times = {}};
    const Stats s = stats();
    const auto tokens = static_cast<double>(s.decode.tokens);
    if (tokens > 0) {
        const Nanos busy = seen.predictions.busy - busy_before;
        seen.times = {.wait = s.decode.read_wait_ms * 1e6 / tokens,
                      .idle = static_cast<double>(std::max<Nanos>(0, got->decode - busy - guessing)) / tokens,
                      .read = seen.predictions.read,
                      .tokens = tokens};
    }
    return seen;
}

double ms(double nanos) {
    return nanos / 1e6;
}

void add_figures(GateVerdict& v, const std::string& where, const Seen& seen) {
    const auto rate = [](double r) { return r < 0 ? std::nullopt : std::optional<double>(100 * r); };
    v.figures.push_back({where + ": exposed wait", ms(seen.times.wait), "ms per token"});
    v.figures.push_back({where + ": drive idle", ms(seen.times.idle), "ms per token"});
    v.figures.push_back({where + ": reading one expert", ms(seen.times.read), "ms"});
    for (const Predictor p : route::kAllPredictors) {
        const route::Score s = seen.predictions.scores.total(p);
        if (p == Predictor::control || !s.asked()) continue;
        const route::Worth w = route::worth(seen.predictions.scores, p, seen.times);
        const std::string name = fmt::format("{}: {}: ", where, route::name(p));
        v.figures.push_back({name + "routed slots named", rate(s.overlap()), "%"});
        v.figures.push_back({name + "missing ones named", rate(s.recall()), "%"});
        v.figures.push_back({name + "in time", rate(s.timely_recall()), "%"});
        v.figures.push_back({name + "read for nothing, by what has to be read", rate(w.overfetch), "%"});
        v.figures.push_back({name + "wait removed at most", ms(w.removed), "ms per token"});
        v.figures.push_back({name + "guessing", ms(w.cost), "ms per token"});
        v.figures.push_back({name + "reads that do not fit", ms(w.overflow), "ms per token"});
    }
}

// Predictors that an option acts on, and which.
struct Acting {
    Predictor predictor;
    const char* option;
    void (*turn_on)(Config&);
};
constexpr std::array<Acting, 3> kActing{{
    {Predictor::stale1, "--predict-prefetch",
     [](Config& c) {
         c.predict_prefetch = true;
         c.predict_model.clear();
     }},
    {Predictor::trained, "--predict-prefetch --predict-model", [](Config& c) { c.predict_prefetch = true; }},
    {Predictor::previous, "--prefetch 1",
     [](Config& c) {
         c.prefetch = 1;
         c.predict_model.clear();
     }},
}};

const Acting& acting_on(Predictor p) {
    return *std::find_if(kActing.begin(), kActing.end(), [&](const Acting& a) { return a.predictor == p; });
}

Result<ActedRun> run_acting(const GateD& asked, uint64_t cache_bytes, const Acting* on) {
    Config config = asked.config;
    config.cache_bytes = cache_bytes;
    if (on != nullptr) {
        on->turn_on(config);
    } else {
        config.predict_model.clear();
    }
    std::string why;
    if (!start(config, &why)) return error(Code::unsupported, "{}", why);
    auto workload = Workload::load(asked.model, asked.shape);
    if (!workload.ok()) return workload.status();
    std::function<bool()> stop = asked.stop;
    llama_set_abort_callback(workload->context(), ask_stop, &stop);
    reset_stats();
    const auto got = workload->run();
    if (!got.ok()) return got.status();
    const Stats s = stats();
    const auto tokens = static_cast<double>(std::max<uint64_t>(1, s.decode.tokens));
    return ActedRun{.token = static_cast<double>(got->decode) / tokens, .wait = s.decode.read_wait_ms * 1e6 / tokens};
}

Result<machine::GateCheck> act(const GateD& asked, const std::string& where, uint64_t cache_bytes, Predictor best) {
    const Acting& acting = acting_on(best);
    std::array<ActedRun, 4> runs;
    for (size_t i = 0; i < runs.size(); ++i) {
        const auto run = run_acting(asked, cache_bytes, i == 1 || i == 2 ? &acting : nullptr);
        if (!run.ok()) return run.status();
        runs[i] = *run;
    }
    return acted_check(where, acting.option, runs);
}

}  // namespace

std::optional<Predictor> best_guesses(const route::Scores& scores, const route::TokenTimes& times) {
    std::optional<Predictor> best;
    const auto net = [&](Predictor p) { return route::worth(scores, p, times).net(); };
    for (const Acting& a : kActing) {
        if (scores.total(a.predictor).routings > 0 && (!best || net(a.predictor) > net(*best))) best = a.predictor;
    }
    return best;
}

machine::GateCheck guesses_check(const std::string& where, const route::Scores& scores,
                                 const route::TokenTimes& times) {
    machine::GateCheck check{.name = where,
                             .outcome = Outcome::unknown,
                             .found = "nothing was decoded",
                             .needed = "guesses that an option acts on and that remove more than they cost"};
    if (times.tokens <= 0) return check;
    if (times.read <= 0) {
        check.found = "how long reading one expert takes is not known (sluice probe measures the drive)";
        return check;
    }
    const auto best = best_guesses(scores, times);
    if (!best) {
        check.found = "no guess was made that an option acts on";
        return check;
    }
    const route::Worth w = route::worth(scores, *best, times);
    check.outcome = w.could_pay() ? Outcome::yes : Outcome::no;
    check.found = fmt::format(
        "{} ({}): of {:.2f} ms a token waits for reads at most {:.2f} ms go; guessing takes {:.2f} ms, reads that do "
        "not fit into the {:.2f} ms in which the drive is idle {:.2f} ms; {:.0f} % more is read",
        route::name(*best), acting_on(*best).option, ms(times.wait), ms(w.removed), ms(w.cost), ms(times.idle),
        ms(w.overflow), 100 * w.overfetch);
    return check;
}

machine::GateCheck acted_check(const std::string& where, const std::string& option,
                               const std::array<ActedRun, 4>& runs) {
    const auto [off, on] =
        std::pair{std::minmax(runs[0].token, runs[3].token), std::minmax(runs[1].token, runs[2].token)};
    const Outcome outcome = on.second < off.first   ? Outcome::yes
                            : on.first > off.second ? Outcome::no
                                                    : Outcome::unknown;
    return {.name = fmt::format("{}, acted on", where),
            .outcome = outcome,
            .found =
                fmt::format("{}: a token takes {:.2f} and {:.2f} ms with it, {:.2f} and {:.2f} ms without; of these it "
                            "waits for reads {:.2f} and {:.2f}, {:.2f} and {:.2f} ms{}",
                            option, ms(runs[1].token), ms(runs[2].token), ms(runs[0].token), ms(runs[3].token),
                            ms(runs[1].wait), ms(runs[2].wait), ms(runs[0].wait), ms(runs[3].wait),
                            outcome == Outcome::unknown ? ": more rounds would have to tell" : ""),
            .needed = "both runs with it faster than both without (off, on, on, off)"};
}

machine::GateCheck early_reads_check(const std::string& path, const Result<machine::Verdict>& drive) {
    machine::GateCheck check{.name = "the drive",
                             .outcome = Outcome::unknown,
                             .found = {},
                             .needed = "a window for reads that nobody waits for, as sluice probe found it"};
    if (!drive.ok()) {
        check.found = fmt::format("nothing is read early: {}", drive.status().message());
    } else if (!drive->derived) {
        check.found =
            fmt::format("sluice probe met memory, not the drive: nothing is read early (sluice probe {})", path);
    } else if (const uint64_t window = drive->derived->window; window > 0) {
        check.outcome = Outcome::yes;
        check.found = fmt::format("{} of them at once hold up no exact read too long", human_bytes(window));
    } else {
        check.outcome = Outcome::no;
        check.found =
            "any of them holds up exact reads too long (window 0): --predict-prefetch and --prefetch read nothing "
            "early here, whatever the guesses are worth";
    }
    return check;
}

Result<GateVerdict> gate_d(const GateD& asked) {
    auto opened = open_gate_model(asked.model, asked.shape, "d",
                                  "Could acting on guesses of the routers' choices remove more waiting than it costs?");
    if (!opened.ok()) return opened.status();
    const model::Geometry& geometry = opened->geometry;
    GateVerdict v = std::move(opened->verdict);
    v.settings.push_back({"predict-model", asked.config.predict_model.empty() ? "none" : asked.config.predict_model});
    v.settings.push_back({"act", asked.act ? "yes" : "no"});
    uint64_t slots = 0, hits = 0;
    for (size_t i = 0; i < asked.shares.size(); ++i) {
        const std::string where = fmt::format("cache of {} % of the experts", asked.shares[i]);
        if (asked.progress) asked.progress(static_cast<double>(i) / static_cast<double>(asked.shares.size()), where);
        if (asked.stop && asked.stop()) return error(Code::cancelled, "interrupted; there is no verdict");
        const uint64_t cache = geometry.expert_bytes / 100 * static_cast<uint64_t>(asked.shares[i]);
        const auto seen = run_once(asked, cache);
        if (!seen.ok()) return seen.status();
        const route::Score control = seen->predictions.scores.total(Predictor::control);
        slots += control.slots;
        hits += control.hits;
        const route::Scores& scores = seen->predictions.scores;
        v.checks.push_back(guesses_check(where, scores, seen->times));
        add_figures(v, where, *seen);
        if (!asked.act || v.checks.back().outcome != Outcome::yes) continue;
        auto acted = act(asked, where, cache, *best_guesses(scores, seen->times));
        if (!acted.ok()) return acted.status();
        v.checks.push_back(std::move(*acted));
    }
    v.checks.insert(v.checks.begin(),
                    {.name = "control",
                     .outcome = slots == 0      ? Outcome::unknown
                                : hits == slots ? Outcome::yes
                                                : Outcome::no,
                     .found = fmt::format("routers run again on their own input chose {} of {} experts", hits, slots),
                     .needed = "all of them"});
    v.checks.insert(v.checks.begin() + 1, early_reads_check(asked.model, machine::find_verdict(asked.model)));
    v.notes = {
        "The wait that goes is an upper bound, and what it is of was not acted on: a yes says that acting is worth a "
        "trial "
        "in which the whole token is timed, no more. --act makes one.",
        "Times are of one run each, whatever else the machine did."};
    return v;
}

}  // namespace sluice::engine
