#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "bench/micro/piece.h"
#include "bench/micro/route_stream.h"
#include "cache/layout.h"
#include "cache/slot_cache.h"
#include "io/read_table.h"
#include "io/sim_engine.h"
#include "model/gguf.h"
#include "sched/fetcher.h"
#include "store/record_store.h"
#include "tests/model/gguf_builder.h"
#include "trace/record_file.h"
#include "trace/recorder.h"

namespace sluice::micro {
namespace {

using cache::SlotCache;
using fixture::Random;

// A piece that no longer does what its name says would be compared with what it once did.
void require(bool condition, const char* what) {
    if (condition) return;
    std::fprintf(stderr, "micro: %s\n", what);
    std::abort();
}

// The compiler may not drop what led to `value`.
void keep(uint64_t value) {
    asm volatile("" : : "r"(value) : "memory");
}

std::vector<RecordId> shuffled(uint32_t n, uint64_t seed) {
    std::vector<RecordId> out(n);
    std::iota(out.begin(), out.end(), 0U);
    Random random(seed);
    for (uint32_t i = n - 1; i > 0; --i) std::swap(out[i], out[random.next() % (i + 1)]);
    return out;
}

// ---- base

constexpr uint64_t kSums = 16;

// The library's instructions are outside what is counted: this is what we add to them, and what a clock is asked for.
Run base_crc32c() {
    const std::vector<std::byte> expert(900 * KiB, std::byte{0x5A});
    return [expert, sum = crc32c(expert)] {
        for (uint64_t i = 0; i < kSums; ++i) require(crc32c(expert) == sum, "base.crc32c differs from itself");
    };
}

// ---- cache

void lease_and_release(SlotCache& cache, std::span<const RecordId> records) {
    for (const RecordId r : records) {
        keep(cache.lease(r));
        cache.release(r);
    }
}

constexpr uint32_t kSlots = 1024;

Run cache_hit() {
    auto cache = std::make_shared<SlotCache>(std::vector<uint32_t>(2 * kSlots, 0), std::vector<uint32_t>{kSlots});
    return [cache, records = shuffled(kSlots, 1)] {
        lease_and_release(*cache, records);
        require(cache->counters().evictions == 0, "cache.hit evicts");
    };
}

// Twice as many records as slots, in turns: what is wanted is always what went last.
Run cache_miss() {
    auto cache = std::make_shared<SlotCache>(std::vector<uint32_t>(2 * kSlots, 0), std::vector<uint32_t>{kSlots});
    const std::vector<RecordId> records = shuffled(2 * kSlots, 2);
    lease_and_release(*cache, std::span(records).first(kSlots));
    return [cache, half = uint32_t{1}, records]() mutable {
        const uint64_t before = cache->counters().evictions;
        lease_and_release(*cache, std::span(records).subspan(half * kSlots, kSlots));
        half = 1 - half;
        require(cache->counters().evictions - before == kSlots, "cache.miss hits");
    };
}

// A class that holds all its records, one that holds half of them and one that holds hardly any.
Run cache_mixed() {
    std::vector<uint32_t> class_of_record;
    for (uint32_t r = 0; r < 3 * kSlots; ++r) class_of_record.push_back(r % 3);
    auto cache = std::make_shared<SlotCache>(class_of_record, std::vector<uint32_t>{kSlots, kSlots / 2, 8});
    return [cache, records = shuffled(3 * kSlots, 3)] { lease_and_release(*cache, records); };
}

// Real layers in two size classes, and slots for three of eight records.
constexpr RouteShape kRoutes;

Run cache_replay() {
    std::vector<uint32_t> class_of_record;
    for (uint32_t r = 0; r < kRoutes.layers * kRoutes.experts; ++r) class_of_record.push_back(r / kRoutes.experts % 2);
    const uint32_t slots = kRoutes.layers * kRoutes.experts * 3 / 8 / 2;
    auto cache = std::make_shared<SlotCache>(class_of_record, std::vector<uint32_t>{slots, slots});
    std::vector<RecordId> stream = route_stream(kRoutes, 4);
    for (size_t i = 0; i < stream.size(); ++i) {
        stream[i] += static_cast<uint32_t>(i / kRoutes.used % kRoutes.layers) * kRoutes.experts;
    }
    return [cache, stream] {
        for (size_t layer = 0; layer < stream.size(); layer += kRoutes.used) {
            const std::span<const RecordId> chosen = std::span(stream).subspan(layer, kRoutes.used);
            for (const RecordId r : chosen) keep(cache->lease(r));
            for (const RecordId r : chosen) cache->release(r);
        }
        require(cache->counters().rereads > 0, "cache.replay never evicts");
    };
}

// The mixture of a Q4_K_M file: `down` of some layers is larger.
std::vector<cache::SetShape> layer_shapes() {
    std::vector<cache::SetShape> shapes(kRoutes.layers);
    for (uint32_t layer = 0; layer < kRoutes.layers; ++layer) {
        shapes[layer].n_expert = kRoutes.experts;
        shapes[layer].component_bytes = {884736, 884736, layer % 3 == 0 ? 1290240U : 884736U};
    }
    return shapes;
}

constexpr uint32_t kLayouts = 16;

Run cache_layout() {
    return [shapes = layer_shapes(), budget = cache::full_budget(layer_shapes()) / 3] {
        for (uint32_t i = 0; i < kLayouts; ++i) {
            const auto layout = cache::plan_layout(shapes, budget, kRoutes.used);
            require(layout.ok() && layout->classes.size() == 2, "cache.layout does not plan two classes");
            keep(layout->arena_bytes);
        }
    };
}

// ---- store, sched

constexpr uint32_t kLayers = 4;
constexpr uint32_t kExperts = 32;
constexpr uint32_t kUsed = 8;

// A small model that exists only on a simulated device, with a cache of `slots` records. What a piece copies is small:
// the price of memory bandwidth is another question.
struct SimulatedModel {
    explicit SimulatedModel(uint32_t slots) {
        uint64_t at = 777;
        for (uint32_t layer = 0; layer < kLayers; ++layer) {
            model::ExpertSet set;
            set.layer = static_cast<int>(layer);
            set.group = "exps";
            set.n_expert = kExperts;
            set.n_used = kUsed;
            for (const model::Component c : {model::Component::gate, model::Component::up, model::Component::down}) {
                model::ExpertTensor t;
                t.component = c;
                t.offset = at;
                t.bytes_per_expert = 700;
                at += t.bytes_per_expert * kExperts + 33;
                set.tensors.push_back(t);
            }
            geometry.sets.push_back(set);
        }
        file = io::File::simulated("model.gguf", at, 512, 512);
        engine.set_contents(file, std::vector<std::byte>(at));
        const io::File* files[] = {&file};
        store = std::make_unique<store::RecordStore>(store::RecordStore::over(geometry, files));
        sched::Fetcher::Options options;
        options.slots.budget = sched::Slots::shapes(*store, {})[0].slot_bytes() * slots;
        options.slots.min_slots = kUsed;
        auto made = sched::Fetcher::create(*store, engine, clock, std::move(options));
        require(made.ok(), "the simulated model has no fetcher");
        fetcher = std::move(*made);
    }

