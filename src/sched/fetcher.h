// Owns: what one layer's visit does with the cache: lease its experts, have what is missing read, give them back.
// Keeps: a component is there only after all its bytes arrived, were verified where that is possible, and were
// converted where slots hold another form than the file; when load() returns without having been stopped, none of its
// reads is still on its way.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "io/engine.h"
#include "sched/scheduler.h"
#include "sched/slots.h"
#include "store/record_store.h"
#include "trace/pass.h"

namespace sluice::sched {

// Not thread-safe. Nothing allocates after create().
class Fetcher {
  public:
    struct Options {
        Slots::Options slots;
        Scheduler::Options reads;
    };

    // `store`, `engine` and `clock` outlive the fetcher. Errors: the budget holds no record; no memory.
    static Result<std::unique_ptr<Fetcher>> create(const store::RecordStore& store, io::Engine& engine,
                                                   const Clock& clock, Options options);

    // The model computes this set's block now. In decode it says when the next exact reads are to be expected, from how
    // long the blocks took before; a prompt has no pace of its own. Called once per block, before its experts are
    // leased.
    void enter(uint32_t set, trace::Phase phase);
    // What the router chose there, for the cache's policy: once per block, however many pieces it is computed in, then
    // every choice by its token, counted from the block's last. Choices of a block of one token may be left to lease().
    void visit(uint32_t set, uint32_t tokens, trace::Phase phase) {
        slots_->cache().visit(set, tokens, phase == trace::Phase::prefill);
    }
    void chosen(RecordId record, uint32_t tokens_after) { slots_->cache().use_by(record, tokens_after); }

    // In a prompt: this set comes next, and its experts, as far as they are not there and there is room for them, are
    // read in the order of the file although no router has chosen them, `most` of them. They stop when another set is
    // entered, or on end_ahead(), but for what is at the device. In decode nothing happens.
    void read_ahead(uint32_t set, uint32_t most = UINT32_MAX);
    void end_ahead() { scheduler_->drop_ahead(); }
    // Of the set's experts, how many are not there, and for how many of those read_ahead() would have room.
    struct Missing {
        uint32_t experts = 0, room = 0;
    };
    [[nodiscard]] Missing missing(uint32_t set) const;

    // In decode, after what the entered set needs was asked for: these records of another set, most likely first, may
    // be wanted when that is entered next. Who is there keeps its slot until then; the others are read while the drive
    // has nothing else to do, whole or not at all, and keep their slots likewise. Nobody waits for them. Read are only
    // those that can be there in time and are sure enough that the wait they remove is more than what they may cause
    // (route/early_read.h). Returns how many are to be read: none while the layers' pace is not known.
    struct Foreseen {
        RecordId record = kNoRecord;
        float confidence = 0;  // the chance that it is chosen, as such guesses have come true so far
    };
    uint32_t foresee(std::span<const Foreseen> records);
    // Of those that were there, how many were the next to go.
    [[nodiscard]] uint64_t spared() const { return spared_; }
    // The same for records that the set is sure to choose: they are read whatever the pace, and not as a guess.
    uint32_t commit(std::span<const Foreseen> records);

    // Leases as many of `records` as there is room for, residents first so that they are not evicted for the others;
    // reorders `records` so that the leased ones come first. Returns how many; none only while others hold all slots:
    // leases of somebody else, or reads that nobody waits for but that are at the device (wait_for_any, then again).
    // Each leased record is released once. `records` are of one set and distinct. As guests they leave alone what the
    // cache lives on (cache::SlotCache); as members, guests among them become members.
    size_t lease(std::span<RecordId> records, cache::Seat seat = cache::Seat::member);
    void release(std::span<const RecordId> records);

    // Makes the components in `which` of all `leased` records ready. On error some records may have become ready and
    // stay so; the error names file, offset, length, layer and expert. The leases stay either way. `pass`, if given,
    // is told where the time went and of every read.
    // `stop` ends it with Code::cancelled.
    Status load(std::span<const RecordId> leased, ComponentMask which, trace::Pass* pass = nullptr, Stop stop = {});

