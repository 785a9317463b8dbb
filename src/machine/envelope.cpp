#include "machine/envelope.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>

#include "base/crc32c.h"
#include "base/memory.h"

namespace sluice::machine {
namespace {

constexpr std::array<unsigned, 6> kDepths{1, 2, 4, 8, 16, 32};
constexpr unsigned kMostLanes = 32;
constexpr std::array<io::EngineKind, 2> kKinds{io::EngineKind::io_uring, io::EngineKind::pread};
constexpr unsigned kSustainedDepth = 8;  // until it is known which is best
// Of a size and file, enough that a measurement reads little twice.
constexpr size_t kMostTargets = 8192;
// Buffered reads must first be dropped from the page cache, so it is decided before how many there will be.
constexpr uint64_t kBufferedBytes = 32 * MiB;
constexpr uint64_t kLeastExact = kReadsForP95 + 4;

// Parts of the time.
constexpr double kForSustained = 0.15;  // twice
constexpr double kForChoice = 0.03;
constexpr double kForTable = 0.45;
constexpr double kForInterference = 0.22;
// Windows of reading on and on, if that takes just its time. It may take this many times as long.
constexpr int kWindows = 18;
constexpr int kLonger = 3;
constexpr double kSteady = 0.10;
constexpr double kClearly = 1.05;  // faster
// A run that has not made its least reads gets this many times its part of the time.
constexpr int kPatience = 4;

Nanos part_of(Nanos time, double part) {
    return static_cast<Nanos>(static_cast<double>(time) * part);
}

Source who_answered(bool memory, bool direct, uint64_t bytes, const std::optional<uint64_t>& device_bytes) {
    if (memory) return Source::memory;
    if (device_bytes) return *device_bytes < bytes / 10 * 9 ? Source::memory : Source::device;
    return direct ? Source::device : Source::unknown;
}

// What several answers are together.
Source both(Source a, Source b) {
    if (a == Source::memory || b == Source::memory) return Source::memory;
    return a == Source::unknown ? a : b;
}

// Speeds of a run, window by window.
class Windows {
  public:
    explicit Windows(Nanos width) : width_(std::max<Nanos>(width, 1)) {}
    void note(uint64_t bytes, Nanos elapsed) {
        if (elapsed - begin_ < width_) return;
        ends_.push_back(elapsed);
        rates_.push_back(static_cast<double>(bytes - bytes_) / static_cast<double>(elapsed - begin_));
        begin_ = elapsed;
        bytes_ = bytes;
    }
    // The last third is as fast as the one before it.
    [[nodiscard]] bool steady() const {
        const size_t third = rates_.size() / 3;
        if (third < 2) return false;
        const double last = mean(rates_.size() - third, rates_.size());
        const double before = mean(rates_.size() - 2 * third, rates_.size() - third);
        return std::abs(last - before) <= kSteady * std::max(last, before);
    }
    // nullopt without a whole window.
    [[nodiscard]] std::optional<double> fastest() const {
        if (rates_.empty()) return std::nullopt;
        return *std::max_element(rates_.begin(), rates_.end());
    }
    [[nodiscard]] std::optional<double> last_third() const {
        if (rates_.empty()) return std::nullopt;
        return mean(rates_.size() - std::max<size_t>(1, rates_.size() / 3), rates_.size());
    }
    // When it became as fast as it was in the end: from there on no three windows in a row were much faster or slower.
    [[nodiscard]] Nanos steady_after() const {
        constexpr size_t kRow = 3;
        constexpr double kMuch = 0.25;
        const double rate = last_third().value_or(0);
        size_t from = rates_.size();
        while (from >= kRow && std::abs(mean(from - kRow, from) - rate) <= kMuch * rate) --from;
        return from < kRow ? 0 : ends_[from - 1];
    }