    // One layer: its records are leased, loaded and released.
    void fetch(std::span<const RecordId> records) const {
        std::array<RecordId, kUsed> wanted{};
        std::copy(records.begin(), records.end(), wanted.begin());
        require(fetcher->lease(wanted) == kUsed && fetcher->load(wanted, 7).ok(), "a simulated fetch fails");
        fetcher->release(wanted);
    }

    model::Geometry geometry;
    io::File file;
    VirtualClock clock;
    io::SimEngine engine{clock, {.poison = false}};
    std::unique_ptr<store::RecordStore> store;
    std::unique_ptr<sched::Fetcher> fetcher;
};

constexpr uint32_t kRecords = kLayers * kExperts;
constexpr uint32_t kRounds = 16;

Run store_aligned() {
    auto m = std::make_shared<SimulatedModel>(kRecords);
    return [m, records = shuffled(kRecords, 5)] {
        for (uint32_t round = 0; round < kRounds; ++round) {
            for (const RecordId r : records) {
                const store::RecordStore::AlignedRead read = store::RecordStore::aligned(m->store->extent(r, r % 3));
                keep(read.offset + read.length + read.need + read.delta);
            }
        }
    };
}

Run sched_resident() {
    auto m = std::make_shared<SimulatedModel>(kRecords / 2);
    for (RecordId r = 0; r < kRecords; r += kUsed) {
        std::array<RecordId, kUsed> layer{};
        std::iota(layer.begin(), layer.end(), r);
        m->fetch(layer);
    }
    return [m, records = shuffled(kRecords, 6)] {
        for (uint32_t round = 0; round < kRounds; ++round) {
            uint64_t n = 0;
            for (const RecordId r : records) n += m->fetcher->resident(r) ? 1 : 0;
            require(n == kRecords / 2, "sched.resident does not find half of the records");
        }
    };
}

constexpr uint32_t kFetches = 64;  // layers in one run

// Any 8 records of one layer, the next layer next. Every record of the model comes once before one comes again.
Run fetch_layers(uint32_t slots, uint64_t reads_per_run, const char* otherwise) {
    auto m = std::make_shared<SimulatedModel>(slots);
    std::vector<RecordId> records;
    for (uint32_t part = 0; part < kExperts / kUsed; ++part) {
        for (uint32_t layer = 0; layer < kLayers; ++layer) {
            const std::vector<uint32_t> experts = shuffled(kExperts, 7 + layer);
            for (uint32_t i = 0; i < kUsed; ++i) records.push_back(m->store->record(layer, experts[part * kUsed + i]));
        }
    }
    const auto pass = [m, records] {
        for (size_t i = 0; i < records.size(); i += kUsed) m->fetch(std::span(records).subspan(i, kUsed));
    };
    pass();
    return [m, pass, reads_per_run, otherwise] {
        const uint64_t before = m->fetcher->counters().reads;
        for (uint32_t i = 0; i < kFetches; i += kRecords / kUsed) pass();
        require(m->fetcher->counters().reads - before == reads_per_run, otherwise);
    };
}

Run sched_fetch_hit() {
    return fetch_layers(kRecords, 0, "sched.fetch_hit reads");
}

Run sched_fetch_miss() {
    return fetch_layers(4 * kUsed, uint64_t{3} * kUsed * kFetches, "sched.fetch_miss hits");
}

// ---- io

constexpr uint32_t kBatch = 24;  // a layer's worth: 8 experts of 3 components
constexpr uint32_t kBatches = 32;

std::vector<io::ReadOp> batch_of_reads(const io::File& file, std::span<std::byte> memory) {
    std::vector<io::ReadOp> batch(kBatch);
    for (uint32_t i = 0; i < kBatch; ++i) {
        batch[i] = {.file = &file, .offset = 512 * i, .length = 512, .need = 500, .dst = &memory[512 * i], .tag = i};
    }
    return batch;
}

Run io_read_table() {
    struct State {
        io::File file = io::File::simulated("model.gguf", 1U << 20U, 512, 512);
        std::vector<std::byte> memory = std::vector<std::byte>(512 * kBatch);
        std::vector<io::ReadOp> batch = batch_of_reads(file, memory);
        io::ReadTable table;
    };
    return [s = std::make_shared<State>()] {
        std::array<io::Completion, kBatch> done;
        for (uint32_t i = 0; i < kBatches; ++i) {
            io::ReadTable::Chain over;
            for (const io::ReadOp& op : s->batch) {
                const io::ReadTable::Index index = s->table.add(op);
                require(s->table[index].take(op.length), "io.read_table: a whole read is not over");
                s->table.push_back(over, index);
            }
            require(s->table.hand_out(over, done) == kBatch, "io.read_table loses reads");
            keep(done[0].tag);
        }
    };
}

Run io_simulated() {
    struct State {
        io::File file = io::File::simulated("model.gguf", 1U << 20U, 512, 512);
        std::vector<std::byte> memory = std::vector<std::byte>(512 * kBatch);
        std::vector<io::ReadOp> batch = batch_of_reads(file, memory);
        VirtualClock clock;
        io::SimEngine engine{clock, {.poison = false}};
    };
    auto s = std::make_shared<State>();
    s->engine.set_contents(s->file, std::vector<std::byte>(1U << 20U));
    return [s] {
        std::array<io::Completion, kBatch> done;
        for (uint32_t i = 0; i < kBatches; ++i) {
            s->engine.submit(s->batch);
            while (s->engine.outstanding() > 0) require(s->engine.wait(done) > 0, "io.simulated loses reads");
        }
    };
}

// ---- model

constexpr uint32_t kHeaders = 2;

// The tables of a model of 48 layers. Its vocabulary is short: strings are skipped one like the other.
Run model_header() {
    using model::testing::kF32;
    model::testing::GgufBuilder b;
    b.meta_string("general.architecture", "qwen3moe").meta<uint32_t>("qwen3moe.block_count", kRoutes.layers);
    for (int i = 0; i < 24; ++i) b.meta<uint32_t>("qwen3moe.some.number." + std::to_string(i), 1);
    b.meta_strings("tokenizer.ggml.tokens", std::vector<std::string>(4096, "token"));
    b.meta_array<int32_t>("tokenizer.ggml.token_type", std::vector<int32_t>(4096, 1));
    b.tensor("token_embd.weight", kF32, {2048, 4096}).tensor("output.weight", kF32, {2048, 4096});
    for (uint32_t layer = 0; layer < kRoutes.layers; ++layer) {
        const std::string block = "blk." + std::to_string(layer) + ".";
        for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate_inp"}) {
            b.tensor(block + name + ".weight", kF32, {2048, 2048});
        }
        for (const char* name : {"attn_norm", "attn_q_norm", "attn_k_norm", "ffn_norm"}) {
            b.tensor(block + name + ".weight", kF32, {2048});
        }
        for (const char* name : {"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"}) {
            b.tensor(block + name + ".weight", model::testing::kQ4_0, {2048, 768, 128});
        }
    }
    std::string head = b.header();
    head.resize(head.size() + b.alignment);
    return [head] {
        for (uint32_t i = 0; i < kHeaders; ++i) {
            const auto parsed = model::parse_gguf_header(head);
            require(parsed.ok() && !parsed->needs_more, "model.header does not parse");
            keep(parsed->header.tensors.size());
        }
    };
}

// ---- trace

constexpr uint32_t kDeepLayers = 48;
constexpr uint32_t kTokens = 64;

// What a recorded token adds to computing it: the parts of 48 layers told apart, the row made, its line written out.
class DiscardLines final : public trace::Sink {
  public:
    Status row(const trace::Book&, const trace::Row& row, std::string_view) override {
        buffer_.clear();
        trace::append_row_json(buffer_, row);
        keep(buffer_.size());
        return {};
    }

