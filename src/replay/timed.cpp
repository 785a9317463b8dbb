#include "replay/timed.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "io/sim_engine.h"
#include "route/trial.h"
#include "sched/fetcher.h"
#include "store/record_store.h"

namespace sluice::replay {
namespace {

constexpr uint32_t kAlign = 512;
constexpr uint32_t kMatrices = 3;

// Experts of the trace's sizes, where nobody knows the model's file.
Result<model::Geometry> geometry_of(const Routes& routes) {
    model::Geometry g;
    g.architecture = routes.architecture;
    g.n_expert_used = routes.top_k;
    uint64_t at = 0;
    for (const RouteSet& s : routes.sets) {
        if (s.expert_bytes == 0)
            return error(Code::invalid_argument,
                         "the trace does not say how large the experts of layer {} are: give --model", s.layer);
        model::ExpertSet set;
        set.layer = s.layer;
        set.group = "exps";
        set.n_expert = s.n_expert;
        set.n_used = std::min(routes.top_k, s.n_expert);
        uint64_t left = s.expert_bytes;
        for (uint32_t c = 0; c < kMatrices && left > 0; ++c) {
            model::ExpertTensor t;
            t.component = c == 0 ? model::Component::gate : c == 1 ? model::Component::up : model::Component::down;
            t.bytes_per_expert = (left + kMatrices - c - 1) / (kMatrices - c);
            t.offset = at;
            left -= t.bytes_per_expert;
            const auto all = checked_mul(t.bytes_per_expert, s.n_expert);
            const auto end = all ? checked_add(align_up(at, kAlign), *all) : std::nullopt;
            if (!end || *end > (uint64_t{1} << 60U))
                return error(Code::invalid_argument, "experts this large cannot be");
            at = align_up(*end, kAlign);
            set.tensors.push_back(t);
        }
        g.expert_bytes += set.record_bytes() * set.n_expert;
        g.sets.push_back(std::move(set));
    }
    g.n_layer = static_cast<uint32_t>(g.sets.back().layer + 1);
    return g;
}

// The sets of a model that the trace has, in its order; take_sizes() has checked that they are there.
Result<model::Geometry> only_traced(const Routes& routes, const model::Geometry& of_model) {
    model::Geometry g = of_model;
    g.sets.clear();
    for (const RouteSet& s : routes.sets) {
        const auto it = std::find_if(of_model.sets.begin(), of_model.sets.end(),
                                     [&](const model::ExpertSet& e) { return e.layer == s.layer; });
        if (it == of_model.sets.end() || it->n_expert < s.n_expert)
            return error(Code::invalid_argument, "the model's layer {} is not the trace's", s.layer);
        g.sets.push_back(*it);
        g.sets.back().n_expert = s.n_expert;  // those that the trace knows of
    }
    return g;
}

// What computing takes, cut into whole nanoseconds of a layer and of a choice.
struct Pieces {
    Pieces(const Routes& routes, const Compute& compute) {
        const auto layers = static_cast<Nanos>(routes.sets.size());
        dense = compute.dense / layers;
        choice = compute.experts / (layers * static_cast<Nanos>(std::max(1U, routes.top_k)));
    }
    [[nodiscard]] Nanos of_decode(const Routes& routes) const {
        Nanos sum = 0;
        for (const Pass& pass : routes.passes) {
            for (uint32_t v = pass.begin; v < pass.end && !pass.prompt; ++v) {
                const Visit& visit = routes.visits[v];
                sum += dense * visit.tokens + choice * static_cast<Nanos>(visit.end - visit.begin);
            }
        }
        return sum;
    }
    Nanos dense = 0, choice = 0;
};

// The drive, the store on it, the cache and its scheduler.
class Bench {
  public:
    static Result<std::unique_ptr<Bench>> make(const Routes& routes, const model::Geometry* geometry, uint64_t budget,
                                               const Drive& drive, const TimedRule& rule) {
        auto made = store_of(routes, geometry);
        if (!made.ok()) return made.status();
        std::unique_ptr<Bench> bench = std::move(*made);
        io::SimOptions sim;
        sim.channels = std::max(1U, drive.depth);
        sim.latency = drive.latency;
        sim.nanos_per_byte = 1 / drive.bytes_per_ns;
        sim.bandwidth.sustained = drive.bytes_per_ns;
        sim.moves = false;
        bench->engine_.emplace(bench->clock_, sim);

        sched::Fetcher::Options options;
        options.slots.budget = std::min(budget, cache::full_budget(sched::Slots::shapes(*bench->store_, {})));
        options.slots.min_slots = std::max(1U, routes.top_k);
        options.slots.policy = rule.policy;
        options.slots.tuning = rule.tuning;
        options.reads.verify = sched::Verify::never;
        if (rule.foretold_layers > 0) {
            options.reads.device = {.bytes_per_ns = drive.bytes_per_ns,
                                    .service = drive.latency + static_cast<Nanos>(drive.chunk / drive.bytes_per_ns),
                                    .chunk = drive.chunk,
                                    .window = drive.window,
                                    .reserved_lanes = drive.depth > 1 ? 1U : 0U,
                                    .lanes = drive.depth};
        }
        auto fetcher = sched::Fetcher::create(*bench->store_, *bench->engine_, bench->clock_, std::move(options));
        if (!fetcher.ok()) return fetcher.status();
        bench->fetcher_ = std::move(*fetcher);
        return bench;
    }

