#include "backend/process_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"
#include "base/memory.h"
#include "cache/budget.h"
#include "cache/process_need.h"
#include "machine/memory_room.h"
#include "machine/usage.h"

namespace sluice::backend {
namespace {

// How often it is looked what is touched of them.
constexpr Nanos kTouchedEvery = 1'000'000'000;
// Half as often is nothing, of any size.
constexpr uint32_t kMostHalvings = 64;
// Lines about going up and down, at most one in this time.
constexpr Nanos kTellEvery = 1'000'000'000;

struct Buffers {
    std::mutex mutex;
    std::map<uintptr_t, size_t> known;
    std::vector<unsigned char> pages;
    HostBuffers sum;
    Nanos looked = 0;
    bool changed = true;
};

// Never destroyed: buffers and shares may end after main().
struct Process {
    std::mutex mutex;
    std::unique_ptr<cache::SharedBudget> budget;
    Config config;                       // that it was made from
    std::optional<uint64_t> told_limit;  // by set_experts_limit()
    uint32_t halvings = 0;               // that were told before there was anything to halve
    std::atomic<int> models{0};
    uint64_t least = 0;  // that experts of these need together
    std::optional<ContextPlan> planned;
    std::optional<uint64_t> ram;  // for the process, as the newest model says
    machine::MemoryRoom room;     // then
    uint64_t reserve = 0;
    uint64_t margin = 0;
    machine::UsageReader usage;
    Buffers buffers;
    std::atomic<void (*)()> follow{nullptr};
    Nanos told = 0;
};

Process& process() {
    static auto& p = *new Process();
    return p;
}

uint64_t untouched(uintptr_t begin, size_t bytes, std::vector<unsigned char>& pages) {
    const uint64_t page = page_size();
    const uintptr_t from = align_up(begin, page), to = align_down(begin + bytes, page);
    if (to <= from) return 0;
    pages.resize((to - from) / page);
    // A buffer that is gone without our knowledge is nobody's any more.
    if (mincore(reinterpret_cast<void*>(from), to - from, pages.data()) != 0) return 0;
    const auto there = std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return (p & 1U) != 0; });
    return (pages.size() - static_cast<uint64_t>(there)) * page;
}

uint64_t resident(const machine::Usage& u) {
    return u.rss.value_or(0) + u.swap.value_or(0);
}

cache::Readings read_memory() {
    Process& p = process();
    const machine::Usage u = p.usage.read();
    cache::Readings r;
    r.now = SystemClock::instance().now();
    if (u.rss) r.process = resident(u);
    r.free = machine::read_memory_room("").free();
    r.pressure = machine::read_memory_pressure("");
    r.pending = host_buffers().untouched;
    return r;
}

// Called under the budget's lock.
void tell(cache::Governor::Decision d, uint64_t limit) {
    using Change = cache::Governor::Change;
    Process& p = process();
    const Nanos now = SystemClock::instance().now();
    if (d.change == Change::stuck) {
        log(LogLevel::warn,
            "memory is short ({}), and experts have their least already ({}): the machine may swap, or end a process",
            cache::cause_text(d.cause), human_bytes(limit));
        return;
    }
    if (d.change == Change::denied) {
        log(LogLevel::debug, "memory: experts stay at {}, there is no more", human_bytes(limit));
        return;
    }
    if (p.told != 0 && now - p.told < kTellEvery) return;
    p.told = now;
    if (d.change == Change::down) {
        log(LogLevel::info, "memory: experts go down to {}: {}", human_bytes(limit), cache::cause_text(d.cause));
    } else {
        log(LogLevel::info, "memory: there is room again, experts may take {}", human_bytes(limit));
    }
}

bool same_budget(const Config& a, const Config& b) {
    return a.ram_bytes == b.ram_bytes && a.cache_bytes == b.cache_bytes && a.cache_floor_bytes == b.cache_floor_bytes &&
           a.cache_ceil_bytes == b.cache_ceil_bytes;
}

