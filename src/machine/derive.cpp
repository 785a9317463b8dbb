#include <algorithm>
#include <cmath>

#include "machine/envelope.h"

namespace sluice::machine {
namespace {

// As good as the best: repeated measurements of one drive differ by more.
constexpr double kAsFast = 0.95;
// The knee of bandwidth by size: from here on larger reads gain less than this leaves.
constexpr double kKnee = 0.90;

// What is so much slower than before was not steady before.
constexpr double kMuchSlower = 0.75;

std::string milliseconds(Nanos t) {
    return fmt::format("{:.2f} ms", static_cast<double>(t) / 1e6);
}

struct Derivation {
    const Verdict& v;
    uint64_t page, part, record;
    std::vector<std::string>& notes;
    Derived d;
    bool measured = false;  // anything of the drive itself

    [[nodiscard]] const Cell* drive(io::EngineKind engine, bool direct, uint64_t size, unsigned depth) const {
        const Cell* c = v.find(engine, direct, size, depth);
        return c != nullptr && c->source == Source::device ? c : nullptr;
    }
    // The fastest of all depths.
    [[nodiscard]] double fastest(io::EngineKind engine, bool direct, uint64_t size) const {
        double best = 0;
        for (const Cell& c : v.cells) {
            if (c.engine == engine && c.direct == direct && c.size == size && !c.under_load &&
                c.source == Source::device)
                best = std::max(best, c.bytes_per_ns());
        }
        return best;
    }

    // The fastest way to read of which the rest was measured too.
    bool choose_way() {
        for (const bool direct : {true, false}) {
            const double ring = fastest(io::EngineKind::io_uring, direct, part);
            const double pool = fastest(io::EngineKind::pread, direct, part);
            measured = measured || ring > 0 || pool > 0;
            // One thread does what a pool needs many for.
            const bool ring_first = ring >= kAsFast * pool;
            for (const bool take_ring : {ring_first, !ring_first}) {
                d = {};
                d.engine = take_ring ? io::EngineKind::io_uring : io::EngineKind::pread;
                d.direct = direct;
                d.size = part;
                if (choose_depth() && choose_chunk()) return true;
            }
        }
        return false;
    }

    bool choose_depth() {
        const double best = fastest(d.engine, d.direct, part);
        for (const Cell& c : v.cells) {
            if (c.engine != d.engine || c.direct != d.direct || c.size != part || c.under_load ||
                c.source != Source::device || c.bytes_per_ns() < kAsFast * best)
                continue;
            if (d.depth != 0 && c.depth > d.depth) continue;
            d.depth = c.depth;
            d.best = c.bytes_per_ns();
        }
        return d.depth != 0;
    }

    bool choose_chunk() {
        double best = 0;
        for (const SizeName& s : v.sizes) {
            if (const Cell* c = chunk_cell(s.bytes)) best = std::max(best, c->bytes_per_ns());
        }
        for (const SizeName& s : v.sizes) {
            const Cell* c = chunk_cell(s.bytes);
            if (c == nullptr || c->bytes_per_ns() < kKnee * best) continue;
            if (d.chunk == 0 || s.bytes < d.chunk) d.chunk = s.bytes;
        }
        return d.chunk != 0 && set_service();
    }
    [[nodiscard]] const Cell* chunk_cell(uint64_t size) const {
        const bool fits = size >= 64 * KiB && size <= MiB && is_power_of_two(size);
        return fits ? drive(d.engine, d.direct, size, d.depth) : nullptr;
    }
    bool set_service() {
        const Cell* alone = drive(d.engine, d.direct, d.chunk, 1);
        if (alone != nullptr) d.service = alone->latency.p50;
        return alone != nullptr;
    }

    void choose_rates() {
        d.sustained = d.burst = d.best;
        d.steady = false;
        const Sustained* last = nullptr;
        for (const Sustained& s : v.sustained) {
            if (s.source != Source::device || s.direct != d.direct) continue;
            d.burst = std::max(d.burst, s.burst);
            if (last == nullptr || s.steady || !last->steady) last = &s;
        }
        if (last == nullptr) {
            notes.emplace_back("How fast reading stays was not measured; the best cell of the table stands for it.");
            return;
        }
        d.sustained = last->rate;
        d.steady = last->steady;
        const Sustained& first = v.sustained.front();
        if (first.steady && last->rate < kMuchSlower * first.rate) {
            notes.push_back(
                fmt::format("Reading on and on seemed steady at {:.2f} GB/s at the beginning and at {:.2f} "
                            "GB/s in the end. The end counts: a burst can last longer than a measurement.",
                            first.rate, last->rate));
        }
        if (!d.steady) {
            notes.push_back(
                fmt::format("No steady state was reached: reading on and on still changed its speed after "
                            "{:.1f} s and {}. What is given as sustained is the last third of that.",
                            static_cast<double>(last->elapsed) / 1e9, human_bytes(last->bytes)));
        }
    }

