// Owns: one arm of the reading benchmark: the reads of a decode, layer after layer, through the real store, cache and
// scheduler and without any arithmetic, for a number of seconds. Prints one line of JSON.
// Keeps: the same seed asks for the same experts in the same order, whatever the arm.
#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "bench/micro/route_stream.h"
#include "io/engine.h"
#include "sched/fetcher.h"
#include "store/record_store.h"

namespace sluice {
namespace {

struct Arm {
    std::string model;
    io::EngineOptions engine;
    io::Access access = io::Access::direct;
    std::string store = "gguf";
    sched::Verify verify = sched::Verify::always;
    uint64_t cache = 0;  // bytes; 0: the least that works
    double seconds = 2;
    uint64_t seed = 1;
    bool uniform = false;  // every expert is as likely as any other
    bool pages = false;    // small reads of 4 KiB instead of experts
    bool registered = false;
    bool half = false;  // every other layer is visited
    // Predictions of random experts of the layers that are not, as many as the scheduler takes. None with a window of
    // 0.
    uint32_t chunk = 0;
    uint64_t window = 0;
    double bytes_per_ns = 0;
};

[[noreturn]] void stop(const std::string& why) {
    std::fprintf(stderr, "decode_reads: %s\n", why.c_str());
    std::exit(2);
}

double number(std::string_view text) {
    double value = 0;
    const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (ec != std::errc() || end != text.data() + text.size() || value < 0) stop("no number: " + std::string(text));
    return value;
}

Arm parse(int argc, char** argv) {
    Arm arm;
    for (int i = 1; i < argc; ++i) {
        const std::string_view a = argv[i];
        const size_t equals = a.find('=');
        const std::string_view key = a.substr(0, equals);
        const std::string_view value = equals == std::string_view::npos ? "" : a.substr(equals + 1);
        if (!a.starts_with("--")) {
            arm.model = a;
        } else if (key == "--engine") {
            if (value != "io_uring" && value != "pread" && value != "mmap") stop("engine: io_uring, pread or mmap");
            arm.engine.kind = value == "io_uring" ? io::EngineKind::io_uring
                              : value == "pread"  ? io::EngineKind::pread
                                                  : io::EngineKind::mmap;
        } else if (key == "--buffered") {
            arm.access = io::Access::buffered;
        } else if (key == "--lanes") {
            arm.engine.lanes = static_cast<unsigned>(number(value));
        } else if (key == "--priorities") {
            arm.engine.priorities = true;
        } else if (key == "--store") {
            arm.store = value;
        } else if (key == "--verify") {
            if (value != "always" && value != "once" && value != "never") stop("verify: always, once or never");
            arm.verify = value == "always" ? sched::Verify::always
                         : value == "once" ? sched::Verify::once
                                           : sched::Verify::never;
        } else if (key == "--cache-mb") {
            arm.cache = static_cast<uint64_t>(number(value) * static_cast<double>(MiB));
        } else if (key == "--seconds") {
            arm.seconds = number(value);
        } else if (key == "--seed") {
            arm.seed = static_cast<uint64_t>(number(value));
        } else if (key == "--uniform") {
            arm.uniform = true;
        } else if (key == "--pages") {
            arm.pages = true;
        } else if (key == "--registered") {
            arm.registered = true;
        } else if (key == "--half") {
            arm.half = true;
        } else if (key == "--chunk") {
            arm.chunk = static_cast<uint32_t>(number(value));
        } else if (key == "--window") {
            arm.window = static_cast<uint64_t>(number(value));
        } else if (key == "--bytes-per-ns") {
            arm.bytes_per_ns = number(value);
        } else {
            stop("do not understand " + std::string(a));
        }
    }
    if (arm.pages && arm.store != "gguf") stop("--pages are read from the GGUF");
    if (arm.window > 0 && !arm.half) stop("--window goes with --half");
    if (arm.model.empty()) stop("decode_reads MODEL [--engine=] [--lanes=] [--verify=] [--cache-mb=] [--seconds=] ...");
    return arm;
}

// Pages of 4 KiB where the experts of a model lie: reads the size of an embedding's row, from the same places.
model::Geometry paged(const model::Geometry& experts) {
    model::Geometry g;
    g.n_expert_used = experts.n_expert_used;
    for (const model::ExpertSet& from : experts.sets) {
        model::ExpertSet set;
        set.layer = from.layer;
        set.group = "exps";
        set.n_used = from.n_used;
        model::ExpertTensor t = from.tensors[0];
        set.n_expert = static_cast<uint32_t>(std::min<uint64_t>(from.n_expert * t.bytes_per_expert / 4096, 65536));
        t.offset = align_up(t.offset, uint64_t{4096});
        t.bytes_per_expert = 4096;
        --set.n_expert;
        set.tensors.push_back(t);
        g.sets.push_back(set);
    }
    return g;
}

// Chooses what is wanted next: skewed as routers do, or with no preference.
class Routes {
  public:
    Routes(const model::Geometry& g, const Arm& arm) : geometry_(g), random_(arm.seed) {
        const model::ExpertSet& first = g.sets[0];
        if (!arm.uniform) {
            shape_ = {static_cast<uint32_t>(g.sets.size()), first.n_expert, first.n_used, 256};
            stream_ = micro::route_stream(shape_, arm.seed);
        }
    }
    void next(uint32_t set, std::vector<uint32_t>& experts) {
        const model::ExpertSet& s = geometry_.sets[set];
        experts.clear();
        if (!stream_.empty() && s.n_expert == shape_.experts) {
            for (uint32_t i = 0; i < shape_.used; ++i) experts.push_back(stream_[(at_ + i) % stream_.size()]);
            at_ += shape_.used;
            return;
        }
        while (experts.size() < s.n_used) {
            const auto e = static_cast<uint32_t>(random_.next() % s.n_expert);
            if (std::find(experts.begin(), experts.end(), e) == experts.end()) experts.push_back(e);
        }
    }