// Under the process's lock.
cache::SharedBudget& budget_for(const Config& config) {
    Process& p = process();
    if (p.budget != nullptr && (p.budget->shares() > 0 || same_budget(config, p.config))) {
        if (!same_budget(config, p.config)) {
            log(LogLevel::warn,
                "another model is loaded: its budget is the process's until it is freed, and the new one is not used");
        }
        return *p.budget;
    }
    p.config = config;
    p.room = machine::read_memory_room("");
    const bool told = config.ram_bytes || config.cache_bytes;
    // Of what is free once llama.cpp's buffers are touched.
    p.reserve = cache::reserve_of(p.room.after(host_buffers().untouched), told);
    p.margin = config.ram_bytes ? cache::process_margin(*config.ram_bytes) : 0;
    cache::Governor::Options o;
    o.ram = config.ram_bytes;
    o.margin = p.margin;
    o.reserve = p.reserve;
    o.floor = config.cache_floor_bytes.value_or(0);
    o.ceiling = config.cache_ceil_bytes.value_or(UINT64_MAX);
    // With nothing to go by, a modest size.
    if (!p.room.free() && !told && !config.cache_ceil_bytes) o.ceiling = GiB;
    o.heeds_pressure = !config.cache_bytes;
    p.budget = std::make_unique<cache::SharedBudget>(SystemClock::instance(), read_memory, o, tell);
    if (p.told_limit) p.budget->set_limit(p.told_limit);
    return *p.budget;
}

// Under the process's lock: what experts hold, or may, is half of that from now on.
void halve(cache::SharedBudget& budget) {
    Process& p = process();
    const uint64_t held = budget.held(), limit = budget.limit();
    // Not below what they compute with; a size that was told is no such bound.
    const uint64_t half = std::max(budget.least(), (held > 0 ? std::min(held, limit) : limit) / 2);
    log(LogLevel::info, "memory: experts go down to {}, as told", human_bytes(half));
    p.told_limit = half;
    budget.set_limit(half);
}

std::string why_of(const cache::Governor::Room& found, const Config& config, bool told, bool full) {
    const Process& p = process();
    switch (found.cause) {
        case cache::Governor::Cause::ram:
            return fmt::format("what {} for the process leave", human_bytes(*config.ram_bytes));
        case cache::Governor::Cause::free:
            return fmt::format("{} {} less a reserve of {}", cache::name_of_free(p.room),
                               human_bytes(p.room.free().value_or(0)), human_bytes(p.reserve));
        default:
            break;
    }
    if (full) return "all experts fit";
    if (told) return "as told";
    return config.cache_ceil_bytes ? "the ceiling" : "the amount of free memory is unknown";
}

}  // namespace

Result<Joined> join_budget(const Config& config, uint64_t least, uint64_t most, bool told) {
    Process& p = process();
    const std::lock_guard<std::mutex> lock(p.mutex);
    cache::SharedBudget& budget = budget_for(config);
    const uint64_t held = budget.held();
    cache::Governor::Room found;
    auto share = budget.join(least, most, &found);
    const cache::Readings now = read_memory();
    const uint64_t others = sub_floored(now.process.value_or(0), held);
    const bool halved = p.halvings > 0;
    for (; p.halvings > 0; --p.halvings) halve(budget);
    const Config& c = p.config;
    const HostBuffers buffers = host_buffers();
    log(LogLevel::info,
        "memory: the process takes {} without experts and is going to touch {} more; {} {}, of which {} stay free{}",
        human_bytes(others), human_bytes(now.pending), now.free ? human_bytes(*now.free) : std::string("unknown"),
        cache::name_of_free(p.room), human_bytes(p.reserve),
        c.ram_bytes ? fmt::format("; {} for the process, of which {} stay unused", human_bytes(*c.ram_bytes),
                                  human_bytes(p.margin))
                    : "");
    log(LogLevel::debug, "memory: llama.cpp's buffers are {}", human_bytes(buffers.bytes));
    const bool fixed = c.cache_bytes.has_value();
    const uint64_t wanted = fixed ? most : std::max(least, std::min(most, c.cache_floor_bytes.value_or(0)));
    const uint64_t kept = others + now.pending + p.margin;
    if (c.ram_bytes && kept + held + wanted > *c.ram_bytes && (fixed || found.below_floor)) {
        return error(
            Code::no_memory,
            "--ram {} is too little: the process takes {} without experts, is going to touch {} more, keeps {} "
            "unused, and experts need at least {}{}: that is {:.0f} MiB. Give that much, a shorter context "
            "(-c) or smaller batches (-ub)",
            human_bytes(*c.ram_bytes), human_bytes(others), human_bytes(now.pending), human_bytes(p.margin),
            human_bytes(wanted), held > 0 ? " besides those of the models that are loaded" : "",
            to_mib(align_up(kept + held + wanted, MiB)));
    }
    if (found.below_floor && found.cause == cache::Governor::Cause::free) {
        log(LogLevel::warn,
            "less memory is free than experts need at least ({}): the machine may swap, or end a process",
            human_bytes(wanted));
    }
    if (halved) return Joined{std::move(share), "half of what they could have, as told"};
    return Joined{std::move(share), why_of(found, c, told && most == c.cache_bytes,
                                           told ? most < *c.cache_bytes : c.cache_ceil_bytes.value_or(most) >= most)};
}