  private:
    // Of the windows [from, to), which are of about one width.
    [[nodiscard]] double mean(size_t from, size_t to) const {
        return std::accumulate(rates_.begin() + static_cast<std::ptrdiff_t>(from),
                               rates_.begin() + static_cast<std::ptrdiff_t>(to), 0.0) /
               static_cast<double>(to - from);
    }
    Nanos width_;
    Nanos begin_ = 0;
    uint64_t bytes_ = 0;
    std::vector<Nanos> ends_;
    std::vector<double> rates_;
};

// A time that several runs share. What one does not need is left to the others.
class Share {
  public:
    Share(const Clock& clock, Nanos time, size_t runs)
        : clock_(clock),
          end_(clock.now() + time),
          left_(runs),
          fair_(time / static_cast<Nanos>(std::max<size_t>(1, runs))) {}
    Nanos next() {
        const Nanos rest = end_ - clock_.now();
        const auto runs = static_cast<Nanos>(std::max<size_t>(1, left_));
        left_ -= left_ > 0 ? 1 : 0;
        return std::max<Nanos>({1, fair_ / kPatience, rest / runs});
    }
    [[nodiscard]] bool over() const { return clock_.now() >= end_; }
    [[nodiscard]] Nanos most() const { return kPatience * fair_; }

  private:
    const Clock& clock_;
    const Nanos end_;
    size_t left_;
    const Nanos fair_;
};

class Measuring {
  public:
    Measuring(const EnvelopePlan& plan, const Rig& rig)
        : plan_(plan), rig_(rig), direct_(!plan.direct.empty()), start_(rig.clock->now()), random_(1) {}

    Result<Verdict> go() {
        if (Status s = prepare(); !s) return s;
        if (Status s = read_on("reading on and on"); !s) return s;
        if (Status s = choose_engine(); !s) return s;
        if (Status s = fill_table(); !s) return s;
        // Enough to know with which engine and depth the rest is worth measuring.
        std::vector<std::string> unsaid;
        const auto soon = derive(v_, plan_.page, plan_.part, plan_.record, unsaid);
        if (soon) {
            if (Status s = interfere(*soon); !s) return s;
            engine_ = soon->engine;
            depth_ = soon->depth;
            if (Status s = read_on("reading on and on again"); !s) return s;
        }
        tell("memory");
        v_.memory = measure_memory(*rig_.clock);
        if (stopped()) return interrupted();
        v_.derived = derive(v_, plan_.page, plan_.part, plan_.record, v_.notes);
        say_what_was_left_out();
        v_.took = rig_.clock->now() - start_;
        return std::move(v_);
    }

  private:
    struct Job {
        io::EngineKind engine = io::EngineKind::io_uring;
        bool priorities = false;
        bool direct = false;
        const SizeTargets* size = nullptr;
        unsigned depth = 1;
        Nanos slice = 0;
        Nanos most = 0;  // for the least reads
        uint64_t bytes = UINT64_MAX;
        uint64_t least = 0;
        const SizeTargets* chunk = nullptr;
        unsigned pieces = 0;
    };
    // A cell while it is measured.
    struct Growing {
        Cell cell;
        const SizeTargets* size = nullptr;
        std::vector<Nanos> took;
        double slowest = 0, fastest = 0;
    };

    static Status interrupted() { return error(Code::cancelled, "interrupted; nothing was concluded"); }
    [[nodiscard]] bool stopped() const { return rig_.stop && rig_.stop(); }
    // The time is over, also for what has not been measured even once.
    [[nodiscard]] bool too_late() const { return rig_.clock->now() - start_ >= 2 * plan_.time - plan_.time / 8; }
    void tell(const std::string& what) const {
        if (!rig_.progress) return;
        const double part =
            static_cast<double>(rig_.clock->now() - start_) / static_cast<double>(std::max<Nanos>(1, plan_.time));
        rig_.progress(std::min(1.0, part), what);
    }
    [[nodiscard]] const SizeTargets* size_of(uint64_t bytes) const {
        const auto it = std::find_if(plan_.sizes.begin(), plan_.sizes.end(),
                                     [&](const SizeTargets& s) { return s.bytes == bytes; });
        return it == plan_.sizes.end() ? nullptr : &*it;
    }