  private:
    const model::Geometry& geometry_;
    fixture::Random random_;
    micro::RouteShape shape_;
    std::vector<uint32_t> stream_;
    size_t at_ = 0;
};

double cpu_seconds() {
    rusage u{};
    getrusage(RUSAGE_SELF, &u);
    const auto s = [](const timeval& t) {
        return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
    };
    return s(u.ru_utime) + s(u.ru_stime);
}

int run(const Arm& arm) {
    const auto index = model::GgufIndex::open(arm.model);
    if (!index.ok()) stop(index.status().message());
    auto geometry = model::derive_geometry(*index);
    if (!geometry.ok()) stop(geometry.status().message());
    auto opened = store::RecordStore::open(*index, *geometry, {.access = arm.access, .store = arm.store}, nullptr);
    if (!opened.ok()) stop(opened.status().message());
    const model::Geometry pages = paged(*geometry);
    std::vector<const io::File*> files(index->files().size());
    for (uint32_t s = 0; s < geometry->sets.size(); ++s) {
        for (uint32_t c = 0; c < opened->n_components(s); ++c)
            files[geometry->sets[s].tensors[c].file] = opened->extent(opened->record(s, 0), c).file;
    }
    const store::RecordStore over_pages = store::RecordStore::over(pages, files);
    const store::RecordStore& store = arm.pages ? over_pages : *opened;
    const model::Geometry& g = store.geometry();

    auto engine = io::make_engine(arm.engine);
    if (!engine.ok()) stop(engine.status().message());
    const Clock& clock = SystemClock::instance();
    const auto shapes = sched::Slots::shapes(store, {});
    sched::Fetcher::Options options;
    options.slots.min_slots = g.n_expert_used;
    uint64_t record = 0;
    for (const uint64_t b : shapes[0].component_bytes) record += align_up(b, cache::kSlotAlign);
    // What is predicted needs slots beside those of the layer at hand.
    const uint64_t least = record * g.n_expert_used * 4 * (arm.half ? 4 : 1);
    options.slots.budget = std::max(arm.cache, least);
    options.reads.verify = arm.verify;
    if (arm.window > 0) {
        options.reads.device = {.bytes_per_ns = arm.bytes_per_ns,
                                .service = 100'000,
                                .chunk = arm.chunk,
                                .window = arm.window,
                                .reserved_lanes = 2,
                                .lanes = arm.engine.lanes};
    }
    auto made = sched::Fetcher::create(store, *engine->engine, clock, std::move(options));
    if (!made.ok()) stop(made.status().message());
    sched::Fetcher& fetcher = **made;

    Routes routes(g, arm);
    fixture::Random predicted(arm.seed + 1);
    std::vector<uint32_t> experts;
    std::vector<RecordId> records;
    std::vector<double> layers_ms;
    uint64_t lookups = 0, hits = 0;
    const auto n_sets = static_cast<uint32_t>(g.sets.size());
    const uint32_t step = arm.half ? 2 : 1;
    const auto visit = [&](uint32_t set) {
        routes.next(set, experts);
        records.clear();
        for (const uint32_t e : experts) records.push_back(store.record(set, e));
        if (arm.window > 0) {
            // The scheduler lets speculation go whenever it believes that no exact read comes soon.
            fetcher.scheduler().expect_exact(clock.now() + 1'000'000'000);
            for (int i = 0; i < 64; ++i) {
                const auto odd = static_cast<uint32_t>(predicted.next() % (n_sets / 2)) * 2 + 1;
                const auto expert = static_cast<uint32_t>(predicted.next() % g.sets[odd].n_expert);
                (void)fetcher.scheduler().hint(store.record(odd, expert), {});
            }
            const Nanos until = clock.now() + 2'000'000;  // the layer's arithmetic
            while (clock.now() < until) fetcher.scheduler().pump();
        }
        lookups += records.size();
        for (const RecordId r : records) hits += fetcher.resident(r) ? 1 : 0;
        const Nanos begin = clock.now();
        if (fetcher.lease(records) != records.size()) stop("the cache holds no layer");
        if (Status s = fetcher.load(records, UINT8_MAX); !s.ok()) stop(s.message());
        fetcher.release(records);
        layers_ms.push_back(static_cast<double>(clock.now() - begin) * 1e-6);
    };

    // Until memory has been touched and the cache is full.
    const Nanos warm = clock.now();
    for (uint32_t set = 0;
         clock.now() - warm < 20'000'000'000 && fetcher.cache().n_resident() < fetcher.cache().n_slots();
         set = set + step >= n_sets ? 0 : set + step) {
        visit(set);
    }
    if (arm.registered) {
        if (Status s = fetcher.register_arena(); !s.ok()) stop(s.message());
    }
    layers_ms.clear();
    lookups = hits = 0;
    const sched::SchedCounters before = fetcher.counters();
    const double cpu = cpu_seconds();
    const Nanos begin = clock.now();
    for (uint32_t set = 0; static_cast<double>(clock.now() - begin) < arm.seconds * 1e9;
         set = set + step >= n_sets ? 0 : set + step) {
        visit(set);
    }
    const double elapsed = static_cast<double>(clock.now() - begin) * 1e-9;
    const double used = cpu_seconds() - cpu;
    const sched::SchedCounters& now = fetcher.counters();
    const double bytes = static_cast<double>(now.exact_bytes - before.exact_bytes);
    const double wait = static_cast<double>(now.wait - before.wait) * 1e-9;
    const double verify = static_cast<double>(now.verify - before.verify) * 1e-9;
    const auto reads = static_cast<double>(now.reads - before.reads);
    std::sort(layers_ms.begin(), layers_ms.end());
    const auto at = [&](double p) {
        return layers_ms[std::min(layers_ms.size() - 1,
                                  static_cast<size_t>(p * static_cast<double>(layers_ms.size())))];
    };
    std::printf(
        "{\"layers\": %llu, \"seconds\": %.4f, \"reads\": %.0f, \"bytes\": %.0f, \"gb_per_s\": %.4f, "
        "\"wait_share\": %.4f, \"verify_share\": %.4f, \"own_us_per_read\": %.3f, \"cpu_s_per_gb\": %.4f, "
        "\"layer_p50_ms\": %.4f, \"layer_p95_ms\": %.4f, \"layer_p99_ms\": %.4f, \"predicted_bytes\": %llu, "
        "\"hit_share\": %.4f}\n",
        static_cast<unsigned long long>(layers_ms.size()), elapsed, reads, bytes, bytes / elapsed * 1e-9,
        wait / elapsed, verify / elapsed, (elapsed - wait - verify) / std::max(reads, 1.0) * 1e6,
        used / std::max(bytes * 1e-9, 1e-9), at(0.5), at(0.95), at(0.99),
        static_cast<unsigned long long>(now.predicted_physical - before.predicted_physical),
        static_cast<double>(hits) / static_cast<double>(std::max<uint64_t>(lookups, 1)));
    return 0;
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
    sluice::set_log_level(sluice::LogLevel::error);
    return sluice::run(sluice::parse(argc, argv));
}
