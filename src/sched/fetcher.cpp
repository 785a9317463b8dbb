#include "sched/fetcher.h"

#include <algorithm>
#include <array>

#include "base/bytes.h"
#include "io/read_all.h"

namespace sluice::sched {
namespace {

// Reads on their way at once. Enough to keep any drive busy (queue depth beyond 8 only adds latency) and small enough
// that staging for converted components stays a few components.
constexpr size_t kInFlight = 64;
constexpr size_t kStagingBuffers = 8;

}  // namespace

std::vector<cache::SetShape> Fetcher::shapes(const store::RecordStore& store,
                                             const std::vector<std::vector<bool>>& converted) {
    std::vector<cache::SetShape> shapes;
    const model::Geometry& geometry = store.geometry();
    for (uint32_t s = 0; s < geometry.sets.size(); ++s) {
        cache::SetShape shape;
        shape.n_expert = geometry.sets[s].n_expert;
        for (uint32_t c = 0; c < store.n_components(s); ++c) {
            const bool raw = converted.empty() || !converted[s][c];
            shape.component_bytes.push_back(raw ? store.aligned_capacity(s, c)
                                                : geometry.sets[s].tensors[c].bytes_per_expert);
        }
        shapes.push_back(std::move(shape));
    }
    return shapes;
}

Result<std::unique_ptr<Fetcher>> Fetcher::create(const store::RecordStore& store, io::Engine& engine,
                                                 const Clock& clock, Options options) {
    const std::vector<cache::SetShape> set_shapes = shapes(store, options.converted);
    auto layout = cache::plan_layout(set_shapes, options.budget, options.min_slots);
    if (!layout.ok()) return layout.status();

    std::vector<uint32_t> class_of_record;
    for (RecordId r = 0; r < store.n_records(); ++r) class_of_record.push_back(layout->class_of_set[store.set_of(r)]);
    std::vector<uint32_t> slots;
    for (const cache::SizeClass& c : layout->classes) slots.push_back(c.n_slots);

    auto arena = Region::allocate(layout->arena_bytes, true);
    if (!arena.ok()) return arena.status();

    uint64_t staging_bytes = 0;
    for (uint32_t s = 0; s < options.converted.size(); ++s) {
        for (uint32_t c = 0; c < options.converted[s].size(); ++c) {
            if (options.converted[s][c]) staging_bytes = std::max(staging_bytes, store.aligned_capacity(s, c));
        }
    }
    std::unique_ptr<Fetcher> f(new Fetcher(store, engine, clock, std::move(options), std::move(*layout),
                                           cache::SlotCache(std::move(class_of_record), slots)));
    f->arena_ = std::move(*arena);
    if (staging_bytes > 0) {
        const uint64_t each = align_up(staging_bytes, cache::kSlotAlign);
        auto staging = Region::allocate(each * kStagingBuffers, false);
        if (!staging.ok()) return staging.status();
        f->staging_region_ = std::move(*staging);
        for (size_t i = 0; i < kStagingBuffers; ++i) f->free_staging_.push_back(f->staging_region_.data() + i * each);
    }
    return f;
}

Fetcher::Fetcher(const store::RecordStore& store, io::Engine& engine, const Clock& clock, Options options,
                 cache::Layout layout, cache::SlotCache cache)
    : store_(store),
      engine_(engine),
      clock_(clock),
      options_(std::move(options)),
      layout_(std::move(layout)),
      cache_(std::move(cache)),
      pending_(kInFlight) {
    free_tags_.reserve(kInFlight);
    for (size_t i = 0; i < kInFlight; ++i) free_tags_.push_back(static_cast<uint32_t>(kInFlight - 1 - i));
    free_staging_.reserve(kStagingBuffers);
    batch_.reserve(kInFlight);
}

ComponentMask Fetcher::all_components(uint32_t set) const {
    return static_cast<ComponentMask>((1U << store_.n_components(set)) - 1U);
}

bool Fetcher::resident(RecordId record) const {
    const SlotId s = cache_.find(record);
    const ComponentMask all = all_components(store_.set_of(record));
    return s != cache::kNoSlot && (cache_.ready(s) & all) == all;
}

// The start of the component's place in the slot, before any alignment of the read.
std::byte* Fetcher::place(RecordId record, uint32_t component) const {
    const SlotId s = cache_.find(record);
    assert(s != cache::kNoSlot);
    const uint32_t set = store_.set_of(record);
    const cache::SizeClass& cls = layout_.classes[layout_.class_of_set[set]];
    return arena_.data() + cls.offset + (s - cls.first_slot) * cls.slot_bytes +
           layout_.component_offset[set][component];
}

std::byte* Fetcher::data(RecordId record, uint32_t component) const {
    const uint32_t set = store_.set_of(record);
    std::byte* p = place(record, component);
    if (!options_.converted.empty() && options_.converted[set][component]) return p;
    return p + store::RecordStore::aligned(store_.extent(record, component)).delta;
}

size_t Fetcher::lease(std::span<RecordId> records) {
    const auto missing =
        std::partition(records.begin(), records.end(), [&](RecordId r) { return cache_.find(r) != cache::kNoSlot; });
    for (auto it = records.begin(); it != missing; ++it) {
        const SlotId s = cache_.lease(*it);
        assert(s != cache::kNoSlot);
        (void)s;
    }
    auto n = static_cast<size_t>(missing - records.begin());
    while (n < records.size() && cache_.lease(records[n]) != cache::kNoSlot) ++n;
    return n;
}

void Fetcher::release(std::span<const RecordId> records) {
    for (const RecordId r : records) cache_.release(r);
}

Status Fetcher::failed_read(const Pending& p, const io::Completion& done) const {
    const store::Extent e = store_.extent(p.record, p.component);
    const store::RecordName name = store_.name(p.record);
    const model::ExpertTensor& t = store_.geometry().sets[store_.set_of(p.record)].tensors[p.component];
    return io::read_error(*e.file, e.offset, e.bytes, done.error)
        .within(fmt::format("layer {}, expert {}, {}", name.layer, name.expert, model::component_name(t.component)));
}

// Tells of one read that is over.
void Fetcher::note_read(const io::Completion& done, Nanos ready, trace::Pass& pass) const {
    const Pending& p = pending_[done.tag];
    if (done.error == 0) pass.latency.add(ready - p.issued);
    if (!pass.wants.reads && !pass.capturing) return;
    const uint32_t set = store_.set_of(p.record);
    const model::ExpertSet& expert_set = store_.geometry().sets[set];
    const store::Extent e = store_.extent(p.record, p.component);
    pass.read_events.push_back({.record = p.record,
                                .layer = expert_set.layer,
                                .expert = store_.expert_of(p.record),
                                .component = static_cast<uint8_t>(p.component),
                                .projection = model::component_name(expert_set.tensors[p.component].component),
                                .lane = static_cast<int32_t>(done.tag),
                                .deadline = {},
                                .offset = store::RecordStore::aligned(e).offset,
                                .need = static_cast<uint32_t>(e.bytes),
                                .length = p.length,
                                .issued = p.issued,
                                .ready = ready,
                                .error = done.error});
}

Status Fetcher::complete(const io::Completion& done, trace::Pass* pass) {
    const Pending p = pending_[done.tag];
    free_tags_.push_back(static_cast<uint32_t>(done.tag));
    Status status;
    if (done.error != 0) {
        status = failed_read(p, done);
        cache_.discard(p.record);
    } else {
        const uint32_t set = store_.set_of(p.record);
        const store::Extent e = store_.extent(p.record, p.component);
        if (p.staging != nullptr) {
            const Nanos t0 = clock_.now();
            const trace::MaybeDuring converting(pass != nullptr ? &pass->ledger : nullptr, trace::Part::convert);
            options_.convert(set, p.component, p.staging + store::RecordStore::aligned(e).delta,
                             place(p.record, p.component), e.bytes);
            counters_.convert += clock_.now() - t0;
        }
        counters_.logical_bytes += e.bytes;
        cache_.mark_ready(cache_.find(p.record), static_cast<ComponentMask>(1U << p.component));
    }
    if (p.staging != nullptr) free_staging_.push_back(p.staging);
    return status;
}

Status Fetcher::load(std::span<const RecordId> leased, ComponentMask which, trace::Pass* pass) {
    Status first_error;
    std::array<io::Completion, kInFlight> done;
    size_t next = 0;         // record
    uint32_t component = 0;  // of that record
    size_t in_flight = 0;
    Nanos issued = 0, busy_since = 0;
    const bool note_reads = pass != nullptr && pass->wants.rows;
    bool more = true;
    while (more || in_flight > 0) {
        // Fill the window. After a failure nothing new starts, what is on its way is still waited for.
        batch_.clear();
        more = false;
        while (first_error.ok() && next < leased.size()) {
            const RecordId r = leased[next];
            const uint32_t set = store_.set_of(r);
            if (component >= store_.n_components(set)) {
                ++next;
                component = 0;
                continue;
            }
            const auto bit = static_cast<ComponentMask>(1U << component);
            if ((which & bit) == 0 || (cache_.ready(cache_.find(r)) & bit) != 0) {
                ++component;
                continue;
            }
            const bool staged = !options_.converted.empty() && options_.converted[set][component];
            if (free_tags_.empty() || (staged && free_staging_.empty())) {
                more = true;
                break;
            }
            std::byte* staging = nullptr;
            if (staged) {
                staging = free_staging_.back();
                free_staging_.pop_back();
            }
            const uint32_t tag = free_tags_.back();
            free_tags_.pop_back();
            const store::Extent e = store_.extent(r, component);
            const store::RecordStore::AlignedRead read = store::RecordStore::aligned(e);
            pending_[tag] = {.record = r, .component = component, .staging = staging, .length = read.length};
            batch_.push_back({.file = e.file,
                              .offset = read.offset,
                              .length = read.length,
                              .need = read.need,
                              .dst = staged ? staging : place(r, component),
                              .tag = tag});
            ++counters_.reads;
            counters_.physical_bytes += read.length;
            ++component;
        }
        if (!batch_.empty()) {
            issued = clock_.now();
            if (in_flight == 0) busy_since = issued;
            for (const io::ReadOp& op : batch_) pending_[op.tag].issued = issued;
            engine_.submit(batch_);
        }
        in_flight += batch_.size();
        if (in_flight == 0) break;
        if (pass != nullptr) {
            pass->queue_depth_max = std::max(pass->queue_depth_max, static_cast<int64_t>(in_flight));
        }

        const Nanos t0 = clock_.now();
        size_t n = 0;
        {
            const trace::MaybeDuring waiting(pass != nullptr ? &pass->ledger : nullptr, trace::Part::wait_read);
            n = engine_.wait(done);
        }
        const Nanos t1 = clock_.now();
        counters_.wait += t1 - t0;
        assert(n > 0 && n <= in_flight);
        in_flight -= n;
        if (in_flight == 0) counters_.busy += t1 - busy_since;
        for (size_t i = 0; i < n; ++i) {
            if (note_reads) note_read(done[i], t1, *pass);
            Status s = complete(done[i], pass);
            if (first_error.ok()) first_error = std::move(s);
        }
    }
    return first_error;
}

}  // namespace sluice::sched
