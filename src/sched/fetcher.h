// Owns: bringing records into slots -- the only place that submits a read of an expert.
// Keeps: a component is marked ready only after all its bytes arrived (and were converted, where slots hold another
// form than the file); after a failed read the record is as if it had never been asked for; when a call returns, none
// of its reads is still on its way.
//
// First, simple version: one batch per call, waited for at once. The scheduler proper (tickets, deadlines, speculation)
// takes this place later without changing who calls it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/memory.h"
#include "base/status.h"
#include "cache/layout.h"
#include "cache/slot_cache.h"
#include "io/engine.h"
#include "store/record_store.h"
#include "trace/pass.h"

namespace sluice::sched {

using cache::ComponentMask;
using cache::SlotId;

// Turns the file's bytes of one component into the form that slots hold: `bytes` from `raw` to `slot`, which do not
// overlap. Runs on the thread that called load().
using Convert =
    std::function<void(uint32_t set, uint32_t component, const std::byte* raw, std::byte* slot, uint64_t bytes)>;

struct FetchCounters {
    uint64_t reads = 0;
    uint64_t logical_bytes = 0;   // bytes of components that were brought in
    uint64_t physical_bytes = 0;  // bytes that the device was asked for
    Nanos busy = 0;               // time with at least one read on its way
    Nanos wait = 0;               // time spent with nothing to do but wait for a read
    Nanos convert = 0;
};

// Not thread-safe. Nothing allocates after create().
class Fetcher {
  public:
    struct Options {
        uint64_t budget = 0;                       // bytes for slots
        uint32_t min_slots = 1;                    // top-k: what a layer wants at once
        std::vector<std::vector<bool>> converted;  // [set][component]: slots hold convert()'s form
        Convert convert;                           // may be empty when nothing is converted
    };

    // `store`, `engine` and `clock` outlive the fetcher. Errors: the budget holds no record; no memory.
    static Result<std::unique_ptr<Fetcher>> create(const store::RecordStore& store, io::Engine& engine,
                                                   const Clock& clock, Options options);

    // The slot shapes that a budget is checked against, without making anything.
    static std::vector<cache::SetShape> shapes(const store::RecordStore& store,
                                               const std::vector<std::vector<bool>>& converted);

    // Leases as many of `records` as there is room for, residents first so that they are not evicted for the others;
    // reorders `records` so that the leased ones come first. Returns how many; at least one if nothing else is leased.
    // Each leased record is released once. `records` are of one set and distinct.
    size_t lease(std::span<RecordId> records);
    void release(std::span<const RecordId> records);

    // Makes the components in `which` of all `leased` records ready. On error some records may have become ready and
    // stay so; the error names file, offset, length, layer and expert. The leases stay either way. `pass`, if given,
    // is told where the time went and of every read.
    Status load(std::span<const RecordId> leased, ComponentMask which, trace::Pass* pass = nullptr);

    // True if all of the record's components are there.
    [[nodiscard]] bool resident(RecordId record) const;
    // The component's first byte in its slot. The record is leased and the component ready.
    [[nodiscard]] std::byte* data(RecordId record, uint32_t component) const;

    [[nodiscard]] const cache::SlotCache& cache() const { return cache_; }
    [[nodiscard]] const cache::Layout& layout() const { return layout_; }
    [[nodiscard]] const FetchCounters& counters() const { return counters_; }
    // All that the engine was asked for, by whomever.
    [[nodiscard]] const io::EngineTotals& engine_totals() const { return engine_.totals(); }
    [[nodiscard]] std::byte* arena() const { return arena_.data(); }

  private:
    struct Pending {
        RecordId record = 0;
        uint32_t component = 0;
        std::byte* staging = nullptr;  // nullptr: straight into the slot
        Nanos issued = 0;
        uint32_t length = 0;
    };

    Fetcher(const store::RecordStore& store, io::Engine& engine, const Clock& clock, Options options,
            cache::Layout layout, cache::SlotCache cache);
    [[nodiscard]] std::byte* place(RecordId record, uint32_t component) const;
    [[nodiscard]] ComponentMask all_components(uint32_t set) const;
    Status complete(const io::Completion& done, trace::Pass* pass);
    void note_read(const io::Completion& done, Nanos ready, trace::Pass& pass) const;
    Status failed_read(const Pending& p, const io::Completion& done) const;

    const store::RecordStore& store_;
    io::Engine& engine_;
    const Clock& clock_;
    Options options_;
    cache::Layout layout_;
    cache::SlotCache cache_;
    Region arena_;
    Region staging_region_;
    std::vector<std::byte*> free_staging_;
    std::vector<Pending> pending_;  // by tag
    std::vector<uint32_t> free_tags_;
    std::vector<io::ReadOp> batch_;
    FetchCounters counters_;
};

}  // namespace sluice::sched