  private:
    fmt::memory_buffer buffer_;
};

Run trace_ledger() {
    // Virtual time: what is counted is ours, not the kernel's clock.
    auto clock = std::make_shared<VirtualClock>();
    auto ledger = std::make_shared<trace::Ledger>(*clock, ~trace::PartMask{0});
    ledger->start();
    return [clock, ledger] {
        for (uint32_t i = 0; i < kTokens * kDeepLayers; ++i) {
            const trace::During part(*ledger, trace::Part::routed);
            keep(static_cast<uint64_t>(ledger->wall()));
        }
    };
}

Run trace_row() {
    struct State {
        VirtualClock clock;
        trace::Recorder recorder{clock, ~trace::PartMask{0}, wants()};
        trace::Pass pass{clock, 0};
        static trace::Wants wants() {
            trace::Wants w;
            w.rows = true;
            return w;
        }
    };
    auto state = std::make_shared<State>();
    state->recorder.add(std::make_unique<DiscardLines>());
    state->recorder.model({{"kind", "model"}}, std::vector<uint32_t>(kDeepLayers, 128));
    state->recorder.prepare(state->pass);
    state->pass.ledger.start();
    return [state] {
        for (uint32_t t = 0; t < kTokens; ++t) {
            trace::Pass& pass = state->pass;
            pass.model = 0;
            pass.tokens = 1;
            pass.layers.resize(kDeepLayers);
            for (uint32_t l = 0; l < kDeepLayers; ++l) {
                pass.layers[l] = {
                    .wait = 1'000'000 + l, .routed = 500'000, .lookups = 8, .hits = 5, .physical = 7'000'000};
                for (uint32_t e = 0; e < 8; ++e) pass.uses.push_back({.set = l, .expert = e, .rows = 1, .miss = e > 4});
                pass.latency.add(2'000'000 + l);
            }
            state->recorder.commit(pass,
                                   {.phase = trace::Phase::decode, .output_tokens = 1, .text = "", .last = false});
        }
    };
}

}  // namespace

// To add a piece: a function above that makes the state and returns the run, and its row here.
const std::vector<Piece>& pieces() {
    static const std::vector<Piece> all{
        {"base.crc32c", "checksum of 900 KiB", kSums, base_crc32c},
        {"cache.hit", "lease and release of a resident record", kSlots, cache_hit},
        {"cache.miss", "lease and release that evicts", kSlots, cache_miss},
        {"cache.mixed", "lease and release in one of three size classes", 3 * kSlots, cache_mixed},
        {"cache.replay", "token of 48 layers x 8 of 128 experts", kRoutes.tokens, cache_replay},
        {"cache.layout", "layout of 48 layers in two size classes", kLayouts, cache_layout},
        {"store.aligned", "aligned read of one component", kRecords * kRounds, store_aligned},
        {"sched.resident", "question whether a record is there", kRecords * kRounds, sched_resident},
        {"sched.fetch_hit", "layer of 8 resident records", kFetches, sched_fetch_hit},
        {"sched.fetch_miss", "layer of 8 records, 24 reads of the simulated device", kFetches, sched_fetch_miss},
        {"io.read_table", "read entered, ended and handed out", kBatch * kBatches, io_read_table},
        {"io.simulated", "read of the simulated device", kBatch * kBatches, io_simulated},
        {"trace.part", "change to another part of the time and back", kTokens * kDeepLayers, trace_ledger},
        {"trace.row", "row of 48 layers made and spelled as JSON", kTokens, trace_row},
        {"model.header", "GGUF header of 578 tensors", kHeaders, model_header},
    };
    return all;
}

}  // namespace sluice::micro