    Status prepare() {
        uint64_t all = 0;
        for (const io::File* f : plan_.buffered) all += f->size_at_open();
        if (all < kLeastToProbe) {
            return error(Code::invalid_argument, "{} are too little to measure a drive by; {} are needed",
                         human_bytes(all), human_bytes(kLeastToProbe));
        }
        for (const uint64_t role : {plan_.page, plan_.part, plan_.record}) {
            if (size_of(role) == nullptr) return error(Code::internal, "no reads of {} are planned", human_bytes(role));
        }
        // As much room as the largest combination that fits.
        uint64_t most = 0;
        for (const SizeTargets& s : plan_.sizes) {
            if (s.targets.empty()) return error(Code::internal, "no reads of {} are planned", human_bytes(s.bytes));
            v_.sizes.push_back({s.bytes, s.name});
            for (const unsigned depth : kDepths) {
                const uint64_t cost = ReadRoom::cost(depth, s.bytes);
                if (cost <= plan_.most_room) most = std::max(most, cost);
            }
        }
        tell("touching memory");
        auto room = ReadRoom::allocate(std::max(most, ReadRoom::cost(1, plan_.record)));
        if (!room.ok()) return room.status();
        room_ = std::move(*room);
        v_.full = plan_.full;
        v_.load_threads = plan_.load_threads;
        std::string why;
        for (const io::EngineKind kind : kKinds) {
            if (engine_for(kind, false, why) != nullptr) usable_.push_back(kind);
        }
        if (usable_.empty()) return error(Code::unsupported, "nothing can read here: {}", why);
        engine_ = usable_[0];
        if (plan_.memory) v_.notes.emplace_back("The file lies in memory; there is no drive under it.");
        if (!direct_ && !plan_.memory) {
            v_.notes.emplace_back(
                "The file cannot be read directly: everything went through the page cache, from which "
                "it was dropped before.");
        }
        return {};
    }

    // nullptr if there is none.
    io::Engine* engine_for(io::EngineKind kind, bool priorities, std::string& why) {
        const auto key = std::pair(kind, priorities);
        if (const auto it = engines_.find(key); it != engines_.end()) return it->second.get();
        auto made = rig_.make_engine({.kind = kind, .lanes = kMostLanes, .priorities = priorities});
        if (!made.ok()) {
            why = made.status().message();
            v_.notes.push_back(fmt::format("{} was not measured: {}", engine_name(kind), why));
        }
        return (engines_[key] = made.ok() ? std::move(made->engine) : nullptr).get();
    }

    Result<ProbeRun> read(const Job& job, std::vector<Nanos>* took,
                          const std::function<void(const ProbeRun&, double)>& progress = nullptr,
                          const std::function<bool()>& enough = nullptr) {
        std::string why;
        io::Engine* engine = engine_for(job.engine, job.priorities, why);
        if (engine == nullptr) return error(Code::unsupported, "{}", why);
        const auto& files = job.direct ? plan_.direct : plan_.buffered;
        const std::vector<Target>& targets = job.size->targets;
        size_t& first = cursor_[job.size];
        RunPlan run{.files = files,
                    .targets = targets,
                    .first = first,
                    .lanes = job.depth,
                    .bytes = job.bytes,
                    .time = job.slice,
                    .again = job.direct,
                    .least_reads = job.least,
                    .most_time = job.most,
                    .room = &room_,
                    .took = took,
                    .stop = [&] { return stopped() || (enough && enough()); }};
        if (!job.direct) {
            const uint64_t n = std::min<uint64_t>(
                targets.size(), std::max<uint64_t>(kBufferedBytes / job.size->bytes, uint64_t{3} * job.depth));
            run.bytes = n * job.size->bytes;
            for (uint64_t i = 0; i < n; ++i) drop(targets[(first + i) % targets.size()]);
        }
        if (job.chunk != nullptr) {
            size_t& at = cursor_[job.chunk];
            run.beside = {.targets = job.chunk->targets, .reads = job.pieces, .first = at};
            // Through the page cache they are made as long as they come from the drive.
            for (size_t i = 0; !job.direct && i < std::min<size_t>(job.chunk->targets.size(), kMostTargets / 8); ++i)
                drop(job.chunk->targets[(at + i) % job.chunk->targets.size()]);
        }
        const auto before = rig_.device_bytes ? rig_.device_bytes() : std::nullopt;
        auto done = run_reads(*engine, *rig_.clock, run, progress);
        if (!done.ok()) return done;
        const auto after = rig_.device_bytes ? rig_.device_bytes() : std::nullopt;
        const uint64_t from = before.value_or(UINT64_MAX);
        if (after && *after >= from) done->device_bytes = *after - from;
        done->direct = job.direct;
        first = (first + done->reads) % targets.size();
        if (job.chunk != nullptr)
            cursor_[job.chunk] += done->beside_bytes / std::max<uint64_t>(1, job.chunk->bytes) + job.pieces;
        if (!done->error.empty()) {
            return error(Code::io_error, "cannot read {} bytes at offset {} of {}: {}", done->failed->bytes,
                         done->failed->offset, files[done->failed->file]->path(), done->error);
        }
        return done;
    }
    void drop(const Target& t) const {
        if (rig_.drop) rig_.drop(*plan_.buffered[t.file], t);
    }