    [[nodiscard]] sched::Fetcher& fetcher() { return *fetcher_; }
    [[nodiscard]] const store::RecordStore& store() const { return *store_; }
    void compute(Nanos time) {
        clock_.advance_to(clock_.now() + time);
        fetcher_->look();
    }
    [[nodiscard]] Nanos now() const { return clock_.now(); }

    // Without drive and cache.
    static Result<std::unique_ptr<Bench>> store_of(const Routes& routes, const model::Geometry* geometry) {
        const auto made = geometry != nullptr ? only_traced(routes, *geometry) : geometry_of(routes);
        if (!made.ok()) return made.status();
        uint64_t size = 0;
        uint32_t files = 0;
        for (const model::ExpertSet& s : made->sets) {
            for (const model::ExpertTensor& t : s.tensors) {
                size = std::max(size, t.offset + t.bytes_per_expert * s.n_expert);
                files = std::max(files, t.file + 1);
            }
        }
        std::unique_ptr<Bench> bench(new Bench());
        std::vector<const io::File*> pointers;
        for (uint32_t f = 0; f < files; ++f) {
            bench->files_.push_back(std::make_unique<io::File>(
                io::File::simulated("simulated", align_up(size, uint64_t{kAlign}), kAlign, kAlign)));
            pointers.push_back(bench->files_.back().get());
        }
        bench->store_.emplace(store::RecordStore::over(*made, pointers));
        return bench;
    }

  private:
    Bench() = default;
    VirtualClock clock_;
    std::vector<std::unique_ptr<io::File>> files_;
    std::optional<store::RecordStore> store_;
    std::optional<io::SimEngine> engine_;
    std::unique_ptr<sched::Fetcher> fetcher_;  // last: the others outlive it
};

class TimedRun {
  public:
    TimedRun(const Routes& routes, Bench& bench, const Compute& compute, const TimedRule& rule)
        : routes_(routes), bench_(bench), rule_(rule), pieces_(routes, compute) {}

    Status visit(uint32_t v, const Pass& pass, Timed& out) {
        const Visit& visit = routes_.visits[v];
        sched::Fetcher& fetcher = bench_.fetcher();
        const auto phase = pass.prompt ? trace::Phase::prefill : trace::Phase::decode;
        if (!pass.prompt) bench_.compute(pieces_.dense * visit.tokens);
        fetcher.enter(visit.set, phase);
        fetcher.visit(visit.set, visit.tokens, phase);
        for (uint32_t i = visit.begin; i < visit.end; ++i) {
            const Choice& c = routes_.choices[i];
            fetcher.chosen(routes_.record(visit.set, c.expert), visit.tokens - 1 - c.token);
        }
        routes_.records(visit, records_);
        for (const RecordId r : records_) out.hits += fetcher.resident(r) ? 1 : 0;
        out.lookups += records_.size();
        const auto uses_of = [&](RecordId r) {
            const uint32_t expert = r - routes_.first[visit.set];
            return std::count_if(routes_.choices.begin() + visit.begin, routes_.choices.begin() + visit.end,
                                 [&](const Choice& c) { return c.expert == expert; });
        };
        const cache::Seat seat = pass.prompt ? rule_.prompt_seat : cache::Seat::member;
        bool told = pass.prompt;
        for (std::span<RecordId> left(records_); !left.empty();) {
            const std::span<RecordId> leased = left.first(fetcher.lease(left, seat));
            if (leased.empty()) {
                if (!fetcher.wait_for_any()) return error(Code::internal, "no slot is free although nothing is leased");
                continue;
            }
            left = left.subspan(leased.size());
            sched::Batch batch;
            parts_.clear();
            const auto all = static_cast<sched::ComponentMask>((1U << bench_.store().n_components(visit.set)) - 1U);
            for (const RecordId r : leased) {
                if (!fetcher.resident(r)) parts_.push_back({r, all});
            }
            fetcher.request(batch, parts_);
            if (!std::exchange(told, true)) {
                if (tells()) foretell(v, pass);
                commit(v, pass);
            }
            // As the executor does it: who is there first, then each as it comes.
            waiting_.assign(leased.begin(), leased.end());
            while (!waiting_.empty()) {
                const auto ready = std::stable_partition(waiting_.begin(), waiting_.end(),
                                                         [&](RecordId r) { return !fetcher.resident(r); });
                if (ready == waiting_.end()) {
                    if (Status s = fetcher.wait_some(batch); !s.ok()) return s;
                    continue;
                }
                const RecordId r = *ready;
                waiting_.erase(ready);
                if (!pass.prompt) bench_.compute(pieces_.choice * uses_of(r));
            }
            fetcher.release(leased);
        }
        return {};
    }

