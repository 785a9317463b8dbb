#include "sched/fetcher.h"

#include <algorithm>
#include <cassert>

#include "base/log.h"
#include "route/early_read.h"

namespace sluice::sched {

Result<std::unique_ptr<Fetcher>> Fetcher::create(const store::RecordStore& store, io::Engine& engine,
                                                 const Clock& clock, Options options) {
    auto slots = Slots::create(store, std::move(options.slots));
    if (!slots.ok()) return slots.status();
    size_t most = 0;
    for (const model::ExpertSet& set : store.geometry().sets) most = std::max<size_t>(most, set.n_expert);
    std::unique_ptr<Fetcher> made(new Fetcher(std::move(*slots), engine, clock, std::move(options.reads)));
    made->ahead_records_.reserve(most);
    return made;
}

void Fetcher::enter(uint32_t set, trace::Phase phase) {
    prompt_ = phase == trace::Phase::prefill;
    // Of a pass that was given up, or beside one of another context.
    if (ahead_ != set || !prompt_) end_ahead();
    ahead_ = kNoSet;
    slots_->follow_share();
    if (scheduler_->admission().layer()) log(LogLevel::info, "predictions are read again");
    const uint32_t expected = set_ == kNoSet ? 0 : set_ + 1;
    if (phase != trace::Phase::decode || set != expected) scheduler_->drop_committed();
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
    if (set_ != kNoSet) {
        constexpr double kKeep = 1 - 1.0 / 64;
        wait_sum_ = kKeep * wait_sum_ + static_cast<double>(waited - waited_);
        byte_sum_ = kKeep * byte_sum_ + static_cast<double>(scheduler_->counters().exact_physical - asked_);
    }
    set_ = set;
    asked_ = scheduler_->counters().exact_physical;
    entered_ = now;
    waited_ = waited;
    scheduler_->expect_exact(layers.expected(set, next(set), now).value_or(Admission::kNoGap));
}

// The next set asks as much later as this one has waited.
void Fetcher::expect_next() {
    if (set_ == kNoSet) return;
    const auto takes = scheduler_->layers().typical(set_);
    if (takes) scheduler_->expect_exact(entered_ + *takes + scheduler_->counters().wait - waited_);
}

// When the set will ask for its experts: what this one still has to wait for comes on top of the layers' own time.
std::optional<Nanos> Fetcher::due(uint32_t set) const {
    const auto at = scheduler_->layers().expected(set_, set, entered_);
    if (!at) return std::nullopt;
    const double speed = bandwidth();
    const double pending = speed > 0 ? static_cast<double>(scheduler_->exact_pending()) / speed : 0;
    return *at + scheduler_->counters().wait - waited_ + static_cast<Nanos>(pending);
}

uint32_t Fetcher::foresee(std::span<const Foreseen> records) {
    if (records.empty() || set_ == kNoSet) return 0;
    const uint32_t set = slots_->store().set_of(records[0].record);
    const auto at = due(set);
    const uint32_t next = set_ + 1 == scheduler_->layers().n_sets() ? 0 : set_ + 1;
    Scheduler::Hint hint;
    hint.cls = set == next ? Class::near : Class::speculative;
    hint.layer = slots_->store().geometry().sets[set].layer;
    hint.deadline = at.value_or(kNoDeadline);
    uint32_t hinted = 0;
    const DeviceModel& device = scheduler_->admission().device();
    const double speed = bandwidth();
    const bool may_read = at && device.measured() && speed > 0;
    // When the drive would come to the first of them.
    double free_at = static_cast<double>(clock_.now());
    if (may_read) free_at += static_cast<double>(scheduler_->exact_pending() + scheduler_->guesses_pending()) / speed;
    for (const Foreseen& f : records) {
        spared_ += slots_->cache().goes_next(f.record) ? 1 : 0;
        slots_->cache().order().retain(f.record);  // guests stay that until somebody wants them
        if (!may_read || slots_->resident(f.record)) continue;
        const auto bytes = static_cast<double>(slots_->store().geometry().sets[set].record_bytes());
        const double read = bytes / speed + static_cast<double>(device.service);
        // What was read lately tells how much of a read is waited for; until then, all of it.
        const double waited = byte_sum_ > 0 ? std::min(read, bytes * wait_sum_ / byte_sum_) : read;
        const double ends = free_at + read;
        if (!route::worth_reading({.sure = static_cast<double>(f.confidence),
                                   .removes = waited,
                                   .read = read,
                                   .slack = static_cast<double>(*at) - ends,
                                   .delay = std::min(read, static_cast<double>(device.worst_delay()))}))
            continue;
        free_at += bytes / speed;
        hint.confidence = f.confidence;
        hinted += scheduler_->hint(f.record, hint) ? 1 : 0;
    }
    return hinted;
}

uint32_t Fetcher::commit(std::span<const Foreseen> records) {
    if (records.empty() || set_ == kNoSet) return 0;
    const uint32_t set = slots_->store().set_of(records[0].record);
    const Nanos at = due(set).value_or(kNoDeadline);
    slots_->cache().order().decide(set);
    uint32_t asked = 0;
    for (const Foreseen& f : records) {
        slots_->cache().retain(f.record);
        if (!slots_->resident(f.record)) asked += scheduler_->commit(f.record, at) ? 1 : 0;
    }
    return asked;
}

Fetcher::Missing Fetcher::missing(uint32_t set) const {
    const store::RecordStore& store = slots_->store();
    Missing found;
    for (uint32_t e = 0; e < store.geometry().sets[set].n_expert; ++e)
        found.experts += slots_->resident(store.record(set, e)) ? 0 : 1;
    found.room = std::min(found.experts, slots_->cache().guest_room(slots_->layout().class_of_set[set]));
    return found;
}

void Fetcher::read_ahead(uint32_t set, uint32_t most) {
    end_ahead();
    if (!prompt_) return;
    const store::RecordStore& store = slots_->store();
    const uint32_t room = std::min(missing(set).room, most);
    ahead_records_.clear();
    for (uint32_t e = 0; e < store.geometry().sets[set].n_expert && ahead_records_.size() < room; ++e) {
        const RecordId r = store.record(set, e);
        if (!slots_->resident(r)) ahead_records_.push_back(r);
    }
    ahead_ = set;
    scheduler_->read_ahead(ahead_records_);
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
        scheduler_->wanted(*it);  // nobody may ask for what is there
        if (seat == cache::Seat::member) cache.keep(*it);
    }
    auto n = static_cast<size_t>(missing - records.begin());
    while (n < records.size()) {
        slots_->make_room(records[n]);
        if (cache.lease(records[n], seat) != cache::kNoSlot) {
            ++n;
        } else if (n > 0 || !scheduler_->free_leases()) {
            break;
        }
    }
    return n;
}

void Fetcher::release(std::span<const RecordId> records) {
    for (const RecordId r : records) slots_->cache().release(r);
    slots_->give_back();
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

Status Fetcher::load(std::span<const RecordId> leased, ComponentMask which, trace::Pass* pass, Stop stop) {
    if (leased.empty()) return {};
    Batch batch;
    scheduler_->want(batch, leased, which, wish_of(leased[0], pass));
    Status status = scheduler_->wait(batch, pass, stop);
    scheduler_->abandon(batch);  // of a wait that could not go on
    return status;
}

}  // namespace sluice::sched