    // --- reading on and on

    Status read_on(const std::string& what) {
        // Through the page cache it would soon be in there; in memory it is.
        if (!direct_ || plan_.memory || too_late()) return {};
        const SizeTargets& size = *size_of(v_.sustained.empty() ? plan_.record : plan_.part);
        unsigned depth = depth_;
        while (depth > 1 && !room_.holds(depth, size.bytes)) depth /= 2;
        const Nanos time = part_of(plan_.time, kForSustained);
        Windows windows(time / kWindows);
        bool enough = false;
        const auto progress = [&](const ProbeRun& run, double) {
            tell(what);
            windows.note(run.bytes, run.elapsed);
            enough = run.elapsed >= time && windows.steady();
        };
        const Job job{.engine = engine_,
                      .direct = true,
                      .size = &size,
                      .depth = depth,
                      .slice = time * kLonger,
                      .bytes = plan_.most_sustained};
        const auto run = read(job, nullptr, progress, [&] { return enough; });
        if (!run.ok()) return run.status();
        if (stopped()) return interrupted();
        if (run->reads == 0) return {};
        const double whole = static_cast<double>(run->bytes) / static_cast<double>(std::max<Nanos>(1, run->elapsed));
        Sustained s{.engine = engine_,
                    .direct = true,
                    .size = size.bytes,
                    .depth = depth,
                    .source = who_answered(plan_.memory, true, run->bytes, run->device_bytes),
                    .bytes = run->bytes,
                    .elapsed = run->elapsed,
                    .burst = windows.fastest().value_or(whole),
                    .rate = windows.last_third().value_or(whole),
                    .steady = windows.steady(),
                    .steady_after = 0};
        if (s.steady) s.steady_after = windows.steady_after();
        v_.sustained.push_back(s);
        return {};
    }

    // --- the table

    // Which engine gets the whole table, if not both do. Derived is it afterwards, from all that was measured.
    Status choose_engine() {
        double best = 0;
        for (const io::EngineKind kind : usable_) {
            for (const unsigned depth : {4U, 16U}) {
                if (!room_.holds(depth, plan_.part)) continue;
                tell(fmt::format("{}, for a first look", engine_name(kind)));
                const Job job{.engine = kind,
                              .direct = direct_,
                              .size = size_of(plan_.part),
                              .depth = depth,
                              .slice = part_of(plan_.time, kForChoice / 4),
                              .most = part_of(plan_.time, kForChoice),
                              .least = uint64_t{3} * depth};
                const auto run = read(job, nullptr);
                if (!run.ok()) return run.status();
                if (stopped()) return interrupted();
                const double rate =
                    static_cast<double>(run->bytes) / static_cast<double>(std::max<Nanos>(1, run->elapsed));
                // One thread does what a pool needs many for.
                if (rate <= best * (kind == usable_[0] ? 1.0 : kClearly)) continue;
                best = rate;
                engine_ = kind;
            }
        }
        return {};
    }

    std::vector<Growing> plan_table() {
        std::vector<Growing> table;
        std::set<std::tuple<io::EngineKind, bool, bool, uint64_t, unsigned>> planned;
        const auto add = [&](io::EngineKind engine, bool direct, bool load, uint64_t size, unsigned depth) {
            if (!planned.insert({engine, direct, load, size, depth}).second) return;
            if (!room_.holds(depth, size)) {
                ++without_room_;
                return;
            }
            Growing g;
            g.cell = {.engine = engine, .direct = direct, .under_load = load, .size = size, .depth = depth};
            g.size = size_of(size);
            table.push_back(std::move(g));
        };
        const std::array<uint64_t, 3> own{plan_.page, plan_.part, plan_.record};
        const std::vector<bool> ways = direct_ ? std::vector<bool>{true, false} : std::vector<bool>{false};
        // What decides most comes first: the time may end.
        for (const SizeTargets& s : plan_.sizes) {
            for (const unsigned depth : kDepths) add(engine_, direct_, false, s.bytes, depth);
        }
        for (const io::EngineKind engine : usable_) {
            for (const bool load : {false, true}) {
                for (const uint64_t size : own) {
                    for (const unsigned depth : {1U, 4U, 16U}) add(engine, direct_, load, size, depth);
                }
            }
            for (const uint64_t size : own) {
                for (const unsigned depth : {1U, 8U}) add(engine, false, false, size, depth);
            }
        }
        if (!plan_.full) return table;
        for (const io::EngineKind engine : usable_) {
            for (const bool direct : ways) {
                for (const bool load : {false, true}) {
                    for (const SizeTargets& s : plan_.sizes) {
                        for (const unsigned depth : kDepths) add(engine, direct, load, s.bytes, depth);
                    }
                }
            }
        }
        return table;
    }

