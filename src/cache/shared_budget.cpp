#include "cache/shared_budget.h"

#include <algorithm>

#include "base/bytes.h"

namespace sluice::cache {

BudgetShare::~BudgetShare() {
    budget_.leave(*this);
}

uint64_t BudgetShare::limit() {
    budget_.look();
    return limit_.load(std::memory_order_relaxed);
}

uint64_t BudgetShare::looks() const {
    return budget_.looks_.load(std::memory_order_relaxed);
}

bool BudgetShare::may_take(uint64_t bytes) {
    const std::lock_guard<std::mutex> lock(budget_.mutex_);
    if (held() + bytes > limit_.load(std::memory_order_relaxed)) return false;
    const uint64_t before = budget_.governor_.limit();
    if (budget_.governor_.may_take(budget_.readings(), budget_.held_locked(), bytes)) return true;
    if (budget_.governor_.limit() < before) {
        budget_.divide();
        budget_.tell({Governor::Change::denied, Governor::Cause::none});
    }
    return false;
}

SharedBudget::SharedBudget(const Clock& clock, Read read, Governor::Options options, Tell tell)
    : clock_(clock),
      read_(std::move(read)),
      tell_(std::move(tell)),
      floor_(options.floor),
      ceiling_(options.ceiling),
      governor_(options) {}

std::unique_ptr<BudgetShare> SharedBudget::join(uint64_t least, uint64_t most, Governor::Room* found) {
    std::unique_ptr<BudgetShare> share(new BudgetShare(*this, least, std::max(least, most)));
    const std::lock_guard<std::mutex> lock(mutex_);
    shares_.push_back(share.get());
    divide();
    const Governor::Room room = governor_.begin(readings(), held_locked());
    if (found != nullptr) *found = room;
    divide();
    return share;
}

bool SharedBudget::make_room(uint64_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Readings now = readings();
    now.pending = add_capped(now.pending, bytes);
    const Governor::Room room = governor_.begin(now, held_locked());
    divide();
    return !room.below_floor;
}

void SharedBudget::leave(BudgetShare& share) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase(shares_, &share);
    divide();
}

void SharedBudget::set_limit(std::optional<uint64_t> bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    governor_.set_limit(bytes);
    divide();
}

void SharedBudget::look() {
    const Nanos now = clock_.now();
    if (now < next_look_.load(std::memory_order_relaxed)) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (now < next_look_.load(std::memory_order_relaxed)) return;
    look_locked(now);
}

void SharedBudget::look_locked(Nanos now) {
    next_look_.store(now + kLookEvery, std::memory_order_relaxed);
    looks_.fetch_add(1, std::memory_order_relaxed);
    if (shares_.empty()) return;
    const Governor::Decision decision = governor_.look(readings(), held_locked());
    if (decision.change == Governor::Change::none) return;
    divide();
    tell(decision);
}

// Each gets its least, and of the rest a part in proportion to what it could still use.
void SharedBudget::divide() {
    uint64_t least = 0, most = 0;
    for (const BudgetShare* s : shares_) {
        least += s->least_;
        most += s->most_;
    }
    // A floor above all that experts can use is no memory that anybody wants.
    governor_.set_bounds(std::max(std::min(floor_, most), least), std::max(least, std::min(ceiling_, most)));
    const uint64_t limit = governor_.limit();
    const uint64_t rest = sub_floored(limit, least);
    for (BudgetShare* s : shares_) {
        uint64_t part = s->most_ - s->least_;
        if (most - least > rest) {
            part = static_cast<uint64_t>(static_cast<double>(rest) * static_cast<double>(part) /
                                         static_cast<double>(most - least));
        }
        s->limit_.store(s->least_ + part, std::memory_order_relaxed);
    }
}

void SharedBudget::tell(Governor::Decision decision) {
    // It stays so; once is enough.
    const bool stuck = decision.change == Governor::Change::stuck;
    if (tell_ && !(stuck && stuck_)) tell_(decision, governor_.limit());
    stuck_ = stuck;
}

uint64_t SharedBudget::held_locked() const {
    uint64_t sum = 0;
    for (const BudgetShare* s : shares_) sum += s->held();
    return sum;
}

// What lies beside held slots is there for experts, not taken by anybody.
Readings SharedBudget::readings() const {
    Readings r = read_();
    uint64_t beside = 0;
    for (const BudgetShare* s : shares_) beside += s->beside_.load(std::memory_order_relaxed);
    if (r.process) *r.process = sub_floored(*r.process, beside);
    if (r.free) *r.free = add_capped(*r.free, beside);
    return r;
}

uint64_t SharedBudget::limit() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return governor_.limit();
}

uint64_t SharedBudget::least() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    uint64_t sum = 0;
    for (const BudgetShare* s : shares_) sum += s->least_;
    return sum;
}

size_t SharedBudget::shares() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return shares_.size();
}

uint64_t SharedBudget::held() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return held_locked();
}

}  // namespace sluice::cache
