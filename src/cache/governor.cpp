#include "cache/governor.h"

#include <algorithm>

namespace sluice::cache {
Governor::Room Governor::room(const Readings& now, uint64_t held, unsigned part) const {
    Room r{options_.ceiling};
    const auto at_most = [&](uint64_t bytes, Cause cause) {
        if (bytes < r.bytes) r = {bytes, cause, false};
    };
    if (options_.ram && now.process) {
        const uint64_t others = add_capped(sub_floored(*now.process, held), now.pending);
        at_most(sub_floored(*options_.ram, add_capped(others, options_.margin / part)), Cause::ram);
    }
    if (now.free) {
        at_most(sub_floored(add_capped(held, *now.free), add_capped(now.pending, options_.reserve / part)),
                Cause::free);
    }
    r.below_floor = r.bytes < options_.floor;
    r.bytes = std::max(r.bytes, options_.floor);
    return r;
}

// Others may be short in a group of their own, where our going down would not help them: it counts only where memory is
// short here, too.
bool Governor::pressed(const Readings& now) const {
    return options_.heeds_pressure && now.pressure && *now.pressure >= kPressed &&
           (!now.free || sub_floored(*now.free, now.pending) < 2 * options_.reserve);
}

uint64_t Governor::step() const {
    return std::max<uint64_t>(32 * MiB, limit() / 8);
}

// A small cache comes back, too.
uint64_t Governor::least_step() const {
    return std::min(step(), std::max<uint64_t>(MiB, limit() / 8));
}

// Where next to nothing is free, what lacks is more than can be seen, and who takes it may be fast: each step is twice
// the one before it then, until there is some.
uint64_t Governor::drop(const Readings& now, uint64_t seen) {
    const bool again = taken_ > 0 && has_gone_down_ && now.now - went_down_ < kOneEvent;
    const bool nothing = sub_floored(now.free.value_or(0), now.pending) < options_.reserve / 8;
    taken_ = again && nothing ? std::max(seen, add_capped(taken_, taken_)) : seen;
    return taken_;
}

void Governor::freeze(Nanos now) {
    if (!has_gone_down_ || now - went_down_ >= kForget) {
        wait_ = options_.patience;
    } else if (now - went_down_ >= kOneEvent) {
        wait_ = std::min(2 * wait_, kLongestWait);
    }
    has_gone_down_ = true;
    went_down_ = now;
    roomy_since_.reset();
}

uint64_t Governor::limit() const {
    const uint64_t most = std::min({options_.ceiling, own_.value_or(UINT64_MAX), told_.value_or(UINT64_MAX)});
    return told_ ? most : std::max(most, options_.floor);
}

Governor::Room Governor::begin(const Readings& now, uint64_t held) {
    const Room found = room(now, held, 1);
    if (found.bytes < limit()) {
        own_ = found.bytes;
        roomy_since_.reset();
    }
    return found;
}

Governor::Decision Governor::look(const Readings& now, uint64_t held) {
    const uint64_t before = limit();
    const Room tight = room(now, held, 2);
    if (held > tight.bytes) {
        const Room wanted = room(now, held, 1);
        if (wanted.bytes >= before) return {};  // on its way there
        own_ = wanted.bytes;
        if (tight.cause == Cause::free)
            own_ = std::max(options_.floor, sub_floored(held, drop(now, held - wanted.bytes)));
        freeze(now.now);
        return {Change::down, tight.cause};
    }
    if (tight.below_floor && held > 0) return {Change::stuck, tight.cause};
    if (pressed(now)) {
        roomy_since_.reset();
        if (has_gone_down_ && now.now - went_down_ < kBetweenSteps) return {};
        const uint64_t next = std::max(sub_floored(std::min(held, before), held / 8), options_.floor);
        if (next >= before || held == 0) return {};
        freeze(now.now);
        own_ = next;
        return {Change::down, Cause::pressure};
    }
    if (!own_) return {};
    const uint64_t roomy = room(now, held, 1).bytes;
    const bool calm = !options_.heeds_pressure || now.pressure.value_or(0) < kCalm;
    if (!calm || roomy < std::min(add_capped(*own_, least_step()), options_.ceiling)) {
        roomy_since_.reset();
        return {};
    }
    if (!roomy_since_) roomy_since_ = now.now;
    if (now.now - *roomy_since_ < wait_) return {};
    roomy_since_ = now.now;
    *own_ = std::min(roomy, add_capped(*own_, step()));
    if (*own_ >= options_.ceiling) own_.reset();
    return {limit() > before ? Change::up : Change::none, Cause::none};
}

bool Governor::may_take(const Readings& now, uint64_t held, uint64_t bytes) {
    const uint64_t then = add_capped(held, bytes);
    if (then > limit()) return false;
    const uint64_t there = room(now, held, 1).bytes;
    if (then <= there && !pressed(now)) return true;
    // Less than was asked for may be there.
    own_ = std::max({held, options_.floor, pressed(now) ? 0 : std::min(there, sub_floored(then, 1))});
    roomy_since_.reset();
    return false;
}

void Governor::set_limit(std::optional<uint64_t> bytes) {
    told_ = bytes;
    // Who asks for more wants it now.
    if (own_ && (!bytes || *bytes > *own_)) own_.reset();
}

void Governor::set_bounds(uint64_t floor, uint64_t ceiling) {
    options_.floor = floor;
    options_.ceiling = std::max(floor, ceiling);
}

const char* cause_text(Governor::Cause cause) {
    switch (cause) {
        case Governor::Cause::ram:
            return "the process has grown otherwise";
        case Governor::Cause::free:
            return "others need the memory";
        case Governor::Cause::pressure:
            return "others wait for memory";
        case Governor::Cause::told:
            return "as told";
        case Governor::Cause::none:
            break;
    }
    return "";
}

}  // namespace sluice::cache
