#include "sched/fetcher.h"

#include <algorithm>
#include <cassert>

#include "base/log.h"

namespace sluice::sched {

Result<std::unique_ptr<Fetcher>> Fetcher::create(const store::RecordStore& store, io::Engine& engine,
                                                 const Clock& clock, Options options) {
    auto slots = Slots::create(store, std::move(options.slots));
    if (!slots.ok()) return slots.status();
    return std::unique_ptr<Fetcher>(new Fetcher(std::move(*slots), engine, clock, std::move(options.reads)));
}

void Fetcher::enter(uint32_t set, trace::Phase phase) {
    if (scheduler_->admission().layer()) log(LogLevel::info, "predictions are read again");
    if (phase != trace::Phase::decode) {
        set_ = kNoSet;
        scheduler_->expect_exact(Admission::kNoGap);
        return;
    }
    LayerClock& layers = scheduler_->layers();
    const uint32_t n_sets = layers.n_sets();
    const Nanos now = clock_.now();
    const Nanos waited = scheduler_->counters().wait;
    const auto next = [&](uint32_t s) { return s + 1 == n_sets ? 0 : s + 1; };
    // A set out of order is of another run, or of a graph that was given up: between the two lies no layer's time.
    if (set_ != kNoSet && next(set_) == set) layers.note(set_, now - entered_ - (waited - waited_));
    set_ = set;
    entered_ = now;
    waited_ = waited;
    scheduler_->expect_exact(layers.expected(set, next(set), now).value_or(Admission::kNoGap));
}

size_t Fetcher::lease(std::span<RecordId> records, cache::Seat seat) {
    cache::SlotCache& cache = slots_->cache();
    for (const RecordId r : records) cache.use(r);
    const auto missing =
        std::partition(records.begin(), records.end(), [&](RecordId r) { return cache.find(r) != cache::kNoSlot; });
    for (auto it = records.begin(); it != missing; ++it) {
        const SlotId s = cache.lease(*it);
        assert(s != cache::kNoSlot);
        (void)s;
        if (seat == cache::Seat::member) cache.keep(*it);
    }
    auto n = static_cast<size_t>(missing - records.begin());
    while (n < records.size() && cache.lease(records[n], seat) != cache::kNoSlot) ++n;
    return n;
}

void Fetcher::release(std::span<const RecordId> records) {
    for (const RecordId r : records) slots_->cache().release(r);
}

Scheduler::Wish Fetcher::wish_of(RecordId record, const trace::Pass* pass) const {
    const store::RecordStore& store = slots_->store();
    Scheduler::Wish wish;
    wish.layer = store.geometry().sets[store.set_of(record)].layer;
    if (pass != nullptr) wish.phase = pass->phase;
    return wish;
}

void Fetcher::request(Batch& batch, std::span<const Scheduler::Part> parts, trace::Pass* pass) {
    if (!parts.empty()) scheduler_->want(batch, parts, wish_of(parts[0].record, pass));
}

Status Fetcher::load(std::span<const RecordId> leased, ComponentMask which, trace::Pass* pass) {
    if (leased.empty()) return {};
    Batch batch;
    scheduler_->want(batch, leased, which, wish_of(leased[0], pass));
    Status status = scheduler_->wait(batch, pass);
    scheduler_->abandon(batch);  // of a wait that could not go on
    return status;
}

}  // namespace sluice::sched
