#include "engine/gate_c.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <random>
#include <utility>

#include "backend/device.h"
#include "backend/model_state.h"
#include "engine/gate_model.h"
#include "io/unreliable_engine.h"
#include "model/geometry.h"

namespace sluice::engine {
namespace {

using machine::GateVerdict;
using machine::Outcome;

// One way of streaming.
struct Way {
    std::string name;
    Config config;
};

// The most that --wave takes: more experts than a token chooses.
constexpr unsigned kAll = 64;

std::string wave_name(unsigned wave) {
    return wave == kAll ? "all" : std::to_string(wave);
}

std::vector<Way> ways_of(const GateC& asked, const model::Geometry& geometry) {
    std::vector<Way> ways;
    std::vector<std::pair<const char*, uint64_t>> sizes = {{"a third", geometry.expert_bytes / 3},
                                                           {"everything", UINT64_MAX / 4}};
    if (!asked.quick) sizes.insert(sizes.begin(), {"one token's experts", geometry.cycle_bytes});
    for (const auto& [name, bytes] : sizes) {
        Config c = asked.config;
        c.cache_bytes = bytes;
        c.overlap = false;
        ways.push_back({fmt::format("cache of {}, no overlap", name), c});
        c.overlap = true;
        const std::vector<unsigned> waves =
            asked.quick ? std::vector<unsigned>{1, kAll} : std::vector<unsigned>{1, 2, 4, kAll};
        for (const unsigned wave : waves) {
            c.wave = wave;
            ways.push_back({fmt::format("cache of {}, waves of {}", name, wave_name(wave)), c});
        }
        c.wave = 0;
        for (const auto& [mode, what] : {std::pair(PrefillMode::micro, "what routers choose"),
                                         std::pair(PrefillMode::macro, "whole layers ahead")}) {
            c.prefill_mode = mode;
            ways.push_back({fmt::format("cache of {}, a prompt of {}", name, what), c});
        }
    }
    return ways;
}

// Counts what went well and keeps the first thing that did not.
struct Tally {
    int tried = 0, good = 0;
    std::string first = {};
    void add(bool well, const std::string& what) {
        ++tried;
        good += well ? 1 : 0;
        if (!well && first.empty()) first = what;
    }
    [[nodiscard]] machine::GateCheck check(const std::string& name, const std::string& of) const {
        return {.name = name,
                .outcome = tried == 0      ? Outcome::unknown
                           : good == tried ? Outcome::yes
                                           : Outcome::no,
                .found = tried == 0
                             ? "not tried: nothing was read"
                             : fmt::format("{} of {} {}{}{}", good, tried, of, first.empty() ? "" : "; first: ", first),
                .needed = "all of them"};
    }
};

class Asking {
  public:
    Asking(const GateC& asked, const model::Geometry& geometry, GateVerdict& verdict)
        : asked_(asked), geometry_(geometry), verdict_(verdict), random_(asked.seed) {}

    Status ask() {
        const std::vector<Way> ways = ways_of(asked_, geometry_);
        parts_ = static_cast<double>(ways.size()) + 1 + asked_.orders + 2 * asked_.faults + asked_.cancels;
        if (Status s = resident(); !s.ok()) return s;
        for (const Way& way : ways) {
            if (Status s = streamed(way); !s.ok()) return s;
        }
        verdict_.checks.push_back(ways_.check("every way of streaming", "runs are the resident one, bit for bit"));
        const auto what = std::make_shared<io::Unreliability>();
        backend::wrap_engines([what](std::unique_ptr<io::Engine> inner) -> std::unique_ptr<io::Engine> {
            return std::make_unique<io::UnreliableEngine>(std::move(inner), what);
        });
        Status s = under_faults(*what);
        backend::wrap_engines(nullptr);
        return s;
    }

  private:
    Status next(const std::string& doing) {
        if (asked_.progress) asked_.progress(static_cast<double>(done_++) / parts_, doing);
        return stopped() ? error(Code::cancelled, "interrupted; there is no verdict") : Status();
    }
    [[nodiscard]] bool stopped() const { return asked_.stop && asked_.stop(); }

    // The gate's own Ctrl-C ends a decode, too; `after` more questions and it ends for the test's sake.
    static bool abort_asked(void* self) {
        auto& a = *static_cast<Asking*>(self);
        ++a.questions_;
        return (a.patience_ && a.questions_ > *a.patience_) || a.stopped();
    }
    Result<Workload> load() {
        auto w = Workload::load(asked_.model, asked_.shape);
        if (w.ok()) llama_set_abort_callback(w->context(), abort_asked, this);
        return w;
    }

