// Owns: `sluice doctor`: what is wrong with this machine for streaming, for people and as JSON.
// Keeps: the machine is only looked at; the model is read a little, weights are not kept and nothing is written.
#include "machine/doctor.h"

#include <ggml-backend.h>
#include <ggml.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>

#include "base/bytes.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/commands.h"
#include "cli/terminal.h"
#include "machine/verdict.h"
#include "model/geometry.h"
#include "store/record_store.h"

namespace sluice::cli {
namespace {

using machine::Finding;
using machine::Severity;
using nlohmann::ordered_json;

// Read where the model has no experts, or is none.
constexpr uint64_t kPlainRead = MiB;
// Enough of them that a measurement reads little twice, few enough to list.
constexpr size_t kMostTargets = 8192;

struct Asked {
    std::string path;
    bool json = false;
    bool probe = true;
};

struct Page {
    size_t width = 80;
    bool colour = false;
};

// "llama.cpp v0.5.0 (ggml 0.25.1)" -> "0.25.1"
std::string ggml_needed() {
    const std::string text = llama_version_needed();
    const size_t from = text.find("(ggml ");
    return from == std::string::npos ? text : text.substr(from + 6, text.find(')') - from - 6);
}

machine::Build build_of_this_program() {
    machine::Build build{.ggml_expected = ggml_needed(), .ggml_found = ggml_version(), .kernels = {}};
    ggml_backend_reg_t cpu = ggml_backend_reg_by_name("CPU");
    if (cpu == nullptr) return build;
    const auto get = reinterpret_cast<ggml_backend_get_features_t>(
        ggml_backend_reg_get_proc_address(cpu, "ggml_backend_get_features"));
    if (get == nullptr) return build;
    build.kernels.emplace();
    for (const ggml_backend_feature* f = get(cpu); f != nullptr && f->name != nullptr; ++f) {
        if (f->value != nullptr && std::string_view(f->value) != "0") build.kernels->emplace_back(f->name);
    }
    return build;
}

// One matrix of one expert is what streaming reads at once. A random part of them, if there are very many.
std::vector<machine::Target> expert_targets(const model::Geometry& g, std::mt19937_64& random) {
    size_t all = 0;
    for (const model::ExpertSet& s : g.sets) all += s.tensors.size() * s.n_expert;
    std::bernoulli_distribution take(std::min(1.0, static_cast<double>(kMostTargets) / static_cast<double>(all)));
    std::vector<machine::Target> targets;
    for (const model::ExpertSet& s : g.sets) {
        for (const model::ExpertTensor& t : s.tensors) {
            for (uint32_t e = 0; e < s.n_expert; ++e) {
                if (take(random)) targets.push_back({t.file, t.expert_offset(e), t.bytes_per_expert});
            }
        }
    }
    std::shuffle(targets.begin(), targets.end(), random);
    return targets;
}

// A line that is written over, on a terminal; nothing in a pipe.
class ProbeLine {
  public:
    ~ProbeLine() {
        if (shown_) std::fputs("\r\033[K", stderr);
    }
    void show(const machine::ProbeRun& run, double part) {
        if (!on_terminal_) return;
        const int percent = std::clamp(static_cast<int>(part * 100), 0, 100);
        if (shown_ && percent == percent_ && run.lanes == lanes_ && run.direct == direct_) return;
        percent_ = percent;
        lanes_ = run.lanes;
        direct_ = run.direct;
        shown_ = true;
        std::fprintf(stderr, "\r\033[Kreading the model, %s, %u in flight: %d %%", direct_ ? "direct" : "buffered",
                     lanes_, percent);
        std::fflush(stderr);
    }