    // A token of decode is over: what it took, with reads of predictions so far.
    void token(Nanos stall, Nanos wall, uint64_t predicted) {
        const bool told = tells();
        const Nanos cost = told ? rule_.foretold_cost * static_cast<Nanos>(routes_.sets.size()) : 0;
        ++tokens_;
        told_tokens_ += told ? 1 : 0;
        trial_.token({.cost = static_cast<double>(stall + cost),
                      .time = static_cast<double>(wall),
                      .acted = predicted > std::exchange(predicted_, predicted)});
    }
    [[nodiscard]] uint64_t told_tokens() const { return told_tokens_; }

  private:
    [[nodiscard]] bool tells() const { return rule_.foretold_layers > 0 && (!rule_.foretold_auto || trial_.on()); }
    // What the layers after visit `v` are going to want.
    void foretell(uint32_t v, const Pass& pass) {
        sched::Fetcher& fetcher = bench_.fetcher();
        if (rule_.foretold_cost > 0) bench_.compute(rule_.foretold_cost);
        const auto n_sets = static_cast<uint32_t>(routes_.sets.size());
        for (uint32_t ahead = 1; ahead <= rule_.foretold_layers; ++ahead) {
            const uint32_t next = v + ahead;
            // Past the end of the token comes the next one, if that is decode too.
            if (next >= routes_.visits.size() || (next >= pass.end && !decode_at(next))) break;
            const Visit& visit = routes_.visits[next];
            const auto due = fetcher.scheduler().layers().expected(routes_.visits[v].set, visit.set, bench_.now());
            routes_.records(visit, next_);
            for (RecordId& r : next_) {
                if (tokens_ >= rule_.foretold_right) r = other(r, visit.set);
                if (fetcher.resident(r)) continue;
                (void)fetcher.scheduler().hint(r, {.cls = sched::Class::near,
                                                   .owner = {},
                                                   .layer = routes_.sets[visit.set].layer,
                                                   .confidence = 1,
                                                   .deadline = ahead < n_sets && due ? *due : sched::kNoDeadline});
            }
        }
        fetcher.look();
    }
    // An expert of the same layer that is most likely not chosen.
    [[nodiscard]] RecordId other(RecordId r, uint32_t set) const {
        const uint32_t n = routes_.sets[set].n_expert;
        return routes_.first[set] + (r - routes_.first[set] + n / 2) % n;
    }
    // The layer so far ahead in this token is sure to choose what it will choose.
    void commit(uint32_t v, const Pass& pass) {
        const uint32_t next = v + rule_.committed_layers;
        if (next == v || next >= pass.end) return;
        sched::Fetcher& fetcher = bench_.fetcher();
        routes_.records(routes_.visits[next], next_);
        committed_.clear();
        for (const RecordId r : next_) committed_.push_back({r, 1});
        (void)fetcher.commit(committed_);
        fetcher.look();
    }
    [[nodiscard]] bool decode_at(uint32_t visit) const {
        const auto pass = std::upper_bound(routes_.passes.begin(), routes_.passes.end(), visit,
                                           [](uint32_t v, const Pass& p) { return v < p.end; });
        return pass != routes_.passes.end() && !pass->prompt;
    }

