#include "backend/recording.h"

#include <ggml.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <utility>

#include "backend/device.h"
#include "backend/feature_output.h"
#include "backend/model_state.h"
#include "backend/options.h"
#include "base/clock.h"
#include "base/log.h"
#include "machine/drive.h"
#include "machine/facts.h"
#include "machine/usage.h"
#include "model/digest.h"
#include "sluice_commit.h"
#include "trace/csv.h"
#include "trace/record_file.h"
#include "trace/trace_sinks.h"

namespace sluice::backend {
namespace {

using trace::Part;

// What graphs can tell apart; a host that times its whole loop adds its own parts.
constexpr trace::PartMask kGraphParts =
    trace::parts_of(Part::overhead, Part::dense, Part::routed, Part::wait_read, Part::wait_join, Part::wait_late,
                    Part::wait_lock, Part::convert, Part::manage);
constexpr trace::PartMask kLoopParts =
    kGraphParts | trace::parts_of(Part::sample, Part::detokenise, Part::output, Part::record);

struct State {
    Host host;
    std::unique_ptr<trace::Recorder> recorder;
    std::vector<std::unique_ptr<trace::Recorder>> past;  // contexts may still hold a pointer
    std::shared_ptr<FeatureOutput> features;             // of the recorder, if it has one
    std::vector<std::string> outputs;                    // of the recorder, to see whether they change
    bool shown = false;                                  // somebody sees more than the summary of a run
};

State& state() {
    static State s;
    return s;
}

thread_local std::shared_ptr<trace::Pass> t_given;

trace::Measure known(const std::optional<uint64_t>& v, int64_t unit = 1) {
    return v ? trace::Measure(static_cast<int64_t>(*v) * unit) : trace::Measure();
}

// Growth since the last sample.
struct Growth {
    std::optional<uint64_t> last;
    trace::Measure operator()(const std::optional<uint64_t>& now, int64_t unit = 1) {
        trace::Measure grown;
        if (now && last && *now >= *last) grown = static_cast<int64_t>(*now - *last) * unit;
        last = now;
        return grown;
    }
};

class Sampler {
  public:
    void operator()(trace::Row& row, bool full) {
        const machine::Faults f = machine::faults();
        row.major_faults = major_(f.major);
        row.minor_faults = minor_(f.minor);
        row.cpu = cpu_(f.cpu_ns);
        if (!full) return;
        const machine::Usage u = reader_.read();
        row.rss = known(u.rss);
        row.anon = known(u.anon);
        row.file = known(u.file);
        row.swap = known(u.swap);
        row.mem_available = known(u.mem_available);
        row.mem_free = known(u.mem_free);
        row.swap_free = known(u.swap_free);
        row.kernel_bytes = read_(u.bytes_read);
        constexpr int64_t kMicro = 1000;
        row.psi_io_some = io_some_(u.psi_io_some_us, kMicro);
        row.psi_io_full = io_full_(u.psi_io_full_us, kMicro);
        row.psi_memory_some = memory_some_(u.psi_mem_some_us, kMicro);
        row.psi_memory_full = memory_full_(u.psi_mem_full_us, kMicro);
    }