    Status measure(Growing& g, Nanos slice, Nanos most) {
        Cell& c = g.cell;
        const Job job{.engine = c.engine,
                      .direct = c.direct,
                      .size = g.size,
                      .depth = c.depth,
                      .slice = slice,
                      .most = most,
                      .least = uint64_t{3} * c.depth};
        const auto run = read(job, &g.took);
        if (!run.ok()) return run.status();
        if (run->reads == 0 || run->elapsed <= 0) return {};
        const Source source = who_answered(plan_.memory, c.direct, run->bytes, run->device_bytes);
        c.source = c.reads == 0 ? source : both(c.source, source);
        // Absent in one round is absent.
        if (c.reads == 0) {
            c.device_bytes = run->device_bytes;
        } else if (c.device_bytes && run->device_bytes) {
            *c.device_bytes += *run->device_bytes;
        } else {
            c.device_bytes.reset();
        }
        const double rate = static_cast<double>(run->bytes) / static_cast<double>(run->elapsed);
        g.slowest = c.reads == 0 ? rate : std::min(g.slowest, rate);
        g.fastest = std::max(g.fastest, rate);
        c.reads += run->reads;
        c.bytes += run->bytes;
        c.elapsed += run->elapsed;
        return {};
    }

    Status fill_table() {
        std::vector<Growing> table = plan_table();
        const unsigned rounds = plan_.full ? 3 : 2;
        Share share(*rig_.clock, part_of(plan_.time, kForTable), rounds * table.size());
        for (unsigned round = 0; round < rounds; ++round) {
            std::vector<Growing*> order;
            order.reserve(table.size());
            for (Growing& g : table) order.push_back(&g);
            // Another order each time, so that what a drive does after the one or the other evens out.
            if (round > 0) std::shuffle(order.begin(), order.end(), random_);
            std::stable_partition(order.begin(), order.end(), [](const Growing* g) { return !g->cell.under_load; });
            bool loaded = false;
            Status status;
            for (Growing* g : order) {
                const Nanos slice = share.next();
                // Later rounds make it better; the first one makes it at all.
                if (round > 0 ? share.over() : too_late()) continue;
                if (g->cell.under_load && !loaded) {
                    status = rig_.load ? rig_.load(plan_.load_threads)
                                       : error(Code::unsupported, "nothing computes in this measurement");
                    loaded = status.ok();
                }
                if (!status.ok()) break;
                tell(fmt::format("{}{} by {}{}", human_bytes(g->cell.size), g->cell.direct ? "" : ", buffered",
                                 engine_name(g->cell.engine), loaded ? ", computing" : ""));
                status = measure(*g, slice, share.most());
                if (!status.ok() || stopped()) break;
            }
            if (loaded && rig_.load) (void)rig_.load(0);
            if (stopped()) return interrupted();
            if (!status.ok()) return status;
        }
        for (Growing& g : table) {
            if (g.cell.reads == 0) {
                ++without_time_;
                continue;
            }
            g.cell.latency = latency_of(g.took);
            g.cell.spread = g.fastest / g.slowest;
            v_.cells.push_back(g.cell);
        }
        return {};
    }

    // --- interference

    struct Beside {
        Interference result;
        std::vector<Nanos> took;
        uint64_t bytes = 0, speculative = 0;
        Nanos elapsed = 0;
    };

