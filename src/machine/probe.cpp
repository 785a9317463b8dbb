#include "machine/probe.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <random>

#include "io/file.h"
#include "machine/usage.h"

namespace sluice::machine {
namespace {

// What a file may demand of memory (io/file.cpp refuses more), and a divisor of what it may demand of offsets.
constexpr uint64_t kMostAlign = 64 * KiB;
constexpr std::array<unsigned, 3> kDirectLanes{1, 4, 8};
constexpr unsigned kBufferedLanes = 8;

struct Aligned {
    uint64_t offset = 0;
    uint32_t length = 0;
    uint32_t need = 0;
};

Aligned aligned(const io::File& file, const Target& t) {
    const uint64_t bytes = std::min(t.bytes, kMostProbeRead);
    const uint64_t begin = align_down(t.offset, file.offset_align());
    const uint64_t end = align_up(t.offset + bytes, file.offset_align());
    return {begin, static_cast<uint32_t>(end - begin), static_cast<uint32_t>(t.offset + bytes - begin)};
}

// The kernel keeps a file in folios of up to this size, and drops only whole ones.
constexpr uint64_t kFolio = 2 * MiB;

// A read of `bytes` takes this much room: it begins and ends anywhere.
uint64_t room_for(uint64_t bytes) {
    return align_up(std::min(bytes, kMostProbeRead) + kMostAlign - 1, kMostAlign);
}

uint64_t longest(std::span<const Target> targets) {
    uint64_t most = 0;
    for (const Target& t : targets) most = std::max(most, std::min(t.bytes, kMostProbeRead));
    return most;
}

struct Files {
    std::vector<io::File> owned;
    std::vector<const io::File*> all;
};

Result<Files> open_files(const std::vector<std::string>& paths, io::Access access) {
    Files files;
    for (const std::string& path : paths) {
        auto file = io::File::open(path, access);
        if (!file.ok()) return file.status();
        files.owned.push_back(std::move(*file));
    }
    for (const io::File& f : files.owned) files.all.push_back(&f);
    return files;
}

}  // namespace

std::optional<double> ProbeRun::mib_per_second() const {
    if (bytes == 0 || elapsed <= 0) return std::nullopt;
    return to_mib(bytes) * 1e9 / static_cast<double>(elapsed);
}

bool ProbeRun::from_memory() const {
    return device_bytes && *device_bytes < bytes / 10 * 9;
}

const ProbeRun* Probe::best() const {
    const ProbeRun* best = nullptr;
    for (const ProbeRun& r : runs) {
        if (!r.mib_per_second()) continue;
        if (best == nullptr || (r.direct && !best->direct) ||
            (r.direct == best->direct && *r.mib_per_second() > *best->mib_per_second())) {
            best = &r;
        }
    }
    return best;
}

const ProbeRun* Probe::find(bool direct, unsigned lanes) const {
    const auto it = std::find_if(runs.begin(), runs.end(), [&](const ProbeRun& r) {
        return r.direct == direct && r.lanes == lanes && r.mib_per_second().has_value();
    });
    return it == runs.end() ? nullptr : &*it;
}

Nanos percentile(std::span<const Nanos> sorted, double part) {
    return sorted[static_cast<size_t>(std::lround(part * static_cast<double>(sorted.size() - 1)))];
}

void drop_from_page_cache(const io::File& file, const Target& target) {
    const uint64_t begin = align_down(target.offset, kFolio);
    const uint64_t end = align_up(target.offset + std::min(target.bytes, kMostProbeRead), kFolio);
    (void)posix_fadvise(file.fd(), static_cast<off_t>(begin), static_cast<off_t>(end - begin), POSIX_FADV_DONTNEED);
}

uint64_t ReadRoom::cost(unsigned reads, uint64_t bytes) {
    return reads * room_for(bytes) + kMostAlign;
}

Result<ReadRoom> ReadRoom::allocate(unsigned reads, uint64_t bytes) {
    return allocate(cost(reads, bytes));
}

Result<ReadRoom> ReadRoom::allocate(uint64_t cost) {
    auto memory = Region::allocate(cost, true);
    if (!memory.ok()) return memory.status();
    std::memset(memory->data(), 0, memory->size());
    ReadRoom room;
    room.memory_ = std::move(*memory);
    return room;
}

bool ReadRoom::holds(unsigned reads, uint64_t bytes) const {
    return cost(reads, bytes) <= memory_.size();
}

std::byte* ReadRoom::place(unsigned read, uint64_t each) const {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    return memory_.data() + (align_up(address, kMostAlign) - address) + read * room_for(each);
}

namespace {

// What a run knows while it goes on. Lanes from plan.lanes on are those of the stream beside it.
class Run {
  public:
    Run(io::Engine& engine, const Clock& clock, const RunPlan& plan, const ReadRoom& room, uint64_t each)
        : engine_(engine),
          clock_(clock),
          plan_(plan),
          room_(room),
          each_(each),
          lanes_(plan.lanes + plan.beside.reads),
          done_(lanes_.size()) {
        run_.lanes = plan.lanes;
    }

