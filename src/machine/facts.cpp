#include "machine/facts.h"

#include <algorithm>
#include <charconv>
#include <set>

#include "base/bytes.h"
#include "base/memory.h"
#include "io/engine.h"
#include "machine/cgroup.h"
#include "machine/text.h"

namespace sluice::machine {
namespace {

// More than any kernel is built for.
constexpr uint64_t kMostCpus = 65'536;

// The value in "key\t: value".
std::optional<std::string_view> value_of(std::string_view text, std::string_view key) {
    auto rest = rest_after(text, key);
    if (!rest || !rest->starts_with(':')) return std::nullopt;
    return trimmed(rest->substr(1));
}

void read_processor(Facts& f, const std::string& root) {
    const std::string text = read_text(root + "/proc/cpuinfo").value_or("");
    auto flags = value_of(text, "flags");
    f.architecture = flags ? "x86-64" : "";
    if (!flags) {
        flags = value_of(text, "Features");
        if (flags) f.architecture = "arm64";
    }
    if (flags) {
        const std::string all = " " + std::string(*flags) + " ";
        f.cpu_features.emplace();
        for (const std::string_view feature : kCpuFeatures) {
            if (all.find(" " + std::string(feature) + " ") != std::string::npos) f.cpu_features->emplace_back(feature);
        }
    }
    if (const auto name = value_of(text, "model name"); name && is_name(*name)) {
        f.cpu_model = *name;
    } else if (const auto part = value_of(text, "CPU part"); part && is_name(*part)) {
        const auto maker = value_of(text, "CPU implementer");
        f.cpu_model = fmt::format("implementer {} part {}", maker && is_name(*maker) ? *maker : "unknown", *part);
    }
}

// The tightest quota on this process, in cores.
std::optional<double> read_quota(const std::string& root) {
    std::optional<double> tightest;
    for (const Hierarchy& h : hierarchies(root, "cpu")) {
        for (const std::string& folder : h.folders) {
            std::optional<uint64_t> quota;
            std::optional<uint64_t> period;
            if (h.version == 1) {
                quota = read_number(folder + "/cpu.cfs_quota_us");  // -1: none
                period = read_number(folder + "/cpu.cfs_period_us");
            } else if (const auto line = read_line(folder + "/cpu.max")) {  // "max 100000" or "50000 100000"
                const size_t blank = line->find(' ');
                quota = parse_number(line->substr(0, blank));
                if (blank != std::string::npos) period = parse_number(line->substr(blank));
            }
            if (!quota || !period || *period == 0) continue;
            const double cores = static_cast<double>(*quota) / static_cast<double>(*period);
            if (!tightest || cores < *tightest) tightest = cores;
        }
    }
    return tightest;
}

void read_cores(Facts& f, const std::string& root) {
    if (const auto list = read_line(root + "/sys/devices/system/cpu/online")) f.cores_online = count_cpus(*list);
    if (const auto text = read_text(root + "/proc/self/status")) {
        if (const auto list = rest_after(*text, "Cpus_allowed_list:")) f.cores_allowed = count_cpus(*list);
    }
    f.cpu_quota = read_quota(root);
    std::set<std::string> governors;
    const std::string first = root + "/sys/devices/system/cpu/cpu";
    for (uint64_t i = 0; i < f.cores_online.value_or(1); ++i) {
        const auto governor = read_line(fmt::format("{}{}/cpufreq/scaling_governor", first, i));
        if (governor) governors.insert(*governor);
    }
    for (const std::string& g : governors) f.governor = f.governor ? *f.governor + ", " + g : g;
    f.governor_driver = read_line(first + "0/cpufreq/scaling_driver");
}

void read_memory(Facts& f, const std::string& root) {
    f.room = read_memory_room(root);
    const std::string memory = read_text(root + "/proc/meminfo").value_or("");
    f.ram_total = number_after(memory, "MemTotal:", KiB);
    f.swap_total = number_after(memory, "SwapTotal:", KiB);
    const auto swap_free = number_after(memory, "SwapFree:", KiB);
    if (f.swap_total && swap_free) f.swap_used = *f.swap_total - std::min(*f.swap_total, *swap_free);
    const std::string limits = read_text(root + "/proc/self/limits").value_or("");
    if (const auto rest = rest_after(limits, "Max locked memory")) {
        if (rest->starts_with("unlimited")) {
            f.memlock_limit = kUnlimited;
        } else {
            f.memlock_limit = parse_number(rest->substr(0, rest->find(' ')));
        }
    }
    if (const auto choice = read_line(root + "/sys/kernel/mm/transparent_hugepage/enabled"))
        f.huge_pages = bracketed(*choice);
    f.page_size = page_size();
}

void read_kernel(Facts& f, const std::string& root) {
    f.kernel_release = read_line(root + "/proc/sys/kernel/osrelease");
    f.io_uring_disabled = read_number(root + "/proc/sys/kernel/io_uring_disabled");
    // With both mounted, version 1 has the controller if it is listed there.
    for (const Hierarchy& h : hierarchies(root, "memory")) {
        f.cgroup_version = f.cgroup_version ? std::min(*f.cgroup_version, h.version) : h.version;
    }
    if (const auto line = read_line(root + "/proc/loadavg")) {
        double load = 0;
        const auto [end, ec] = std::from_chars(line->data(), line->data() + line->size(), load);
        if (ec == std::errc() && load >= 0 && load < 1e9) f.load = load;
    }
    const Pressure p{.cpu = read_waited(root + "/proc/pressure/cpu"),
                     .io = read_waited(root + "/proc/pressure/io"),
                     .memory = read_waited(root + "/proc/pressure/memory")};
    if (p.cpu || p.io || p.memory) f.pressure = p;
}

}  // namespace

Facts read_facts(const std::string& root) {
    Facts f;
    read_processor(f, root);
    read_cores(f, root);
    read_memory(f, root);
    read_kernel(f, root);
    return f;
}

Attempt try_io_uring() {
    const auto made = io::make_engine({.kind = io::EngineKind::io_uring});
    return {.works = made.ok(), .refusal = made.ok() ? "" : made.status().message()};
}

bool has_feature(const Facts& facts, std::string_view feature) {
    return facts.cpu_features &&
           std::find(facts.cpu_features->begin(), facts.cpu_features->end(), feature) != facts.cpu_features->end();
}

std::optional<KernelVersion> parse_kernel(std::string_view release) {
    KernelVersion v;
    const char* const end = release.data() + release.size();
    const auto major = std::from_chars(release.data(), end, v.major);
    if (major.ec != std::errc() || major.ptr == end || *major.ptr != '.') return std::nullopt;
    const auto minor = std::from_chars(major.ptr + 1, end, v.minor);
    if (minor.ec != std::errc()) return std::nullopt;
    return v;
}

std::optional<uint64_t> count_cpus(std::string_view list) {
    uint64_t n = 0;
    list = trimmed(list);
    while (!list.empty()) {
        const std::string_view range = list.substr(0, list.find(','));
        const size_t dash = range.find('-');
        const auto from = parse_number(range.substr(0, dash));
        const auto to = dash == std::string_view::npos ? from : parse_number(range.substr(dash + 1));
        if (!from || !to || *to < *from || *to >= kMostCpus) return std::nullopt;
        n += *to - *from + 1;
        if (n > kMostCpus) return std::nullopt;
        if (range.size() == list.size()) return n;
        list.remove_prefix(range.size() + 1);
    }
    return std::nullopt;
}

}  // namespace sluice::machine