    Status resident() {
        if (Status s = next("the resident model"); !s.ok()) return s;
        auto workload = load();
        if (!workload.ok()) return workload.status();
        auto result = workload->run();
        if (!result.ok()) return result.status();
        want_ = std::move(*result);
        return {};
    }

    std::string difference(const WorkloadResult& got) const {
        return got.logits != want_.logits ? "logits differ" : "the state at the end differs";
    }

    Status streamed(const Way& way) {
        if (Status s = next(way.name); !s.ok()) return s;
        auto workload = load_streamed(way.config);
        if (!workload.ok()) return workload.status();
        reset_stats();
        const auto got = workload->run();
        if (!got.ok()) return got.status();
        ways_.add(got->same(want_), way.name + ": " + difference(*got));
        const Stats s = stats();
        if (s.decode.tokens > 0) {
            const auto tokens = static_cast<double>(s.decode.tokens);
            verdict_.figures.push_back({way.name + ": exposed wait", s.decode.read_wait_ms / tokens, "ms per token"});
            verdict_.figures.push_back(
                {way.name + ": decode", static_cast<double>(got->decode) / 1e6 / tokens, "ms per token"});
        }
        return {};
    }

    Result<Workload> load_streamed(const Config& config) {
        std::string why;
        if (!start(config, &why)) return error(Code::unsupported, "{}", why);
        return load();
    }

    // Nobody has anything any more, and nothing is on its way.
    static bool nothing_held() {
        const backend::InFlight now = backend::settle();
        return now.leases == 0 && now.reads == 0;
    }

    Status under_faults(io::Unreliability& what) {
        // A cache in which little stays, so that there is much to read.
        Config config = asked_.config;
        config.cache_bytes = geometry_.cycle_bytes;
        auto workload = load_streamed(config);
        if (!workload.ok()) return workload.status();
        for (const auto part : {&Asking::orders, &Asking::faults, &Asking::cancels}) {
            if (Status s = (this->*part)(*workload, what); !s.ok()) return s;
        }
        if (!workload->restores()) {
            verdict_.notes.emplace_back(
                "A sequence of this model cannot be taken back: a decode that fails or is cancelled empties it, and "
                "the "
                "next try begins with its first token.");
        }
        const UndoCosts& costs = workload->undo_costs();
        const auto copies = static_cast<double>(std::max<uint64_t>(costs.copies, 1));
        verdict_.figures.push_back(
            {"state copied before a decode", static_cast<double>(costs.bytes) / copies, "bytes"});
        verdict_.figures.push_back({"time of that", static_cast<double>(costs.time) / 1e3 / copies, "us"});
        return {};
    }

    Status orders(Workload& workload, io::Unreliability& what) {
        Tally tally;
        for (int i = 0; i < asked_.orders; ++i) {
            if (Status s = next("orders of arrival"); !s.ok()) return s;
            what.plan();
            what.order_seed = random_();
            const auto got = workload.run();
            if (!got.ok()) return got.status();
            reads_ = what.seen;
            if (reads_ > 0) tally.add(got->same(want_), fmt::format("order {}: {}", i, difference(*got)));
        }
        what.plan();
        verdict_.checks.push_back(
            tally.check("every order of arrival", "runs are the resident one, their reads coming one by one"));
        return {};
    }

    Status faults(Workload& workload, io::Unreliability& what) {
        Tally once, state, retry;
        for (int i = 0; i < asked_.faults; ++i) {
            if (Status s = next("reads that fail once"); !s.ok()) return s;
            what.plan();
            what.fail = random_() % std::max<uint64_t>(reads_, 1);
            what.fails = 1;
            const auto got = workload.run();
            if (!got.ok()) return got.status();
            reads_ = what.seen;
            if (what.failed > 0) once.add(got->same(want_), fmt::format("read {}: {}", *what.fail, difference(*got)));

            if (Status s = next("reads that fail for good"); !s.ok()) return s;
            what.plan();
            what.fail = random_() % std::max<uint64_t>(reads_, 1);
            what.fails = UINT64_MAX;
            if (Status s = fail_and_retry(workload, what, fmt::format("read {}", *what.fail), state, retry); !s.ok())
                return s;
        }
        what.plan();
        verdict_.checks.push_back(once.check("reads that fail once", "runs are the resident one"));
        verdict_.checks.push_back(
            state.check("a decode that fails changes nothing", "failed decodes left state and leases as before"));
        verdict_.checks.push_back(
            retry.check("the next try", "decodes after a failed one went on to be the resident run"));
        return {};
    }

