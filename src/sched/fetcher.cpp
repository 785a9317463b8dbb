#include "sched/fetcher.h"

#include <algorithm>
#include <cassert>

namespace sluice::sched {

Result<std::unique_ptr<Fetcher>> Fetcher::create(const store::RecordStore& store, io::Engine& engine,
                                                 const Clock& clock, Options options) {
    auto slots = Slots::create(store, std::move(options.slots));
    if (!slots.ok()) return slots.status();
    return std::unique_ptr<Fetcher>(new Fetcher(std::move(*slots), engine, clock, std::move(options.reads)));
}

size_t Fetcher::lease(std::span<RecordId> records) {
    cache::SlotCache& cache = slots_->cache();
    const auto missing =
        std::partition(records.begin(), records.end(), [&](RecordId r) { return cache.find(r) != cache::kNoSlot; });
    for (auto it = records.begin(); it != missing; ++it) {
        const SlotId s = cache.lease(*it);
        assert(s != cache::kNoSlot);
        (void)s;
    }
    auto n = static_cast<size_t>(missing - records.begin());
    while (n < records.size() && cache.lease(records[n]) != cache::kNoSlot) ++n;
    return n;
}

void Fetcher::release(std::span<const RecordId> records) {
    for (const RecordId r : records) slots_->cache().release(r);
}

Status Fetcher::load(std::span<const RecordId> leased, ComponentMask which, trace::Pass* pass) {
    if (leased.empty()) return {};
    const store::RecordStore& store = slots_->store();
    Scheduler::Wish wish;
    wish.layer = store.geometry().sets[store.set_of(leased[0])].layer;
    if (pass != nullptr) wish.phase = pass->phase;
    Batch batch;
    scheduler_->want(batch, leased, which, wish);
    Status status = scheduler_->wait(batch, pass);
    scheduler_->abandon(batch);  // of a wait that could not go on
    return status;
}

}  // namespace sluice::sched