    // The same in steps, for who computes meanwhile: asks for parts of leased records, in the order in which they will
    // be needed; waits until at least one more has come; looks what has come without waiting. wait_some() says what
    // went wrong first, if anything. Who does not wait to the end gives the batch up before its leases.
    void request(Batch& batch, std::span<const Scheduler::Part> parts, trace::Pass* pass = nullptr);
    Status wait_some(Batch& batch, trace::Pass* pass = nullptr, Stop stop = {}) {
        return scheduler_->wait_some(batch, pass, stop);
    }
    void look(trace::Pass* pass = nullptr) {
        if (scheduler_->hinted()) expect_next();
        scheduler_->pump(pass);
    }
    // What has ended by now is there from now on; the device is given nothing.
    void settle(trace::Pass* pass = nullptr) { scheduler_->settle(pass); }
    // Until any read ends, whoever wanted it; its slot may be free then. False if none is on its way, or stopped.
    bool wait_for_any(trace::Pass* pass = nullptr, Stop stop = {}) { return scheduler_->wait_for_any(pass, stop); }
    void give_up(Batch& batch) { scheduler_->abandon(batch); }
    [[nodiscard]] bool ready(RecordId record, ComponentMask which) const { return slots_->has(record, which); }
    // Whether reads are on their way, or are to be as soon as somebody looks.
    [[nodiscard]] bool reading() const { return scheduler_->reading(); }
    // Of the first holder's drive, in bytes per nanosecond: as probed, else as seen so far; 0: neither.
    [[nodiscard]] double bandwidth() const {
        const double probed = scheduler_->admission().device().bytes_per_ns;
        return probed > 0 ? probed : scheduler_->drives().speed(0);
    }

    // True if all of the record's components are there.
    [[nodiscard]] bool resident(RecordId record) const { return slots_->resident(record); }
    // The component's first byte in its slot. The record is leased and the component ready.
    [[nodiscard]] std::byte* data(RecordId record, uint32_t component) const { return slots_->data(record, component); }

    [[nodiscard]] const cache::SlotCache& cache() const { return slots_->cache(); }
    // What the cache's policy knows of experts.
    [[nodiscard]] cache::Order& order() { return slots_->cache().order(); }
    [[nodiscard]] const cache::Layout& layout() const { return slots_->layout(); }
    // Announces the memory of all slots to the engine. It is not worth its price by default: pinned pages cannot be
    // given back, and reads were no faster with them (docs/results/reads.md).
    Status register_arena() {
        slots_->pin();
        return engine_.register_memory(slots_->arena());
    }
    // Bytes of slots in use, at most so many from now on; see Slots::set_limit().
    void set_limit(uint64_t bytes) { slots_->set_limit(bytes); }
    // Does what the budget's share says, outside of any block.
    void follow_share() { slots_->follow_share(); }
    [[nodiscard]] std::span<std::byte> arena() const { return slots_->arena(); }
    [[nodiscard]] uint64_t held() const { return slots_->held(); }
    [[nodiscard]] uint64_t limit() const { return slots_->limit(); }
    [[nodiscard]] uint64_t slots_within_limit() const { return slots_->within_limit(); }
    [[nodiscard]] Scheduler& scheduler() { return *scheduler_; }
    [[nodiscard]] const SchedCounters& counters() const { return scheduler_->counters(); }
    // All that the engine was asked for, by whomever.
    [[nodiscard]] const io::EngineTotals& engine_totals() const { return engine_.totals(); }

  private:
    Fetcher(std::unique_ptr<Slots> slots, io::Engine& engine, const Clock& clock, Scheduler::Options reads)
        : slots_(std::move(slots)),
          engine_(engine),
          clock_(clock),
          scheduler_(std::make_unique<Scheduler>(*slots_, engine, clock, std::move(reads))) {}

    std::unique_ptr<Slots> slots_;  // outlives the scheduler
    void expect_next();
    [[nodiscard]] std::optional<Nanos> due(uint32_t set) const;
    [[nodiscard]] Scheduler::Wish wish_of(RecordId record, const trace::Pass* pass) const;

    static constexpr uint32_t kNoSet = UINT32_MAX;
    io::Engine& engine_;
    const Clock& clock_;
    std::unique_ptr<Scheduler> scheduler_;
    uint32_t ahead_ = kNoSet;  // the set that was read ahead last
    bool prompt_ = false;
    std::vector<RecordId> ahead_records_;
    uint32_t set_ = kNoSet;  // entered last in decode, when, and the waits until then
    Nanos entered_ = 0, waited_ = 0;
    uint64_t asked_ = 0;  // bytes of exact reads until then
    // Of decode's blocks lately: waiting, and bytes that were read because a router had chosen them.
    double wait_sum_ = 0, byte_sum_ = 0;
    uint64_t spared_ = 0;
};

}  // namespace sluice::sched