    ProbeRun go(const std::function<void(const ProbeRun&, double)>& progress) {
        start_ = clock_.now();
        // First those beside: what the run is to meet is under way then.
        for (unsigned i = 0; i < lanes_.size(); ++i) submit((plan_.lanes + i) % static_cast<unsigned>(lanes_.size()));
        while (engine_.outstanding() > 0) {
            const size_t n = engine_.wait(done_);
            const Nanos now = clock_.now();
            for (size_t i = 0; i < n; ++i) note(done_[i], now);
            for (size_t i = 0; i < n; ++i) submit(static_cast<unsigned>(done_[i].tag));
            if (progress) {
                progress(run_, static_cast<double>(run_.bytes) / static_cast<double>(std::max(kOne, plan_.bytes)));
            }
        }
        if (!took_.empty()) {
            if (plan_.took != nullptr) plan_.took->insert(plan_.took->end(), took_.begin(), took_.end());
            std::sort(took_.begin(), took_.end());
            run_.p50 = percentile(took_, 0.50);
            run_.p95 = percentile(took_, 0.95);
        }
        return std::move(run_);
    }

  private:
    static constexpr uint64_t kOne = 1;
    struct Lane {
        Nanos began = 0;
        uint64_t wanted = 0;
        Target target;
    };

    // Whether the run itself begins another read.
    bool another(Nanos now) {
        if (over_) return false;
        over_ = asked_ >= plan_.bytes || !run_.error.empty() || (!plan_.again && next_ >= plan_.targets.size()) ||
                (plan_.stop && plan_.stop());
        if (over_) return false;
        const Nanos passed = now - start_;
        const bool late = run_.reads >= plan_.least_reads || passed >= std::max(plan_.time, plan_.most_time);
        if (passed >= plan_.time && late) over_ = run_.out_of_time = true;
        return !over_;
    }

    void submit(unsigned lane) {
        const bool beside = lane >= plan_.lanes;
        const Nanos now = clock_.now();
        if (beside ? over_ || !run_.error.empty() : !another(now)) return;
        const Target& t = beside ? plan_.beside.targets[(plan_.beside.first + beside_++) % plan_.beside.targets.size()]
                                 : plan_.targets[(plan_.first + next_++) % plan_.targets.size()];
        const io::File* file = plan_.files[t.file];
        const Aligned read = aligned(*file, t);
        lanes_[lane] = {now, std::min(t.bytes, kMostProbeRead), t};
        if (!beside) asked_ += lanes_[lane].wanted;
        const io::ReadOp op{.file = file,
                            .offset = read.offset,
                            .length = read.length,
                            .need = read.need,
                            .dst = room_.place(lane, each_),
                            .tag = lane,
                            .priority = beside ? io::Priority::speculative : io::Priority::exact};
        engine_.submit({&op, 1});
    }

    void note(const io::Completion& c, Nanos now) {
        const Lane& lane = lanes_[c.tag];
        if (c.error != 0) {
            run_.error = std::strerror(c.error);
            run_.failed = lane.target;
        } else if (c.tag < plan_.lanes) {
            ++run_.reads;
            run_.bytes += lane.wanted;
            took_.push_back(now - lane.began);
            run_.elapsed = now - start_;
            run_.beside_bytes = beside_bytes_;
        } else {
            beside_bytes_ += lane.wanted;
        }
    }