  private:
    machine::UsageReader reader_;
    Growth major_, minor_, cpu_, read_, io_some_, io_full_, memory_some_, memory_full_;
};

template <typename T>
trace::Json or_null(const std::optional<T>& v) {
    return v ? trace::Json(*v) : trace::Json(nullptr);
}

trace::Json machine_json() {
    const machine::Facts f = machine::read_facts();
    return {{"cpu", or_null(f.cpu_model)},         {"features", or_null(f.cpu_features)},
            {"cores", or_null(f.cores_online)},    {"cores_allowed", or_null(f.cores_allowed)},
            {"cpu_quota", or_null(f.cpu_quota)},   {"governor", or_null(f.governor)},
            {"ram_bytes", or_null(f.ram_total)},   {"memory_limit_bytes", or_null(f.room.cgroup_limit)},
            {"swap_bytes", or_null(f.swap_total)}, {"huge_pages", or_null(f.huge_pages)},
            {"kernel", or_null(f.kernel_release)}};
}

// The command, without what a person may have written into it and without secrets.
trace::Json command_json() {
    std::ifstream file("/proc/self/cmdline", std::ios::binary);
    constexpr std::string_view kPrivate[] = {"-p",
                                             "--prompt",
                                             "-sys",
                                             "--system-prompt",
                                             "-r",
                                             "--reverse-prompt",
                                             "--in-prefix",
                                             "--in-suffix",
                                             "--api-key",
                                             "--api-key-file",
                                             "-hft",
                                             "--hf-token",
                                             "-j",
                                             "--json-schema",
                                             "--grammar",
                                             "--mcp-servers-json",
                                             "--reasoning-budget-message",
                                             "--chat-template",
                                             "--chat-template-kwargs",
                                             "--ui-config",
                                             "--webui-config"};
    const bool bench = std::string_view(program_invocation_short_name).find("bench") != std::string_view::npos ||
                       host().program == "sluice bench";
    trace::Json command = trace::Json::array();
    std::string argument;
    bool hidden = false;
    while (std::getline(file, argument, '\0')) {
        const size_t equals = argument.find('=');
        const auto is_private = [&](std::string_view flag) {
            // Numbers of llama-bench.
            if (bench && (flag == "-p" || flag == "-r")) return false;
            return std::find(std::begin(kPrivate), std::end(kPrivate), flag) != std::end(kPrivate);
        };
        if (hidden) {
            command.push_back(fmt::format("({} bytes)", argument.size()));
        } else if (equals != std::string::npos && is_private(std::string_view(argument).substr(0, equals))) {
            command.push_back(
                fmt::format("{}({} bytes)", argument.substr(0, equals + 1), argument.size() - equals - 1));
        } else {
            command.push_back(argument);
        }
        hidden = !hidden && is_private(argument);
    }
    return command;
}

trace::Json header_json(const Config& config, const Host& host) {
    return {{"sluice_record", trace::kSchemaVersion},
            {"kind", "run"},
            {"time", utc_text()},
            {"pid", getpid()},
            {"program", host.program.empty() ? program_invocation_short_name : host.program},
            {"command", command_json()},
            {"scope", host.whole_loop ? "loop" : "graph"},
            {"versions",
             {{"sluice", version()},
              {"commit", *commit() == '\0' ? trace::Json(nullptr) : trace::Json(commit())},
              {"llama.cpp", SLUICE_LLAMA_VERSION},
              {"ggml", ggml_version()},
              {"ggml_commit", ggml_commit()},
              {"compiler", __VERSION__}}},
            {"machine", machine_json()},
            {"lossy", lossy_options(config)},
            {"options", options_json(config)}};
}

struct OpenedFiles {
    std::vector<std::unique_ptr<trace::Sink>> sinks;
    std::vector<std::unique_ptr<trace::EventSink>> events;
    std::shared_ptr<FeatureOutput> features;
};

Result<OpenedFiles> open_files(const Config& config) {
    OpenedFiles opened;
    Status failed;
    const auto with = [&](const std::string& path, const char* flag, auto make) {
        if (path.empty() || !failed.ok()) return;
        auto file = trace::LineFile::open(path);
        if (!file.ok()) {
            failed = file.status().within(flag);
            return;
        }
        make(std::move(*file));
    };
    const auto sink = [&](auto made) { opened.sinks.push_back(std::move(made)); };
    const auto events = [&](auto made) { opened.events.push_back(std::move(made)); };
    with(config.record, "--record", [&](auto f) { sink(trace::make_record_sink(std::move(f))); });
    with(config.csv, "--csv", [&](auto f) { sink(trace::make_csv_sink(std::move(f))); });
    with(config.route_trace, "--route-trace", [&](auto f) {
        auto both = trace::make_route_trace(std::move(f));
        sink(std::move(both.sink));
        events(std::move(both.events));
    });
    with(config.route_features, "--route-features", [&](auto f) {
        opened.features = std::make_shared<FeatureOutput>(std::move(f), config.route_features_bytes);
        events(make_feature_sink(opened.features));
    });
    with(config.io_trace, "--io-trace", [&](auto f) { events(trace::make_io_trace(std::move(f))); });
    with(config.compute_trace, "--compute-trace", [&](auto f) { events(trace::make_compute_trace(std::move(f))); });
    with(config.compute_trace_layers, "--compute-trace-layers",
         [&](auto f) { events(trace::make_layer_trace(std::move(f))); });
    with(config.token_trace, "--token-trace",
         [&](auto f) { events(trace::make_token_trace(std::move(f), static_cast<int64_t>(config.token_trace_at))); });
    if (!failed.ok()) return failed;
    return opened;
}

std::vector<std::string> outputs_of(const Config& c) {
    return {c.record,   c.csv,           c.route_trace,          c.route_features,
            c.io_trace, c.compute_trace, c.compute_trace_layers, c.token_trace};
}

trace::Json digest_json(const model::GgufIndex& index) {
    const auto digest = model::sampled_digest(index);
    if (digest.ok()) return *digest;
    log(LogLevel::warn, "{}", digest.status().message());
    return nullptr;
}

trace::Json drive_json(const ModelState& model, const std::string& path) {
    const auto d = machine::read_drive(path);
    if (!d.ok()) return nullptr;
    return {{"filesystem", or_null(d->file_system)},
            {"volume", or_null(d->volume)},
            {"drive", or_null(d->drive)},
            {"model", or_null(d->model)},
            {"rotational", or_null(d->rotational)},
            {"scheduler", or_null(d->scheduler)},
            {"direct", model.reads_directly()},
            {"engine", model.engine_name()},
            {"depth", model.config().io_threads}};
}

// What the file of router inputs says of the model. A run without it goes on.
void begin_features(const ModelState& model) {
    const auto digest = model::dense_digest(model.index(), model.geometry());
    if (!digest.ok()) return state().features->refuse(digest.status());
    route::FeatureShape shape = feature_shape(model.index(), model.geometry(), *digest);
    shape.lossy = fmt::format("{}", fmt::join(lossy_options(model.config()), ", "));
    state().features->begin(shape);
}

// Of a layer: what its experts are not.
uint64_t dense_bytes_of(const model::GgufIndex& index, int layer) {
    const std::string prefix = fmt::format("blk.{}.", layer);
    uint64_t bytes = 0;
    for (const model::TensorEntry& t : index.tensors()) {
        int of = 0;
        model::Component component{};
        std::string group;
        if (t.name.starts_with(prefix) && !model::parse_expert_tensor_name(t.name, of, component, group))
            bytes += t.bytes;
    }
    return bytes;
}

// The host may end by exit(), or unload us: what it recorded is still to be whole.
void end_at_exit() {
    end_recording({});
}

}  // namespace

void set_host(Host host) {
    state().host = std::move(host);
}

const Host& host() {
    return state().host;
}

Status start_recording(const Config& config) {
    State& s = state();
    if (!s.host.whole_loop && !has_outputs(config) && s.recorder == nullptr) return {};
    const std::vector<std::string> outputs = outputs_of(config);
    if (s.recorder != nullptr && outputs == s.outputs) return {};
    // Models know their number in the record that they began with.
    if (models_are_loaded()) {
        return error(Code::invalid_argument, "the outputs of a run cannot change while a model is loaded");
    }
    if (s.recorder != nullptr) {
        end_recording({});
        s.past.push_back(std::move(s.recorder));
    }
    s.outputs = outputs;
    if (!s.host.whole_loop && !has_outputs(config)) return {};

    s.shown = has_outputs(config);
    auto files = open_files(config);
    if (!files.ok()) return files.status();
    trace::Wants wants;
    wants.rows = true;
    wants.routes = !config.route_trace.empty();
    wants.router_inputs = !config.route_features.empty();
    wants.reads = !config.io_trace.empty();
    wants.nodes = !config.compute_trace.empty();
    wants.node_layers = !config.compute_trace_layers.empty();
    if (!config.token_trace.empty()) wants.capture_row = static_cast<int64_t>(config.token_trace_at);
    trace::PartMask parts = s.host.whole_loop ? kLoopParts : kGraphParts;
    if (wants.nodes) parts |= trace::parts_of(Part::router, Part::shared);

    s.recorder = std::make_unique<trace::Recorder>(SystemClock::instance(), parts, wants);
    s.features = std::move(files->features);
    for (auto& sink : files->sinks) s.recorder->add(std::move(sink));
    for (auto& sink : files->events) s.recorder->add(std::move(sink));
    s.recorder->set_sampler(
        [sampler = std::make_shared<Sampler>()](trace::Row& row, bool full) { (*sampler)(row, full); });
    s.recorder->set_header(header_json(config, s.host));
    static const int registered = std::atexit(end_at_exit);
    (void)registered;
    return {};
}

void add_output(std::unique_ptr<trace::Sink> sink) {
    if (state().recorder != nullptr) state().recorder->add(std::move(sink));
}

trace::Recorder* recorder() {
    return state().recorder.get();
}

void end_recording(trace::Ending ending) {
    trace::Recorder* r = recorder();
    if (r == nullptr) return;
    finish_rows();
    record_guesses();
    r->end(std::move(ending));
}

int32_t record_model(const ModelState& model) {
    trace::Recorder* r = recorder();
    if (r == nullptr) return -1;
    const model::GgufIndex& index = model.index();
    const model::Geometry& g = model.geometry();
    uint64_t bytes = 0;
    for (const model::FileEntry& f : index.files()) bytes += f.size;
    std::vector<int> layers;
    std::vector<uint32_t> experts;
    std::vector<uint64_t> record_bytes, layer_dense_bytes;
    std::map<std::string, uint64_t> types;
    for (const model::ExpertSet& set : g.sets) {
        layers.push_back(set.layer);
        experts.push_back(set.n_expert);
        record_bytes.push_back(set.record_bytes());
        layer_dense_bytes.push_back(dense_bytes_of(index, set.layer));
        for (const model::ExpertTensor& t : set.tensors) {
            const model::TypeTraits* traits = model::type_traits(t.type);
            types[traits != nullptr ? traits->name : "unknown"] += t.bytes_per_expert * set.n_expert;
        }
    }
    const std::string& path = index.files()[0].path;
    // Both read the model's files, for which a run that shows neither need not wait.
    const bool shown = state().shown;
    trace::Json info = {{"kind", "model"},
                        {"model", 0},
                        {"name", path.substr(path.rfind('/') + 1)},
                        {"arch", index.architecture()},
                        {"digest", shown ? digest_json(index) : trace::Json(nullptr)},
                        {"bytes", bytes},
                        {"files", index.files().size()},
                        {"n_layer", g.n_layer},
                        {"layers", layers},
                        {"experts", experts},
                        {"top_k", g.n_expert_used},
                        {"record_bytes", record_bytes},
                        {"layer_dense_bytes", layer_dense_bytes},
                        {"expert_bytes", g.expert_bytes},
                        {"dense_bytes", g.dense_bytes},
                        {"cycle_bytes", g.cycle_bytes},
                        {"expert_types", types},
                        {"repacked", model.repack()},
                        {"drive", shown ? drive_json(model, path) : trace::Json(nullptr)}};
    // Until the first model nothing is written: options that change nothing in it are not named.
    r->set_header(header_json(model.config(), state().host));
    const auto number = static_cast<int32_t>(r->model(std::move(info), experts));
    if (number == 0 && state().features != nullptr) begin_features(model);
    return number;
}

void record_cache(int32_t model, uint64_t bytes, uint64_t slots, uint64_t records, const std::string& why) {
    trace::Recorder* r = recorder();
    if (r != nullptr && model >= 0) r->cache(static_cast<size_t>(model), bytes, slots, records, why);
}

void use_pass(std::shared_ptr<trace::Pass> pass) {
    t_given = std::move(pass);
}

const std::shared_ptr<trace::Pass>& given_pass() {
    return t_given;
}

trace::Json options_json(const Config& config) {
    const Config defaults;
    trace::Json j = trace::Json::object();
    for (const Option& o : options()) {
        const std::string value = o.get(config);
        j[std::string(o.flag).substr(2)] = {{"value", value.empty() ? trace::Json(nullptr) : trace::Json(value)},
                                            {"set", value != o.get(defaults)}};
    }
    return j;
}

const char* commit() {
    return SLUICE_COMMIT;
}

}  // namespace sluice::backend