    Status measure(Beside& b, const Derived& soon, Nanos slice, Nanos most) {
        Interference& i = b.result;
        const SizeTargets* chunk = i.chunk > 0 ? size_of(i.chunk) : nullptr;
        const Job job{.engine = soon.engine,
                      .priorities = i.priorities,
                      .direct = soon.direct,
                      .size = size_of(i.exact),
                      .depth = 1,
                      .slice = slice,
                      .most = most,
                      .least = kLeastExact,
                      .chunk = chunk,
                      .pieces = i.pieces};
        const auto run = read(job, &b.took);
        if (!run.ok()) return run.status();
        if (run->reads == 0) return {};
        const Source source =
            who_answered(plan_.memory, soon.direct, run->bytes + run->beside_bytes, run->device_bytes);
        i.source = i.reads == 0 ? source : both(i.source, source);
        i.reads += run->reads;
        b.bytes += run->bytes;
        b.speculative += run->beside_bytes;
        b.elapsed += run->elapsed;
        return {};
    }

    Status interfere(const Derived& soon) {
        std::set<uint64_t> chunks{64 * KiB, soon.chunk, MiB};
        std::vector<unsigned> pieces{1, 4};
        if (plan_.full) {
            chunks = {64 * KiB, 128 * KiB, 256 * KiB, 512 * KiB, MiB};
            pieces = {1, 2, 4, 8};
        }
        std::vector<Beside> all;
        for (const uint64_t exact : std::set<uint64_t>{plan_.record, plan_.page}) {
            const auto add = [&](uint64_t chunk, unsigned n, bool priorities) {
                if (chunk > 0 && size_of(chunk) == nullptr) return;
                if (!room_.holds(1 + n, std::max(exact, chunk))) {
                    ++without_room_;
                    return;
                }
                Beside b;
                b.result = {.exact = exact, .chunk = chunk, .pieces = n, .priorities = priorities};
                all.push_back(std::move(b));
            };
            add(0, 0, false);
            for (const uint64_t chunk : chunks) {
                for (const unsigned n : pieces) {
                    for (const bool priorities : {false, true}) add(chunk, n, priorities);
                }
            }
        }
        constexpr unsigned kRounds = 2;
        Share share(*rig_.clock, part_of(plan_.time, kForInterference), kRounds * all.size());
        for (unsigned round = 0; round < kRounds; ++round) {
            for (size_t k = 0; k < all.size(); ++k) {
                // There and back: what drifts meets all alike.
                Beside& b = all[round == 0 ? k : all.size() - 1 - k];
                const Nanos slice = share.next();
                if (round > 0 ? share.over() : too_late()) continue;
                tell(b.result.chunk == 0 ? "exact reads alone" : "exact reads beside speculative ones");
                if (Status s = measure(b, soon, slice, share.most()); !s) return s;
                if (stopped()) return interrupted();
            }
        }
        for (Beside& b : all) {
            if (b.result.reads == 0 || b.elapsed <= 0) {
                ++without_time_;
                continue;
            }
            b.result.latency = latency_of(b.took);
            b.result.exact_rate = static_cast<double>(b.bytes) / static_cast<double>(b.elapsed);
            b.result.speculative_rate = static_cast<double>(b.speculative) / static_cast<double>(b.elapsed);
            v_.interference.push_back(b.result);
        }
        return {};
    }

    void say_what_was_left_out() {
        if (without_room_ > 0) {
            v_.notes.push_back(
                fmt::format("{} combinations of size and depth were left out: their reads do not fit into "
                            "{} of memory.",
                            without_room_, human_bytes(plan_.most_room)));
        }
        if (without_time_ > 0) {
            v_.notes.push_back(fmt::format(
                "{} combinations were left out: the time was over. More --seconds measure them.", without_time_));
        }
        uint64_t file_bytes = 0;
        for (const io::File* f : plan_.buffered) file_bytes += f->size_at_open();
        uint64_t most = 0;
        for (const Sustained& s : v_.sustained) most = std::max(most, s.bytes);
        if (most > file_bytes && !plan_.memory) {
            v_.notes.push_back(
                fmt::format("{} were read from {}, so much of it more than once: memory of the drive, or "
                            "of a host, may have answered.",
                            human_bytes(most), human_bytes(file_bytes)));
        }
        if (v_.notes.size() > kMostNotes) v_.notes.resize(kMostNotes);
    }

