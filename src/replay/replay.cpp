#include "replay/replay.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <set>
#include <utility>

#include "cache/layout.h"

namespace sluice::replay {
namespace {

// For each record the visits of its set that use it, counted from 1 as the cache counts them.
class Future {
  public:
    explicit Future(const Routes& routes) : uses_(routes.n_records()), next_(routes.n_records(), 0) {
        std::vector<uint32_t> visits(routes.sets.size(), 0);
        std::vector<RecordId> records;
        for (const Visit& v : routes.visits) {
            ++visits[v.set];
            routes.records(v, records);
            for (const RecordId r : records) uses_[r].push_back(visits[v.set]);
        }
    }
    // The first use after visit `now` of the record's set; kNone if there is none. `now` never falls.
    static constexpr uint32_t kNone = UINT32_MAX;
    uint32_t after(RecordId r, uint32_t now) {
        uint32_t& i = next_[r];
        while (i < uses_[r].size() && uses_[r][i] <= now) ++i;
        return i < uses_[r].size() ? uses_[r][i] : kNone;
    }

  private:
    std::vector<std::vector<uint32_t>> uses_;
    std::vector<uint32_t> next_;
};

class Run {
  public:
    Run(const Routes& routes, const Pool& pool, const Rule& rule)
        : routes_(routes),
          rule_(rule),
          cache_(classes(routes, pool), pool.slots, rule.policy, 2 * routes.top_k, sets(routes), rule.tuning) {
        visits_.assign(routes.sets.size(), 0);
        if (rule.profile != nullptr) sched::expect(cache_.order(), *rule.profile);
        if (rule.policy == cache::Policy::hinted) future_.emplace(routes);
        if (rule.policy == cache::Policy::stall)
            tell_costs(cache_.order(), routes, rule.read_bytes_per_ns, rule.read_latency);
    }

    void visit(const Visit& visit, const Pass& pass, Counts& counts) {
        routes_.records(visit, records_);
        const cache::CacheCounters before = cache_.counters();
        cache_.visit(visit.set, visit.tokens, pass.prompt);
        for (uint32_t i = visit.begin; i < visit.end; ++i) {
            const Choice& c = routes_.choices[i];
            cache_.use_by(routes_.record(visit.set, c.expert), visit.tokens - 1 - c.token);
        }
        ++visits_[visit.set];
        if (future_) tell(visit.set);
        counts.lookups += records_.size();
        const auto missing = std::stable_partition(records_.begin(), records_.end(),
                                                   [&](RecordId r) { return cache_.find(r) != cache::kNoSlot; });
        counts.hits += static_cast<uint64_t>(missing - records_.begin());
        counts.bytes += static_cast<uint64_t>(records_.end() - missing) * routes_.sets[visit.set].expert_bytes;
        // As the engine does it: residents first, and in waves where there are not enough slots.
        const cache::Seat seat = pass.prompt ? rule_.prompt_seat : cache::Seat::member;
        for (size_t done = 0; done < records_.size();) {
            size_t n = done;
            while (n < records_.size() && cache_.lease(records_[n], seat) != cache::kNoSlot) {
                if (seat == cache::Seat::member) cache_.keep(records_[n]);
                ++n;
            }
            assert(n > done);
            for (size_t i = done; i < n; ++i) cache_.release(records_[i]);
            done = n;
        }
        counts.evictions += cache_.counters().evictions - before.evictions;
        counts.rereads += cache_.counters().rereads - before.rereads;
    }

    [[nodiscard]] const cache::Order& order() const { return cache_.order(); }

  private:
    static std::vector<uint32_t> sets(const Routes& routes) {
        std::vector<uint32_t> out;
        for (uint32_t s = 0; s < routes.sets.size(); ++s) out.insert(out.end(), routes.sets[s].n_expert, s);
        return out;
    }
    static std::vector<uint32_t> classes(const Routes& routes, const Pool& pool) {
        std::vector<uint32_t> out;
        for (uint32_t s = 0; s < routes.sets.size(); ++s)
            out.insert(out.end(), routes.sets[s].n_expert, pool.class_of_set[s]);
        return out;
    }
    // What the rule allows to be known, to the cache.
    void tell(uint32_t set) {
        if (rule_.known_tokens > 0) tell_of(set, rule_.known_tokens);
        for (uint32_t ahead = 1; ahead <= std::min<size_t>(rule_.known_layers, routes_.sets.size()); ++ahead) {
            const auto of = static_cast<uint32_t>((set + ahead) % routes_.sets.size());
            tell_of(of, 1);
        }
    }
    void tell_of(uint32_t set, uint32_t horizon) {
        const uint32_t now = visits_[set];
        for (RecordId r = routes_.first[set]; r < routes_.first[set + 1]; ++r) {
            const uint32_t next = future_->after(r, now);
            if (next != Future::kNone && next - now <= horizon) {
                cache_.order().hint(r, next - now - 1);
            } else {
                cache_.order().hint_idle(r, horizon);
            }
        }
    }