    const Routes& routes_;
    Bench& bench_;
    const TimedRule& rule_;
    const Pieces pieces_;
    std::vector<RecordId> records_, waiting_, next_;
    std::vector<sched::Fetcher::Foreseen> committed_;
    route::Trial trial_;
    uint64_t tokens_ = 0, told_tokens_ = 0, predicted_ = 0;
    std::vector<sched::Scheduler::Part> parts_;
};

}  // namespace

Result<uint64_t> budget_of_slots(const Routes& routes, const model::Geometry* geometry, uint32_t per_layer) {
    const auto store = Bench::store_of(routes, geometry);
    if (!store.ok()) return store.status();
    uint64_t sum = 0;
    for (const cache::SetShape& s : sched::Slots::shapes((*store)->store(), {}))
        sum = add_capped(sum, s.slot_bytes() * std::min(per_layer, s.n_expert));
    return sum;
}

Drive drive_of(const machine::Derived& found) {
    Drive d;
    d.bytes_per_ns = found.sustained;
    d.depth = std::max(1U, found.lanes);
    d.chunk = static_cast<uint32_t>(std::min<uint64_t>(found.chunk, 1U << 30U));
    d.window = found.window;
    // A chunk alone takes the latency and its bytes.
    const double moving = found.sustained > 0 ? static_cast<double>(found.chunk) / found.sustained : 0;
    d.latency = std::max<Nanos>(0, found.service - static_cast<Nanos>(moving));
    return d;
}

Result<Timed> replay_timed(const Routes& routes, const model::Geometry* geometry, uint64_t budget, const Drive& drive,
                           const Compute& compute, const TimedRule& rule) {
    if (!(drive.bytes_per_ns > 0)) return error(Code::invalid_argument, "a drive without speed");
    auto bench = Bench::make(routes, geometry, budget, drive, rule);
    if (!bench.ok()) return bench.status();
    sched::Fetcher& fetcher = (*bench)->fetcher();
    if (rule.policy == cache::Policy::stall)
        tell_costs((*bench)->fetcher().order(), routes, drive.bytes_per_ns, drive.latency);
    TimedRun run(routes, **bench, compute, rule);
    Timed out, prompts;
    out.slots = fetcher.cache().n_slots();
    out.arena_bytes = fetcher.layout().arena_bytes;
    for (const Pass& pass : routes.passes) {
        const sched::SchedCounters before = fetcher.counters();
        const Nanos began = (*bench)->now();
        Timed& sum = pass.prompt ? prompts : out;
        for (uint32_t v = pass.begin; v < pass.end; ++v) {
            if (Status s = run.visit(v, pass, sum); !s.ok()) return s;
        }
        const sched::SchedCounters& now = fetcher.counters();
        sum.tokens += pass.tokens;
        sum.wall += (*bench)->now() - began;
        sum.stall += now.wait - before.wait;
        if (!pass.prompt) run.token(now.wait - before.wait, (*bench)->now() - began, now.predicted_physical);
        sum.reading += now.busy - before.busy;
        sum.early_bytes += now.ahead_bytes - before.ahead_bytes;
        sum.early_used += now.used_bytes - before.used_bytes;
        sum.predicted_bytes += now.predicted_physical - before.predicted_physical;
        sum.read_bytes +=
            now.exact_physical + now.predicted_physical - before.exact_physical - before.predicted_physical;
    }
    out.told_tokens = run.told_tokens();
    out.reads = fetcher.counters().reads;
    const cache::SlotCache& cache = fetcher.cache();
    out.brought = cache.n_resident() + cache.counters().evictions;
    return out;
}

Result<Timed> clairvoyant(const Routes& routes, const model::Geometry* geometry, uint64_t budget, const Drive& drive,
                          const Compute& compute) {
    if (!(drive.bytes_per_ns > 0)) return error(Code::invalid_argument, "a drive without speed");
    auto bench = Bench::make(routes, geometry, budget, drive, {});
    if (!bench.ok()) return bench.status();
    const cache::Layout& layout = (*bench)->fetcher().layout();
    Pool pool;
    pool.class_of_set = layout.class_of_set;
    for (const cache::SizeClass& c : layout.classes) pool.slots.push_back(c.n_slots);
    pool.bytes = layout.arena_bytes;
    const Counts best = optimum(routes, pool, Bypass::yes).decode;
    Timed out;
    out.tokens = best.tokens;
    out.lookups = best.lookups;
    out.hits = best.hits;
    out.read_bytes = best.bytes;
    out.slots = pool.n_slots();
    out.arena_bytes = pool.bytes;
    out.reading = static_cast<Nanos>(static_cast<double>(best.bytes) / drive.bytes_per_ns);
    const Nanos computing = Pieces(routes, compute).of_decode(routes);
    out.wall = std::max(out.reading, computing);
    out.stall = out.wall - computing;
    return out;
}

}  // namespace sluice::replay
