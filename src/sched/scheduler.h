// Owns: every read of an expert: which goes to the device when, and what becomes of it.
// Keeps: exact reads go before all others, small ones of them first, and speculation at the device is bounded, so that
// no exact read is delayed beyond DeviceModel::worst_delay(); a component is wanted at most once at a time, later
// wishes join; a ticket ends exactly once; bytes are published only whole, without error, verified, and into the slot
// that they were read for; while a read is at the device, its slot has a lease.
//
// There is no thread in here and no lock: whoever asks or waits drives it. Nobody can wait for everything, only for a
// batch of his own.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/stop.h"
#include "io/engine.h"
#include "sched/admission.h"
#include "sched/drives.h"
#include "sched/layer_clock.h"
#include "sched/slots.h"
#include "sched/ticket.h"
#include "trace/pass.h"

namespace sluice::sched {

struct SchedCounters {
    uint64_t reads = 0;  // pieces given to the device
    uint64_t exact_bytes = 0, exact_physical = 0;
    uint64_t predicted_bytes = 0, predicted_physical = 0;
    Nanos busy = 0;  // time with at least one read on its way
    Nanos wait = 0;  // time spent with nothing to do but wait for a read
    Nanos convert = 0;
    uint64_t ahead_bytes = 0, ahead_physical = 0;  // of the exact ones: asked for before a router chose
    uint64_t hints = 0;
    uint64_t joins = 0;             // wishes that found their component on its way
    uint64_t promotions = 0;        // predictions that became exact before they ended
    uint64_t late_promotions = 0;   // of those, wholly at the device already
    uint64_t dropped_full = 0;      // hints refused because the queues were full
    uint64_t dropped_deadline = 0;  // predictions whose deadline could not be met any more
    uint64_t dropped_no_slot = 0;   // predictions that found every slot leased
    uint64_t cancelled = 0;
    uint64_t orphans = 0;     // of those, at the device
    uint64_t retries = 0;     // reads tried again after an error or a wrong checksum
    uint64_t mismatches = 0;  // of those, and of failures: the checksum was wrong
    uint64_t rescued = 0;     // components that came from another holder than the first one asked
    uint64_t failures = 0;
    uint64_t verified_bytes = 0;
    Nanos verify = 0;
    uint64_t late = 0;            // predictions that became exact and came after their deadline
    uint64_t rejected_bytes = 0;  // predicted bytes that went unused
    uint64_t used_bytes = 0;      // predicted or committed bytes that were wanted when they had come, or on their way
    std::array<uint64_t, kRefusals> refused{};  // pieces of speculation held back, by Refusal
};

// Which reads are compared with the store's checksums, where it has any, before their bytes are published. What was
// retried always is.
enum class Verify : uint8_t {
    always,
    once,  // until a component came well from its first holder once
    never,
};

// What somebody waits for. Stays where it is while it waits.
class Batch {
  public:
    explicit Batch(Owner owner = {}) : owner_(owner) {}
    Batch(const Batch&) = delete;
    Batch& operator=(const Batch&) = delete;
    [[nodiscard]] bool done() const { return pending_ == 0; }
    // The first thing that went wrong.
    [[nodiscard]] const Status& status() const { return status_; }

  private:
    friend class Scheduler;
    Owner owner_;
    uint32_t pending_ = 0;
    uint32_t early_ = 0;  // of those, reads that had begun before they were wanted
    Nanos due_ = 0;       // when the last of these was to be there
    Status status_;
};

// Not thread-safe. Nothing allocates after construction, except for the text of an error.
class Scheduler {
  public:
    struct Options {
        uint64_t store = 0;  // digest of the store, for tickets
        DeviceModel device;
        uint32_t max_tickets = 4096;
        uint32_t max_hints = 1024;  // queued predictions, in tickets
        uint32_t max_ahead = 8;     // reads of a layer that is next at the device at once
        uint8_t attempts = 2;       // of an exact read at each holder
        Verify verify = Verify::always;
    };

    // All three outlive the scheduler.
    Scheduler(Slots& slots, io::Engine& engine, const Clock& clock, Options options);
    ~Scheduler();
    Scheduler(const Scheduler&) = delete;
    Scheduler& operator=(const Scheduler&) = delete;

    // The context of exact wishes.
    struct Wish {
        trace::Phase phase = trace::Phase::decode;
        int32_t layer = 0;
        uint64_t tokens = 1;
        Nanos deadline = kNoDeadline;
        Class cls = Class::exact;  // or page
    };
    struct Part {
        RecordId record = kNoRecord;
        ComponentMask which = 0;
    };
    // Wants these components of records, each of which the caller has leased, for `batch`; what is ready already adds
    // nothing to it. They are given to the device together, in this order.
    void want(Batch& batch, std::span<const Part> parts, const Wish& wish);
    // The same components of all records.
    void want(Batch& batch, std::span<const RecordId> records, ComponentMask which, const Wish& wish);

