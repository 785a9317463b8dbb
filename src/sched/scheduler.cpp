#include "sched/scheduler.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/crc32c.h"
#include "base/log.h"
#include "io/read_all.h"

namespace sluice::sched {
namespace {

// How often somebody who may be stopped is asked while a read does not come.
constexpr Nanos kStopInterval = 10'000'000;

constexpr size_t place_of(Class cls) {
    return static_cast<size_t>(cls);
}

}  // namespace

Scheduler::Scheduler(Slots& slots, io::Engine& engine, const Clock& clock, Options options)
    : slots_(slots),
      engine_(engine),
      clock_(clock),
      options_(std::move(options)),
      layers_(static_cast<uint32_t>(slots.store().geometry().sets.size())),
      admission_(options_.device),
      drives_(slots.store()),
      tickets_(options_.max_tickets),
      by_key_(static_cast<size_t>(slots.store().n_records()) * kMaxComponents, kNone),
      predicted_unused_(slots.store().n_records(), 0),
      verified_(slots.store().n_records(), 0),
      waiters_(2 * static_cast<size_t>(options_.max_tickets)) {
    assert(options_.max_hints <= options_.max_tickets / 2);
    free_tickets_.reserve(tickets_.size());
    for (size_t i = tickets_.size(); i-- > 0;) free_tickets_.push_back(static_cast<Index>(i));
    free_waiters_.reserve(waiters_.size());
    for (size_t i = waiters_.size(); i-- > 0;) free_waiters_.push_back(static_cast<Index>(i));
    free_pieces_.reserve(kPieces);
    for (size_t i = kPieces; i-- > 0;) free_pieces_.push_back(static_cast<uint32_t>(i));
    batch_.reserve(kPieces);
}

// What is at the device still writes into the slots, so it is waited for; the memory must outlive it. Then every ticket
// ends like any other, and gives its lease back.
Scheduler::~Scheduler() {
    std::array<io::Completion, kPieces> done;
    while (at_device_ > 0) {
        const size_t n = engine_.wait(done);
        if (n == 0) break;
        at_device_ -= static_cast<uint32_t>(std::min<size_t>(n, at_device_));
    }
    for (Index t = 0; t < tickets_.size(); ++t) {
        if (tickets_[t].state == TicketState::free) continue;
        tickets_[t].pieces = 0;
        finish(t, TicketState::cancelled, {});
    }
}

const Ticket* Scheduler::find(TicketHandle h) const {
    if (h.index >= tickets_.size()) return nullptr;
    const Ticket& t = tickets_[h.index];
    return t.generation == h.generation && t.state != TicketState::free ? &t : nullptr;
}

TicketHandle Scheduler::live_ticket(RecordId record, uint32_t component) const {
    const Index t = by_key_[key(record, component)];
    return t == kNone ? TicketHandle{} : TicketHandle{t, tickets_[t].generation};
}

// ---- tickets and queues

Scheduler::Index Scheduler::make_ticket(RecordId record, uint32_t component, Nanos now) {
    if (free_tickets_.empty()) return kNone;
    const Index i = free_tickets_.back();
    free_tickets_.pop_back();
    Ticket& t = tickets_[i];
    const uint32_t generation = t.generation + 1;
    t = Ticket();
    t.generation = generation;
    t.store = options_.store;
    t.record = record;
    t.component = static_cast<uint8_t>(component);
    const store::Extent e = slots_.store().extent(record, component);
    t.bytes = static_cast<uint32_t>(e.bytes);
    t.physical = store::RecordStore::aligned(e).length;  // until it is known which holder is asked
    t.issued = now;
    t.state = TicketState::queued;
    by_key_[key(record, component)] = i;
    ++live_;
    return i;
}

void Scheduler::enqueue(Index i, bool front) {
    Ticket& t = tickets_[i];
    Queue& q = queues_[place_of(t.cls)];
    ++q.n;
    // Exact reads keep the order in which they were wanted, and so do those with one deadline; the others go by
    // deadline and then by confidence. Warming is last in, first out: what was thought of last is the most likely.
    Index after = q.tail;
    if (front || t.cls == Class::warming) {
        after = kNone;
    } else {
        while (after != kNone &&
               (tickets_[after].deadline > t.deadline || (!is_exact(t.cls) && tickets_[after].deadline == t.deadline &&
                                                          tickets_[after].confidence < t.confidence))) {
            after = tickets_[after].previous;
        }
    }
    t.previous = after;
    t.next = after == kNone ? q.head : tickets_[after].next;
    (t.previous == kNone ? q.head : tickets_[t.previous].next) = i;
    (t.next == kNone ? q.tail : tickets_[t.next].previous) = i;
}

void Scheduler::dequeue(Index i) {
    Ticket& t = tickets_[i];
    Queue& q = queues_[place_of(t.cls)];
    if (q.head != i && t.previous == kNone) return;  // it is in no queue
    (t.previous == kNone ? q.head : tickets_[t.previous].next) = t.next;
    (t.next == kNone ? q.tail : tickets_[t.next].previous) = t.previous;
    t.next = t.previous = kNone;
    --q.n;
}

void Scheduler::add_waiter(Index i, Batch& batch) {
    // More than anybody needs; without asserts one too many costs an allocation rather than a lost wish.
    assert(!free_waiters_.empty());
    if (free_waiters_.empty()) {
        waiters_.emplace_back();
        free_waiters_.push_back(static_cast<Index>(waiters_.size() - 1));
    }
    const Index w = free_waiters_.back();
    free_waiters_.pop_back();
    waiters_[w] = {&batch, tickets_[i].first_waiter};
    tickets_[i].first_waiter = w;
    ++tickets_[i].waiters;
    ++batch.pending_;
    if (!tickets_[i].early) return;
    batch.due_ = batch.early_ == 0 ? tickets_[i].due : std::max(batch.due_, tickets_[i].due);
    ++batch.early_;
}

void Scheduler::remove_waiters(Index i, const std::function<bool(const Batch&)>& gone) {
    Ticket& t = tickets_[i];
    Index* link = &t.first_waiter;
    while (*link != kNone) {
        const Index w = *link;
        if (!gone(*waiters_[w].batch)) {
            link = &waiters_[w].next;
            continue;
        }
        *link = waiters_[w].next;
        --waiters_[w].batch->pending_;
        if (t.early) --waiters_[w].batch->early_;
        --t.waiters;
        free_waiters_.push_back(w);
    }
}

// Every ending tells every waiter, also a bad one.
void Scheduler::end_waiting(Index i, const Status& status) {
    Ticket& t = tickets_[i];
    while (t.first_waiter != kNone) {
        const Index w = t.first_waiter;
        t.first_waiter = waiters_[w].next;
        Batch& b = *waiters_[w].batch;
        --b.pending_;
        if (t.early) --b.early_;
        if (b.status_.ok() && !status.ok()) b.status_ = status;
        free_waiters_.push_back(w);
    }
    t.waiters = 0;
}

// The one way in which a ticket ends.
void Scheduler::finish(Index i, TicketState state, const Status& status) {
    Ticket& t = tickets_[i];
    assert(!ended(t.state) && t.state != TicketState::free && ended(state) && t.pieces == 0);
    dequeue(i);
    t.state = state;
    t.completion = ++endings_;
    if (t.staging != nullptr) slots_.give_staging(t.staging);
    t.staging = nullptr;
    if (t.holds_lease) slots_.cache().release(t.record);
    t.holds_lease = false;
    end_waiting(i, status);
    by_key_[key(t.record, t.component)] = kNone;
    t.state = TicketState::free;
    --live_;
    free_tickets_.push_back(i);
}

// A slot for what the device is going to write, for as long as it does. False when all are leased.
bool Scheduler::take_lease(Ticket& t, cache::Seat seat) {
    if (t.holds_lease) return true;
    slots_.make_room(t.record);
    // What comes before anybody asks pushes out nothing that is expected, too.
    if ((is_guess(t.cls) || t.cls == Class::committed) && slots_.cache().costs_retained(t.record, seat)) return false;
    t.slot = slots_.cache().lease(t.record, seat);
    if (t.slot == cache::kNoSlot) return false;
    t.slot_generation = slots_.cache().generation(t.slot);
    t.holds_lease = true;
    return true;
}

// ---- wishes

// A prediction that was used is worth another one.
void Scheduler::used(RecordId record, ComponentMask which) {
    for (ComponentMask left = which & predicted_unused_[record]; left != 0;
         left &= static_cast<ComponentMask>(left - 1)) {
        const auto component = static_cast<uint32_t>(std::countr_zero(left));
        const bool useful = slots_.ready(record, component);
        const uint64_t bytes = slots_.store().extent(record, component).bytes;
        (useful ? counters_.used_bytes : counters_.rejected_bytes) += bytes;
        if (useful) admission_.used(bytes);
        judge(useful);
    }
    predicted_unused_[record] &= static_cast<ComponentMask>(~which);
}

void Scheduler::judge(bool useful) {
    if (!admission_.judge(useful)) return;
    log(LogLevel::info, "predictions are not read for the next {} layers: fewer than {:.0f} % of the last {} were used",
        Admission::kRestLayers, Admission::kOffBelow * 100, Admission::kJudged);
}

void Scheduler::promote(Index i, const Wish& wish, Batch& batch) {
    Ticket& t = tickets_[i];
    ++counters_.joins;
    (void)take_lease(t);  // the record has a slot: whoever wants it has leased it
    t.joined = true;
    if (t.orphan) {
        // What went wrong while nobody wanted it is none of this wish's attempts.
        t.attempts = t.exhausted = 0;
        t.first_error = 0;
        t.orphan = false;
    }
    t.tokens |= wish.tokens;
    const Nanos deadline = std::min(t.deadline, wish.deadline);
    if (!is_exact(t.cls)) {
        const bool whole = t.asked >= t.physical;
        if (t.asked > 0 && t.waiters == 0) {
            t.early = true;
            t.due = t.deadline;
        }
        // The device cannot be told; what is there no longer counts as speculation, what is not goes first.
        for (Piece& p : pieces_) {
            if (p.ticket != i) continue;
            if (std::exchange(p.speculative, false)) --speculative_pieces_;
            if (std::exchange(p.ahead, false)) --ahead_pieces_;
        }
        if (is_guess(t.cls)) {
            ++counters_.promotions;
            // Of what was never begun, nothing came of the prediction.
            t.predicted = t.promoted = t.asked > 0;
            if (whole) ++counters_.late_promotions;
            admission_.promoted(t.asked - t.arrived);
            admission_.used(t.asked);
            judge(true);
        }
        if (t.asked > 0) counters_.used_bytes += t.cls == Class::ahead ? 0 : t.bytes;
        dequeue(i);
        t.cls = wish.cls;
        t.deadline = deadline;
        t.phase = wish.phase;
        if (!whole) enqueue(i);
    } else {
        // The stronger class and the earlier deadline count, and an orphan's rest is wanted again.
        const bool waiting = t.asked < t.physical;
        const bool queued = t.previous != kNone || queues_[place_of(t.cls)].head == i;
        const bool as_before = queued && t.cls <= wish.cls && t.deadline == deadline;
        if (waiting && !as_before) dequeue(i);
        t.cls = std::min(t.cls, wish.cls);
        t.deadline = deadline;
        if (waiting && !as_before) enqueue(i);
    }
    add_waiter(i, batch);
}

// There is always one: predictions give theirs up, and what is at the device ends.
Scheduler::Index Scheduler::make_exact_ticket(RecordId record, uint32_t component, Nanos now) {
    for (;;) {
        if (const Index i = make_ticket(record, component, now); i != kNone) return i;
        const auto exact = queues_.rend() - (1 + static_cast<std::ptrdiff_t>(place_of(Class::exact)));
        const auto shed = std::find_if(queues_.rbegin(), exact, [this](const Queue& q) {
            return q.tail != kNone && tickets_[q.tail].pieces == 0;
        });
        if (shed != exact) {
            ++counters_.dropped_full;
            finish(shed->tail, TicketState::cancelled, {});
            continue;
        }
        prepare_exact();
        submit();
        assert(at_device_ > 0);
        std::array<io::Completion, kPieces> done;
        handle(std::span(done).first(engine_.wait(done)), nullptr);
    }
}

void Scheduler::want_one(Batch& batch, RecordId r, ComponentMask which, const Wish& wish, Nanos now) {
    assert(is_exact(wish.cls));
    const SlotId slot = slots_.cache().find(r);
    assert(slot != cache::kNoSlot && slots_.cache().leases(slot) > 0);
    which &= slots_.all_components(slots_.store().set_of(r));
    if ((predicted_unused_[r] & which) != 0) used(r, which);
    ComponentMask missing = which & static_cast<ComponentMask>(~slots_.cache().ready(slot));
    for (; missing != 0; missing &= static_cast<ComponentMask>(missing - 1)) {
        const auto c = static_cast<uint32_t>(std::countr_zero(missing));
        if (const Index live = by_key_[key(r, c)]; live != kNone) {
            promote(live, wish, batch);
            continue;
        }
        const Index i = make_exact_ticket(r, c, now);
        Ticket& t = tickets_[i];
        t.cls = wish.cls;
        t.owner = batch.owner_;
        t.phase = wish.phase;
        t.layer = wish.layer;
        t.tokens = wish.tokens;
        t.deadline = wish.deadline;
        (void)take_lease(t);
        enqueue(i);
        add_waiter(i, batch);
    }
}

void Scheduler::want(Batch& batch, std::span<const Part> parts, const Wish& wish) {
    pages_ = pages_ || wish.cls == Class::page;
    const Nanos now = clock_.now();
    for (const Part& p : parts) want_one(batch, p.record, p.which, wish, now);
    prepare_exact();
    submit();
}

void Scheduler::want(Batch& batch, std::span<const RecordId> records, ComponentMask which, const Wish& wish) {
    pages_ = pages_ || wish.cls == Class::page;
    const Nanos now = clock_.now();
    for (const RecordId r : records) want_one(batch, r, which, wish, now);
    prepare_exact();
    submit();
}

bool Scheduler::hint(RecordId record, const Hint& hint) {
    assert(!is_exact(hint.cls));
    ++counters_.hints;
    const Nanos now = clock_.now();
    const ComponentMask missing = absent(record);
    const uint32_t n = slots_.store().n_components(slots_.store().set_of(record));
    const auto wanted = static_cast<uint32_t>(std::popcount(missing));
    if (hints() + wanted > options_.max_hints || free_tickets_.size() < wanted) {
        counters_.dropped_full += wanted;
        return false;
    }
    for (uint32_t c = 0; c < n; ++c) {
        if ((missing & cache::component_bit(c)) == 0) continue;
        used(record, cache::component_bit(c));  // an earlier prediction of it was evicted
        Ticket& t = tickets_[make_ticket(record, c, now)];
        t.cls = hint.cls;
        t.predicted = true;
        t.owner = hint.owner;
        t.layer = hint.layer;
        t.confidence = hint.confidence;
        t.deadline = hint.deadline;
        enqueue(static_cast<Index>(&t - tickets_.data()));
    }
    return true;
}

// Components that are neither there nor on their way.
ComponentMask Scheduler::absent(RecordId record) const {
    ComponentMask missing = 0;
    for (uint32_t c = 0; c < slots_.store().n_components(slots_.store().set_of(record)); ++c) {
        if (!slots_.ready(record, c) && by_key_[key(record, c)] == kNone) missing |= cache::component_bit(c);
    }
    return missing;
}

bool Scheduler::commit(RecordId record, Nanos deadline) {
    const Nanos now = clock_.now();
    const ComponentMask missing = absent(record);
    if (free_tickets_.size() < static_cast<uint32_t>(std::popcount(missing))) return false;
    const uint32_t set = slots_.store().set_of(record);
    for (uint32_t c = 0; c < slots_.store().n_components(set); ++c) {
        if ((missing & cache::component_bit(c)) == 0) continue;
        used(record, cache::component_bit(c));  // an earlier prediction of it was evicted
        const Index i = make_ticket(record, c, now);
        Ticket& t = tickets_[i];
        t.cls = Class::committed;
        t.layer = slots_.store().geometry().sets[set].layer;
        t.deadline = deadline;
        enqueue(i);
    }
    return true;
}

uint64_t Scheduler::exact_pending() const {
    uint64_t bytes = 0;
    for (const Piece& p : pieces_) bytes += p.ticket != kNone && !p.speculative ? p.length : 0;
    for (const Class cls : {Class::page, Class::exact}) {
        for (Index i = queues_[place_of(cls)].head; i != kNone; i = tickets_[i].next)
            bytes += tickets_[i].physical - tickets_[i].asked;
    }
    return bytes;
}

uint64_t Scheduler::guesses_pending() const {
    uint64_t bytes = 0;
    for (const Piece& p : pieces_) bytes += p.ticket != kNone && p.speculative ? p.length : 0;
    for (const Class cls : {Class::near, Class::speculative, Class::warming}) {
        for (Index i = queues_[place_of(cls)].head; i != kNone; i = tickets_[i].next)
            bytes += tickets_[i].physical - tickets_[i].asked;
    }
    return bytes;
}

void Scheduler::read_ahead(std::span<const RecordId> records) {
    if (records.empty()) return;
    const store::RecordStore& store = slots_.store();
    const uint32_t set = store.set_of(records[0]);
    const Nanos now = clock_.now();
    for (uint32_t c = 0; c < store.n_components(set); ++c) {
        for (const RecordId r : records) {
            if (slots_.ready(r, c) || by_key_[key(r, c)] != kNone) continue;
            used(r, cache::component_bit(c));  // an earlier prediction of it was evicted
            const Index i = make_ticket(r, c, now);
            if (i == kNone) return;
            Ticket& t = tickets_[i];
            t.cls = Class::ahead;
            t.phase = trace::Phase::prefill;
            t.layer = store.geometry().sets[set].layer;
            enqueue(i);
        }
    }
    prepare_ahead();
    submit();
}

void Scheduler::drop_queue(Class cls) {
    Queue& q = queues_[place_of(cls)];
    while (q.head != kNone) {
        ++counters_.cancelled;
        finish(q.head, TicketState::cancelled, {});
    }
}

// Nobody wants it any more. What is at the device has to be awaited, but by nobody in particular.
void Scheduler::let_go(Index i) {
    Ticket& t = tickets_[i];
    ++counters_.cancelled;
    dequeue(i);
    if (t.pieces > 0) {
        t.orphan = true;
        ++counters_.orphans;
    } else {
        finish(i, TicketState::cancelled, {});
    }
}

void Scheduler::cancel(Owner owner) {
    for (Index i = 0; i < tickets_.size(); ++i) {
        Ticket& t = tickets_[i];
        if (t.state == TicketState::free) continue;
        const uint32_t before = t.waiters;
        remove_waiters(i, [&](const Batch& b) { return b.owner_ == owner; });
        const bool concerned = t.owner == owner || t.waiters != before;
        if (!concerned || t.waiters > 0) continue;
        let_go(i);  // also a hint of somebody else that this owner had joined: it is exact by now, and nobody waits
    }
}

bool Scheduler::free_leases() {
    bool any = false;
    for (Index i = 0; i < tickets_.size(); ++i) {
        const Ticket& t = tickets_[i];
        if (t.state == TicketState::free || !t.holds_lease || t.waiters > 0 || t.orphan) continue;
        if (t.pieces > 0 && t.asked >= t.physical) continue;  // it ends by itself
        any = any || t.pieces == 0;
        let_go(i);
    }
    return any;
}

void Scheduler::abandon(Batch& batch) {
    for (Index i = 0; i < tickets_.size() && batch.pending_ > 0; ++i) {
        Ticket& t = tickets_[i];
        if (t.state == TicketState::free || t.waiters == 0) continue;
        remove_waiters(i, [&](const Batch& b) { return &b == &batch; });
        if (t.waiters == 0) let_go(i);
    }
}

// ---- to the device

bool Scheduler::needs_staging(const Ticket& t) const {
    return t.staging == nullptr && slots_.staged(t.record, t.component, t.holder);
}

// Where small reads happen, experts leave them a lane, so that none waits for a whole expert to come.
bool Scheduler::may_have_lane(const Ticket& t) const {
    if (t.cls == Class::page || !pages_ || at_device_ + batch_.size() == 0) return true;
    const DeviceModel& d = admission_.device();
    return at_device_ + batch_.size() + std::max(1U, d.reserved_lanes) < std::max(2U, d.lanes);
}

// A stretch of the ticket's read goes into the next submission. False where something it needs is taken.
bool Scheduler::prepare_piece(Index i, uint32_t length, bool speculative, Nanos now) {
    Ticket& t = tickets_[i];
    if (free_pieces_.empty()) return false;
    if (needs_staging(t)) {
        t.staging = slots_.take_staging();
        if (t.staging == nullptr) return false;
    }
    const store::Extent e = slots_.store().extent(t.record, t.component, t.holder);
    const store::RecordStore::AlignedRead read = store::RecordStore::aligned(e);
    std::byte* const begin = t.staging != nullptr ? t.staging : slots_.place(t.record, t.component);
    const uint32_t p = free_pieces_.back();
    free_pieces_.pop_back();
    pieces_[p] = {.ticket = i, .holder = t.holder, .length = length, .speculative = speculative};
    batch_.push_back({.file = e.file,
                      .offset = read.offset + t.asked,
                      .length = length,
                      .need = std::min(length, read.need > t.asked ? read.need - t.asked : 0),
                      .dst = begin + t.asked,
                      .tag = p,
                      .priority = speculative ? io::Priority::speculative : io::Priority::exact});
    drives_.submitted(t.holder, length, now);
    t.asked += length;
    ++t.pieces;
    t.state = TicketState::submitted;
    ++counters_.reads;
    if (speculative) {
        ++speculative_pieces_;
        counters_.predicted_physical += length;
        admission_.submitted(length);
    } else {
        counters_.exact_physical += length;
        admission_.exact(length, now);
    }
    return true;
}

// Each attempt goes to whoever would be done first and has not used up his; nothing of the ticket is at a device.
void Scheduler::choose_holder(Ticket& t) {
    if (drives_.single()) return;
    const HolderId h = drives_.choose(t.record, t.component, t.physical, t.exhausted);
    if (h == Drives::kNoHolder) return;
    t.holder = h;
    t.physical = store::RecordStore::aligned(slots_.store().extent(t.record, t.component, h)).length;
}

void Scheduler::prepare_exact() {
    if (queues_[place_of(Class::page)].head == kNone && queues_[place_of(Class::exact)].head == kNone) return;
    const Nanos now = clock_.now();
    for (const Class cls : {Class::page, Class::exact}) {
        Queue& q = queues_[place_of(cls)];
        while (q.head != kNone) {
            const Index i = q.head;
            Ticket& t = tickets_[i];
            if (!may_have_lane(t)) break;
            if (t.asked == 0) choose_holder(t);
            if (!prepare_piece(i, t.physical - t.asked, false, now)) return;
            dequeue(i);
        }
    }
}

// Beside exact reads they would take their part of the bandwidth for as long as those last.
void Scheduler::prepare_ahead() {
    if (!sure_queued()) return;
    const Nanos now = clock_.now();
    while (sure_queued() && ahead_pieces_ < options_.max_ahead) {
        const Class cls = queues_[place_of(Class::committed)].head != kNone ? Class::committed : Class::ahead;
        Queue& q = queues_[place_of(cls)];
        const size_t outstanding = at_device_ + batch_.size();
        if (exact_queued() || outstanding > speculative_pieces_ + ahead_pieces_) return;
        const Index i = q.head;
        Ticket& t = tickets_[i];
        choose_holder(t);
        // Exact reads never wait for a buffer that these hold.
        if (needs_staging(t) && slots_.free_staging() <= Slots::kStagingBuffers / 2) return;
        if (!take_lease(t, cls == Class::ahead ? cache::Seat::guest : cache::Seat::member)) {
            ++counters_.dropped_no_slot;
            finish(i, TicketState::cancelled, {});
            continue;
        }
        if (!prepare_piece(i, t.physical, false, now)) return;
        pieces_[batch_.back().tag].ahead = true;
        ++ahead_pieces_;
        counters_.ahead_physical += t.physical;
        counters_.ahead_bytes += t.bytes;
        dequeue(i);
    }
}

void Scheduler::prepare_speculative() {
    if (hints() == 0 || sure_queued()) return;
    const Nanos now = clock_.now();
    for (const Class cls : {Class::near, Class::speculative, Class::warming}) {
        Queue& q = queues_[place_of(cls)];
        while (q.head != kNone) {
            const Index i = q.head;
            Ticket& t = tickets_[i];
            const auto sure = static_cast<double>(t.confidence);
            if (t.deadline != kNoDeadline && t.pieces == 0 && !admission_.fits(now, t.deadline, sure)) {
                ++counters_.dropped_deadline;
                finish(i, TicketState::cancelled, {});
                continue;
            }
            if (t.asked == 0) choose_holder(t);
            const uint32_t length = std::min(t.physical - t.asked, admission_.device().chunk);
            const uint32_t outstanding = at_device_ + static_cast<uint32_t>(batch_.size());
            // Beside exact reads that are under way speculation would take its part of the bandwidth for as long as
            // they last, however small the window is.
            const bool exact = exact_queued() || outstanding > speculative_pieces_;
            const Refusal refusal = admission_.ask(length, now, exact, outstanding, gap_end_, sure);
            if (refusal != Refusal::none) {
                ++counters_.refused[static_cast<size_t>(refusal)];
                return;
            }
            // Exact reads never wait for a buffer that speculation holds.
            if (needs_staging(t) && slots_.free_staging() <= Slots::kStagingBuffers / 2) return;
            // On trial: the most that a wrong one can cost the cache is a guest's slot.
            if (!take_lease(t, cache::Seat::trial)) {
                ++counters_.dropped_no_slot;
                finish(i, TicketState::cancelled, {});
                continue;
            }
            if (!prepare_piece(i, length, true, now)) return;
            if (t.asked >= t.physical) dequeue(i);
        }
    }
}

void Scheduler::submit() {
    if (batch_.empty()) return;
    const Nanos now = clock_.now();
    if (at_device_ == 0) busy_since_ = now;
    for (const io::ReadOp& op : batch_) {
        Piece& p = pieces_[op.tag];
        p.issued = now;
        if (tickets_[p.ticket].first_submitted == 0) tickets_[p.ticket].first_submitted = now;
    }
    at_device_ += static_cast<uint32_t>(batch_.size());
    engine_.submit(batch_);
    batch_.clear();
}

// ---- from the device

void Scheduler::note_read(const Ticket& t, const Piece& piece, const io::Completion& done, Nanos now,
                          trace::Pass& pass) const {
    if (done.error == 0) pass.latency.add(now - piece.issued);
    if (!pass.wants.reads && !pass.capturing) return;
    static constexpr const char* kNames[kClasses] = {"page", "exact",       "committed", "ahead",
                                                     "near", "speculative", "warming"};
    const store::RecordStore& store = slots_.store();
    const model::ExpertSet& set = store.geometry().sets[store.set_of(t.record)];
    const store::Extent e = store.extent(t.record, t.component, piece.holder);
    pass.read_events.push_back({.record = t.record,
                                .layer = set.layer,
                                .expert = store.expert_of(t.record),
                                .component = t.component,
                                .projection = model::component_name(set.tensors[t.component].component),
                                .lane = static_cast<int32_t>(done.tag),
                                .speculative = piece.speculative,
                                .ticket = kNames[place_of(t.cls)],
                                .deadline = t.deadline == kNoDeadline ? trace::Measure() : trace::Measure(t.deadline),
                                .offset = store::RecordStore::aligned(e).offset,
                                .need = t.bytes,
                                .length = piece.length,
                                .issued = piece.issued,
                                .ready = now,
                                .error = done.error});
}

Status Scheduler::failure(const Ticket& t) const {
    const store::RecordStore& store = slots_.store();
    const auto what = [&](HolderId h, int32_t why) {
        const store::Extent e = store.extent(t.record, t.component, h);
        return why == EBADMSG
                   ? error(Code::corrupt,
                           "{} bytes at offset {} of {} do not match their checksum (sluice verify names all "
                           "damage, sluice repair mends it from another copy)",
                           e.bytes, e.offset, e.file->path())
                   : io::read_error(*e.file, e.offset, e.bytes, why);
    };
    const store::RecordName name = store.name(t.record);
    const model::ExpertTensor& tensor = store.geometry().sets[store.set_of(t.record)].tensors[t.component];
    const std::string place =
        fmt::format("layer {}, expert {}, {}", name.layer, name.expert, model::component_name(tensor.component));
    if (t.first_error == 0 || t.first_holder == t.holder) return what(t.holder, t.error).within(place);
    return what(t.first_holder, t.first_error)
        .within(fmt::format("{}, not to be had from {} either ({})", place, store.holder(t.holder).name,
                            t.error == EBADMSG ? "wrong checksum" : std::strerror(t.error)));
}

// The component's bytes as they came, wherever they lie.
std::span<const std::byte> Scheduler::arrived_bytes(const Ticket& t) const {
    const store::Extent e = slots_.store().extent(t.record, t.component, t.holder);
    const std::byte* begin = t.staging != nullptr ? t.staging : slots_.place(t.record, t.component);
    return {begin + store::RecordStore::aligned(e).delta, e.bytes};
}

// Checked in the very buffer that is published or converted from.
bool Scheduler::matches(const Ticket& t, trace::Pass* pass) {
    if (options_.verify == Verify::never) return true;
    const auto sum = slots_.store().checksum(t.record, t.component);
    if (!sum) return true;
    const ComponentMask bit = cache::component_bit(t.component);
    if (options_.verify == Verify::once && t.first_error == 0 && t.holder == 0 && (verified_[t.record] & bit) != 0)
        return true;
    const std::span<const std::byte> bytes = arrived_bytes(t);
    const Nanos t0 = clock_.now();
    bool good = false;
    {
        const trace::MaybeDuring checking(pass != nullptr ? &pass->ledger : nullptr, trace::Part::convert);
        good = crc32c(bytes) == *sum;
    }
    counters_.verify += clock_.now() - t0;
    counters_.verified_bytes += bytes.size();
    if (good && t.holder == 0) verified_[t.record] |= bit;
    return good;
}

void Scheduler::publish(Index i, trace::Pass* pass) {
    Ticket& t = tickets_[i];
    cache::SlotCache& cache = slots_.cache();
    // A slot that was given to another record meanwhile is not ours to write a ready bit into.
    if (!t.holds_lease || cache.record(t.slot) != t.record || cache.generation(t.slot) != t.slot_generation) {
        finish(i, TicketState::cancelled, error(Code::cancelled, "the slot was taken for another record"));
        return;
    }
    if (t.staging != nullptr) {
        const Nanos t0 = clock_.now();
        const trace::MaybeDuring converting(pass != nullptr ? &pass->ledger : nullptr, trace::Part::convert);
        slots_.settle(t.record, t.component, arrived_bytes(t).data());
        counters_.convert += clock_.now() - t0;
    }
    (t.predicted ? counters_.predicted_bytes : counters_.exact_bytes) += t.bytes;
    if (is_guess(t.cls) || t.cls == Class::committed) predicted_unused_[t.record] |= cache::component_bit(t.component);
    if (t.promoted && t.deadline != kNoDeadline && clock_.now() > t.deadline) ++counters_.late;
    if (t.first_error != 0 && t.first_holder != t.holder) note_rescue(t);
    cache.mark_ready(t.slot, cache::component_bit(t.component));
    finish(i, TicketState::ready, {});
}

// All pieces that were given to the device are back.
void Scheduler::attempt_over(Index i, trace::Pass* pass) {
    Ticket& t = tickets_[i];
    if (t.error == 0 && t.asked < t.physical) {
        if (!t.orphan) return;  // the rest is queued
        finish(i, TicketState::cancelled, {});
        return;
    }
    if (t.error == 0 && !matches(t, pass)) {
        t.error = EBADMSG;
        ++counters_.mismatches;
    }
    if (drives_.judged(t.holder, t.error == 0)) {
        log(LogLevel::warn, "{} reads in a row from {} failed ({}): it is not used any more where another copy is",
            Drives::kRetireAfter, slots_.store().holder(t.holder).name,
            t.error == EBADMSG ? "wrong checksum" : std::strerror(t.error));
    }
    if (t.error == 0) {
        publish(i, pass);
        return;
    }
    if (is_exact(t.cls) && t.waiters > 0 && try_again(i)) return;
    // The component stays unready; others of the record, which may be in use, are none the worse for it.
    ++counters_.failures;
    finish(i, TicketState::failed, failure(t));
}

// Once more from the device, which may only have stumbled, then from each other holder. False when all have had their
// attempts.
bool Scheduler::try_again(Index i) {
    Ticket& t = tickets_[i];
    if (t.first_error == 0) {
        t.first_error = t.error;
        t.first_holder = t.holder;
    }
    if (++t.attempts >= options_.attempts || drives_.retired(t.holder)) {
        t.exhausted = static_cast<uint8_t>(t.exhausted | (1U << t.holder));
        if (drives_.choose(t.record, t.component, t.bytes, t.exhausted) == Drives::kNoHolder) return false;
        t.attempts = 0;
    }
    ++counters_.retries;
    dequeue(i);
    t.error = 0;
    t.asked = t.arrived = 0;
    enqueue(i, true);
    return true;
}

// Said a few times only: a bad drive has much to tell.
void Scheduler::note_rescue(const Ticket& t) {
    constexpr uint32_t kMostTold = 8;
    ++counters_.rescued;
    if (told_ >= kMostTold) return;
    ++told_;
    Ticket first = t;
    first.holder = t.first_holder;
    first.error = t.first_error;
    log(LogLevel::warn, "{}; it came from {} instead{}", failure(first).message(), slots_.store().holder(t.holder).name,
        told_ == kMostTold ? "; further ones are not reported" : "");
}

void Scheduler::piece_done(const io::Completion& done, Nanos now, trace::Pass* pass) {
    const Piece piece = pieces_[done.tag];
    pieces_[done.tag].ticket = kNone;
    free_pieces_.push_back(static_cast<uint32_t>(done.tag));
    if (piece.speculative) {
        --speculative_pieces_;
        admission_.completed(piece.length);
    }
    if (piece.ahead) --ahead_pieces_;
    drives_.completed(piece.holder, piece.length, now);
    Ticket& t = tickets_[piece.ticket];
    if (pass != nullptr && pass->wants.rows) note_read(t, piece, done, now, *pass);
    t.arrived += piece.length;
    if (done.error != 0) t.error = done.error;
    if (--t.pieces == 0) attempt_over(piece.ticket, pass);
}

void Scheduler::handle(std::span<const io::Completion> done, trace::Pass* pass) {
    const Nanos now = clock_.now();
    at_device_ -= static_cast<uint32_t>(done.size());
    if (at_device_ == 0 && !done.empty()) counters_.busy += now - busy_since_;
    for (const io::Completion& d : done) piece_done(d, now, pass);
}

void Scheduler::settle(trace::Pass* pass) {
    std::array<io::Completion, kPieces> done;
    handle(std::span(done).first(engine_.poll(done)), pass);
}

void Scheduler::pump(trace::Pass* pass) {
    settle(pass);
    prepare_exact();
    prepare_ahead();
    prepare_speculative();
    submit();
}

Status Scheduler::wait(Batch& batch, trace::Pass* pass, Stop stop) {
    return wait_until(batch, 0, pass, stop);
}

Status Scheduler::wait_some(Batch& batch, trace::Pass* pass, Stop stop) {
    return batch.done() ? batch.status() : wait_until(batch, batch.pending_ - 1, pass, stop);
}

// Where only reads are left that had begun before they were wanted, the wait is for what of them does not fit.
trace::Part Scheduler::waits_for(const Batch& batch) const {
    if (batch.early_ == 0 || batch.early_ < batch.pending_) return trace::Part::wait_read;
    return clock_.now() > batch.due_ ? trace::Part::wait_late : trace::Part::wait_join;
}

size_t Scheduler::wait_and_handle(trace::Pass* pass, Stop stop, trace::Part part) {
    std::array<io::Completion, kPieces> done;
    const Nanos t0 = clock_.now();
    size_t n = 0;
    {
        const trace::MaybeDuring waiting(pass != nullptr ? &pass->ledger : nullptr, part);
        n = stop.possible() ? engine_.wait_for(done, kStopInterval) : engine_.wait(done);
    }
    counters_.wait += clock_.now() - t0;
    handle(std::span(done).first(n), pass);
    return n;
}

bool Scheduler::wait_for_any(trace::Pass* pass, Stop stop) {
    while (at_device_ > 0 && !stop()) {
        if (wait_and_handle(pass, stop) > 0) return true;
    }
    return false;
}

Status Scheduler::wait_until(Batch& batch, uint32_t pending, trace::Pass* pass, Stop stop) {
    bool dropped = false;
    while (batch.pending_ > pending) {
        if (!batch.status().ok() && !dropped) {
            dropped = true;
            for (Index i = 0; i < tickets_.size(); ++i) {
                Ticket& t = tickets_[i];
                if (t.state != TicketState::queued || t.waiters == 0) continue;
                remove_waiters(i, [&](const Batch& b) { return &b == &batch; });
                if (t.waiters == 0) finish(i, TicketState::cancelled, {});
            }
            continue;
        }
        prepare_exact();
        prepare_ahead();
        if (!exact_queued()) prepare_speculative();
        submit();
        if (pass != nullptr) pass->queue_depth_max = std::max(pass->queue_depth_max, static_cast<int64_t>(at_device_));
        if (at_device_ == 0) return error(Code::internal, "a read is wanted, but none can be given to the device");
        if (stop()) {
            abandon(batch);
            return error(Code::cancelled, "stopped while reading");
        }
        (void)wait_and_handle(pass, stop, waits_for(batch));
    }
    return batch.status();
}

}  // namespace sluice::sched