    io::Engine& engine_;
    const Clock& clock_;
    const RunPlan& plan_;
    const ReadRoom& room_;
    const uint64_t each_;
    ProbeRun run_;
    std::vector<Lane> lanes_;
    std::vector<io::Completion> done_;
    std::vector<Nanos> took_;
    Nanos start_ = 0;
    uint64_t asked_ = 0;
    size_t next_ = 0;
    size_t beside_ = 0;
    uint64_t beside_bytes_ = 0;
    bool over_ = false;
};

}  // namespace

Result<ProbeRun> run_reads(io::Engine& engine, const Clock& clock, const RunPlan& plan,
                           const std::function<void(const ProbeRun&, double)>& progress) {
    const uint64_t each = std::max(longest(plan.targets), longest(plan.beside.targets));
    if (longest(plan.targets) == 0 || plan.lanes == 0) return error(Code::invalid_argument, "there is nothing to read");
    if (plan.beside.reads > 0 && longest(plan.beside.targets) == 0)
        return error(Code::invalid_argument, "there is nothing to read beside it");
    const unsigned lanes = plan.lanes + plan.beside.reads;
    if (plan.room != nullptr && plan.room->holds(lanes, each))
        return Run(engine, clock, plan, *plan.room, each).go(progress);
    const auto room = ReadRoom::allocate(lanes, each);
    if (!room.ok()) return room.status();
    return Run(engine, clock, plan, *room, each).go(progress);
}

Probe measure(const ProbePlan& plan) {
    Probe probe;
    std::vector<uint64_t> sizes;
    uint64_t all = 0;
    for (const Target& t : plan.targets) {
        sizes.push_back(std::min(t.bytes, kMostProbeRead));
        all += sizes.back();
    }
    if (all < kLeastToProbe) {
        probe.not_done = fmt::format("{} are too little to measure a drive by", human_bytes(all));
        return probe;
    }
    std::nth_element(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(sizes.size() / 2), sizes.end());
    probe.read_bytes = sizes[sizes.size() / 2];

    size_t first = 0;
    for (size_t i = 0; i <= kDirectLanes.size(); ++i) {
        const bool direct = i < kDirectLanes.size();
        const unsigned lanes = direct ? kDirectLanes[i] : kBufferedLanes;
        auto files = open_files(plan.paths, direct ? io::Access::direct : io::Access::buffered);
        if (!files.ok()) {
            probe.not_done = files.status().message();
            return probe;
        }
        // Where it does not work, drive facts say why.
        if (direct && !std::all_of(files->all.begin(), files->all.end(), [](const auto* f) { return f->direct(); }))
            continue;
        auto made = io::make_engine({.kind = plan.engine, .lanes = lanes});
        if (!made.ok()) {
            probe.not_done = made.status().message();
            return probe;
        }
        probe.engine = made->engine->name();
        probe.note = made->note;
        RunPlan run_plan{.files = files->all,
                         .targets = plan.targets,
                         .first = first,
                         .lanes = lanes,
                         .bytes = plan.bytes_per_run,
                         .time = plan.time_per_run};
        if (!direct) {
            uint64_t bytes = 0;
            for (size_t k = 0; k < plan.targets.size() && bytes < plan.bytes_per_run; ++k) {
                const Target& t = plan.targets[(first + k) % plan.targets.size()];
                drop_from_page_cache(*files->all[t.file], t);
                bytes += std::min(t.bytes, kMostProbeRead);
            }
        }
        const auto before = usage().bytes_read;
        const auto report = [&](ProbeRun running, double part) {
            running.direct = direct;
            if (plan.progress) plan.progress(running, part);
        };
        auto run = run_reads(*made->engine, SystemClock::instance(), run_plan, report);
        if (!run.ok()) {
            probe.not_done = run.status().message();
            return probe;
        }
        const auto after = usage().bytes_read;
        if (before && after && *after >= *before) run->device_bytes = *after - *before;
        run->direct = direct;
        first += run->reads;
        probe.runs.push_back(std::move(*run));
    }
    return probe;
}

std::vector<Target> scattered(uint64_t file_bytes, uint64_t read_bytes, size_t most, uint64_t seed) {
    if (file_bytes == 0 || read_bytes == 0) return {};
    if (file_bytes <= read_bytes) return {{0, 0, file_bytes}};
    const uint64_t pieces = file_bytes / read_bytes;
    std::mt19937_64 random(seed);
    std::vector<Target> targets;
    if (pieces <= most) {
        for (uint64_t i = 0; i < pieces; ++i) targets.push_back({0, i * read_bytes, read_bytes});
    } else {
        // Even steps with a random start in each: all over the file, none twice, however large it is.
        for (size_t i = 0; i < most; ++i) {
            const uint64_t from =
                static_cast<uint64_t>(static_cast<double>(pieces) / static_cast<double>(most) * static_cast<double>(i));
            const uint64_t to =
                std::max(from + 1, static_cast<uint64_t>(static_cast<double>(pieces) / static_cast<double>(most) *
                                                         static_cast<double>(i + 1)));
            const uint64_t piece = std::uniform_int_distribution<uint64_t>(from, to - 1)(random);
            targets.push_back({0, std::min(piece, pieces - 1) * read_bytes, read_bytes});
        }
    }
    std::shuffle(targets.begin(), targets.end(), random);
    return targets;
}

}  // namespace sluice::machine