    struct Hint {
        Class cls = Class::near;
        Owner owner;
        int32_t layer = 0;
        float confidence = 0;
        Nanos deadline = kNoDeadline;
    };
    // A record may be wanted soon. Whole or not at all: false if the queues have no room for all of it. What is
    // resident or on its way is left alone.
    bool hint(RecordId record, const Hint& hint);
    // The record is wanted, and has a slot: what of it came for a prediction came for a good one.
    void wanted(RecordId record) {
        if (predicted_unused_[record] != 0) used(record, UINT8_MAX);
    }
    // Of a layer that is next, component by component and in this order, each as a guest of the cache. Only while no
    // exact read is queued or at the device, and at most Options::max_ahead at once: that bounds what an exact read
    // which comes meanwhile can be delayed. Whoever wants one of them joins it. What is there or on its way is left
    // alone.
    void read_ahead(std::span<const RecordId> records);
    // Those not yet given to the device, and not wanted by now, are not read.
    void drop_ahead() { drop_queue(Class::ahead); }
    // A layer that comes soon is sure to choose the record: it is read as read_ahead() reads, but before that, as a
    // member of the cache, and in the order of deadlines. It pushes out nothing that is retained; then it is left to
    // who wants it. Whole or not at all. False if there is no room in the queue.
    bool commit(RecordId record, Nanos deadline);
    // Of a pass that was given up.
    void drop_committed() { drop_queue(Class::committed); }
    // When the next exact wishes are expected; speculation only runs until then. From the layer clock, usually.
    void expect_exact(Nanos at) { gap_end_ = at; }

    // Bytes of exact reads that have not come yet.
    [[nodiscard]] uint64_t exact_pending() const;
    // The same of guesses.
    [[nodiscard]] uint64_t guesses_pending() const;
    [[nodiscard]] bool hinted() const { return hints() > 0; }

    // Handles what has ended, without waiting.
    void settle(trace::Pass* pass = nullptr);
    // The same, and gives the device more.
    void pump(trace::Pass* pass = nullptr);
    // Until nothing of the batch is pending. After a failure, what the batch has not given to the device is cancelled.
    // `stop` ends the wait with Code::cancelled, also while a read does not come; the batch is abandoned then.
    Status wait(Batch& batch, trace::Pass* pass = nullptr, Stop stop = {});
    // Until at least one more of what the batch waits for has ended, or nothing of it is pending. Its status so far.
    Status wait_some(Batch& batch, trace::Pass* pass = nullptr, Stop stop = {});
    // Until any read at the device ends, whoever wanted it. False if none is there, or if it was stopped.
    bool wait_for_any(trace::Pass* pass = nullptr, Stop stop = {});
    // Nothing is wanted any more for batches of this owner, nor its hints: what is queued ends, what is at the device
    // becomes an ordinary cache entry if it arrives whole. No read is waited for.
    void cancel(Owner owner);
    // For whoever finds all slots leased: reads that nobody waits for and that are not at the device yet give way.
    // False if there is none; those at the device end by themselves (wait_for_any).
    bool free_leases();
    // A batch that is not waited for to its end must be abandoned before it goes.
    void abandon(Batch& batch);

    [[nodiscard]] LayerClock& layers() { return layers_; }
    [[nodiscard]] Admission& admission() { return admission_; }
    [[nodiscard]] const Drives& drives() const { return drives_; }
    [[nodiscard]] const SchedCounters& counters() const { return counters_; }
    [[nodiscard]] size_t live() const { return live_; }
    // Whether anything is at the device or, but for predictions, waits to go there.
    [[nodiscard]] bool reading() const { return at_device_ > 0 || exact_queued() || sure_queued(); }
    [[nodiscard]] size_t queued(Class cls) const { return queues_[static_cast<size_t>(cls)].n; }
    [[nodiscard]] uint64_t speculative_in_flight() const { return admission_.in_flight(); }
    // For tests and traces: the ticket, while the handle is of it. nullptr otherwise.
    [[nodiscard]] const Ticket* find(TicketHandle handle) const;
    [[nodiscard]] TicketHandle live_ticket(RecordId record, uint32_t component) const;

  private:
    using Index = uint32_t;
    static constexpr Index kNone = UINT32_MAX;
    // Pieces at the engine at once: enough to keep any drive busy.
    static constexpr size_t kPieces = 64;
    static constexpr uint32_t kMaxComponents = 4;