  private:
    const bool on_terminal_ = isatty(STDERR_FILENO) == 1;
    bool shown_ = false;
    bool direct_ = false;
    unsigned lanes_ = 0;
    int percent_ = -1;
};

// Where a run would read experts from, as sluice run itself decides it; or why there is nowhere.
std::string store_of(const model::GgufIndex& index, const model::Geometry& geometry) {
    set_log_level(LogLevel::error);
    const auto store = store::RecordStore::open(index, geometry, {}, nullptr);
    if (!store.ok()) return "none: " + store.status().message();
    std::string text = store->holder(0).name;
    for (size_t h = 1; h < store->n_holders(); ++h)
        text += fmt::format(", in reserve {}", store->holder(static_cast<store::HolderId>(h)).name);
    return text + (store->has_checksums() ? ", with checksums" : ", without checksums");
}

// `unreadable`: what is wrong with the file that was named as a model, if it is none or a broken one. `store`: where
// its experts would be read from.
Result<machine::Examination> examine(const Asked& asked, Status& unreadable, std::string& store) {
    machine::Examination exam;
    exam.facts = machine::read_facts();
    exam.facts.io_uring = machine::try_io_uring();
    exam.build = build_of_this_program();
    if (asked.path.empty()) {
        exam.no_model = "no model was named";
        exam.probe.not_done = exam.no_model;
        return exam;
    }
    auto drive = machine::read_drive(asked.path);
    if (!drive.ok()) return drive.status();
    exam.drive = std::move(*drive);

    machine::ProbePlan plan;
    plan.paths = {asked.path};
    // Other places each time, so that memory of a host or of the drive knows them less.
    std::mt19937_64 random(std::random_device{}());
    const auto index = model::GgufIndex::open(asked.path);
    unreadable = index.status();
    if (index.ok()) {
        plan.paths.clear();
        for (const model::FileEntry& f : index->files()) plan.paths.push_back(f.path);
    }
    const auto geometry = index.ok() ? model::derive_geometry(*index) : Result<model::Geometry>(index.status());
    if (geometry.ok()) {
        exam.model = machine::ModelSizes{.dense_bytes = geometry->dense_bytes,
                                         .expert_bytes = geometry->expert_bytes,
                                         .largest_expert_bytes = geometry->largest_record_bytes,
                                         .cycle_bytes = geometry->cycle_bytes};
        plan.targets = expert_targets(*geometry, random);
    } else {
        exam.no_model = geometry.status().message();
        plan.paths = {asked.path};
        plan.targets = machine::scattered(exam.drive->file_bytes, kPlainRead, kMostTargets, random());
    }
    if (const auto verdict = machine::find_verdict(*exam.drive); verdict.ok() && verdict->derived) {
        exam.verdict_mib_per_second = verdict->derived->sustained * 1e9 / static_cast<double>(MiB);
        exam.verdict_made = verdict->made;
    }
    if (index.ok() && geometry.ok()) store = store_of(*index, *geometry);
    if (!asked.probe) {
        exam.probe.not_done = "--no-probe was given";
        return exam;
    }
    ProbeLine line;
    plan.progress = [&](const machine::ProbeRun& run, double part) { line.show(run, part); };
    exam.probe = machine::measure(plan);
    return exam;
}

// --- for programs

template <typename T>
ordered_json value(const std::optional<T>& x) {
    return x ? ordered_json(*x) : ordered_json(nullptr);
}

ordered_json facts_json(const machine::Facts& f) {
    ordered_json j;
    j["architecture"] = f.architecture.empty() ? ordered_json(nullptr) : ordered_json(f.architecture);
    j["cpu_model"] = value(f.cpu_model);
    j["cpu_features"] = value(f.cpu_features);
    j["cores_online"] = value(f.cores_online);
    j["cores_allowed"] = value(f.cores_allowed);
    j["cpu_quota_cores"] = value(f.cpu_quota);
    j["governor"] = value(f.governor);
    j["governor_driver"] = value(f.governor_driver);
    j["ram_bytes"] = value(f.ram_total);
    j["available_bytes"] = value(f.room.available);
    j["cgroup_version"] = value(f.cgroup_version);
    j["cgroup_memory_limit_bytes"] = value(f.room.cgroup_limit);
    j["cgroup_memory_used_bytes"] = value(f.room.cgroup_used);
    j["swap_bytes"] = value(f.swap_total);
    j["swap_used_bytes"] = value(f.swap_used);
    j["memlock_limit_bytes"] =
        f.memlock_limit == machine::kUnlimited ? ordered_json("unlimited") : value(f.memlock_limit);
    j["transparent_huge_pages"] = value(f.huge_pages);
    j["page_bytes"] = f.page_size;
    j["kernel"] = value(f.kernel_release);
    j["io_uring_disabled"] = value(f.io_uring_disabled);
    if (f.io_uring) {
        j["io_uring"] = f.io_uring->works;
        if (!f.io_uring->works) j["io_uring_refusal"] = f.io_uring->refusal;
    }
    j["load"] = value(f.load);
    const machine::Pressure p = f.pressure.value_or(machine::Pressure());
    j["pressure_percent"] = {{"cpu", value(p.cpu)}, {"io", value(p.io)}, {"memory", value(p.memory)}};
    return j;
}

ordered_json drive_json(const machine::DriveFacts& d) {
    ordered_json j;
    j["path"] = d.path;
    j["file_bytes"] = d.file_bytes;
    j["file_system"] = value(d.file_system);
    j["volume"] = value(d.volume);
    j["drive"] = value(d.drive);
    j["virtual"] = d.virtual_drive;
    j["model"] = value(d.model);
    j["rotational"] = value(d.rotational);
    j["scheduler"] = value(d.scheduler);
    j["read_ahead_kb"] = value(d.read_ahead_kb);
    j["free_bytes"] = value(d.free_bytes);
    if (d.direct) {
        j["direct_io"] = d.direct->works;
        if (d.direct->works) {
            j["direct_offset_alignment"] = d.direct->offset_align;
            j["direct_memory_alignment"] = d.direct->mem_align;
        } else {
            j["direct_io_refusal"] = d.direct->refusal;
        }
    }
    return j;
}

ordered_json probe_json(const machine::Probe& probe) {
    ordered_json j;
    if (!probe.not_done.empty()) {
        j["not_done"] = probe.not_done;
        return j;
    }
    j["engine"] = probe.engine;
    if (!probe.note.empty()) j["engine_note"] = probe.note;
    j["read_bytes"] = probe.read_bytes;
    j["runs"] = ordered_json::array();
    for (const machine::ProbeRun& r : probe.runs) {
        ordered_json run{{"direct", r.direct},
                         {"in_flight", r.lanes},
                         {"reads", r.reads},
                         {"bytes", r.bytes},
                         {"nanoseconds", r.elapsed},
                         {"mib_per_second", value(r.mib_per_second())},
                         {"p50_nanoseconds", value(r.p50)},
                         {"p95_nanoseconds", value(r.p95)},
                         {"device_bytes", value(r.device_bytes)},
                         {"from_memory", r.from_memory()},
                         {"out_of_time", r.out_of_time}};
        if (!r.error.empty()) run["error"] = r.error;
        j["runs"].push_back(run);
    }
    return j;
}

std::string json_text(const machine::Examination& exam, const std::string& store,
                      const std::vector<Finding>& findings) {
    ordered_json j;
    j["sluice"] = version();
    j["ggml"] = {{"expected", exam.build.ggml_expected},
                 {"found", exam.build.ggml_found},
                 {"kernels", value(exam.build.kernels)}};
    j["machine"] = facts_json(exam.facts);
    j["drive"] = exam.drive ? drive_json(*exam.drive) : ordered_json(nullptr);
    if (exam.model) {
        j["model"] = {{"dense_bytes", exam.model->dense_bytes},
                      {"expert_bytes", exam.model->expert_bytes},
                      {"largest_expert_bytes", exam.model->largest_expert_bytes},
                      {"token_cycle_bytes", exam.model->cycle_bytes}};
    } else {
        j["model"] = nullptr;
        j["no_model"] = exam.no_model;
    }
    j["store"] = store.empty() ? ordered_json(nullptr) : ordered_json(store);
    j["verdict"] = exam.verdict_mib_per_second
                       ? ordered_json{{"made", exam.verdict_made}, {"mib_per_second", *exam.verdict_mib_per_second}}
                       : ordered_json(nullptr);
    j["probe"] = probe_json(exam.probe);
    j["seconds_per_cold_token"] = value(machine::seconds_per_cold_token(exam));
    j["findings"] = ordered_json::array();
    for (const Finding& f : findings) {
        ordered_json finding{{"id", f.id}, {"severity", machine::severity_name(f.severity)}, {"found", f.title}};
        if (!f.change.empty()) finding["change"] = f.change;
        if (!f.gain.empty()) finding["gain"] = f.gain;
        j["findings"].push_back(finding);
    }
    j["worst"] = machine::severity_name(machine::worst(findings));
    // Names from files need not be valid UTF-8.
    return j.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

// --- for people

Page page() {
    Page page;
    const bool terminal = isatty(STDOUT_FILENO) == 1;
    page.width = std::clamp<size_t>(told_columns(STDOUT_FILENO).value_or(page.width), 40, 100);
    const char* no_colour = std::getenv("NO_COLOR");
    const char* term = std::getenv("TERM");
    page.colour = terminal && (no_colour == nullptr || *no_colour == '\0') &&
                  !(term != nullptr && std::string_view(term) == "dumb");
    return page;
}

// `text` wrapped behind a label that stands in a column of its own.
std::string labelled(const std::string& label, size_t column, const std::string& text, size_t width) {
    std::string block = wrap_text(text, column, width);
    return label + std::string(column - std::min(column, label.size()), ' ') + block.substr(column);
}

std::string coloured(const Page& page, Severity severity, std::string text) {
    constexpr std::array<const char*, 5> kColours{"32", "2", "36", "33", "31"};
    if (!page.colour) return text;
    const std::string word = machine::severity_name(severity);
    return fmt::format("\033[{}m{}\033[0m{}", kColours.at(static_cast<size_t>(severity)), word,
                       text.substr(word.size()));
}

constexpr size_t kFactColumn = 11;
constexpr size_t kFindingColumn = 13;

std::string overview(const machine::Examination& exam, const std::string& path, const std::string& store,
                     const Page& page) {
    const machine::Facts& f = exam.facts;
    std::string out;
    const auto line = [&](const char* name, const std::string& text) {
        out += labelled(fmt::format("  {}", name), kFactColumn, text, page.width);
    };
    line("machine", fmt::format("{}, {} cores, {} of memory", f.cpu_model.value_or("unknown processor"),
                                f.cores_allowed ? std::to_string(*f.cores_allowed) : "an unknown number of",
                                f.ram_total ? human_bytes(*f.ram_total) : "an unknown amount"));
    line("kernel", f.kernel_release ? "Linux " + *f.kernel_release : "unknown");
    if (path.empty()) {
        line("model", "none named: neither a drive nor a model was looked at (sluice doctor MODEL does)");
        return out;
    }
    if (exam.model) {
        line("model", fmt::format("{}: always needed {}, experts {}, of these one token uses {}", path,
                                  human_bytes(exam.model->dense_bytes), human_bytes(exam.model->expert_bytes),
                                  human_bytes(exam.model->cycle_bytes)));
    } else {
        line("model", fmt::format("none to stream: {}. Only the drive under the file was looked at", exam.no_model));
    }
    const machine::DriveFacts& d = *exam.drive;
    std::string drive = d.drive.value_or("unknown");
    if (d.model) drive += fmt::format(" ({})", *d.model);
    if (d.virtual_drive) drive += ", virtual";
    line("drive", fmt::format("{}, file system {}", drive, d.file_system.value_or("unknown")));
    line("verdict",
         exam.verdict_mib_per_second
             ? fmt::format("{:.0f} MiB/s for as long as it goes on, measured {}", *exam.verdict_mib_per_second,
                           exam.verdict_made)
             : fmt::format("the drive was not measured yet, so nothing is read ahead (sluice probe {})", path));
    if (!store.empty()) line("store", store);
    return out;
}

std::string measurements(const machine::Examination& exam, const Page& page) {
    const machine::Probe& probe = exam.probe;
    if (!probe.not_done.empty()) return "";
    std::string out = wrap_text(fmt::format("Reads of {}{} by {}:", human_bytes(probe.read_bytes),
                                            exam.model ? ", one matrix of an expert," : "", probe.engine),
                                0, page.width);
    out += fmt::format("  {:<20} {:>8} {:>9} {:>9} {:>7}\n", "in flight", "MiB/s", "p50 ms", "p95 ms", "reads");
    const auto ms = [](const std::optional<Nanos>& t) {
        return t ? fmt::format("{:.2f}", static_cast<double>(*t) / 1e6) : std::string("-");
    };
    bool memory = false;
    for (const machine::ProbeRun& r : probe.runs) {
        const auto speed = r.mib_per_second();
        memory = memory || r.from_memory();
        out += fmt::format(
            "  {:<20} {:>8} {:>9} {:>9} {:>7}{}\n", fmt::format("{}, {}", r.lanes, r.direct ? "direct" : "page cache"),
            speed ? fmt::format("{:.0f}", *speed) : "-", ms(r.p50), ms(r.p95), r.reads, r.from_memory() ? " *" : "");
    }
    if (memory)
        out += wrap_text("* memory answered at least a tenth of it, so this is not the drive's speed", 2, page.width);
    if (exam.drive && exam.drive->virtual_drive)
        out += wrap_text("The drive is virtual: memory of the host may have answered for it.", 2, page.width);
    return out + "\n";
}

std::string counted(const std::vector<Finding>& findings) {
    std::string out;
    for (const Severity s :
         {Severity::problem, Severity::warning, Severity::note, Severity::not_checked, Severity::ok}) {
        const auto n =
            std::count_if(findings.begin(), findings.end(), [&](const Finding& f) { return f.severity == s; });
        if (n == 0) continue;
        const bool counts = s != Severity::ok && s != Severity::not_checked;
        out +=
            fmt::format("{}{} {}{}", out.empty() ? "" : ", ", n, machine::severity_name(s), counts && n > 1 ? "s" : "");
    }
    return out;
}

std::string report(const machine::Examination& exam, const std::string& path, const std::string& store,
                   std::vector<Finding> findings) {
    const Page on = page();
    std::string out = overview(exam, path, store, on) + "\n" + measurements(exam, on);
    std::stable_sort(findings.begin(), findings.end(),
                     [](const Finding& a, const Finding& b) { return a.severity > b.severity; });
    for (const Finding& f : findings) {
        out += coloured(on, f.severity,
                        labelled(machine::severity_name(f.severity), kFindingColumn,
                                 fmt::format("{}: {}", f.id, f.title), on.width));
        if (!f.change.empty()) out += wrap_text("change: " + f.change, kFindingColumn, on.width);
        if (!f.gain.empty()) out += wrap_text("gain: " + f.gain, kFindingColumn, on.width);
    }
    return out + "\n" + counted(findings) + "\n";
}

Result<Asked> parse(std::vector<std::string> arguments) {
    Asked asked;
    for (size_t i = 0; i < arguments.size(); ++i) {
        std::string& a = arguments[i];
        if (a == "--json") {
            asked.json = true;
        } else if (a == "--no-probe") {
            asked.probe = false;
        } else if ((a == "-m" || a == "--model") && i + 1 < arguments.size() && asked.path.empty()) {
            asked.path = std::move(arguments[++i]);
        } else if (!a.starts_with('-') && !a.empty() && asked.path.empty()) {
            asked.path = std::move(a);
        } else {
            return error(Code::invalid_argument, "do not understand \"{}\"; sluice doctor --help", a);
        }
    }
    return asked;
}

}  // namespace

int doctor_command(std::vector<std::string> arguments) {
    if (asks_help(arguments)) return print_help(help_text(*find_command("doctor")));
    const auto asked = parse(std::move(arguments));
    if (!asked.ok()) return fail(asked.status(), kUsage);
    Status unreadable;
    std::string store;
    const auto exam = examine(*asked, unreadable, store);
    if (!exam.ok()) return fail(exam.status(), kFailed);
    std::vector<Finding> findings = machine::diagnose(*exam);
    if (!unreadable.ok()) {
        findings.push_back({.id = "model",
                            .severity = Severity::problem,
                            .title = unreadable.message(),
                            .change = "get the file again, whole",
                            .gain = "it can be loaded"});
    }
    const std::string text =
        asked->json ? json_text(*exam, store, findings) : report(*exam, asked->path, store, findings);
    if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0)
        return fail(error(Code::io_error, "standard output is closed or full"), kFailed);
    return machine::worst(findings) <= Severity::note ? kOk : kFailed;
}

}  // namespace sluice::cli