void plan_context(std::optional<ContextPlan> plan) {
    Process& p = process();
    const std::lock_guard<std::mutex> lock(p.mutex);
    p.planned = plan;
}

std::optional<ContextPlan> planned_context() {
    Process& p = process();
    const std::lock_guard<std::mutex> lock(p.mutex);
    return p.planned;
}

Status check_model_fits(const Config& config, const ModelNeed& model) {
    const std::optional<ContextPlan> planned = planned_context();
    const ContextPlan context = planned.value_or(ContextPlan());
    const cache::ProcessNeed need{.dense = model.dense,
                                  .context = context.context,
                                  .compute = context.compute,
                                  .program = cache::program_need(model.header_bytes, model.own_buffers),
                                  .context_known = planned.has_value()};
    const uint64_t wanted = config.cache_bytes
                                ? std::min(*config.cache_bytes, model.full)
                                : std::min(model.full, std::max(model.least, config.cache_floor_bytes.value_or(0)));
    {
        Process& p = process();
        const std::lock_guard<std::mutex> lock(p.mutex);
        if (p.budget != nullptr && p.budget->shares() > 0) {  // what is loaded makes room, or this one cannot be
            if (p.config.cache_ceil_bytes && p.least + model.least > *p.config.cache_ceil_bytes) {
                return error(Code::no_memory,
                             "--cache-ceil-mb {} is too little for a second model: the experts of those that are "
                             "loaded need at least {}, and those of this one {}",
                             human_bytes(*p.config.cache_ceil_bytes), human_bytes(p.least), human_bytes(model.least));
            }
            if (p.budget->make_room(model.dense + model.least)) return {};
            return error(Code::no_memory,
                         "there is no memory for a second model: its dense weights need {} and its experts at least {}",
                         human_bytes(model.dense), human_bytes(model.least));
        }
    }
    if (config.ram_bytes) {
        if (const auto room = cache::room_for_experts(need, *config.ram_bytes, wanted, model.full); !room.ok())
            return room.status();
    }
    const machine::MemoryRoom room = machine::read_memory_room("");
    if (const auto free = room.free(); free && config.dense_weights == DenseWeights::anon) {
        // The program is there already.
        const uint64_t least = std::min(wanted, model.least);
        const uint64_t sum = model.dense + context.context + context.compute + least;
        if (sum > *free) {
            return error(Code::no_memory, "{} {} are not enough: dense weights {} + {}at least {} for experts = {}{}",
                         human_bytes(*free), cache::name_of_free(room), human_bytes(model.dense),
                         planned ? fmt::format("context {} + compute buffers {} + ", human_bytes(context.context),
                                               human_bytes(context.compute))
                                 : "",
                         human_bytes(least), human_bytes(sum),
                         planned ? ": give a shorter context (-c), smaller batches (-ub), or more memory"
                                 : ", and the context comes on top of that");
        }
    }
    return {};
}

StreamedModel::StreamedModel(const Config& config, uint64_t least) : least_(least) {
    Process& p = process();
    const std::lock_guard<std::mutex> lock(p.mutex);
    p.least += least;
    p.ram = config.ram_bytes;
    ++p.models;
}

StreamedModel::~StreamedModel() {
    Process& p = process();
    const std::lock_guard<std::mutex> lock(p.mutex);
    p.least -= least_;
    --p.models;
}

