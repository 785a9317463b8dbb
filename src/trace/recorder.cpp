#include "trace/recorder.h"

#include <algorithm>

#include "base/log.h"
#include "trace/caches.h"

namespace sluice::trace {
namespace {

constexpr Nanos kSampleEvery = 100'000'000;
constexpr uint64_t kCheckpointEvery = 256;   // rows
constexpr std::ptrdiff_t kMostCaches = 256;  // of one model

// FNV-1a over the bytes of a number.
uint64_t mix(uint64_t digest, uint64_t n) {
    for (int i = 0; i < 8; ++i) {
        digest = (digest ^ (n & 0xFFU)) * 0x100000001b3ULL;
        n >>= 8U;
    }
    return digest;
}

}  // namespace

template <typename S, typename Call>
void Recorder::each_of(std::vector<Guarded<S>>& sinks, Call call) {
    for (auto& s : sinks) {
        if (!s.alive) continue;
        if (Status status = call(*s.sink); !status.ok()) {
            s.alive = false;
            failed(status);
        }
    }
}

void Recorder::failed(const Status& status) {
    log(LogLevel::warn, "{}; the run goes on without this output", status.message());
    if (status_.ok()) status_ = status;
}

void Recorder::open() {
    if (open_) return;
    open_ = true;
    begin_ = clock_.now();
    each_of(sinks_, [&](Sink& s) { return s.begin(book_); });
    if (sampler_) {  // what the first sample's growth is counted from
        Row none;
        sampler_(none, true);
        last_sample_ = begin_;
    }
}

void Recorder::set_header(Json header) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!open_) book_.header = std::move(header);
}

size_t Recorder::model(Json info, const std::vector<uint32_t>& shape) {
    const std::lock_guard<std::mutex> lock(mutex_);
    open();
    const size_t number = book_.models.size();
    info["model"] = number;
    book_.models.push_back(std::move(info));
    ExpertUse use;
    for (const uint32_t n : shape) {
        use.uses.emplace_back(n, 0);
        use.misses.emplace_back(n, 0);
    }
    book_.experts.push_back(std::move(use));
    if (!ended_) each_of(sinks_, [&](Sink& s) { return s.model(book_, number); });
    return number;
}

void Recorder::cache(size_t model, uint64_t bytes, uint64_t slots, uint64_t records, const std::string& why) {
    const std::lock_guard<std::mutex> lock(mutex_);
    open();
    const uint64_t decoded = book_.of(Phase::decode).rows;
    Json j = {{"kind", "cache"},    {"model", model}, {"bytes", bytes},         {"slots", slots},
              {"records", records}, {"why", why},     {"after_decode", decoded}};
    keep_cache(model, j);
    if (!ended_) each_of(sinks_, [&](Sink& s) { return s.cache(book_, j); });
}

// A server's cache may change its size for months: of each model the first ones are kept, and the newest.
void Recorder::keep_cache(size_t model, const Json& line) {
    const auto of_model = [&](const Json& c) { return c["model"] == model; };
    const auto n = std::count_if(book_.caches.begin(), book_.caches.end(), of_model);
    if (n >= kMostCaches) {
        const auto last = std::find_if(book_.caches.rbegin(), book_.caches.rend(), of_model);
        book_.caches.erase(std::next(last).base());
    }
    book_.caches.push_back(line);
}

void Recorder::guesses(size_t model, Json scores) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (ended_) return;
    open();
    Json j = {{"kind", "predict"}, {"model", model}, {"predictors", std::move(scores)}};
    book_.guesses.push_back(j);
    each_of(sinks_, [&](Sink& s) { return s.guesses(book_, j); });
}

void Recorder::load(Nanos duration, uint64_t dense_bytes, Json host) {
    const std::lock_guard<std::mutex> lock(mutex_);
    open();
    book_.load = {{"kind", "load"}, {"load_ns", duration}, {"dense_bytes", dense_bytes}, {"host", std::move(host)}};
    if (!ended_) each_of(sinks_, [&](Sink& s) { return s.load(book_); });
}

