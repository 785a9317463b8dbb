#include "machine/doctor.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/bytes.h"

namespace sluice::machine {
namespace {

using Exam = Examination;

// A finding without its id, which the table below gives it.
Finding fine(std::string title) {
    return {.id = {}, .severity = Severity::ok, .title = std::move(title), .change = {}, .gain = {}};
}
Finding unknown(std::string why) {
    return {.id = {}, .severity = Severity::not_checked, .title = std::move(why), .change = {}, .gain = {}};
}
Finding found(Severity severity, std::string title, std::string change, std::string gain) {
    return {.id = {},
            .severity = severity,
            .title = std::move(title),
            .change = std::move(change),
            .gain = std::move(gain)};
}

std::string milliseconds(Nanos t) {
    return fmt::format("{:.2f} ms", static_cast<double>(t) / 1e6);
}
std::string rate(const ProbeRun& r) {
    return fmt::format("{:.0f} MiB/s", r.mib_per_second().value_or(0));
}

// What the kernel calls a feature of the processor, and ggml its kernels for it.
struct Feature {
    std::string_view processor;
    std::string_view kernels;
};
// Not AMX: the set-up leaves it out on purpose.
constexpr std::array<Feature, 9> kFeatures{{{"avx2", "AVX2"},
                                            {"fma", "FMA"},
                                            {"f16c", "F16C"},
                                            {"avx512f", "AVX512"},
                                            {"avx512_vnni", "AVX512_VNNI"},
                                            {"avx512_bf16", "AVX512_BF16"},
                                            {"avx_vnni", "AVX_VNNI"},
                                            {"asimddp", "DOTPROD"},
                                            {"i8mm", "MATMUL_INT8"}}};

std::string listed(const std::vector<std::string>& words) {
    std::string out;
    for (const std::string& w : words) out += (out.empty() ? "" : ", ") + w;
    return out;
}

Finding check_version(const Exam& e) {
    const Build& b = e.build;
    if (b.ggml_found.empty()) return unknown("the version of ggml was not asked for");
    if (b.ggml_found == b.ggml_expected) return fine(fmt::format("ggml {}, the one Sluice was made for", b.ggml_found));
    return found(Severity::problem,
                 fmt::format("ggml {} is loaded, but Sluice was made for {}", b.ggml_found, b.ggml_expected),
                 "make build (and take other directories with libggml out of LD_LIBRARY_PATH)",
                 "no model is streamed with another version");
}

Finding check_cpu_features(const Exam& e) {
    const Facts& f = e.facts;
    if (!f.cpu_features) return unknown("/proc/cpuinfo does not tell what the processor can do");
    std::vector<std::string> unused;
    std::vector<std::string> lacking;
    for (const Feature& feature : kFeatures) {
        if (!e.build.kernels) break;
        const bool built =
            std::find(e.build.kernels->begin(), e.build.kernels->end(), feature.kernels) != e.build.kernels->end();
        const bool has = has_feature(f, feature.processor);
        if (has && !built) unused.emplace_back(feature.kernels);
        if (!has && built) lacking.emplace_back(feature.kernels);
    }
    if (!lacking.empty()) {
        return found(Severity::problem,
                     fmt::format("llama.cpp was built for {}, which this processor lacks", listed(lacking)),
                     "build on this machine: make build, without a copied build directory",
                     "without it the first matrix product dies of an illegal instruction");
    }
    if (f.architecture == "x86-64" && !has_feature(f, "avx2")) {
        return found(Severity::warning, "the processor has no AVX2", "use a machine whose processor has AVX2",
                     "without it llama.cpp multiplies quantised weights with its slowest kernels");
    }
    if (f.architecture == "arm64" && !has_feature(f, "asimddp")) {
        return found(Severity::warning, "the processor has no dot product instructions (asimddp)",
                     "use a machine with Armv8.2 dot products",
                     "without them llama.cpp multiplies quantised weights with its slowest kernels");
    }
    if (!unused.empty()) {
        return found(Severity::note,
                     fmt::format("the processor has {}, but llama.cpp was built without", listed(unused)),
                     "build on this machine: make build, without a copied build directory",
                     "llama.cpp has faster kernels for these; how much faster was not measured");
    }
    std::string what = listed(*f.cpu_features);
    if (!e.build.kernels) return unknown(what + "; which of them llama.cpp was built for was not looked at");
    const auto& kernels = *e.build.kernels;
    what += "; llama.cpp was built to use them";
    if (has_feature(f, "amx_int8") && std::find(kernels.begin(), kernels.end(), "AMX_INT8") == kernels.end())
        what += ", except AMX, which the set-up leaves out";
    return fine(what);
}

Finding check_cores(const Exam& e) {
    const auto allowed = e.facts.cores_allowed;
    const auto online = e.facts.cores_online;
    if (!allowed) return unknown("the kernel does not tell which cores this process may use");
    if (online && *allowed < *online) {
        return found(
            Severity::note, fmt::format("{} of {} cores may be used", *allowed, *online),
            fmt::format("start it with all of them (taskset -c 0-{}), or widen the container's cpuset", *online - 1),
            "prompts are limited by computing, and use every core");
    }
    if (*allowed == 1) {
        return found(Severity::note, "there is one core", "give this machine a second core",
                     "reading and computing take turns on it");
    }
    return fine(fmt::format("{} cores", *allowed));
}

// The most threads that fit into `cores`, which need not be whole.
uint64_t threads_for(double cores) {
    return cores < 1.75 ? 1 : static_cast<uint64_t>(std::floor(cores + 0.25));
}

Finding check_quota(const Exam& e) {
    const Facts& f = e.facts;
    if (!f.cpu_quota) {
        if (!f.cgroup_version) return unknown("/proc/self/cgroup does not tell the limits on this process");
        return fine("no quota");
    }
    if (f.cores_allowed && *f.cpu_quota >= static_cast<double>(*f.cores_allowed))
        return fine(fmt::format("a quota of {:.2f} cores, which is all of them", *f.cpu_quota));
    return found(
        Severity::warning, fmt::format("the cgroup allows the time of {:.2f} cores only", *f.cpu_quota),
        fmt::format("-t {}, or a higher quota (docker run --cpus, systemd CPUQuota=)", threads_for(*f.cpu_quota)),
        "with more threads than that all are stopped for the rest of each period, those in the middle of a "
        "product too, and the others spin");
}

Finding check_threads(const Exam& e) {
    const Facts& f = e.facts;
    if (!f.load) return unknown("/proc/loadavg does not tell what else runs");
    if (!f.cores_allowed) return unknown("the kernel does not tell which cores this process may use");
    const double cores = std::min(static_cast<double>(*f.cores_allowed), f.cpu_quota.value_or(1e9));
    const uint64_t most = threads_for(cores);
    const uint64_t threads = *f.load < 0.5 ? most : threads_for(cores - *f.load);
    if (threads >= most)
        return fine(fmt::format("a load of {:.2f} leaves room for {} compute threads", *f.load, threads));
    return found(*f.load >= cores / 2 ? Severity::warning : Severity::note,
                 fmt::format("a load of {:.2f} on {} cores: others are computing", *f.load, *f.cores_allowed),
                 fmt::format("-t {} while that lasts", threads),
                 "compute threads wait for each other by spinning: one that has to share its core stops all");
}

Finding check_governor(const Exam& e) {
    const auto& governor = e.facts.governor;
    if (!governor) return unknown("the kernel tells of no frequency control, as usual in virtual machines");
    const auto has = [&](std::string_view name) { return governor->find(name) != std::string::npos; };
    const std::string change = "sudo cpupower frequency-set -g performance";
    if (has("powersave")) {
        const std::string driver = e.facts.governor_driver.value_or("");
        // With these two, "powersave" is a governor that does raise the frequency.
        if (driver.starts_with("intel_pstate") || driver.starts_with("amd-pstate")) {
            return found(Severity::note, fmt::format("the governor is {} ({})", *governor, driver), change,
                         "the frequency is raised only after the processor has been busy; waits for reads keep it low");
        }
        return found(Severity::warning, fmt::format("the governor is {}: the lowest frequency", *governor), change,
                     "computing runs at the highest frequency instead of the lowest");
    }
    if (has("ondemand") || has("conservative") || has("userspace")) {
        return found(Severity::note, fmt::format("the governor is {}", *governor), change,
                     "the frequency is raised only after the processor has been busy; waits for reads keep it low");
    }
    return fine(fmt::format("the governor is {}", *governor));
}

Finding check_memory(const Exam& e) {
    const auto free = e.facts.room.free();
    if (!free) return unknown("neither /proc/meminfo nor a cgroup tells how much memory is free");
    if (!e.model)
        return unknown(fmt::format("{} free; whether that is enough is unknown: {}", human_bytes(*free), e.no_model));
    const ModelSizes& m = *e.model;
    const uint64_t least = m.dense_bytes + m.largest_expert_bytes;
    if (*free < least) {
        return found(Severity::problem,
                     fmt::format("{} free, but the always-needed weights and one expert take {}", human_bytes(*free),
                                 human_bytes(least)),
                     "close other programs, or take a smaller quantisation of the model",
                     "without it the kernel swaps, or kills the process");
    }
    const uint64_t left = *free - m.dense_bytes;
    if (left < m.cycle_bytes) {
        const auto cold = seconds_per_cold_token(e);
        return found(Severity::warning,
                     fmt::format("{} free leave {} for the cache, but the experts of one token take {}",
                                 human_bytes(*free), human_bytes(left), human_bytes(m.cycle_bytes)),
                     "close other programs, or take a smaller quantisation of the model",
                     cold ? fmt::format("nearly every expert is read for every token, which takes {:.3f} s at the "
                                        "measured speed of this drive",
                                        *cold)
                          : "nearly every expert is read for every token");
    }
    return fine(
        fmt::format("{} free, {} of them for what is always needed; the rest holds {} of experts and the context",
                    human_bytes(*free), human_bytes(m.dense_bytes),
                    left >= m.expert_bytes ? "all " + human_bytes(m.expert_bytes) : "up to " + human_bytes(left)));
}

Finding check_memory_limit(const Exam& e) {
    const Facts& f = e.facts;
    const auto limit = f.room.cgroup_limit;
    if (!limit) {
        if (!f.cgroup_version) return unknown("/proc/self/cgroup does not tell the limits on this process");
        return fine("no limit");
    }
    if (f.ram_total && *limit >= *f.ram_total)
        return fine(fmt::format("the cgroup's limit of {} is above all memory", human_bytes(*limit)));
    const std::string change = "raise it (docker run --memory, systemd MemoryMax=, echo max into memory.max)";
    const std::string what = fmt::format("the cgroup limits memory to {}{}", human_bytes(*limit),
                                         f.ram_total ? " of the machine's " + human_bytes(*f.ram_total) : "");
    if (e.model && *limit < e.model->dense_bytes + e.model->largest_expert_bytes) {
        return found(Severity::problem,
                     fmt::format("{}, and the always-needed weights with one expert take {}", what,
                                 human_bytes(e.model->dense_bytes + e.model->largest_expert_bytes)),
                     change, "without it the kernel kills the process");
    }
    return found(
        Severity::note, what, change,
        "every further byte holds experts that need not be read again; the limit itself is kept (docs/memory.md)");
}

Finding check_swap(const Exam& e) {
    const Facts& f = e.facts;
    if (!f.swap_total || !f.swap_used) return unknown("/proc/meminfo does not tell about swap");
    if (*f.swap_total == 0) return fine("no swap");
    const std::string what =
        fmt::format("{} of {} swap are in use", human_bytes(*f.swap_used), human_bytes(*f.swap_total));
    constexpr uint64_t kLittle = 64 * MiB;
    if (*f.swap_used < kLittle) return fine(what);
    const bool much = f.ram_total && *f.swap_used > *f.ram_total / 16;
    return found(much ? Severity::warning : Severity::note, what,
                 "close what is not needed, then sudo swapoff -a && sudo swapon -a",
                 "memory was short before; swapped-out weights are read back one page at a time");
}

Finding check_huge_pages(const Exam& e) {
    const auto& mode = e.facts.huge_pages;
    if (!mode) return unknown("this kernel tells of no transparent huge pages");
    if (*mode != "never") return fine(fmt::format("transparent huge pages: {}", *mode));
    return found(Severity::note, "transparent huge pages: never",
                 "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
                 "the cache is then touched for the first time in steps of 2 MiB instead of 4 KiB");
}

Finding check_memlock(const Exam& e) {
    const Facts& f = e.facts;
    const auto kernel = f.kernel_release ? parse_kernel(*f.kernel_release) : std::nullopt;
    if (!f.memlock_limit) return unknown("/proc/self/limits does not tell how much memory may be locked");
    if (!kernel) return unknown("whether locked memory matters depends on the kernel, whose version is not known");
    const std::string limit = *f.memlock_limit == kUnlimited ? "no limit" : human_bytes(*f.memlock_limit);
    // Since 5.12 rings are charged to the memory cgroup; Sluice locks nothing itself.
    if (!(*kernel < KernelVersion{5, 12})) return fine(fmt::format("{} to lock; this kernel asks for none", limit));
    if (*f.memlock_limit >= MiB) return fine(fmt::format("{} to lock", limit));
    return found(Severity::warning, fmt::format("only {} may be locked, and this kernel counts rings as that", limit),
                 "ulimit -l 65536 (for good: memlock in /etc/security/limits.conf)",
                 "the kernel then gives an io_uring; otherwise a thread is needed for each read in flight");
}

Finding check_kernel(const Exam& e) {
    if (!e.facts.kernel_release) return unknown("/proc/sys/kernel/osrelease cannot be read");
    const auto kernel = parse_kernel(*e.facts.kernel_release);
    if (!kernel) return unknown(fmt::format("{} is no version that can be compared", *e.facts.kernel_release));
    const std::string what = "Linux " + *e.facts.kernel_release;
    if (*kernel < KernelVersion{5, 6}) {
        return found(Severity::warning, what + ": its io_uring has no plain reads", "Linux 5.6 or newer, better 6.1",
                     "one ring instead of a thread for each read in flight");
    }
    if (*kernel < KernelVersion{6, 1}) {
        return found(Severity::note, what + ": does not tell which alignment direct reads need", "Linux 6.1 or newer",
                     "4096 bytes are assumed, which can be more than the drive needs");
    }
    return fine(what);
}

Finding check_io_uring(const Exam& e) {
    const Facts& f = e.facts;
    if (!f.io_uring) return unknown("no ring was asked for");
    if (f.io_uring->works) return fine("the kernel gives one");
    const auto kernel = f.kernel_release ? parse_kernel(*f.kernel_release) : std::nullopt;
    std::string change =
        "allow io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp profile (docker run "
        "--security-opt seccomp=PROFILE)";
    if (f.io_uring_disabled.value_or(0) != 0) {
        change = "sudo sysctl kernel.io_uring_disabled=0";
    } else if (kernel && *kernel < KernelVersion{5, 6}) {
        change = "Linux 5.6 or newer";
    }
    return found(Severity::warning, f.io_uring->refusal, change,
                 "a batch of reads costs one system call; until then a pool of threads reads, whose switches take time "
                 "from computing");
}

// Why nothing is known about the drive, or empty.
std::string no_drive(const Exam& e) {
    if (!e.drive) return "no file was named";
    if (!e.drive->reach) return "the file system is not known";
    switch (*e.drive->reach) {
        case Reach::memory:
            return "the file is in memory";
        case Reach::network:
            return "the drive is on another machine";
        case Reach::overlay:
            return "the overlay hides the drive";
        case Reach::user_space:
            return "a process stands between the file and the drive";
        case Reach::drive:
            break;
    }
    return e.drive->drive ? "" : "the kernel does not tell which drive the file is on";
}

Finding check_file_system(const Exam& e) {
    if (!e.drive) return unknown("no file was named");
    if (!e.drive->reach) return unknown("/proc/self/mountinfo does not tell which file system the file is on");
    const std::string name = e.drive->file_system.value_or("");
    const std::string measured = e.probe.best() != nullptr ? "; it now reads " + rate(*e.probe.best()) : "";
    switch (*e.drive->reach) {
        case Reach::network:
            return found(Severity::warning, fmt::format("the model is reached through {}", name),
                         "copy it to a drive of this machine",
                         "no read crosses a network or the border of the virtual machine" + measured);
        case Reach::user_space:
            return found(Severity::warning, fmt::format("the model is on {}, a file system in a process", name),
                         "copy it to ext4 or xfs", "no read waits for another process, or is copied by it" + measured);
        case Reach::overlay:
            return found(Severity::note, fmt::format("the model is on {}, a container's own layers", name),
                         "mount the folder with the model into the container (docker run -v)",
                         "what the drive can do is then known and usable: direct reads, alignment" + measured);
        case Reach::memory:
            return found(Severity::note, fmt::format("the model is on {}: it takes memory as it is", name),
                         "put it on a drive", "memory that the model's file takes would hold its experts");
        case Reach::drive:
            break;
    }
    return fine(name);
}

Finding check_direct(const Exam& e) {
    if (!e.drive) return unknown("no file was named");
    if (!e.drive->direct) return unknown("the file is empty, so nothing can be tried on it");
    const DirectIo& d = *e.drive->direct;
    const ProbeRun* buffered = nullptr;
    for (const ProbeRun& r : e.probe.runs) {
        if (!r.direct && r.mib_per_second()) buffered = &r;
    }
    if (d.works) {
        std::string what = fmt::format("works, in units of {} bytes", d.offset_align);
        if (const ProbeRun* best = e.probe.best(); best != nullptr && best->direct && buffered != nullptr)
            what += fmt::format("; {}, through the page cache {}", rate(*best), rate(*buffered));
        return fine(what);
    }
    return found(
        Severity::warning, fmt::format("does not work here: {}", d.refusal),
        "put the model on ext4 or xfs, or on btrfs without compression",
        "experts no longer pass through the page cache, which takes memory from the cache and copies every byte" +
            (buffered != nullptr ? fmt::format("; that way reads {} now", rate(*buffered)) : ""));
}

Finding check_rotational(const Exam& e) {
    if (const std::string why = no_drive(e); !why.empty()) return unknown(why);
    const DriveFacts& d = *e.drive;
    if (!d.rotational) return unknown(fmt::format("{} does not tell whether it rotates", *d.drive));
    const std::string name = d.model ? fmt::format("{} ({})", *d.drive, *d.model) : *d.drive;
    if (!*d.rotational) return fine(fmt::format("{} is solid state", name));
    const ProbeRun* one = e.probe.find(true, 1);
    const std::string measured = one != nullptr
                                     ? fmt::format("; half of the reads of {} took more than {} now, one at a time",
                                                   human_bytes(e.probe.read_bytes), milliseconds(*one->p50))
                                     : "";
    if (d.virtual_drive) {
        constexpr Nanos kOneTurn = 2'000'000;  // less than any head takes to find its place
        if (one != nullptr && *one->p50 < kOneTurn && !one->from_memory()) {
            return fine(
                fmt::format("{} calls itself rotating, as virtual drives often do, but half of the reads came "
                            "within {}; or memory of the host answered them",
                            name, milliseconds(*one->p50)));
        }
        return found(Severity::note, fmt::format("{} calls itself rotating, as virtual drives often do", name),
                     "see to it that the storage behind it is solid state, or go by the measured speed",
                     "on a rotating drive every expert costs a movement of the head" + measured);
    }
    return found(Severity::problem, fmt::format("{} rotates", name), "move the model to an SSD, best NVMe",
                 "no expert costs a movement of the head" + measured);
}

Finding check_scheduler(const Exam& e) {
    if (const std::string why = no_drive(e); !why.empty()) return unknown(why);
    const DriveFacts& d = *e.drive;
    if (!d.scheduler) return unknown(fmt::format("{} tells of no scheduler", *d.drive));
    const std::string first = d.drive->substr(0, d.drive->find(','));
    const std::string what = fmt::format("the I/O scheduler of {} is {}", first, *d.scheduler);
    if (*d.scheduler != "bfq" && *d.scheduler != "cfq") return fine(what);
    return found(Severity::note, what, fmt::format("echo none | sudo tee /sys/block/{}/queue/scheduler", first),
                 "it holds reads back to be fair to other processes, and costs time for each");
}

Finding check_read_ahead(const Exam& e) {
    if (const std::string why = no_drive(e); !why.empty()) return unknown(why);
    const DriveFacts& d = *e.drive;
    if (!d.read_ahead_kb) return unknown(fmt::format("{} does not tell how far it reads ahead", *d.drive));
    const std::string what = fmt::format("{} KiB", *d.read_ahead_kb);
    const std::string change =
        fmt::format("echo 128 | sudo tee /sys/block/{}/queue/read_ahead_kb", d.volume.value_or(*d.drive));
    constexpr uint64_t kMuch = 4096;
    if (*d.read_ahead_kb == 0) {
        return found(Severity::note, "nothing is read ahead", change,
                     "dense weights with --dense-weights mmap are then read in more than single pages; experts are not "
                     "affected");
    }
    if (*d.read_ahead_kb > kMuch) {
        return found(Severity::note, what, change,
                     fmt::format("a page that is touched with --dense-weights mmap no longer brings up to {} with it; "
                                 "experts are not affected",
                                 human_bytes(*d.read_ahead_kb * KiB)));
    }
    return fine(what);
}

Finding check_free_disk(const Exam& e) {
    if (!e.drive) return unknown("no file was named");
    if (!e.drive->free_bytes) return unknown("the file system does not tell how much is free");
    const std::string what = fmt::format("{} free where the model is", human_bytes(*e.drive->free_bytes));
    if (*e.drive->free_bytes >= GiB) return fine(what);
    return found(Severity::warning, what, "delete what is not needed there",
                 "downloads and logs stop in the middle when it is full, and a full SSD becomes slow");
}

Finding check_pressure(const Exam& e) {
    if (!e.facts.pressure) return unknown("this kernel keeps no account of waiting (/proc/pressure)");
    const Pressure& p = *e.facts.pressure;
    const double cpu = p.cpu.value_or(0);
    const double io = p.io.value_or(0);
    const double memory = p.memory.value_or(0);
    const auto part = [](const std::optional<double>& x) {
        return x ? fmt::format("{:.1f} %", *x) : std::string("an unknown part");
    };
    const std::string what =
        fmt::format("of the last ten seconds some process waited {} for a processor, {} for a drive, {} for memory",
                    part(p.cpu), part(p.io), part(p.memory));
    if (memory < 1 && io < 5 && cpu < 10) {
        if (!p.cpu || !p.io || !p.memory) return unknown(what);
        return fine(what);
    }
    return found(memory >= 1 || io >= 20 || cpu >= 50 ? Severity::warning : Severity::note, what,
                 "see who it is (top, or pidstat -d 1) and let it finish first",
                 "whatever others use now is missing here, and what is measured now is too low");
}

// What a cold token costs, to be said behind a speed.
std::string cold_token(const Exam& e) {
    const auto cold = seconds_per_cold_token(e);
    if (!cold) return "";
    return fmt::format(
        "; a token that finds none of its {} of experts in memory takes at least {:.3f} s to read (at most {:.2f} "
        "tokens/s)",
        human_bytes(e.model->cycle_bytes), *cold, 1 / *cold);
}

constexpr double kSlowDrive = 300;  // MiB/s, less than SATA SSDs read

// The drive was not read now, or memory answered: what sluice probe found out holds.
Finding speed_by_verdict(const Exam& e, const std::string& why_not_now) {
    if (!e.verdict_mib_per_second) return unknown(why_not_now);
    const std::string what = fmt::format("{:.0f} MiB/s as sluice probe found on {} (now: {}){}",
                                         *e.verdict_mib_per_second, e.verdict_made, why_not_now, cold_token(e));
    if (*e.verdict_mib_per_second >= kSlowDrive) return fine(what);
    return found(Severity::warning, what, "move the model to a faster drive, best NVMe",
                 "time to read an expert falls in proportion");
}

Finding check_drive_speed(const Exam& e) {
    if (!e.probe.not_done.empty()) return speed_by_verdict(e, e.probe.not_done);
    for (const ProbeRun& r : e.probe.runs) {
        if (r.error.empty()) continue;
        return found(
            Severity::problem, fmt::format("a read of the model failed: {}", r.error),
            "look into dmesg and at the drive's own account (smartctl -a), then copy or download the file again",
            "a request that needs such a byte fails");
    }
    const ProbeRun* best = e.probe.best();
    if (best == nullptr) return unknown("no read came back in time");
    std::string what =
        fmt::format("reads of {} all over the file: {} with {} in flight{}", human_bytes(e.probe.read_bytes),
                    rate(*best), best->lanes, best->direct ? "" : ", through the page cache");
    if (best->from_memory()) return speed_by_verdict(e, what + ", but memory answered in place of the drive");
    const auto cold = seconds_per_cold_token(e);
    what += cold_token(e);
    // In small reads even good drives are slower than that.
    if (*best->mib_per_second() >= kSlowDrive || e.probe.read_bytes < 256 * KiB) return fine(what);
    return found(Severity::warning, what, "move the model to a faster drive, best NVMe",
                 cold ? "that bound falls in proportion" : "time to read an expert falls in proportion");
}

Finding check_io_threads(const Exam& e) {
    constexpr unsigned kDefault = 8;
    if (!e.probe.not_done.empty()) return unknown(e.probe.not_done);
    const ProbeRun* now = e.probe.find(true, kDefault);
    if (now == nullptr) return unknown("not measured with direct reads");
    const ProbeRun* best = e.probe.best();
    if (best->from_memory()) return unknown("memory answered in place of the drive");
    if (*now->mib_per_second() >= *best->mib_per_second() * 0.9) {
        return fine(fmt::format("{} in flight, the default, read {}; half of them within {}, 95 % within {}", kDefault,
                                rate(*now), milliseconds(*now->p50), milliseconds(*now->p95)));
    }
    return found(Severity::note,
                 fmt::format("{} reads in flight are faster here than {}, the default", best->lanes, kDefault),
                 fmt::format("--io-threads {}", best->lanes),
                 fmt::format("{} instead of {}; 95 % of the reads within {} instead of {} (one short measurement)",
                             rate(*best), rate(*now), milliseconds(*best->p95), milliseconds(*now->p95)));
}

struct Check {
    std::string_view id;
    Finding (*look)(const Exam&);
};
constexpr std::array<Check, 22> kChecks{
    {{"llama-version", check_version}, {"cpu-features", check_cpu_features}, {"cores", check_cores},
     {"cpu-quota", check_quota},       {"threads", check_threads},           {"governor", check_governor},
     {"memory", check_memory},         {"memory-limit", check_memory_limit}, {"swap", check_swap},
     {"huge-pages", check_huge_pages}, {"memlock", check_memlock},           {"kernel", check_kernel},
     {"io-uring", check_io_uring},     {"file-system", check_file_system},   {"direct-io", check_direct},
     {"rotational", check_rotational}, {"scheduler", check_scheduler},       {"read-ahead", check_read_ahead},
     {"free-disk", check_free_disk},   {"pressure", check_pressure},         {"drive-speed", check_drive_speed},
     {"io-threads", check_io_threads}}};

}  // namespace

const char* severity_name(Severity severity) {
    switch (severity) {
        case Severity::ok:
            return "ok";
        case Severity::not_checked:
            return "not checked";
        case Severity::note:
            return "note";
        case Severity::warning:
            return "warning";
        case Severity::problem:
            return "problem";
    }
    return "?";
}

std::vector<Finding> diagnose(const Examination& examination) {
    std::vector<Finding> findings;
    for (const Check& c : kChecks) {
        findings.push_back(c.look(examination));
        findings.back().id = c.id;
    }
    return findings;
}

std::vector<std::string_view> finding_ids() {
    std::vector<std::string_view> ids;
    ids.reserve(kChecks.size());
    for (const Check& c : kChecks) ids.push_back(c.id);
    return ids;
}

Severity worst(std::span<const Finding> findings) {
    Severity worst = Severity::ok;
    for (const Finding& f : findings) worst = std::max(worst, f.severity);
    return worst;
}

std::optional<double> seconds_per_cold_token(const Examination& examination) {
    if (!examination.model || examination.model->cycle_bytes == 0) return std::nullopt;
    const ProbeRun* best = examination.probe.best();
    const double mib = to_mib(examination.model->cycle_bytes);
    if (best != nullptr && !best->from_memory()) return mib / *best->mib_per_second();
    if (!examination.verdict_mib_per_second) return std::nullopt;
    return mib / *examination.verdict_mib_per_second;
}

}  // namespace sluice::machine