    struct Queue {
        Index head = kNone, tail = kNone;
        uint32_t n = 0;
    };
    struct Waiter {
        Batch* batch = nullptr;
        Index next = kNone;
    };
    struct Piece {
        Index ticket = kNone;
        HolderId holder = 0;
        uint32_t length = 0;
        bool speculative = false;
        bool ahead = false;
        Nanos issued = 0;
    };

    [[nodiscard]] size_t key(RecordId record, uint32_t component) const {
        return static_cast<size_t>(record) * kMaxComponents + component;
    }
    Index make_ticket(RecordId record, uint32_t component, Nanos now);
    Index make_exact_ticket(RecordId record, uint32_t component, Nanos now);
    void want_one(Batch& batch, RecordId record, ComponentMask which, const Wish& wish, Nanos now);
    Status wait_until(Batch& batch, uint32_t pending, trace::Pass* pass, Stop stop);
    bool take_lease(Ticket& t, cache::Seat seat = cache::Seat::member);
    [[nodiscard]] bool exact_queued() const { return queues_[0].head != kNone || queues_[1].head != kNone; }
    [[nodiscard]] bool sure_queued() const {
        return queues_[static_cast<size_t>(Class::committed)].head != kNone ||
               queues_[static_cast<size_t>(Class::ahead)].head != kNone;
    }
    [[nodiscard]] uint32_t hints() const { return queues_[4].n + queues_[5].n + queues_[6].n; }
    [[nodiscard]] ComponentMask absent(RecordId record) const;
    void drop_queue(Class cls);
    void choose_holder(Ticket& t);
    void enqueue(Index t, bool front = false);
    void dequeue(Index t);
    void add_waiter(Index t, Batch& batch);
    void remove_waiters(Index t, const std::function<bool(const Batch&)>& gone);
    void end_waiting(Index t, const Status& status);
    void promote(Index t, const Wish& wish, Batch& batch);
    void prepare_exact();
    void prepare_ahead();
    void prepare_speculative();
    bool prepare_piece(Index t, uint32_t length, bool speculative, Nanos now);
    [[nodiscard]] bool needs_staging(const Ticket& t) const;
    [[nodiscard]] bool may_have_lane(const Ticket& t) const;
    [[nodiscard]] std::span<const std::byte> arrived_bytes(const Ticket& t) const;
    bool matches(const Ticket& t, trace::Pass* pass);
    bool try_again(Index t);
    void note_rescue(const Ticket& t);
    void submit();
    void handle(std::span<const io::Completion> done, trace::Pass* pass);
    size_t wait_and_handle(trace::Pass* pass, Stop stop, trace::Part part = trace::Part::wait_read);
    [[nodiscard]] trace::Part waits_for(const Batch& batch) const;
    void piece_done(const io::Completion& done, Nanos now, trace::Pass* pass);
    void attempt_over(Index t, trace::Pass* pass);
    void publish(Index t, trace::Pass* pass);
    void let_go(Index t);
    void finish(Index t, TicketState state, const Status& status);
    [[nodiscard]] Status failure(const Ticket& t) const;
    void note_read(const Ticket& t, const Piece& piece, const io::Completion& done, Nanos now, trace::Pass& pass) const;
    void used(RecordId record, ComponentMask which);
    void judge(bool useful);

    Slots& slots_;
    io::Engine& engine_;
    const Clock& clock_;
    Options options_;
    LayerClock layers_;
    Admission admission_;
    Drives drives_;
    bool pages_ = false;  // somebody has wanted one
    uint32_t told_ = 0;   // rescues that the user was told of
    Nanos gap_end_ = Admission::kNoGap;

    std::vector<Ticket> tickets_;
    std::vector<Index> free_tickets_;
    std::vector<Index> by_key_;  // the live ticket of a component
    // By record, a bit per component.
    std::vector<ComponentMask> predicted_unused_;  // published for a prediction and not used since
    std::vector<ComponentMask> verified_;          // came well from the first holder
    std::array<Queue, kClasses> queues_;
    std::vector<Waiter> waiters_;
    std::vector<Index> free_waiters_;
    std::array<Piece, kPieces> pieces_;
    std::vector<uint32_t> free_pieces_;
    std::vector<io::ReadOp> batch_;
    size_t live_ = 0;
    uint32_t at_device_ = 0;           // pieces
    uint32_t speculative_pieces_ = 0;  // of those, and of those about to go
    uint32_t ahead_pieces_ = 0;        // the same
    Nanos busy_since_ = 0;
    uint64_t endings_ = 0;
    SchedCounters counters_;
};

}  // namespace sluice::sched