void Recorder::fill(Row& row, Pass& pass, const RowInfo& info) {
    const bool decode = info.phase == Phase::decode;
    // Tokens that are filled in after generated ones are a new prompt.
    if (!decode && turn_has_decode_) {
        ++turn_;
        steps_[0] = steps_[1] = 0;
        turn_has_decode_ = false;
    }
    turn_has_decode_ = turn_has_decode_ || decode;

    row.turn = turn_;
    row.phase = static_cast<int64_t>(info.phase);
    row.step = steps_[static_cast<size_t>(info.phase)]++;
    row.start = pass.ledger.begin() - begin_;
    row.tokens = pass.tokens;
    row.output_tokens = info.output_tokens;
    row.wall = pass.ledger.wall();
    for (size_t p = 0; p < kParts; ++p) {
        if ((watched_ & bit(static_cast<Part>(p))) != 0) row.parts[p] = pass.ledger.spent(static_cast<Part>(p));
    }
    if (pass.model >= 0) {
        row.model = pass.model;
        row.exact_bytes = pass.exact_bytes;
        row.exact_physical = pass.exact_physical;
        row.engine_bytes = pass.engine_bytes;
        if (pass.predicts) {
            row.predicted_bytes = pass.predicted_bytes;
            row.predicted_physical = pass.predicted_physical;
            row.rejected_bytes = pass.rejected_bytes;
            row.hints = pass.hints;
            row.late = pass.late;
        }
        if (pass.guess_on) row.guess_on = *pass.guess_on;
        if (pass.predicts || pass.route_ahead) row.predicted_used = pass.predicted_used;
        if (pass.route_ahead) {
            const Pass::RouteAhead& ra = *pass.route_ahead;
            row.ra_committed = static_cast<int64_t>(ra.counts.committed);
            row.ra_passed = static_cast<int64_t>(ra.counts.passed);
            row.ra_passed_below = static_cast<int64_t>(ra.counts.below);
            row.ra_passed_first = static_cast<int64_t>(ra.counts.first);
            row.ra_slots = static_cast<int64_t>(ra.counts.slots);
            row.ra_agreed = static_cast<int64_t>(ra.counts.agreed);
            row.ra_rank = ra.rank;
            row.ra_issue = ra.issue;
            row.ra_watch = ra.watch;
        }
        row.lookups = pass.lookups;
        row.hits = pass.hits;
        row.misses = pass.lookups - pass.hits;
        row.joins = pass.joins;
        row.reads = pass.reads;
        row.retries = pass.retries;
        row.evictions_capacity = pass.evictions;
        row.evictions_shrink = pass.evictions_shrink;
        row.evictions_speculative = pass.evictions_predicted;
        row.rereads = pass.rereads;
        row.waves = pass.waves;
        if (pass.phase == Phase::prefill) {
            row.blocks_micro = pass.blocks_micro;
            row.blocks_macro = pass.blocks_macro;
        }
        if (pass.phase == Phase::prefill || pass.route_ahead) row.ahead_bytes = pass.ahead_bytes;
        if (pass.dials) {
            row.routed = pass.routed;
            row.dropped = pass.dropped;
            row.substituted = pass.substituted;
            row.unedited = pass.unedited;
        }
        row.read_p50 = pass.latency.percentile(0.50);
        row.read_p95 = pass.latency.percentile(0.95);
        row.read_p99 = pass.latency.percentile(0.99);
        if (pass.latency.count() > 0) row.read_max = pass.latency.largest();
        row.read_busy = pass.read_busy;
        row.queue_depth_max = pass.queue_depth_max;
        row.cache_resident = pass.cache_resident;
        row.layers = pass.layers;
        if (const Json* cache = newest_cache(book_, pass.model); cache != nullptr) {
            row.cache_bytes = (*cache)["bytes"].get<int64_t>();
            row.cache_slots = (*cache)["slots"].get<int64_t>();
        }
    }
    if (sampler_) {
        const bool full = info.last || !sampled_ || clock_.now() - last_sample_ >= kSampleEvery;
        sampler_(row, full);
        if (full) last_sample_ = clock_.now();
        sampled_ = true;
    }
}

void Recorder::commit(Pass& pass, const RowInfo& info) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Ledger& ledger = pass.ledger;
    ledger.mark();
    const During writing(ledger, Part::record);
    const bool something = pass.model >= 0 || info.output_tokens.or_zero() > 0;
    if (ended_ || pass.warmup || !something) {
        pass.clear_counts();
        ledger.next_row();
        return;
    }
    open();
    for (const Column& c : columns()) c.of(row_) = Measure();
    row_.layers.clear();
    fill(row_, pass, info);
    ledger.next_row();

    book_.routes_digest = mix(book_.routes_digest, pass.routes_digest);
    if (pass.model >= 0 && static_cast<size_t>(pass.model) < book_.experts.size()) {
        ExpertUse& use = book_.experts[static_cast<size_t>(pass.model)];
        for (const Pass::Use& u : pass.uses) {
            if (u.set >= use.uses.size() || u.expert >= use.uses[u.set].size()) continue;
            use.uses[u.set][u.expert] += u.rows;
            use.misses[u.set][u.expert] += u.miss ? 1 : 0;
        }
    }
    book_.of(info.phase).add(row_, pass.latency);
    last_phase_ = info.phase;
    each_of(sinks_, [&](Sink& s) { return s.row(book_, row_, info.text); });
    each_of(event_sinks_, [&](EventSink& s) { return s.events(row_, pass); });
    pass.clear_counts();

    const uint64_t decoded = book_.of(Phase::decode).rows;
    if ((decoded + book_.of(Phase::prefill).rows) % kCheckpointEvery == 0) {
        each_of(sinks_, [&](Sink& s) { return s.checkpoint(book_); });
    }
    pass.capturing = wants_.capture_row >= 0 && static_cast<int64_t>(decoded) == wants_.capture_row;
    ledger.keep_spans(pass.capturing ? &pass.spans : nullptr);
}

// Of what only some rows know. Levels (memory) are left out: they would be those of a process that has let its model
// go.
void Recorder::sample_rest() {
    if (!sampler_ || !sampled_) return;
    Row every, rest;
    sampler_(every, false);
    sampler_(rest, true);
    for (const Column& c : columns()) {
        if (c.total != Total::sum || value_of(c, every).known()) c.of(rest) = Measure();
    }
    book_.of(last_phase_).add_rest(rest);
    book_.rest = std::move(rest);
    book_.rest_phase = last_phase_;
}

void Recorder::end(Ending ending) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (ended_) return;
    ended_ = true;
    // Of nothing there is nothing to write, unless it is that something went wrong.
    if (!open_ && ending.status == "ok") return;
    open();
    sample_rest();
    book_.ending = std::move(ending);
    each_of(sinks_, [&](Sink& s) { return s.end(book_); });
    each_of(event_sinks_, [&](EventSink& s) { return s.end(); });
}

Status Recorder::status() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return status_;
}

void Recorder::with_book(const std::function<void(const Book&)>& look) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    look(book_);
}

}  // namespace sluice::trace
