#include "cli/plan_subject.h"

#include <algorithm>

#include "backend/model_state.h"
#include "backend/options.h"
#include "base/clock.h"
#include "base/log.h"
#include "machine/drive.h"
#include "machine/facts.h"
#include "model/digest.h"
#include "sched/slots.h"
#include "store/record_store.h"
#include "trace/caches.h"
#include "trace/json_values.h"

namespace sluice::cli {
namespace {

// As lines of the history may have it.
std::string plain(std::string text) {
    constexpr size_t kMost = 128;
    text.resize(std::min(kMost, text.size()));
    for (char& c : text) {
        if (c < ' ' || c > '~') c = '?';
    }
    return text;
}

std::string machine_name() {
    const machine::Facts facts = machine::read_facts();
    return plain(fmt::format("{}, {} cores", facts.cpu_model.value_or("unknown processor"),
                             facts.cores_allowed.value_or(facts.cores_online.value_or(0))));
}

bool for_comparison(const Config& c) {
    return !c.overlap || c.wave != 0 || c.io_engine == IoEngine::mmap || !c.direct_io || !c.mirrors.empty() ||
           c.verify_reads == VerifyReads::always || !backend::lossy_options(c).empty() || c.predict_log ||
           !c.compute_trace.empty() || !c.compute_trace_layers.empty();
}

uint64_t count_of(trace::Measure m) {
    return static_cast<uint64_t>(std::max<int64_t>(0, m.or_zero()));
}

Status remember(const std::string& model, const Config& config, bool repack, const trace::Book& book) {
    const trace::Totals& decode = book.of(trace::Phase::decode);
    const trace::Json host = book.load.is_object() ? book.load.value("host", trace::Json()) : trace::Json();
    const trace::Json* newest = trace::newest_cache(book, 0);
    const trace::Json cache = newest != nullptr ? *newest : trace::Json();
    plan::PastRun run;
    run.tokens = count_of(trace::counted_tokens(decode));
    if (run.tokens < plan::kLeastTokens) return {};
    // What it hit belongs to no size then.
    if (!trace::one_cache_in_decode(book, 0)) return error(Code::unsupported, "its cache changed its size in decode");

    const auto subject = PlanSubject::open(model, config, repack);
    if (!subject.ok()) return subject.status();
    run.at = utc_text();
    run.model = subject->digest;
    run.machine = subject->machine;
    run.drive = subject->drive;
    run.threads = static_cast<unsigned>(count_of(trace::measure_in(host, "threads")));
    run.cache_bytes = count_of(trace::measure_in(cache, "bytes"));
    run.slots = count_of(trace::measure_in(cache, "slots"));
    run.policy = policy_name(config);
    run.wall = decode.sum.wall.or_zero();
    run.waited = std::min(run.wall, trace::exposed_wait(decode.sum).or_zero());
    run.reading = std::min(run.wall, decode.sum.read_busy.or_zero());
    run.lookups = count_of(decode.sum.lookups);
    run.hits = count_of(decode.sum.hits);
    run.read_bytes = count_of(decode.sum.exact_physical);

    const auto path = plan::history_path();
    if (!path.ok()) return path.status();
    const plan::History history = plan::read_history(*path);
    if (const auto layout = subject->layout(run.cache_bytes); layout.ok()) {
        const plan::Setting setting{
            .threads = run.threads, .lanes = config.io_threads, .tokens = run.tokens, .policy = run.policy};
        const plan::Speeds* speeds = plan::find_speeds(history, subject->work, run.machine, run.threads);
        const plan::Estimate e = subject->estimate(*layout, setting, history, speeds);
        if (e.token) run.predicted = e.token->tokens_per_second;
    }
    const auto line = plan::line_of(run);
    return line.ok() ? plan::append_line(*path, *line) : line.status();
}

}  // namespace

Result<PlanSubject> PlanSubject::open(const std::string& path, const Config& config, bool repack) {
    auto index = model::GgufIndex::open(path);
    if (!index.ok()) return index.status();
    auto geometry = model::derive_geometry(*index);
    if (!geometry.ok()) return geometry.status();
    auto store = store::RecordStore::open(*index, *geometry,
                                          {.access = config.direct_io ? io::Access::direct : io::Access::buffered,
                                           .store = config.store,
                                           .mirrors = config.mirrors},
                                          nullptr);
    if (!store.ok()) return store.status();
    auto digest = model::dense_digest(*index, *geometry);
    if (!digest.ok()) return digest.status();

    PlanSubject s;
    s.path = index->files()[0].path;
    s.files = index->files().size();
    s.header_bytes = index->header_bytes();
    if (const std::string& used = store->holder(0).name; used != s.path) s.read_from = used;
    s.work = plan::work_of(*index, *geometry);
    s.converted = backend::converted_matrices(*geometry, repack);
    s.shapes = sched::Slots::shapes(*store, s.converted);
    s.store = std::make_unique<store::RecordStore>(std::move(*store));
    s.geometry = std::move(*geometry);
    s.index = std::move(*index);
    s.digest = std::move(*digest);
    s.machine = machine_name();
    const auto drive = machine::read_drive(s.store->extent(0, 0).file->path());
    if (!drive.ok()) {
        s.no_verdict = drive.status().message();
        return s;
    }
    s.drive = plain(machine::identify(*drive).id());
    auto verdict = machine::find_verdict(*drive);
    if (verdict.ok()) {
        s.verdict = std::move(*verdict);
    } else {
        s.no_verdict = verdict.status().message();
    }
    return s;
}

Result<cache::Layout> PlanSubject::layout(uint64_t cache_bytes) const {
    return cache::plan_layout(shapes, cache_bytes, std::max(1U, geometry.n_expert_used));
}

plan::Estimate PlanSubject::estimate(const cache::Layout& layout, const plan::Setting& setting,
                                     const plan::History& history, const plan::Speeds* speeds) const {
    return plan::estimate(work, layout, setting,
                          {.verdict = verdict ? &*verdict : nullptr,
                           .history = &history,
                           .speeds = speeds,
                           .model = digest,
                           .machine = machine,
                           .drive = drive});
}

std::string policy_name(const Config& config) {
    const backend::Option* option = backend::find_option("--cache-policy");
    return option != nullptr ? option->get(config) : "";
}

void remember_run(const std::string& model, const Config& config, bool repack, const trace::Book& book) {
    if (!config.history || for_comparison(config)) return;
    // Nobody asked for it, so nobody has to hear that it did not work.
    if (Status s = remember(model, config, repack, book); !s.ok())
        log(LogLevel::debug, "this run is not remembered: {}", s.message());
}

}  // namespace sluice::cli