    Status cancels(Workload& workload, io::Unreliability& what) {
        Tally state, retry;
        patience_.reset();
        questions_ = 0;
        if (const auto clean = workload.run(); !clean.ok()) return clean.status();
        const uint64_t questions = std::max<uint64_t>(questions_, 1);
        for (int i = 0; i < asked_.cancels; ++i) {
            if (Status s = next("cancellations"); !s.ok()) return s;
            what.plan();
            questions_ = 0;
            patience_ = random_() % questions;
            if (Status s = fail_and_retry(workload, what, fmt::format("question {}", *patience_), state, retry);
                !s.ok())
                return s;
        }
        verdict_.checks.push_back(state.check("a decode that is cancelled changes nothing",
                                              "cancelled decodes left state and leases as before"));
        verdict_.checks.push_back(
            retry.check("the next try after it", "decodes after a cancelled one went on to be the resident run"));
        return {};
    }

    // Runs into the failure that was planned, if it comes; then without it to the end.
    Status fail_and_retry(Workload& workload, io::Unreliability& what, const std::string& name, Tally& state,
                          Tally& retry) {
        workload.begin();
        const auto before = [&] { return state_digest(workload.context()); };
        // Digests before each decode: a failing one must leave the last of them.
        Result<uint64_t> last = before();
        if (!last.ok()) return last.status();
        workload.before_decode = [&] { last = before(); };
        const Decoded failed = workload.go_on();
        workload.before_decode = nullptr;
        if (stopped()) return error(Code::cancelled, "interrupted; there is no verdict");
        patience_.reset();
        if (failed.code == 0) return {};  // the cache had it
        const Result<uint64_t> now = before();
        if (!last.ok()) return last.status();
        if (!now.ok()) return now.status();
        // Of a prompt in several ubatches the first ones stay; that they are right, the rest of the run shows.
        // Where llama.cpp has no way back, nothing is left instead, and nobody was told otherwise.
        const bool emptied = failed.lost && llama_memory_seq_pos_max(llama_get_memory(workload.context()), 0) < 0;
        const bool unchanged = failed.lost ? emptied && !workload.restores() : (failed.committed > 0 || *now == *last);
        state.add(unchanged && nothing_held(), fmt::format("{}: {}", name, unchanged ? "leases" : "state"));
        what.plan();
        if (failed.lost) workload.begin();
        const Decoded again = workload.go_on();
        const auto got = workload.result();
        if (!got.ok()) return got.status();
        retry.add(again.code == 0 && got->same(want_),
                  again.code == 0 ? name + ": " + difference(*got) : name + ": it fails again: " + last_error());
        return {};
    }

    const GateC& asked_;
    const model::Geometry& geometry_;
    GateVerdict& verdict_;
    std::mt19937_64 random_;
    WorkloadResult want_;
    Tally ways_;
    double parts_ = 1;
    size_t done_ = 0;
    uint64_t reads_ = 0;  // of a run under faults, about
    uint64_t questions_ = 0;
    std::optional<uint64_t> patience_;
};

}  // namespace

Result<GateVerdict> gate_c(const GateC& asked) {
    auto opened = open_gate_model(
        asked.model, asked.shape, "c",
        "Does streaming compute what the resident model computes, bit for bit, however the bytes arrive?");
    if (!opened.ok()) return opened.status();
    GateVerdict v = std::move(opened->verdict);
    v.settings.insert(v.settings.end(), {{"seed", std::to_string(asked.seed)},
                                         {"quick", asked.quick ? "yes" : "no"},
                                         {"orders", std::to_string(asked.orders)},
                                         {"faults", std::to_string(asked.faults)},
                                         {"cancels", std::to_string(asked.cancels)}});
    v.notes = {"Times are of one run each, whatever else the machine did: they decide nothing."};
    if (Status s = Asking(asked, opened->geometry, v).ask(); !s.ok()) return s;
    return v;
}

}  // namespace sluice::engine