bool admit_buffer(size_t bytes) {
    Process& p = process();
    if (p.models.load() == 0) return true;
    uint64_t held = 0, least = 0;
    bool follow = false;
    std::optional<uint64_t> ram;
    {
        const std::lock_guard<std::mutex> lock(p.mutex);
        least = p.least;
        ram = p.ram;
        if (p.budget != nullptr && p.budget->shares() > 0) {
            ram = p.config.ram_bytes;
            (void)p.budget->make_room(bytes);
            follow = p.budget->held() > p.budget->limit();
        }
    }
    if (void (*f)() = p.follow.load(); follow && f != nullptr) f();
    {
        const std::lock_guard<std::mutex> lock(p.mutex);
        if (p.budget != nullptr) held = p.budget->held();
    }
    const cache::Readings now = read_memory();
    const uint64_t soon = now.pending + bytes;
    const uint64_t without = sub_floored(now.process.value_or(0), held) + soon;
    const uint64_t margin = ram ? cache::process_margin(*ram) : 0;
    if (ram && now.process && without + margin + least > *ram) {
        log(LogLevel::error,
            "--ram {} is too little: llama.cpp wants a buffer of {}, with which the process takes {}; {} of the number "
            "stay unused, and experts need at least {}: that is {:.0f} MiB. Give that much, a shorter context (-c) or "
            "smaller batches (-ub)",
            human_bytes(*ram), human_bytes(bytes), human_bytes(without), human_bytes(margin), human_bytes(least),
            to_mib(align_up(without + margin + least, MiB)));
        return false;
    }
    const machine::MemoryRoom room = machine::read_memory_room("");
    const uint64_t needed = soon + least + cache::reserve_of(room, true) / 2;
    if (!now.free || needed <= *now.free + held) return true;
    log(LogLevel::error,
        "llama.cpp wants a buffer of {}, is going to touch {} that it has, and experts need at least {}: with a "
        "reserve that is {}, but there are only {} ({}). Give a shorter context (-c), smaller batches (-ub), or more "
        "memory",
        human_bytes(bytes), human_bytes(now.pending), human_bytes(least), human_bytes(needed),
        human_bytes(*now.free + held), cache::name_of_free(room));
    return false;
}

void note_buffer(const void* begin, size_t bytes) {
    Buffers& b = process().buffers;
    const std::lock_guard<std::mutex> lock(b.mutex);
    b.known[reinterpret_cast<uintptr_t>(begin)] = bytes;
    b.changed = true;
}

void forget_buffer(const void* begin) {
    Buffers& b = process().buffers;
    const std::lock_guard<std::mutex> lock(b.mutex);
    b.changed = b.known.erase(reinterpret_cast<uintptr_t>(begin)) > 0 || b.changed;
}

HostBuffers host_buffers() {
    Buffers& b = process().buffers;
    const std::lock_guard<std::mutex> lock(b.mutex);
    const Nanos now = SystemClock::instance().now();
    if (!b.changed && now - b.looked < kTouchedEvery) return b.sum;
    b.sum = {};
    for (const auto& [begin, bytes] : b.known) {
        b.sum.bytes += bytes;
        b.sum.untouched += untouched(begin, bytes, b.pages);
    }
    b.looked = now;
    b.changed = false;
    return b.sum;
}

void set_limit_follower(void (*follow)()) {
    process().follow = follow;
}

namespace {

// Does something with the budget, if there is one, and lets idle models follow.
template <typename F>
void with_budget(F&& f) {
    Process& p = process();
    {
        const std::lock_guard<std::mutex> lock(p.mutex);
        if (p.budget == nullptr) return;
        f(*p.budget);
        if (p.budget->held() <= p.budget->limit()) return;
    }
    if (void (*follow)() = p.follow.load()) follow();
}

}  // namespace

void set_experts_limit(std::optional<uint64_t> bytes) {
    std::optional<uint64_t> before;
    {
        const std::lock_guard<std::mutex> lock(process().mutex);
        before = std::exchange(process().told_limit, bytes);
        if (std::exchange(process().halvings, 0) > 0)
            log(LogLevel::info, "memory: experts are not going to be halved any more, as told");
    }
    with_budget([&](cache::SharedBudget& b) {
        b.set_limit(bytes);
        if (b.shares() == 0) return;
        const std::string now = human_bytes(b.limit());
        if (bytes) {
            log(LogLevel::info, "memory: experts may take {}, as told", now);
        } else if (before) {
            log(LogLevel::info, "memory: experts may take {} again, as told", now);
        } else {
            log(LogLevel::info, "memory: experts may take {} as before: there was no limit to lift", now);
        }
    });
}

void halve_experts() {
    {
        Process& p = process();
        const std::lock_guard<std::mutex> lock(p.mutex);
        if (p.budget == nullptr || p.budget->shares() == 0) {
            p.halvings = std::min(p.halvings + 1, kMostHalvings);
            log(LogLevel::info, "memory: experts are going to have half of what they could, as told");
            return;
        }
        halve(*p.budget);
    }
    with_budget([](cache::SharedBudget&) {});
}

void look_at_memory() {
    with_budget([](cache::SharedBudget& b) { b.look(); });
}

}  // namespace sluice::backend