    const Routes& routes_;
    const Rule& rule_;
    cache::SlotCache cache_;
    std::vector<uint32_t> visits_;
    std::optional<Future> future_;
    std::vector<RecordId> records_;
};

}  // namespace

uint32_t Pool::n_slots() const {
    uint32_t sum = 0;
    for (const uint32_t n : slots) sum += n;
    return sum;
}

Pool pool_of_slots(const Routes& routes, uint64_t slots) {
    Pool pool;
    pool.class_of_set.assign(routes.sets.size(), 0);
    pool.slots = {static_cast<uint32_t>(std::clamp<uint64_t>(slots, 1, routes.n_records()))};
    uint64_t largest = 0;
    for (const RouteSet& s : routes.sets) largest = std::max(largest, s.expert_bytes);
    pool.bytes = largest * pool.slots[0];
    return pool;
}

Result<Pool> pool_of_bytes(const Routes& routes, uint64_t budget) {
    std::vector<cache::SetShape> shapes;
    for (const RouteSet& s : routes.sets) {
        if (s.expert_bytes == 0)
            return error(Code::invalid_argument,
                         "the trace does not say how large the experts of layer {} are: give --model, or --slots",
                         s.layer);
        shapes.push_back({s.n_expert, {s.expert_bytes}});
    }
    auto layout = cache::plan_layout(shapes, budget, routes.top_k);
    if (!layout.ok()) return layout.status();
    Pool pool;
    pool.class_of_set = layout->class_of_set;
    for (const cache::SizeClass& c : layout->classes) pool.slots.push_back(c.n_slots);
    pool.bytes = layout->arena_bytes;
    return pool;
}

void tell_costs(cache::Order& order, const Routes& routes, double bytes_per_ns, Nanos latency) {
    const auto known = [](const RouteSet& s) { return s.expert_bytes > 0; };
    if (!(bytes_per_ns > 0) || !std::all_of(routes.sets.begin(), routes.sets.end(), known)) return;
    const auto per_byte = [&](const RouteSet& s) {
        return 1 / bytes_per_ns + static_cast<double>(latency) / static_cast<double>(s.expert_bytes);
    };
    for (uint32_t s = 0; s < routes.sets.size(); ++s)
        order.set_cost(s, per_byte(routes.sets[s]) / per_byte(routes.sets[0]));
}

bool sizes_are_apart(const Routes& routes, const Pool& pool) {
    std::vector<uint64_t> size_of_class(pool.slots.size(), 0);
    for (size_t s = 0; s < routes.sets.size(); ++s) {
        uint64_t& size = size_of_class[pool.class_of_set[s]];
        if (size != 0 && size != routes.sets[s].expert_bytes) return false;
        size = routes.sets[s].expert_bytes;
    }
    return true;
}

sched::Profile profile_of(const Routes& routes) {
    Run run(routes, pool_of_slots(routes, 1), {});
    Counts counts;
    for (const Pass& pass : routes.passes) {
        for (uint32_t v = pass.begin; v < pass.end; ++v) run.visit(routes.visits[v], pass, counts);
    }
    return sched::learned(run.order(), std::string(16, '0'), std::nullopt).value_or(sched::Profile());
}

namespace {

// The passes that `keep` wants.
template <typename Keep>
Routes passes_of(const Routes& routes, const Keep& keep) {
    Routes out = routes;
    out.passes.clear();
    out.decode_tokens = 0;
    for (const Pass& pass : routes.passes) {
        if (!keep(pass)) continue;
        out.passes.push_back(pass);
        if (!pass.prompt) out.decode_tokens += pass.tokens;
    }
    // What is left lies in the same order, without gaps.
    out.visits.clear();
    out.choices.clear();
    for (Pass& pass : out.passes) {
        const auto begin = static_cast<uint32_t>(out.visits.size());
        for (uint32_t v = pass.begin; v < pass.end; ++v) {
            Visit visit = routes.visits[v];
            const auto first = static_cast<uint32_t>(out.choices.size());
            out.choices.insert(out.choices.end(), routes.choices.begin() + visit.begin,
                               routes.choices.begin() + visit.end);
            visit.end = first + (visit.end - visit.begin);
            visit.begin = first;
            out.visits.push_back(visit);
        }
        pass.begin = begin;
        pass.end = static_cast<uint32_t>(out.visits.size());
    }
    return out;
}

}  // namespace

Routes first_tokens(const Routes& routes, uint64_t tokens) {
    uint64_t n = 0;
    return passes_of(routes, [&](const Pass& pass) {
        if (!pass.prompt) n += pass.tokens;
        return n <= tokens;
    });
}

Routes later_tokens(const Routes& routes, uint64_t tokens) {
    uint64_t n = 0;
    return passes_of(routes, [&](const Pass& pass) {
        if (!pass.prompt) n += pass.tokens;
        return !pass.prompt && n > tokens;
    });
}

Outcome replay(const Routes& routes, const Pool& pool, const Rule& rule) {
    Run run(routes, pool, rule);
    Outcome out;
    for (const Pass& pass : routes.passes) {
        Counts& counts = pass.prompt ? out.prompt : out.decode;
        counts.tokens += pass.tokens;
        for (uint32_t v = pass.begin; v < pass.end; ++v) run.visit(routes.visits[v], pass, counts);
    }
    return out;
}

Outcome optimum(const Routes& routes, const Pool& pool, Bypass bypass) {
    // When each record is used: positions of visits in the whole trace.
    std::vector<std::vector<uint32_t>> uses(routes.n_records());
    std::vector<RecordId> records;
    for (uint32_t v = 0; v < routes.visits.size(); ++v) {
        routes.records(routes.visits[v], records);
        for (const RecordId r : records) uses[r].push_back(v);
    }
    std::vector<uint32_t> at(routes.n_records(), 0);
    constexpr uint64_t kAbsent = UINT64_MAX;
    std::vector<uint64_t> key(routes.n_records(), kAbsent);  // next use of who is there
    using Queue = std::set<std::pair<uint64_t, RecordId>>;
    std::vector<Queue> queue(pool.slots.size());
    Outcome out;
    for (const Pass& pass : routes.passes) {
        Counts& counts = pass.prompt ? out.prompt : out.decode;
        counts.tokens += pass.tokens;
        for (uint32_t v = pass.begin; v < pass.end; ++v) {
            const Visit& visit = routes.visits[v];
            const uint32_t c = pool.class_of_set[visit.set];
            routes.records(visit, records);
            // Who is of this visit is out of the queue until it is over, unless it need not stay.
            for (const RecordId r : records) {
                ++counts.lookups;
                if (key[r] != kAbsent) {
                    ++counts.hits;
                    queue[c].erase({key[r], r});
                } else {
                    counts.bytes += routes.sets[visit.set].expert_bytes;
                }
                const uint32_t i = ++at[r];
                key[r] = i < uses[r].size() ? uses[r][i] : uint64_t{UINT32_MAX};
                if (bypass == Bypass::yes) queue[c].insert({key[r], r});
            }
            const size_t held = bypass == Bypass::yes ? 0 : std::min<size_t>(records.size(), pool.slots[c]);
            while (queue[c].size() + held > pool.slots[c]) {
                const auto last = std::prev(queue[c].end());
                key[last->second] = kAbsent;
                queue[c].erase(last);
                ++counts.evictions;
            }
            if (bypass == Bypass::yes) continue;
            // More than there are slots for came in waves; the last of them stay.
            for (size_t i = 0; i < records.size(); ++i) {
                if (i + pool.slots[c] < records.size()) {
                    key[records[i]] = kAbsent;
                } else {
                    queue[c].insert({key[records[i]], records[i]});
                }
            }
        }
    }
    return out;
}

std::vector<CurvePoint> hit_curve(const Routes& routes, const Rule& rule) {
    std::vector<CurvePoint> out;
    uint32_t most = 0;
    for (const RouteSet& s : routes.sets) most = std::max(most, s.n_expert);
    for (uint32_t per_layer = 1;;) {
        const Pool pool = pool_of_slots(routes, uint64_t{per_layer} * routes.sets.size());
        out.push_back(
            {static_cast<double>(pool.n_slots()) / routes.n_records(), replay(routes, pool, rule).decode.hit_rate()});
        if (per_layer == most) break;
        per_layer = std::min(most, per_layer + (per_layer < 8 ? 1 : per_layer < 32 ? 4 : 16));
    }
    return out;
}

}  // namespace sluice::replay
