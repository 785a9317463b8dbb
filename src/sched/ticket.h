// Owns: what one wanted read is: which bytes, for whom, how urgently, where to, and how far it has come.
// Keeps: a ticket ends exactly once; a handle of an ended ticket is never mistaken for the one that took its place.
#pragma once

#include <cstdint>

#include "base/clock.h"
#include "base/ids.h"
#include "cache/slot_cache.h"
#include "store/record_store.h"
#include "trace/schema.h"

namespace sluice::sched {

// How urgent. Exact reads come first, whatever was asked for before.
enum class Class : uint8_t {
    page,         // P0: a small exact read that must not stand behind experts, such as a row of a per-layer table
    exact,        // P0: the router has chosen it, compute waits
    committed,    // P1: a layer that comes soon is sure to choose it
    ahead,        // P1: of a whole layer of a prompt that is next; nearly all of it will be chosen
    near,         // P1: predicted for a layer that comes soon
    speculative,  // P2: predicted for later layers or tokens
    warming,      // P3: nobody predicted it, it might be useful
};
inline constexpr size_t kClasses = 7;
inline constexpr bool is_exact(Class cls) {
    return cls <= Class::exact;
}
// Somebody predicted it. Such reads go by Admission's rules.
inline constexpr bool is_guess(Class cls) {
    return cls >= Class::near;
}

enum class TicketState : uint8_t {
    free,
    queued,
    submitted,  // at least a part is at the device
    // Ended:
    ready,  // its bytes are published
    failed,
    cancelled,  // never published
};
inline constexpr bool ended(TicketState s) {
    return s >= TicketState::ready;
}

// For whom a ticket is: all of an owner's tickets of a generation can be cancelled at once.
struct Owner {
    uint32_t id = 0;
    uint32_t generation = 0;
    friend bool operator==(Owner, Owner) = default;
};

struct TicketHandle {
    uint32_t index = UINT32_MAX;
    uint32_t generation = 0;
    friend bool operator==(TicketHandle, TicketHandle) = default;
};

inline constexpr Nanos kNoDeadline = INT64_MAX;

// The fields that R56 of the wavefront names. One ticket is one component of one record.
struct Ticket {
    uint64_t store = 0;  // digest of the store that the bytes come from
    RecordId record = kNoRecord;
    uint8_t component = 0;

    Owner owner;
    trace::Phase phase = trace::Phase::decode;
    int32_t layer = 0;
    uint64_t tokens = 0;  // mask of the rows of the batch that want it; those beyond 63 share the last bit

    Class cls = Class::exact;
    bool predicted = false;  // it began as a prediction
    float confidence = 1;
    Nanos issued = 0;
    Nanos deadline = kNoDeadline;
    Nanos first_submitted = 0;

    uint32_t bytes = 0;     // of the component
    uint32_t physical = 0;  // that the device is asked for, once through
    cache::SlotId slot = cache::kNoSlot;
    uint32_t slot_generation = 0;
    bool holds_lease = false;
    uint32_t waiters = 0;
    uint64_t completion = 0;  // in the order of endings

    TicketState state = TicketState::free;
    bool joined = false;
    bool promoted = false;
    bool early = false;       // a part was at the device, or had been, before anybody wanted it
    Nanos due = kNoDeadline;  // then: when it was to be there
    bool orphan = false;      // its owner is gone; its buffer stays until the device is done

    // Machinery of the scheduler.
    uint32_t generation = 0;
    uint32_t asked = 0;          // bytes of the aligned read given to the device so far
    uint32_t arrived = 0;        // of those, back
    uint32_t pieces = 0;         // at the device
    store::HolderId holder = 0;  // that this attempt reads from
    uint8_t exhausted = 0;       // bit h: holder h has had its attempts
    uint8_t attempts = 0;        // at this holder
    int32_t error = 0;           // of a piece of this attempt
    int32_t first_error = 0;     // of the first attempt, and whose that was
    store::HolderId first_holder = 0;
    std::byte* staging = nullptr;
    uint32_t first_waiter = UINT32_MAX;
    uint32_t next = UINT32_MAX, previous = UINT32_MAX;  // in its queue
};

}  // namespace sluice::sched
