#include "engine/gate_c.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "backend/device.h"
#include "backend/model_state.h"
#include "engine/gate_model.h"
#include "io/unreliable_engine.h"
#include "model/geometry.h"
#include "model/gguf.h"
#include "store/record_store.h"

namespace sluice::engine {
namespace {

using machine::GateVerdict;
using machine::Outcome;

// One way of streaming.
struct Way {
    std::string name;
    std::string before;  // the same without overlap; empty: that is this
    Config config;
};

// The most that --wave takes: more experts than a token chooses.
constexpr unsigned kAll = 64;

std::string wave_name(unsigned wave) {
    return wave == kAll ? "all" : std::to_string(wave);
}

struct NamedMode {
    PrefillMode mode;
    const char* name;
};
constexpr NamedMode kPrompts[] = {{PrefillMode::micro, "what routers choose"},
                                  {PrefillMode::macro, "whole layers ahead"}};

std::vector<unsigned> waves_of(const GateC& asked) {
    return asked.quick ? std::vector<unsigned>{1, kAll} : std::vector<unsigned>{1, 2, 4, kAll};
}

// All wave widths in all ways of reading a prompt.
std::vector<Way> crossed(const GateC& asked, const Config& base) {
    std::vector<Way> ways;
    for (const unsigned wave : waves_of(asked)) {
        for (const NamedMode& prompt : kPrompts) {
            Config c = base;
            c.wave = wave;
            c.prefill_mode = prompt.mode;
            ways.push_back({fmt::format("waves of {}, a prompt of {}", wave_name(wave), prompt.name), {}, c});
        }
    }
    return ways;
}

std::vector<Way> ways_of(const GateC& asked, const model::Geometry& geometry) {
    std::vector<Way> ways;
    std::vector<std::pair<const char*, uint64_t>> sizes = {{"a third", geometry.expert_bytes / 3},
                                                           {"everything", UINT64_MAX / 4}};
    if (!asked.quick) sizes.insert(sizes.begin(), {"one token's experts", geometry.cycle_bytes});
    for (const auto& [name, bytes] : sizes) {
        Config c = asked.config;
        c.cache_bytes = bytes;
        const std::string place = fmt::format("cache of {}, ", name);
        // Without overlap nothing is read a layer ahead, so there is one such way.
        const std::string before = place + "no overlap";
        c.overlap = false;
        ways.push_back({before, {}, c});
        c.overlap = true;
        for (const unsigned wave : waves_of(asked)) {
            c.wave = wave;
            ways.push_back({place + fmt::format("waves of {}", wave_name(wave)), before, c});
        }
        c.wave = 0;
        for (const NamedMode& prompt : kPrompts) {
            c.prefill_mode = prompt.mode;
            ways.push_back({place + fmt::format("a prompt of {}", prompt.name), before, c});
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
    Asking(const GateC& asked, const model::Geometry& geometry, bool has_checksums, GateVerdict& verdict)
        : asked_(asked), geometry_(geometry), verdict_(verdict), has_checksums_(has_checksums), random_(asked.seed) {}

    Status ask() {
        const std::vector<Way> ways = ways_of(asked_, geometry_);
        parts_ = static_cast<double>(ways.size()) + 1 + asked_.orders + 3 * asked_.faults + asked_.cancels;
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
        tell_waits(way, stats(), static_cast<double>(got->decode) / 1e6);
        return {};
    }

    // What was waited for with compute standing still, in the prompt and in each token, and what part that is of the
    // wait without overlap.
    void tell_waits(const Way& way, const Stats& s, double decode_ms) {
        struct Phase {
            const char* name;
            const char* unit;
            double wait;
            bool any;
        };
        const auto tokens = static_cast<double>(std::max<uint64_t>(s.decode.tokens, 1));
        const Phase phases[] = {
            {"exposed wait of the prompt", "ms", s.prefill.read_wait_ms, s.prefill.tokens > 0},
            {"exposed wait", "ms per token", s.decode.read_wait_ms / tokens, s.decode.tokens > 0},
        };
        for (const Phase& p : phases) {
            if (!p.any) continue;
            verdict_.figures.push_back({way.name + ": " + p.name, p.wait, p.unit});
            waits_[way.name + p.name] = p.wait;
            const auto before = waits_.find(way.before + p.name);
            if (before != waits_.end() && before->second > 0)
                verdict_.figures.push_back({fmt::format("{}: {}, of that without overlap", way.name, p.name),
                                            100 * p.wait / before->second, "%"});
        }
        if (s.decode.tokens > 0)
            verdict_.figures.push_back({way.name + ": decode", decode_ms / tokens, "ms per token"});
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
        if (Status s = orders(config, what); !s.ok()) return s;
        // Wrong bytes are noticed by their checksums only.
        if (has_checksums_) config.verify_reads = VerifyReads::always;
        auto workload = load_streamed(config);
        if (!workload.ok()) return workload.status();
        for (const auto part : {&Asking::faults, &Asking::late_reads, &Asking::cancels}) {
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

    // Each in a wave width and a way of reading the prompt that is drawn, without repeating one before all have been.
    Status orders(const Config& base, io::Unreliability& what) {
        Tally tally;
        std::vector<Way> ways = crossed(asked_, base);
        for (int i = 0; i < asked_.orders; ++i) {
            if (Status s = next("orders of arrival"); !s.ok()) return s;
            const size_t turn = static_cast<size_t>(i) % ways.size();
            if (turn == 0) std::shuffle(ways.begin(), ways.end(), random_);
            what.plan();
            what.order_seed = random_();
            auto workload = load_streamed(ways[turn].config);
            if (!workload.ok()) return workload.status();
            const auto got = workload->run();
            if (!got.ok()) return got.status();
            reads_ = what.seen;
            if (reads_ > 0)
                tally.add(got->same(want_), fmt::format("order {}, {}: {}", i, ways[turn].name, difference(*got)));
        }
        what.plan();
        verdict_.checks.push_back(
            tally.check("every order of arrival", "runs are the resident one, their reads coming one by one"));
        return {};
    }

    // What can become of a read, by turns.
    struct Fault {
        io::Harm harm;
        const char* name;
    };
    [[nodiscard]] Fault fault(int turn) const {
        constexpr Fault kFaults[] = {
            {io::Harm::error, "an error"}, {io::Harm::cut, "cut short"}, {io::Harm::wrong, "wrong bytes"}};
        return kFaults[turn % (has_checksums_ ? 3 : 2)];
    }

    Status faults(Workload& workload, io::Unreliability& what) {
        Tally once, state, retry;
        for (int i = 0; i < asked_.faults; ++i) {
            const Fault f = fault(i);
            const auto plan = [&](uint64_t times) {
                what.plan();
                what.fail = random_() % std::max<uint64_t>(reads_, 1);
                what.fails = times;
                what.harm = f.harm;
                return fmt::format("read {}, {}", *what.fail, f.name);
            };
            if (Status s = next("reads that fail once"); !s.ok()) return s;
            std::string name = plan(1);
            const auto got = workload.run();
            if (!got.ok()) return got.status().within(name);
            reads_ = what.seen;
            if (what.failed > 0) once.add(got->same(want_), name + ": " + difference(*got));

            if (Status s = next("reads that fail for good"); !s.ok()) return s;
            name = plan(UINT64_MAX);
            if (Status s = fail_and_retry(workload, what, name, state, retry); !s.ok()) return s;
        }
        what.plan();
        verdict_.checks.push_back(once.check("reads that fail once", "runs are the resident one"));
        verdict_.checks.push_back(
            state.check("a decode that fails changes nothing", "failed decodes left state and leases as before"));
        verdict_.checks.push_back(
            retry.check("the next try", "decodes after a failed one went on to be the resident run"));
        if (!has_checksums_)
            verdict_.notes.emplace_back(
                "The model has no checksums, so wrong bytes could not be noticed and were not tried (sluice verify "
                "--write makes them).");
        return {};
    }

    // A read that comes when all others have, and somebody has waited for it in vain.
    Status late_reads(Workload& workload, io::Unreliability& what) {
        Tally tally;
        for (int i = 0; i < asked_.faults; ++i) {
            if (Status s = next("reads that come late"); !s.ok()) return s;
            what.plan();
            const uint64_t late = random_() % std::max<uint64_t>(reads_, 1);
            what.stick = late;
            what.stick_for = 1 + random_() % 4;
            const auto got = workload.run();
            if (!got.ok()) return got.status();
            reads_ = what.seen;
            if (what.in_vain > 0) tally.add(got->same(want_), fmt::format("read {}: {}", late, difference(*got)));
        }
        what.plan();
        verdict_.checks.push_back(tally.check("a read that is late", "runs are the resident one"));
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
            // Every other one finds a read that does not come.
            if (i % 2 == 1) what.stick = random_() % std::max<uint64_t>(reads_, 1);
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
    const bool has_checksums_;
    std::mt19937_64 random_;
    WorkloadResult want_;
    std::map<std::string, double> waits_;  // exposed, by way and phase
    Tally ways_;
    double parts_ = 1;
    size_t done_ = 0;
    uint64_t reads_ = 0;  // of a run under faults, about
    uint64_t questions_ = 0;
    std::optional<uint64_t> patience_;
};

// Of the copies that are read in this gate.
Result<bool> has_checksums(const GateC& asked, const model::Geometry& geometry) {
    const auto index = model::GgufIndex::open(asked.model);
    if (!index.ok()) return index.status();
    const auto store = store::RecordStore::open(
        *index, geometry,
        {.access = io::Access::buffered, .store = asked.config.store, .mirrors = asked.config.mirrors}, nullptr);
    if (!store.ok()) return store.status();
    return store->has_checksums();
}

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
    const auto sums = has_checksums(asked, opened->geometry);
    if (!sums.ok()) return sums.status();
    if (Status s = Asking(asked, opened->geometry, *sums, v).ask(); !s.ok()) return s;
    return v;
}

}  // namespace sluice::engine