    const EnvelopePlan& plan_;
    const Rig& rig_;
    const bool direct_;
    const Nanos start_;
    std::mt19937 random_;
    Verdict v_;
    ReadRoom room_;
    std::map<std::pair<io::EngineKind, bool>, std::unique_ptr<io::Engine>> engines_;
    std::vector<io::EngineKind> usable_;
    std::map<const SizeTargets*, size_t> cursor_;
    io::EngineKind engine_ = io::EngineKind::io_uring;  // for reading on and on
    unsigned depth_ = kSustainedDepth;
    size_t without_room_ = 0, without_time_ = 0;
};

}  // namespace

void add_size(EnvelopePlan& plan, SizeTargets size) {
    const auto at = std::lower_bound(plan.sizes.begin(), plan.sizes.end(), size.bytes,
                                     [](const SizeTargets& s, uint64_t bytes) { return s.bytes < bytes; });
    if (at == plan.sizes.end() || at->bytes != size.bytes) {
        plan.sizes.insert(at, std::move(size));
        return;
    }
    name_size(plan, size.bytes, size.name);
}

void name_size(EnvelopePlan& plan, uint64_t bytes, const std::string& name) {
    for (SizeTargets& s : plan.sizes) {
        if (s.bytes == bytes && !name.empty()) s.name += (s.name.empty() ? "" : ", ") + name;
    }
}

void add_scattered_sizes(EnvelopePlan& plan, const std::vector<uint64_t>& more, uint64_t seed) {
    std::vector<uint64_t> sizes{4 * KiB, 64 * KiB, 128 * KiB, 256 * KiB, 512 * KiB, MiB};
    sizes.insert(sizes.end(), more.begin(), more.end());
    uint64_t all = 0;
    for (const io::File* f : plan.buffered) all += f->size_at_open();
    for (uint64_t bytes : sizes) {
        bytes = std::min(bytes, kMostProbeRead);
        SizeTargets size{.bytes = bytes, .name = {}, .targets = {}};
        for (size_t i = 0; i < plan.buffered.size(); ++i) {
            const uint64_t file_bytes = plan.buffered[i]->size_at_open();
            if (file_bytes < bytes) continue;
            // Each file as often as its size asks for.
            const auto share = static_cast<size_t>(static_cast<double>(kMostTargets) * static_cast<double>(file_bytes) /
                                                   static_cast<double>(all));
            for (Target t : scattered(file_bytes, bytes, std::max<size_t>(1, share), seed + i)) {
                t.file = static_cast<uint32_t>(i);
                size.targets.push_back(t);
            }
        }
        if (size.targets.empty()) continue;
        std::mt19937_64 random(seed);
        std::shuffle(size.targets.begin(), size.targets.end(), random);
        add_size(plan, std::move(size));
    }
}

MemorySpeeds measure_memory(const Clock& clock) {
    constexpr size_t kBytes = 32 * MiB;
    constexpr size_t kPiece = 2 * MiB;
    constexpr Nanos kMostFirst = 500'000'000;
    constexpr Nanos kEnough = 50'000'000;
    constexpr int kMostPasses = 16;
    MemorySpeeds speeds;
    const auto memory = Region::allocate(kBytes, true);
    if (!memory.ok()) return speeds;
    const auto rate = [](size_t bytes, Nanos time) -> std::optional<double> {
        if (time <= 0) return std::nullopt;
        return static_cast<double>(bytes) / static_cast<double>(time);
    };
    Nanos start = clock.now();
    size_t touched = 0;
    while (touched < kBytes && (touched == 0 || clock.now() - start < kMostFirst)) {
        std::memset(memory->data() + touched, 1, kPiece);
        touched += kPiece;
    }
    speeds.first_touch = rate(touched, clock.now() - start);
    const auto repeat = [&](const auto& pass) -> std::optional<double> {
        start = clock.now();
        int n = 0;
        do pass(n);
        while (++n < kMostPasses && clock.now() - start < kEnough);
        return rate(touched * static_cast<size_t>(n), clock.now() - start);
    };
    speeds.again = repeat([&](int n) { std::memset(memory->data(), 2 + n, touched); });
    uint32_t sum = 0;
    speeds.checksum = repeat([&](int) { sum = crc32c({memory->data(), touched}, sum); });
    // So that somebody needs it.
    memory->data()[0] = static_cast<std::byte>(sum);
    return speeds;
}

Result<Verdict> measure_envelope(const EnvelopePlan& plan, const Rig& rig) {
    return Measuring(plan, rig).go();
}

}  // namespace sluice::machine
