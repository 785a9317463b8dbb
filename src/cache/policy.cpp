#include "cache/policy.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

namespace sluice::cache {
namespace {

// A sum below this is forgotten: it would only make arithmetic slow.
constexpr double kForgotten = 1e-30;
// A record that was never used, and how sure one can be of any.
constexpr double kLeastChance = 1e-6;
// Longest wait that a hint can speak of.
constexpr uint32_t kFar = 1U << 20U;
// Less than any other key: who is retained goes after all who are not.
constexpr double kRetained = -1e6;

// Whether a set's turn counts.
bool has_turns(Policy policy) {
    return policy != Policy::lru && policy != Policy::frequency;
}

// Whether the chance of a use counts.
bool has_chances(Policy policy) {
    return policy == Policy::reuse || policy == Policy::stall || policy == Policy::hinted;
}

}  // namespace

Order::Order(std::span<const uint32_t> set_of_record, std::span<const uint32_t> class_of_record, size_t n_classes,
             Policy policy, const Tuning& tuning)
    : policy_(policy),
      tuning_(tuning),
      short_keep_(std::exp2(-1 / tuning.short_half_life)),
      long_keep_(std::exp2(-1 / (policy == Policy::frequency ? kHalfLife : tuning.long_half_life))),
      set_of_(set_of_record.begin(), set_of_record.end()),
      class_of_(class_of_record.begin(), class_of_record.end()),
      classes_(n_classes) {
    const size_t n = set_of_.size();
    assert(class_of_.size() == n);
    for (size_t r = 0; r < n; ++r) {
        assert(r == 0 ? set_of_[r] == 0 : set_of_[r] == set_of_[r - 1] || set_of_[r] == set_of_[r - 1] + 1);
        assert(r == 0 || set_of_[r] != set_of_[r - 1] || class_of_[r] == class_of_[r - 1]);
        if (r == 0 || set_of_[r] != set_of_[r - 1]) set_begin_.push_back(static_cast<uint32_t>(r));
    }
    const size_t n_sets = set_begin_.size();
    set_begin_.push_back(static_cast<uint32_t>(n));
    group_of_set_.resize(n_sets);
    for (uint32_t c = 0; c < n_classes; ++c) {
        classes_[c].first_group = static_cast<uint32_t>(groups_of_class_.size());
        for (uint32_t s = 0; s < n_sets; ++s) {
            if (class_of_[set_begin_[s]] != c) continue;
            const uint32_t records = set_begin_[s + 1] - set_begin_[s];
            if (policy != Policy::lru || classes_[c].n_groups == 0) {
                groups_of_class_.push_back(static_cast<uint32_t>(groups_.size()));
                set_of_group_.push_back(s);
                groups_.emplace_back();
                ++classes_[c].n_groups;
            }
            group_of_set_[s] = static_cast<uint32_t>(groups_.size() - 1);
            std::vector<RecordId>& heap = groups_.back().heap;
            heap.reserve(heap.capacity() + records);
        }
    }
    for (size_t age = 0; age < short_worth_.size(); ++age) {
        short_worth_[age] = std::pow(short_keep_, static_cast<double>(age));
        long_worth_[age] = std::pow(long_keep_, static_cast<double>(age));
    }
    if (has_chances(policy) && tuning.echo_share > 0) {
        std::vector<uint32_t> experts(n_sets);
        for (size_t i = 0; i < n_sets; ++i) experts[i] = set_begin_[i + 1] - set_begin_[i];
        echo_.emplace(experts, tuning.echo_sharpness, tuning.prompt_share);
        echoes_.assign(n, 0);
    }
    heard_.assign(n_sets, 0);
    cost_.assign(n_sets, 1);
    visits_.assign(n_sets, 0);
    tokens_.assign(n_sets, 0);
    prompt_.assign(n_sets, 0);
    keeps_.assign(n_sets, 0);
    decided_.assign(n_sets, 0);
    short_.assign(n, 0);
    long_.assign(n, 0);
    key_.assign(n, 0);
    released_.assign(n, 0);
    used_in_.assign(n, kNever);
    due_.assign(n, kNever);
    idle_.assign(n, 0);
    kept_until_.assign(n, 0);
    uses_.assign(n, 0);
    token_uses_.assign(n, 0);
    place_.assign(n, kNowhere);
}

void Order::visit(uint32_t set, uint32_t tokens, bool prompt) {
    assert(set < visits_.size());
    if (unsettled_ != kNowhere) settle_now(false);
    now_ = set;
    ++visits_[set];
    prompt_[set] = prompt ? 1 : 0;
    decided_[set] = 0;
    if (policy_ == Policy::lru) {
        if (std::exchange(keeps_[set], 0) != 0) end_retention(set);
        return;
    }
    keeps_[set] = 0;  // keys are made anew when the visit's uses are known
    tokens_[set] += tokens;
    const double short_keep = tokens == 1 ? short_keep_ : std::pow(short_keep_, tokens);
    const double long_keep = tokens == 1 ? long_keep_ : std::pow(long_keep_, tokens);
    for (uint32_t r = set_begin_[set]; r < set_begin_[set + 1]; ++r) {
        const double s = short_[r] * short_keep, l = long_[r] * long_keep;
        short_[r] = s < kForgotten ? 0 : s;
        long_[r] = l < kForgotten ? 0 : l;
    }
    listens_ = echo_.has_value() && (tokens == 1 || (prompt && tokens > kUnclearRows));
    if (listens_) {
        echo_->visit(set, tokens, prompt);
    } else {
        heard_[set] *= long_keep;  // what was expected before becomes older as what was used does
    }
    unsettled_ = set;
}

// `wanted`: somebody may have to go of those who are not in the order yet.
void Order::settle_now(bool wanted) {
    const uint32_t set = std::exchange(unsettled_, kNowhere);
    std::vector<RecordId>& heap = groups_[group_of_set_[set]].heap;
    if (listens_) {
        echo_->listen(set);
        const uint32_t first = set_begin_[set];
        if (wanted || !heap.empty()) {
            const bool heard = echo_->expect(set, std::span(echoes_).subspan(first, set_begin_[set + 1] - first));
            heard_[set] = heard ? tuning_.echo_share : 0;
        }
    }
    for (const RecordId r : heap) key_[r] = key(r);
    std::make_heap(heap.begin(), heap.end(), [&](RecordId a, RecordId b) { return goes_before(b, a); });
    for (uint32_t i = 0; i < heap.size(); ++i) place_[heap[i]] = i;
}

void Order::use(RecordId record, uint32_t age) {
    const uint32_t set = set_of_[record];
    if (policy_ == Policy::lru) return;
    ++token_uses_[record];
    const double share = prompt_[set] != 0 ? tuning_.prompt_share : 1;
    if (age < short_worth_.size()) {
        short_[record] += share * short_worth_[age];
        long_[record] += share * long_worth_[age];
    }
    if (listens_) echo_->use(set, record - set_begin_[set], age);
    if (used_in_[record] != visits_[set]) ++uses_[record];
    used_in_[record] = visits_[set];
    due_[record] = kNever;
}

double Order::chance(RecordId record) const {
    double p = tuning_.short_share * (1 - short_keep_) * short_[record] +
               (1 - tuning_.short_share) * (1 - long_keep_) * long_[record];
    if (const double heard = heard_[set_of_[record]]; heard > 0) p = (1 - heard) * p + heard * echoes_[record];
    return std::min(1.0, p + kLeastChance);
}

void Order::expect(RecordId record, double chance, double trust) {
    const double sum = std::clamp(chance, 0.0, 1.0) * std::clamp(trust, 0.0, 1.0) / (1 - long_keep_);
    long_[record] = std::max(long_[record], sum);
}

void Order::hint(RecordId record, uint32_t visits) {
    due_[record] = visits_[set_of_[record]] + 1 + std::min(visits, kFar);
    if (policy_ == Policy::hinted) rekey(record);
}

void Order::hint_idle(RecordId record, uint32_t visits) {
    due_[record] = kNever;
    idle_[record] = visits_[set_of_[record]] + std::min(visits, kFar);
    if (policy_ == Policy::hinted) rekey(record);
}

void Order::retain(RecordId record) {
    const uint32_t set = set_of_[record];
    kept_until_[record] = visits_[set] + 1;
    keeps_[set] = 1;
    rekey(record);
}

// Where a visit changes no other keys.
void Order::end_retention(uint32_t set) {
    for (RecordId r = set_begin_[set]; r < set_begin_[set + 1]; ++r) {
        if (kept_until_[r] == visits_[set]) rekey(r);
    }
}

void Order::rekey(RecordId record) {
    if (place_[record] == kNowhere) return;
    Group& group = groups_[group_of(record)];
    const uint32_t place = place_[record];
    key_[record] = key(record);
    if (place > 0 && goes_before(record, group.heap[(place - 1) / 2])) {
        rise(group, place, record);
    } else {
        sink(group, place, record);
    }
}

// The greater, the sooner the record goes. In visits, for those policies that reckon with the turn of layers.
double Order::key(RecordId record) const {
    const uint64_t now = visits_[set_of_[record]];
    if (kept_until_[record] > now) return kRetained;
    const auto since = static_cast<double>(used_in_[record] == kNever ? now + 1 : now - used_in_[record] + 1);
    switch (policy_) {
        case Policy::lru:
        case Policy::staleness:
            return 0;
        case Policy::frequency:
            return -long_[record];
        case Policy::hinted:
            if (due_[record] != kNever && due_[record] > now) return static_cast<double>(due_[record] - now - 1);
            if (idle_[record] > now) return static_cast<double>(idle_[record] - now) + 1 / chance(record) - 1;
            [[fallthrough]];
        case Policy::reuse:
            return 1 / chance(record) - 1;
        case Policy::stall:
            return (1 / chance(record) - 1) / cost_[set_of_[record]];
        case Policy::lfru:
        case Policy::age_count:
            return since / (1 + static_cast<double>(uses_[record]));
    }
    return 0;
}

// How far off the set's next visit is, as a part of a round; its own, just begun, is a whole one off.
double Order::turn(uint32_t set) const {
    if (!has_turns(policy_)) return 0;
    const auto n = static_cast<uint32_t>(visits_.size());
    const uint32_t ahead = (set > now_ ? set - now_ : set + n - now_) + (decided_[set] != 0 ? n : 0);
    const double part = static_cast<double>(ahead) / n;
    return policy_ == Policy::stall ? tuning_.phase * part / cost_[set] : tuning_.phase * part;
}

RecordId Order::first(uint32_t size_class) const {
    const Class& cls = classes_[size_class];
    RecordId best = kNoRecord;
    double best_wait = 0;
    for (uint32_t i = cls.first_group; i < cls.first_group + cls.n_groups; ++i) {
        const uint32_t g = groups_of_class_[i];
        if (groups_[g].heap.empty()) continue;
        const RecordId r = groups_[g].heap.front();
        const double wait = key_[r] + turn(set_of_group_[g]);
        if (best == kNoRecord || wait > best_wait || (wait == best_wait && released_[r] < released_[best])) {
            best = r;
            best_wait = wait;
        }
    }
    return best;
}

void Order::put(Group& group, uint32_t place, RecordId record) {
    group.heap[place] = record;
    place_[record] = place;
}

void Order::rise(Group& group, uint32_t place, RecordId record) {
    while (place > 0) {
        const uint32_t parent = (place - 1) / 2;
        if (!goes_before(record, group.heap[parent])) break;
        put(group, place, group.heap[parent]);
        place = parent;
    }
    put(group, place, record);
}

void Order::sink(Group& group, uint32_t place, RecordId record) {
    const auto n = static_cast<uint32_t>(group.heap.size());
    for (;;) {
        uint32_t child = 2 * place + 1;
        if (child >= n) break;
        if (child + 1 < n && goes_before(group.heap[child + 1], group.heap[child])) ++child;
        if (!goes_before(group.heap[child], record)) break;
        put(group, place, group.heap[child]);
        place = child;
    }
    put(group, place, record);
}

void Order::add(RecordId record, bool came) {
    if (came && policy_ == Policy::age_count) uses_[record] = used_now(record) ? 1 : 0;
    note_rest(record);
    add_late(record);
}

void Order::add_late(RecordId record) {
    assert(place_[record] == kNowhere);
    settle();
    Group& group = groups_[group_of(record)];
    key_[record] = key(record);
    group.heap.push_back(record);
    rise(group, static_cast<uint32_t>(group.heap.size() - 1), record);
    ++classes_[class_of_[record]].n;
}

void Order::remove(RecordId record) {
    const uint32_t place = place_[record];
    assert(place != kNowhere);
    Group& group = groups_[group_of(record)];
    const RecordId last = group.heap.back();
    group.heap.pop_back();
    place_[record] = kNowhere;
    --classes_[class_of_[record]].n;
    if (last == record) return;
    if (place > 0 && goes_before(last, group.heap[(place - 1) / 2])) {
        rise(group, place, last);
    } else {
        sink(group, place, last);
    }
}

}  // namespace sluice::cache