    [[nodiscard]] const Interference* beside(uint64_t exact, uint64_t chunk, unsigned pieces, bool priorities) const {
        const auto it = std::find_if(v.interference.begin(), v.interference.end(), [&](const Interference& i) {
            return i.exact == exact && i.chunk == chunk && i.pieces == pieces && i.priorities == priorities;
        });
        return it != v.interference.end() && it->source == Source::device ? &*it : nullptr;
    }

    // Whether exact reads are hardly later beside this many chunks.
    [[nodiscard]] bool bearable(uint64_t chunk, Nanos service, unsigned pieces, bool priorities) const {
        const Interference* alone = beside(record, 0, 0, false);
        if (alone == nullptr) return false;
        const auto typical =
            std::max<Nanos>(static_cast<Nanos>(kTolerated * static_cast<double>(alone->latency.p50)), service);
        // What the window itself promises: all of its bytes first, and one service.
        const double promised = static_cast<double>(chunk * pieces) / d.sustained + static_cast<double>(service);
        for (const uint64_t exact : {record, page}) {
            const Interference* idle = beside(exact, 0, 0, false);
            const Interference* with = beside(exact, chunk, pieces, priorities);
            if (idle == nullptr || with == nullptr || !idle->latency.p95 || !with->latency.p95) return false;
            if (with->latency.p50 - idle->latency.p50 > typical) return false;
            if (static_cast<double>(*with->latency.p95 - *idle->latency.p95) > promised) return false;
        }
        return true;
    }

    // The most chunks that are bearable, all smaller numbers being bearable too.
    [[nodiscard]] unsigned bearable_pieces(uint64_t chunk, bool priorities) const {
        const Cell* alone = drive(d.engine, d.direct, chunk, 1);
        if (alone == nullptr) return 0;
        std::vector<unsigned> numbers;
        for (const Interference& i : v.interference) {
            if (i.exact == record && i.chunk == chunk && i.priorities == priorities) numbers.push_back(i.pieces);
        }
        std::sort(numbers.begin(), numbers.end());
        unsigned most = 0;
        for (const unsigned n : numbers) {
            if (!bearable(chunk, alone->latency.p50, n, priorities)) break;
            most = n;
        }
        return most;
    }

    void choose_window() {
        unsigned pieces = 0;
        const uint64_t knee = d.chunk;
        // Smaller chunks only where none of that size is bearable.
        for (uint64_t chunk = knee; chunk >= 64 * KiB && pieces == 0; chunk /= 2) {
            const unsigned without = bearable_pieces(chunk, false);
            const unsigned with = bearable_pieces(chunk, true);
            pieces = std::max(without, with);
            if (pieces == 0) continue;
            d.chunk = chunk;
            d.priorities = with > without;
        }
        (void)set_service();  // of the chunk as it is now, which was measured
        d.window = d.chunk * pieces;
        d.lanes = std::max(d.depth, pieces + 1);
        d.reserved = d.lanes - pieces;
        if (pieces > 0) return;
        const Interference* idle = beside(record, 0, 0, false);
        const Interference* least = beside(record, knee, 1, false);
        if (idle != nullptr && least != nullptr) {
            notes.push_back(
                fmt::format("Speculation cannot be had for little here: beside one chunk of {}, the typical "
                            "read of {} takes {} instead of {}.",
                            human_bytes(knee), human_bytes(record), milliseconds(least->latency.p50),
                            milliseconds(idle->latency.p50)));
        } else {
            notes.emplace_back("What speculation does to exact reads was not measured, so there is no window for it.");
        }
    }
};

}  // namespace

std::optional<Derived> derive(const Verdict& verdict, uint64_t page, uint64_t part, uint64_t record,
                              std::vector<std::string>& notes) {
    Derivation x{verdict, page, part, record, notes, {}};
    if (!x.choose_way()) {
        notes.emplace_back(x.measured ? "Too little of the table was measured to conclude anything from it."
                                      : "The drive itself was not measured: memory answered, or nobody counted what "
                                        "came from where.");
        return std::nullopt;
    }
    x.choose_rates();
    x.choose_window();
    return x.d;
}

}  // namespace sluice::machine
