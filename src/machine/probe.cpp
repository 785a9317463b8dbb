#include "machine/probe.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>

#include "base/memory.h"
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

Nanos percentile(const std::vector<Nanos>& sorted, double part) {
    return sorted[static_cast<size_t>(std::lround(part * static_cast<double>(sorted.size() - 1)))];
}

// The kernel keeps a file in folios of up to this size, and drops only whole ones.
constexpr uint64_t kFolio = 2 * MiB;

void drop_from_page_cache(const io::File& file, const Target& t) {
    const uint64_t begin = align_down(t.offset, kFolio);
    const uint64_t end = align_up(t.offset + std::min(t.bytes, kMostProbeRead), kFolio);
    (void)posix_fadvise(file.fd(), static_cast<off_t>(begin), static_cast<off_t>(end - begin), POSIX_FADV_DONTNEED);
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

Result<ProbeRun> run_reads(io::Engine& engine, const Clock& clock, const RunPlan& plan,
                           const std::function<void(const ProbeRun&, double)>& progress) {
    ProbeRun run;
    run.lanes = plan.lanes;
    uint64_t longest = 0;
    for (const Target& t : plan.targets) longest = std::max<uint64_t>(longest, aligned(*plan.files[t.file], t).length);
    if (longest == 0) return error(Code::invalid_argument, "there is nothing to read");
    const uint64_t room = align_up(longest, kMostAlign);
    auto memory = Region::allocate(plan.lanes * room + kMostAlign, true);
    if (!memory.ok()) return memory.status();
    // Touched before the clock runs: first touch can cost more than the reads.
    std::memset(memory->data(), 0, memory->size());
    const auto address = reinterpret_cast<uintptr_t>(memory->data());
    std::byte* const base = memory->data() + (align_up(address, kMostAlign) - address);

    std::vector<Nanos> began(plan.lanes);
    std::vector<uint64_t> wanted(plan.lanes);
    std::vector<Nanos> took;
    std::vector<io::Completion> done(plan.lanes);
    uint64_t asked = 0;
    size_t next = 0;
    const Nanos start = clock.now();
    const Nanos deadline = start + plan.time;
    const auto submit = [&](uint64_t lane) {
        if (asked >= plan.bytes || !run.error.empty() || next >= plan.targets.size()) return;
        const Nanos now = clock.now();
        if (now >= deadline) {
            run.out_of_time = true;
            return;
        }
        const Target& t = plan.targets[(plan.first + next++) % plan.targets.size()];
        const io::File* file = plan.files[t.file];
        const Aligned read = aligned(*file, t);
        wanted[lane] = std::min(t.bytes, kMostProbeRead);
        asked += wanted[lane];
        began[lane] = now;
        const io::ReadOp op{.file = file,
                            .offset = read.offset,
                            .length = read.length,
                            .need = read.need,
                            .dst = base + lane * room,
                            .tag = lane};
        engine.submit({&op, 1});
    };
    for (uint64_t lane = 0; lane < plan.lanes; ++lane) submit(lane);
    while (engine.outstanding() > 0) {
        const size_t n = engine.wait(done);
        const Nanos now = clock.now();
        for (size_t i = 0; i < n; ++i) {
            const uint64_t lane = done[i].tag;
            if (done[i].error != 0) {
                run.error = std::strerror(done[i].error);
                continue;
            }
            ++run.reads;
            run.bytes += wanted[lane];
            took.push_back(now - began[lane]);
            run.elapsed = now - start;
        }
        for (size_t i = 0; i < n; ++i) submit(done[i].tag);
        if (progress)
            progress(run, static_cast<double>(run.bytes) / static_cast<double>(std::max<uint64_t>(1, plan.bytes)));
    }
    if (!took.empty()) {
        std::sort(took.begin(), took.end());
        run.p50 = percentile(took, 0.50);
        run.p95 = percentile(took, 0.95);
    }
    return run;
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
