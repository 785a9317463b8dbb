#include "plan/predict.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>

namespace sluice::plan {
namespace {

// Hit rates in decode by the share of experts held, the highest of the three recordings of docs/results/cache-policy.md
// (the second half of each, when the cache is warm), rounded up.
struct Point {
    double share, hits;
};
constexpr std::array<Point, 9> kMostHits{{{0, 0},
                                          {1.0 / 128, 0.15},
                                          {1.0 / 64, 0.25},
                                          {1.0 / 32, 0.42},
                                          {1.0 / 16, 0.60},
                                          {1.0 / 8, 0.75},
                                          {1.0 / 4, 0.87},
                                          {1.0 / 2, 0.98},
                                          {1, 1}}};

// A model of which nothing was seen: from even choice to the most skewed.
constexpr Range kAnySkew{0, 1};
// What other prompts do to a hit rate that was seen.
constexpr double kSkewMargin = 0.08;
// Runs whose cache is this many times larger or smaller tell nothing of waiting here.
constexpr double kNear = 1.6;
constexpr double kAlike = 1.05;
// It may hit nothing where the cache has fewer experts than one token: each goes before its layer comes again.
bool has_cliff(std::string_view policy) {
    return policy == "lru";
}
// The newest of them count.
constexpr size_t kRuns = 5;

// How far a thing measured comes back, another time, with another prompt.
constexpr Range kAgain{0.87, 1.15};
constexpr Range kWaitAgain{0.8, 1.25};
constexpr Range kSeenAgain{0.8, 1.25};

// Of how many predictions the errors count, how many there must be to trust them alone, and until then the factor by
// which a speed is taken to differ from one time to another: on a virtual machine with two cores it was 1.7.
constexpr size_t kErrors = 40;
constexpr size_t kEnoughErrors = 20;  // those of one hour resemble each other
constexpr double kUnproven = 1.7;
constexpr double kMostScatter = 4;
// A range this wide had no middle to speak of.
constexpr double kNoMiddle = 8;

// What a layer costs beside its weights: nodes of the graph, of which each is a meeting of all threads; cutting the
// graph at the experts; slots, leases and reads.
constexpr Range kNodesPerLayer{15, 80};
constexpr Range kNanosPerLayer{2e3, 150e3};
constexpr Range kNanosPerWord{0.2, 15};  // sampling, by the words of the vocabulary
// Weights in their places take this much longer than the same ones in a row, at most.
constexpr Range kWeightsAgain{0.85, 1.6};

// Reads of so much smaller or larger sizes say nothing.
constexpr uint64_t kSmaller = 4;
constexpr uint64_t kLarger = 8;

// Below this part of a token's experts too little was read to tell what waiting costs.
constexpr double kTooLittleRead = 0.01;
constexpr double kEven = 1.25;

Range operator*(const Range& a, const Range& b) {
    return {a.low * b.low, a.high * b.high};
}
Range operator+(const Range& a, const Range& b) {
    return {a.low + b.low, a.high + b.high};
}
double middle(const Range& r) {
    return std::sqrt(std::max(r.low, r.high * 1e-3) * r.high);
}

template <typename Of>
std::optional<Range> range_over(const std::vector<const PastRun*>& runs, Of of) {
    std::optional<Range> out;
    for (const PastRun* r : runs) {
        const double x = of(*r);
        out = out ? Range{std::min(out->low, x), std::max(out->high, x)} : Range{x, x};
    }
    return out;
}

double ratio_of(uint64_t a, uint64_t b) {
    const auto x = static_cast<double>(std::max<uint64_t>(1, a));
    const auto y = static_cast<double>(std::max<uint64_t>(1, b));
    return std::max(x / y, y / x);
}

double geometric_middle(const Range& r) {
    return std::sqrt(r.low * r.high);
}
// To a factor either way from its middle at least. What has no lower end is wide enough.
void widen(Token& token, double factor) {
    Range& speed = token.tokens_per_second;
    if (!(speed.low > 0) || !std::isfinite(speed.high)) return;
    const double middle = geometric_middle(speed);
    speed = {std::min(speed.low, middle / factor), std::max(speed.high, middle * factor)};
    token.time = {std::min(token.time.low, 1e9 / speed.high), std::max(token.time.high, 1e9 / speed.low)};
}
double per_token(const PastRun& r, double of_all) {
    return of_all / static_cast<double>(r.tokens);
}

// The newest runs for which `fits` holds; those near to a cache size first, if there are any.
template <typename Fits>
std::vector<const PastRun*> newest(const History& history, uint64_t cache_bytes, Fits fits) {
    std::vector<const PastRun*> out;
    for (const double within : {kAlike, kNear, std::numeric_limits<double>::infinity()}) {
        for (auto r = history.runs.rbegin(); r != history.runs.rend() && out.size() < kRuns; ++r) {
            if (fits(*r) && ratio_of(r->cache_bytes, cache_bytes) <= within) out.push_back(&*r);
        }
        if (!out.empty()) break;
    }
    return out;
}

double weights_ns(const std::map<std::string, uint64_t>& bytes, const std::map<std::string, double>& speeds) {
    double ns = 0;
    for (const auto& [type, n] : bytes) {
        const auto it = speeds.find(type);
        if (it != speeds.end()) ns += static_cast<double>(n) * it->second;
    }
    return ns;
}

bool has_all(const std::map<std::string, double>& speeds, const std::map<std::string, Work::Matrix>& wanted) {
    return std::all_of(wanted.begin(), wanted.end(), [&](const auto& w) { return speeds.count(w.first) > 0; });
}

// The one at or below x and the one at or above it, of what is sorted; where x lies outside, the nearest.
template <typename T>
std::array<T, 2> neighbours(const std::vector<T>& sorted, T x) {
    const auto above = std::lower_bound(sorted.begin(), sorted.end(), x);
    if (above == sorted.end()) return {sorted.back(), sorted.back()};
    if (*above == x || above == sorted.begin()) return {*above, *above};
    return {*std::prev(above), *above};
}

// Speeds in the cells around a size and a depth, of every way to read past the page cache.
std::optional<Range> cells_around(const machine::Verdict& v, uint64_t size, unsigned depth, bool under_load) {
    std::optional<Range> out;
    for (const io::EngineKind engine : {io::EngineKind::io_uring, io::EngineKind::pread}) {
        const auto counts = [&](const machine::Cell& c) {
            return c.engine == engine && c.direct && c.under_load == under_load &&
                   c.source == machine::Source::device && c.elapsed > 0 && c.size >= size / kSmaller &&
                   c.size / kLarger <= size;
        };
        std::vector<uint64_t> sizes;
        for (const machine::Cell& c : v.cells) {
            if (counts(c)) sizes.push_back(c.size);
        }
        if (sizes.empty()) continue;
        std::sort(sizes.begin(), sizes.end());
        for (const uint64_t s : neighbours(sizes, size)) {
            std::vector<unsigned> depths;
            for (const machine::Cell& c : v.cells) {
                if (counts(c) && c.size == s) depths.push_back(c.depth);
            }
            std::sort(depths.begin(), depths.end());
            for (const unsigned d : neighbours(depths, depth)) {
                const machine::Cell* c = v.find(engine, true, s, d, under_load);
                if (c == nullptr) continue;
                const double slowest = c->bytes_per_ns() / std::max(1.0, std::sqrt(c->spread));
                const double fastest = c->bytes_per_ns() * std::max(1.0, std::sqrt(c->spread));
                out = out ? Range{std::min(out->low, slowest), std::max(out->high, fastest)} : Range{slowest, fastest};
            }
        }
    }
    return out;
}

}  // namespace

double most_hits(double share) {
    share = std::clamp(share, 0.0, 1.0);
    const auto* above =
        std::find_if(kMostHits.begin() + 1, kMostHits.end(), [&](const Point& p) { return p.share >= share; });
    const Point& a = *std::prev(above);
    const Point& b = *above;
    return a.hits + (b.hits - a.hits) * (share - a.share) / (b.share - a.share);
}

std::optional<double> skew_of(double share, double hits) {
    share = std::clamp(share, 0.0, 1.0);
    const double between = most_hits(share) - share;
    if (between < 0.01) return std::nullopt;
    return (hits - share) / between;
}

Range hits_at(double share, const Range& skew) {
    share = std::clamp(share, 0.0, 1.0);
    const double between = most_hits(share) - share;
    return {std::clamp(share + skew.low * between, 0.0, 1.0), std::clamp(share + skew.high * between, 0.0, 1.0)};
}

std::optional<Range> drive_speed(const machine::Verdict& v, uint64_t size, unsigned fewest, unsigned most) {
    std::optional<Range> out;
    // Also what lies between: a drive need not be faster with more.
    for (unsigned depth = std::max(1U, fewest); depth <= std::max({1U, fewest, most}); depth *= 2) {
        for (const bool load : {false, true}) {
            const auto r = cells_around(v, size, depth, load);
            if (r) out = out ? Range{std::min(out->low, r->low), std::max(out->high, r->high)} : r;
        }
    }
    if (out && v.derived) {
        out->low = std::min(out->low, v.derived->sustained);
        out->high = std::max(out->high, v.derived->burst);
    }
    return out;
}

Token token_of(const Costs& c) {
    constexpr double kInfinite = std::numeric_limits<double>::infinity();
    Token t;
    t.compute = c.dense + c.experts;
    if (c.drive && c.drive->low > 0) t.reads = {c.read_bytes.low / c.drive->high, c.read_bytes.high / c.drive->low};
    if (c.wait_per_byte) {
        t.time = t.compute + c.read_bytes * *c.wait_per_byte;
    } else if (t.reads) {
        // At best the experts' arithmetic hides behind their reads, or the reads behind it; at worst nothing hides.
        t.time = {c.dense.low + std::max(c.experts.low, t.reads->low), t.compute.high + t.reads->high};
    } else {
        t.time = {t.compute.low, c.read_bytes.high > 0 ? kInfinite : t.compute.high};
    }
    t.tokens_per_second = {t.time.high == kInfinite ? 0 : 1e9 / t.time.high, 1e9 / t.time.low};
    if (c.seen) {
        const Range both{std::max(t.tokens_per_second.low, c.seen->low),
                         std::min(t.tokens_per_second.high, c.seen->high)};
        // Where the two contradict each other, what was seen is right.
        t.tokens_per_second = both.low < both.high ? both : *c.seen;
        t.time = {1e9 / t.tokens_per_second.high, 1e9 / t.tokens_per_second.low};
    }
    return t;
}

const char* basis_name(Basis basis) {
    switch (basis) {
        case Basis::none:
            break;
        case Basis::assumed:
            return "assumed";
        case Basis::measured:
            return "measured";
        case Basis::past_runs:
            return "past runs";
    }
    return "not known";
}

const char* binds_name(Binds binds) {
    switch (binds) {
        case Binds::unknown:
            break;
        case Binds::drive:
            return "drive";
        case Binds::compute:
            return "compute";
        case Binds::both:
            return "both";
    }
    return "unknown";
}

const Speeds* find_speeds(const History& history, const Work& work, std::string_view machine, unsigned threads) {
    const Speeds* found = nullptr;
    for (auto s = history.speeds.rbegin(); s != history.speeds.rend(); ++s) {
        if (s->machine != machine || s->threads != threads || !has_all(s->experts, work.expert_matrices) ||
            !has_all(s->dense, work.dense_matrices))
            continue;
        if (!s->busy) return &*s;
        if (found == nullptr) found = &*s;
    }
    return found;
}

bool still_good(const Speeds& speeds, std::string_view since, bool busy) {
    if (speeds.busy) return busy && speeds.at >= since;
    return busy || speeds.at >= since;
}

bool computed_before(const History& history, std::string_view model, std::string_view machine, unsigned threads) {
    return std::any_of(history.runs.begin(), history.runs.end(), [&](const PastRun& r) {
        return r.model == model && r.machine == machine && r.threads == threads && r.tokens >= kLeastTokens;
    });
}

double scatter(const History& history, std::string_view machine) {
    std::vector<double> errors;
    for (auto r = history.runs.rbegin(); r != history.runs.rend() && errors.size() < kErrors; ++r) {
        if (r->machine != machine || r->tokens < kLeastTokens || !r->predicted) continue;
        const Range& p = *r->predicted;
        if (!(p.low > 0) || !(p.high <= p.low * kNoMiddle)) continue;
        errors.push_back(std::exp(std::abs(std::log(r->tokens_per_second() / geometric_middle(p)))));
    }
    std::sort(errors.begin(), errors.end());
    const size_t n = errors.size();
    // The next one exceeds the k-th smallest of n in (n + 1 - k) of n + 1 cases, if they are all alike.
    const double nine_of_ten = n < kEnoughErrors ? std::max(kUnproven, n == 0 ? 1 : errors.back())
                                                 : errors[std::min(n, ((n + 1) * 9 + 9) / 10) - 1];
    return std::min(nine_of_ten, kMostScatter);
}

Estimate estimate(const Work& work, const cache::Layout& layout, const Setting& setting, const Evidence& evidence) {
    static const History kNone;
    const History& history = evidence.history != nullptr ? *evidence.history : kNone;
    const uint64_t cache = layout.arena_bytes;
    const std::vector<double> shares = shares_of(layout);
    Estimate e;

    uint64_t slots = 0;
    uint64_t records = 0;
    for (const cache::SizeClass& c : layout.classes) {
        slots += c.n_slots;
        records += c.n_records;
    }
    e.share = records == 0 ? 1 : std::min(1.0, static_cast<double>(slots) / static_cast<double>(records));

    const auto of_model = [&](const PastRun& r) {
        return r.model == evidence.model && r.machine == evidence.machine && r.tokens >= kLeastTokens;
    };
    const auto same_threads = [&](const PastRun& r) { return of_model(r) && r.threads == setting.threads; };

    // Hits.
    Range skew = kAnySkew;
    const auto tell_hits = newest(history, cache, [&](const PastRun& r) {
        return of_model(r) && r.policy == setting.policy && r.lookups > 0 && records > 0 &&
               skew_of(static_cast<double>(r.slots) / static_cast<double>(records), 0).has_value();
    });
    if (!tell_hits.empty()) {
        const auto seen = range_over(tell_hits, [&](const PastRun& r) {
            return *skew_of(static_cast<double>(r.slots) / static_cast<double>(records),
                            static_cast<double>(r.hits) / static_cast<double>(r.lookups));
        });
        skew = {seen->low - kSkewMargin, seen->high + kSkewMargin};
        e.hits_basis = Basis::past_runs;
    }
    double cycle = 0;
    Range missed;
    uint64_t token_records = 0;
    for (const auto& set : work.sets) token_records += set.n_used;
    const bool over_cliff = has_cliff(setting.policy) && slots < token_records;
    for (size_t i = 0; i < work.sets.size(); ++i) {
        const double bytes = static_cast<double>(work.sets[i].n_used) * static_cast<double>(work.sets[i].bytes);
        Range hits = hits_at(i < shares.size() ? shares[i] : e.share, skew);
        if (over_cliff) hits.low = 0;
        cycle += bytes;
        missed = missed + Range{bytes * (1 - hits.high), bytes * (1 - hits.low)};
    }
    if (cycle > 0) e.hits = {1 - missed.high / cycle, 1 - missed.low / cycle};
    e.costs.read_bytes = missed;
    // What fills an empty cache was read within the runs that told. Otherwise the prompt may have read it, or nothing.
    if (e.hits_basis != Basis::past_runs || e.share == 1) {
        const double filling = std::min(static_cast<double>(cache), static_cast<double>(work.expert_bytes)) /
                               static_cast<double>(std::max<uint64_t>(1, setting.tokens));
        e.costs.read_bytes.high = std::min(cycle, e.costs.read_bytes.high + filling);
    }

    // The drive. Between a layer that misses one matrix and one that misses many, any number of reads is on its way.
    if (evidence.verdict != nullptr) {
        e.costs.drive = drive_speed(*evidence.verdict, work.component_bytes, 1, setting.lanes);
        if (e.costs.drive) e.drive_basis = Basis::measured;
    }
    const auto tells_waiting = [&](const PastRun& r) {
        return of_model(r) && r.drive == evidence.drive && r.reading > 0 &&
               per_token(r, static_cast<double>(r.read_bytes)) > kTooLittleRead * cycle;
    };
    auto waiting =
        newest(history, cache, [&](const PastRun& r) { return tells_waiting(r) && r.threads == setting.threads; });
    if (waiting.empty()) waiting = newest(history, cache, tells_waiting);
    if (!waiting.empty()) {
        e.costs.wait_per_byte = *range_over(waiting, [](const PastRun& r) {
            return static_cast<double>(r.waited) / static_cast<double>(r.read_bytes);
        }) * kWaitAgain;
        e.costs.drive = *range_over(waiting, [](const PastRun& r) {
            return static_cast<double>(r.read_bytes) / static_cast<double>(r.reading);
        }) * kAgain;
        e.drive_basis = Basis::past_runs;
    }

    // Arithmetic.
    const auto computing = newest(history, cache, same_threads);
    if (!computing.empty()) {
        const Range all = *range_over(computing, [](const PastRun& r) {
            return per_token(r, static_cast<double>(r.wall - r.waited));
        }) * kAgain;
        // How much of it is the experts' only matters where nothing else tells what hides behind what.
        uint64_t dense = 0;
        for (const auto& [type, bytes] : work.dense) dense += bytes;
        const double part = cycle / std::max(1.0, cycle + static_cast<double>(dense));
        e.costs.experts = {all.low * part, all.high * part};
        e.costs.dense = {all.low * (1 - part), all.high * (1 - part)};
        e.compute_basis = Basis::past_runs;
    } else if (evidence.speeds != nullptr) {
        const Speeds& s = *evidence.speeds;
        const double dense = weights_ns(work.dense, s.dense);
        const double experts = weights_ns(work.experts, s.experts);
        const double layers = work.layers;
        const auto words = static_cast<double>(work.vocabulary);
        e.costs.dense = Range{dense, dense} * kWeightsAgain + Range{layers * s.node, layers * s.node} * kNodesPerLayer +
                        Range{layers, layers} * kNanosPerLayer + Range{words, words} * kNanosPerWord;
        e.costs.experts = Range{experts, experts} * kWeightsAgain;
        e.compute_basis = Basis::measured;
    }

    const auto alike = newest(history, cache, [&](const PastRun& r) {
        return same_threads(r) && r.drive == evidence.drive && ratio_of(r.cache_bytes, cache) <= kAlike;
    });
    e.runs_alike = alike.size();
    if (!alike.empty()) {
        e.costs.seen = *range_over(alike, [](const PastRun& r) { return r.tokens_per_second(); }) * kSeenAgain;
    }

    if (e.compute_basis == Basis::none) return e;
    e.token = token_of(e.costs);
    if (e.compute_basis == Basis::past_runs) {
        e.scatter = scatter(history, evidence.machine);
        widen(*e.token, e.scatter);
    }
    if (e.token->reads) {
        const double reads = middle(*e.token->reads);
        const double compute = middle(e.token->compute);
        e.binds = reads > compute * kEven ? Binds::drive : compute > reads * kEven ? Binds::compute : Binds::both;
    }
    return e;
}

}  // namespace sluice::plan
