// Owns: `sluice probe`: what the drive under a model can do, measured.
// Keeps: it writes the verdict and nothing else, in a directory also one file without a name; an interrupted
// measurement leaves neither.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>

#include "base/bytes.h"
#include "base/clock.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/probe_text.h"
#include "cli/progress_bar.h"
#include "cli/terminal.h"
#include "machine/compute_load.h"
#include "machine/envelope.h"
#include "machine/facts.h"
#include "machine/scratch_file.h"
#include "machine/text.h"
#include "machine/usage.h"
#include "model/digest.h"
#include "model/geometry.h"
#include "store/files.h"

namespace sluice::cli {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kQuickSeconds = 30;
constexpr uint64_t kFullSeconds = 240;
constexpr uint64_t kLeastSeconds = 1;
constexpr uint64_t kMostSeconds = 3600;
// Of components and of records; models with more have them mixed per layer, and the others lie between these.
constexpr size_t kMostModelSizes = 4;
constexpr size_t kMostTargets = 8192;

struct Asked {
    std::string path;
    std::string out;
    bool must_be_model = false;
    bool full = false;
    bool json = false;
    uint64_t seconds = 0;  // 0: as usual
};

Result<Asked> parse(std::vector<std::string> arguments) {
    Asked asked;
    for (size_t i = 0; i < arguments.size(); ++i) {
        std::string& a = arguments[i];
        const bool more = i + 1 < arguments.size();
        if (a == "--json") {
            asked.json = true;
        } else if (a == "--full") {
            asked.full = true;
        } else if (a == "--out" && more && asked.out.empty()) {
            asked.out = std::move(arguments[++i]);
        } else if (a == "--seconds" && more) {
            const std::string& text = arguments[++i];
            asked.seconds = machine::parse_number(text).value_or(0);
            if (asked.seconds < kLeastSeconds || asked.seconds > kMostSeconds) {
                return error(Code::invalid_argument, "--seconds {}: a number from {} to {} is needed", text,
                             kLeastSeconds, kMostSeconds);
            }
        } else if ((a == "-m" || a == "--model") && more && asked.path.empty()) {
            asked.path = std::move(arguments[++i]);
            asked.must_be_model = true;
        } else if (!a.starts_with('-') && !a.empty() && asked.path.empty()) {
            asked.path = std::move(a);
        } else {
            return error(Code::invalid_argument, "do not understand \"{}\"; sluice probe --help", a);
        }
    }
    if (asked.full && asked.seconds > 0)
        return error(Code::invalid_argument, "--full takes as long as it takes; it goes without --seconds");
    if (asked.path.empty())
        return error(Code::invalid_argument, "what is to be measured? sluice probe MODEL (or a file, or a directory)");
    return asked;
}

// What is read, and what is known of it.
struct Subject {
    machine::DriveFacts facts;
    std::optional<machine::ScratchFile> scratch;
    std::vector<io::File> direct, buffered;
    std::optional<model::Geometry> model;
    std::string digest;
    std::string path;
    uint64_t bytes = 0;
    std::vector<std::string> notes;
};

Status open_files(Subject& s, const std::vector<std::string>& paths) {
    bool all_direct = true;
    for (const std::string& path : paths) {
        for (const io::Access access : {io::Access::direct, io::Access::buffered}) {
            auto file = io::File::open(path, access);
            if (!file.ok()) return file.status();
            if (access == io::Access::buffered) {
                s.bytes += file->size_at_open();
                s.buffered.push_back(std::move(*file));
                continue;
            }
            if (!file->direct()) {
                if (all_direct)
                    s.notes.push_back(fmt::format("{} cannot be read directly: {}.", path, file->fallback_reason()));
                all_direct = false;
            }
            s.direct.push_back(std::move(*file));
        }
    }
    if (!all_direct) s.direct.clear();
    if (std::any_of(s.buffered.begin(), s.buffered.end(),
                    [&](const io::File& f) { return f.device() != s.buffered[0].device(); }))
        s.notes.emplace_back("The files lie on several file systems; the verdict is kept for the first of them.");
    return {};
}

Status write_scratch(Subject& s, const Asked& asked) {
    if (s.facts.reach == machine::Reach::memory) {
        return error(Code::unsupported, "{} lies in memory ({}); there is no drive under it to be measured", asked.path,
                     s.facts.file_system.value_or("unknown"));
    }
    const uint64_t bytes = asked.full ? 4 * GiB : 1 * GiB;
    ProgressBar bar("writing a temporary file");
    auto scratch = machine::ScratchFile::write(asked.path, bytes, [&](uint64_t done) {
        bar.show(done, bytes);
        return !interrupted();
    });
    bar.clear();
    if (!scratch.ok()) return scratch.status();
    s.scratch.emplace(std::move(*scratch));
    s.notes.push_back(fmt::format("A temporary file of {} was written for it; it is gone.", human_bytes(bytes)));
    return open_files(s, {s.scratch->path()});
}

Status open_model(Subject& s, const Asked& asked) {
    std::vector<std::string> paths{asked.path};
    const auto index = model::GgufIndex::open(asked.path);
    auto geometry = index.ok() ? model::derive_geometry(*index) : Result<model::Geometry>(index.status());
    if (geometry.ok()) {
        s.model = std::move(*geometry);
        paths.clear();
        for (const model::FileEntry& f : index->files()) paths.push_back(f.path);
        auto digest = model::sampled_digest(*index);
        if (!digest.ok()) return digest.status();
        s.digest = std::move(*digest);
    } else if (asked.must_be_model) {
        return geometry.status();
    } else {
        s.notes.push_back(fmt::format("No model to stream: {}. Sizes are general ones.", geometry.status().message()));
    }
    return open_files(s, paths);
}

// Where an expert's bytes are: each size that a component has, the real places; and each size of a whole expert.
void add_model_sizes(machine::EnvelopePlan& plan, const model::Geometry& g, std::vector<uint64_t>& records,
                     std::mt19937_64& random) {
    struct Part {
        std::vector<std::string> names;
        uint64_t all_bytes = 0;
        std::vector<machine::Target> targets;
    };
    std::map<uint64_t, Part> parts;
    std::map<uint64_t, uint64_t> record_bytes;
    for (const model::ExpertSet& s : g.sets) {
        const uint64_t record = std::min(s.record_bytes(), machine::kMostProbeRead);
        record_bytes[record] += s.record_bytes() * s.n_expert;
        for (const model::ExpertTensor& t : s.tensors) {
            Part& part = parts[std::min(t.bytes_per_expert, machine::kMostProbeRead)];
            const std::string name = model::component_name(t.component);
            if (std::find(part.names.begin(), part.names.end(), name) == part.names.end()) part.names.push_back(name);
            part.all_bytes += t.bytes_per_expert * s.n_expert;
            for (uint32_t e = 0; e < s.n_expert; ++e)
                part.targets.push_back({t.file, t.expert_offset(e), t.bytes_per_expert});
        }
    }
    // Those with the most bytes.
    const auto keep_most = [](auto& map, const auto& weight) {
        while (map.size() > kMostModelSizes)
            map.erase(std::min_element(map.begin(), map.end(), [&](const auto& a, const auto& b) {
                return weight(a.second) < weight(b.second);
            }));
    };
    keep_most(parts, [](const Part& p) { return p.all_bytes; });
    keep_most(record_bytes, [](uint64_t bytes) { return bytes; });
    uint64_t most = 0;
    for (auto& [bytes, part] : parts) {
        if (part.all_bytes > most) {
            most = part.all_bytes;
            plan.part = bytes;
        }
        std::shuffle(part.targets.begin(), part.targets.end(), random);
        part.targets.resize(std::min(part.targets.size(), kMostTargets));
        std::string name;
        for (const std::string& n : part.names) name += (name.empty() ? "" : ", ") + n;
        machine::add_size(plan, {.bytes = bytes, .name = name, .targets = std::move(part.targets)});
    }
    most = 0;
    for (const auto& [bytes, all] : record_bytes) {
        records.push_back(bytes);
        if (all <= most) continue;
        most = all;
        plan.record = bytes;
    }
}

// The largest size that is at most `wanted`.
uint64_t size_near(const machine::EnvelopePlan& plan, uint64_t wanted) {
    uint64_t best = plan.sizes[0].bytes;
    for (const machine::SizeTargets& s : plan.sizes) {
        if (s.bytes <= wanted) best = s.bytes;
    }
    return best;
}

Nanos time_for(const Asked& asked) {
    const uint64_t usual = asked.full ? kFullSeconds : kQuickSeconds;
    return static_cast<Nanos>((asked.seconds > 0 ? asked.seconds : usual) * 1'000'000'000);
}

machine::EnvelopePlan make_plan(const Subject& s, const Asked& asked, const machine::Facts& facts) {
    machine::EnvelopePlan plan;
    for (const io::File& f : s.direct) plan.direct.push_back(&f);
    for (const io::File& f : s.buffered) plan.buffered.push_back(&f);
    // Other places each time, so that memory of a host or of the drive knows them less.
    std::mt19937_64 random(std::random_device{}());
    std::vector<uint64_t> more;
    if (s.model) {
        add_model_sizes(plan, *s.model, more, random);
    } else {
        more = {4 * MiB};
    }
    machine::add_scattered_sizes(plan, more, random());
    if (!s.model && !plan.sizes.empty()) {
        plan.part = size_near(plan, MiB);
        plan.record = size_near(plan, 4 * MiB);
    }
    plan.page = 4 * KiB;
    if (s.model) {
        // Of a model in many small files an expert can be larger than each of them.
        plan.record = size_near(plan, plan.record);
        for (const uint64_t record : more) machine::name_size(plan, record, "a whole expert");
        machine::name_size(plan, plan.page, "a page");
    }
    plan.memory = s.facts.reach == machine::Reach::memory;
    plan.full = asked.full;
    plan.time = time_for(asked);
    if (asked.full) plan.most_sustained = 64 * GiB;
    if (const auto free = facts.room.free()) plan.most_room = std::min(plan.most_room, *free / 4);
    // All cores: what a prompt uses, and the worst that a read's completion can meet.
    plan.load_threads = static_cast<unsigned>(std::clamp<uint64_t>(facts.cores_allowed.value_or(1), 1, 1024));
    return plan;
}

// Where the verdict goes, a place that can be written to as far as that can be told before.
Result<std::string> place_for(const Asked& asked, const machine::DriveIdentity& drive) {
    std::string path = asked.out;
    std::error_code ec;
    if (path.empty()) {
        const auto directory = machine::verdict_directory();
        if (!directory.ok()) return directory.status().within("nowhere to keep the verdict (--out FILE names a place)");
        fs::create_directories(*directory, ec);
        if (ec)
            return error(Code::io_error, "cannot create {}: {}; --out FILE names another place", *directory,
                         ec.message());
        path = machine::verdict_path(*directory, drive);
    }
    const fs::path folder = fs::path(path).parent_path();
    if (access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) != 0) {
        return error(Code::io_error, "cannot write to {}: {}; --out FILE names another place",
                     folder.empty() ? "." : folder.string(), std::strerror(errno));
    }
    // Known before the long work.
    if (const auto name = store::replaceable(path); !name.ok()) return name.status();
    return path;
}

size_t page_width() {
    return std::clamp<size_t>(told_columns(STDOUT_FILENO).value_or(100), 80, 140);
}

Result<machine::Verdict> measure(const Asked& asked, const Subject& s, ProgressBar& bar) {
    const machine::Facts facts = machine::read_facts();
    const machine::EnvelopePlan plan = make_plan(s, asked, facts);
    if (plan.sizes.empty()) {
        return error(Code::invalid_argument, "{}: {} are too little to measure a drive by; {} are needed", s.path,
                     human_bytes(s.bytes), human_bytes(machine::kLeastToProbe));
    }
    machine::ComputeLoad load;
    const machine::UsageReader usage;
    const machine::Rig rig{.clock = &SystemClock::instance(),
                           .make_engine = [](const io::EngineOptions& o) { return io::make_engine(o); },
                           .device_bytes = [&] { return usage.read().bytes_read; },
                           .drop = machine::drop_from_page_cache,
                           .load = [&](unsigned threads) { return load.start(threads); },
                           .stop = interrupted,
                           .progress = [&](double part, const std::string& what) { bar.show(part, what); }};
    auto verdict = machine::measure_envelope(plan, rig);
    bar.clear();
    if (!verdict.ok()) return verdict.status().within(s.path);
    verdict->made = utc_text();
    verdict->sluice = version();
    verdict->kernel = facts.kernel_release.value_or("");
    verdict->drive = machine::identify(s.facts);
    verdict->path = s.path;
    verdict->path_bytes = s.bytes;
    verdict->model_digest = s.digest;
    verdict->notes.insert(verdict->notes.begin(), s.notes.begin(), s.notes.end());
    if (s.facts.virtual_drive)
        verdict->notes.emplace_back("The drive is virtual: memory of its host may have answered for it.");
    return verdict;
}

// When the verdict in `place` was made, if it holds for the same drive and was measured more thoroughly, for half as
// long again as was asked for now: that one is better kept.
std::string better_verdict(const std::string& place, const machine::Verdict& now, Nanos asked) {
    const auto then = machine::read_verdict(place);
    if (!then.ok() || !machine::check_drive(*then, now.drive).ok() || then->kernel != now.kernel) return "";
    const bool better = then->derived && (!now.derived || (then->full && !now.full) || then->took > asked + asked / 2);
    return better ? then->made : "";
}

int probe(const Asked& asked) {
    std::error_code ec;
    const bool directory = fs::is_directory(asked.path, ec);
    auto facts = directory ? machine::read_drive_of_directory(asked.path) : machine::read_drive(asked.path);
    if (!facts.ok()) return fail(facts.status(), kFailed);
    Subject subject;
    subject.facts = std::move(*facts);
    subject.path = asked.path;
    const auto place = place_for(asked, machine::identify(subject.facts));
    if (!place.ok()) return fail(place.status(), kFailed);
    if (Status s = directory ? write_scratch(subject, asked) : open_model(subject, asked); !s)
        return fail(s, interrupted() ? kInterrupted : kFailed);
    for (const io::File& f : subject.buffered) {
        if (!fs::equivalent(*place, f.path(), ec)) continue;
        return fail(
            error(Code::invalid_argument, "{} is not a place to write to: it is what is to be measured", *place),
            kFailed);
    }
    ProgressBar bar("probing");
    const auto verdict = measure(asked, subject, bar);
    if (!verdict.ok()) {
        const bool interrupted = verdict.status().code() == Code::cancelled;
        return fail(verdict.status(), interrupted ? kInterrupted : kFailed);
    }
    const auto text = machine::verdict_text(*verdict);
    if (!text.ok()) return fail(text.status(), kFailed);
    const std::string better = asked.out.empty() ? better_verdict(*place, *verdict, time_for(asked)) : "";
    const Status kept = better.empty() ? store::replace_file(store::Files::system(), *place,
                                                             std::as_bytes(std::span(text->data(), text->size())))
                                       : Status();
    // What was measured is shown even if it cannot be kept.
    const std::string shown = asked.json ? *text : probe_text(*verdict, page_width());
    const bool printed = std::fputs(shown.c_str(), stdout) >= 0 && std::fflush(stdout) == 0;
    if (!kept.ok()) return fail(kept.within("the verdict was not kept"), kFailed);
    if (!better.empty()) {
        std::fprintf(stderr,
                     "verdict: not kept: %s has one of %s that was measured for longer (--full replaces it, --out FILE "
                     "keeps this one elsewhere)\n",
                     place->c_str(), better.c_str());
    } else if (!asked.json) {
        std::fprintf(stderr, "verdict: %s\n", place->c_str());
    }
    if (!printed) return fail(error(Code::io_error, "standard output is closed or full"), kFailed);
    return kOk;
}

}  // namespace

int probe_command(std::vector<std::string> arguments) {
    if (asks_help(arguments)) return print_help(help_text(*find_command("probe")));
    const auto asked = parse(std::move(arguments));
    if (!asked.ok()) return fail(asked.status(), kUsage);
    catch_interrupts();
    return probe(*asked);
}

}  // namespace sluice::cli
