// The promise that speculation costs exact reads no more than DeviceModel::worst_delay(), kept on devices that behave
// like real ones against somebody who wants it broken: what is hinted, when, how much of it and what becomes of it is
// the adversary's choice. Beside each run goes its twin, the same exact wishes at the same times on the same device
// without speculation, and the two are compared.
//
// What is compared is when all exact reads that are under way together have come, because that is what somebody waits
// for. A single one of them may be later by more: where reads share a device, one that begins a little later meets
// others there.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "io/sim_engine.h"
#include "sched/scheduler.h"
#include "tests/sched/layered_model.h"

namespace sluice::sched {
namespace {

constexpr Nanos kEver = Nanos{1} << 60;
constexpr uint32_t kExperts = 16;
constexpr uint32_t kSmallSet = 3;

// Experts, chunks and windows here are a sixteenth of what they are in a real model, and the times of the devices below
// with them; bytes per nanosecond are real.
const LayeredModel& small_model() {
    static const LayeredModel model(
        kExperts, 4,
        std::array<LayerSizes, 4>{
            {{20'011, 20'011, 26'003}, {57'344, 57'344, 61'001}, {0, 90'007, 40'009}, {9'001, 9'001, 3'005}}},
        7);
    return model;
}

struct Device {
    std::string name;
    io::SimOptions sim;
    DeviceModel model;
};

// What a measurement says of the device that has this table.
DeviceModel measured(const io::LatencyTable& table, double bytes_per_ns, uint32_t chunk, uint64_t window,
                     uint32_t lanes, uint32_t reserved) {
    return {.bytes_per_ns = bytes_per_ns,
            .service = std::max<Nanos>(table.at(chunk, 1), static_cast<Nanos>(chunk / bytes_per_ns)),
            .chunk = chunk,
            .window = window,
            .reserved_lanes = reserved,
            .lanes = lanes};
}

Device nvme() {
    Device d;
    d.name = "nvme";
    d.sim.channels = 8;
    d.sim.table = io::LatencyTable({4 * KiB, 16 * KiB, 64 * KiB, 256 * KiB}, {1, 4, 8, 32},
                                   {5'000, 5'200, 6'000, 19'000,      //
                                    6'500, 12'000, 22'000, 80'000,    //
                                    12'000, 40'000, 78'000, 310'000,  //
                                    40'000, 155'000, 310'000, 1'240'000});
    d.model = measured(d.sim.table, 6.5, 32 * KiB, 128 * KiB, 8, 2);
    return d;
}

Device sata() {
    Device d;
    d.name = "sata";
    d.sim.channels = 4;
    d.sim.table = io::LatencyTable({4 * KiB, 64 * KiB, 256 * KiB}, {1, 4, 32},
                                   {12'000, 32'000, 250'000,      //
                                    130'000, 490'000, 3'900'000,  //
                                    500'000, 1'950'000, 15'600'000});
    d.model = measured(d.sim.table, 0.53, 16 * KiB, 32 * KiB, 4, 1);
    return d;
}

// One read at a time, and never faster.
Device stick() {
    Device d;
    d.name = "stick";
    d.sim.channels = 1;
    d.sim.table = io::LatencyTable({4 * KiB, 256 * KiB}, {1}, {150'000, 6'600'000});
    d.model = measured(d.sim.table, 0.032, 8 * KiB, 8 * KiB, 2, 1);
    return d;
}

// The drive of a small virtual machine, whose host gives it about 1.1 GB/s: a few reads are as fast as many.
Device virtual_drive() {
    Device d;
    d.name = "virtual";
    d.sim.channels = 8;
    d.sim.table = io::LatencyTable({256, 26 * KiB, 56 * KiB, 165 * KiB}, {1, 4, 8, 16},
                                   {10'000, 20'000, 18'000, 22'000,     //
                                    40'000, 48'000, 82'000, 295'000,    //
                                    50'000, 145'000, 336'000, 540'000,  //
                                    117'000, 250'000, 330'000, 890'000});
    d.model = measured(d.sim.table, 1.1, 16 * KiB, 64 * KiB, 8, 2);
    return d;
}

// The same drive once it has rested: the host's cache gives more for a while.
Device rested_drive() {
    Device d = virtual_drive();
    d.name = "rested";
    d.sim.table = io::LatencyTable({256, 165 * KiB}, {1}, {10'000, 60'000});
    d.sim.bandwidth = {.sustained = 1.1, .burst_rate = 5, .burst = 1 * MiB};
    return d;
}

// And with the tail that it has.
Device drive_with_tail() {
    Device d = virtual_drive();
    d.name = "tail";
    d.sim.tail = {{0.04, 8}, {0.01, 40}};
    return d;
}

// Tells of every read before it goes to the device, and whenever somebody turns to it.
class Watched final : public io::Engine {
  public:
    explicit Watched(io::SimEngine& inner) : inner_(inner) {}

    void submit(std::span<const io::ReadOp> batch) override {
        uint64_t number = inner_.counters().reads;
        for (const io::ReadOp& op : batch) {
            if (on_read) on_read(op, number);
            at_device_.push_back({op, number++});
        }
        inner_.submit(batch);
        if (on_event) on_event();
    }
    size_t wait(std::span<io::Completion> out) override {
        if (on_event) on_event();
        return came(out.first(inner_.wait(out)));
    }
    size_t poll(std::span<io::Completion> out) override {
        if (on_event) on_event();
        return came(out.first(inner_.poll(out)));
    }
    [[nodiscard]] size_t outstanding() const override { return inner_.outstanding(); }
    [[nodiscard]] const char* name() const override { return inner_.name(); }
    [[nodiscard]] const io::EngineTotals& totals() const override { return inner_.totals(); }

    struct Read {
        io::ReadOp op;
        uint64_t number = 0;
    };
    [[nodiscard]] const std::vector<Read>& at_device() const { return at_device_; }

    std::function<void(const io::ReadOp& op, uint64_t number)> on_read;
    std::function<void()> on_event;

  private:
    size_t came(std::span<const io::Completion> done) {
        for (const io::Completion& d : done) {
            std::erase_if(at_device_, [&](const Read& r) { return r.op.tag == d.tag; });
        }
        return done.size();
    }

    io::SimEngine& inner_;
    std::vector<Read> at_device_;
};

// A scheduler with a device of its own.
struct Side {
    Side(const Device& device, bool speculates, uint64_t budget, uint64_t seed)
        : file(io::File::simulated("model.gguf", small_model().contents.size(), 512, 512)),
          engine(clock, options(device, seed)),
          watched(engine) {
        engine.set_contents(file, small_model().contents);
        const io::File* files[] = {&file};
        store.emplace(store::RecordStore::over(small_model().geometry, files));
        Slots::Options so;
        so.budget = budget;
        so.min_slots = 4;
        auto made = Slots::create(*store, std::move(so));
        EXPECT_TRUE(made.ok()) << made.status().message();
        slots = std::move(*made);
        Scheduler::Options o;
        o.device = device.model;
        if (!speculates) o.device.window = 0;
        scheduler.emplace(*slots, watched, clock, std::move(o));
        scheduler->expect_exact(kEver);
    }
    static io::SimOptions options(const Device& device, uint64_t seed) {
        io::SimOptions sim = device.sim;
        sim.seed = seed;
        sim.poison = false;  // bytes are another matter
        return sim;
    }

    // Whose bytes a read brings: where it writes to tells.
    [[nodiscard]] std::pair<RecordId, uint32_t> owner_of(const io::ReadOp& op) const {
        for (RecordId r = 0; r < store->n_records(); ++r) {
            if (slots->cache().find(r) == cache::kNoSlot) continue;
            for (uint32_t c = 0; c < store->n_components(store->set_of(r)); ++c) {
                const std::byte* begin = slots->place(r, c);
                const uint32_t length = store::RecordStore::aligned(store->extent(r, c)).length;
                if (op.dst >= begin && op.dst < begin + length) return {r, c};
            }
        }
        ADD_FAILURE() << "a read into nobody's slot";
        return {};
    }

    VirtualClock clock;
    io::File file;
    io::SimEngine engine;
    Watched watched;
    std::optional<store::RecordStore> store;
    std::unique_ptr<Slots> slots;
    std::optional<Scheduler> scheduler;
};

constexpr std::array kHints{Class::near, Class::speculative, Class::warming};

class Duel {
  public:
    Duel(const Device& device, const Device& twins_device, uint64_t seed)
        : device_(device),
          random_(seed),
          one_(device, true, small_model().contents.size() / 3, seed),
          twin_(twins_device, false, 2 * small_model().contents.size(), seed + 1) {
        one_.watched.on_read = [this](const io::ReadOp& op, uint64_t) { check_read(op); };
        one_.watched.on_event = [this] { check_device(); };
        // The same read is as lucky in both runs.
        twin_.watched.on_read = [this](const io::ReadOp& op, uint64_t number) {
            const auto luck = luck_.find(twin_.owner_of(op));
            twin_.engine.slow_at(number, luck != luck_.end() ? luck->second : 1);
        };
    }
    Duel(const Device& device, uint64_t seed) : Duel(device, device, seed) {}
    ~Duel() { one_.watched.on_event = nullptr; }  // as it ends, the scheduler keeps no account any more
    Duel(const Duel&) = delete;
    Duel& operator=(const Duel&) = delete;

    void rounds(int n) {
        for (int i = 0; i < n && !::testing::Test::HasFailure(); ++i) round();
    }

    Nanos worst = INT64_MIN;  // by which exact reads came later than the twin's
    int compared = 0;
    uint64_t most_speculative = 0;  // bytes at the device at once
    [[nodiscard]] const Side& one() const { return one_; }
    // The longest that a speculative piece was at the device.
    [[nodiscard]] Nanos slowest_piece() const {
        Nanos slowest = 0;
        for (const io::SimRead& read : one_.engine.history()) {
            if (read.op.priority == io::Priority::speculative && read.finished >= 0)
                slowest = std::max(slowest, read.finished - read.submitted);
        }
        return slowest;
    }

  private:
    struct Wish {
        Class cls = Class::exact;
        ComponentMask which = 0;
        std::vector<RecordId> leased;
        std::vector<Scheduler::Part> missing;  // what has to be read for it
    };

    Nanos below(Nanos n) { return static_cast<Nanos>(random_() % static_cast<uint64_t>(std::max<Nanos>(n, 1))); }
    Owner owner() { return {.id = static_cast<uint32_t>(random_() % 3), .generation = 1}; }
    RecordId any_record() { return static_cast<RecordId>(random_() % one_.store->n_records()); }

    void round() {
        const size_t burst = random_() % 16 == 0 ? 48 : random_() % 4;
        for (size_t n = 0; n < burst; ++n) hint();
        if (random_() % 32 == 0) one_.scheduler->cancel(owner());
        // Random hints are useless and would soon be ignored: the adversary is given every chance.
        while (one_.scheduler->admission().off()) (void)one_.scheduler->admission().layer();
        for (size_t n = random_() % 4; n > 0; --n) {
            one_.scheduler->pump();
            one_.clock.advance_to(one_.clock.now() + below(2 * device_.model.service));
        }
        if (random_() % 2 == 0) one_.scheduler->pump();
        if (random_() % 3 == 0) exact();
    }

    void hint() {
        const RecordId r = any_record();
        const Nanos deadline = one_.clock.now() + below(40 * device_.model.service);
        (void)one_.scheduler->hint(r, {.cls = kHints[random_() % kHints.size()],
                                       .owner = owner(),
                                       .layer = 0,
                                       .confidence = static_cast<float>(random_() % 100) / 100.0F,
                                       .deadline = random_() % 2 == 0 ? kNoDeadline : deadline});
        hinted_[random_() % hinted_.size()] = r;
    }

    Wish make_wish(Class cls) {
        Wish w;
        w.cls = cls;
        w.which = std::array<ComponentMask, 4>{1, 3, 6, 7}[random_() % 4];
        for (size_t n = 1 + random_() % 6; n > 0; --n) {
            RecordId r = random_() % 2 == 0 ? hinted_[random_() % hinted_.size()] : any_record();
            if (cls == Class::page) r = one_.store->record(kSmallSet, r % kExperts);
            if (std::find(w.leased.begin(), w.leased.end(), r) != w.leased.end()) continue;
            if (one_.slots->cache().lease(r) == cache::kNoSlot) continue;
            w.leased.push_back(r);
            ComponentMask missing = 0;
            for (uint32_t c = 0; c < one_.store->n_components(one_.store->set_of(r)); ++c) {
                if (!one_.slots->ready(r, c)) missing |= static_cast<ComponentMask>(w.which & (1U << c));
            }
            if (missing != 0) w.missing.push_back({r, missing});
        }
        return w;
    }

    // A layer's experts, or a few small reads, or both.
    void exact() {
        // The twin, for which nothing was read ahead, may not be done with what came before.
        one_.clock.advance_to(twin_.clock.now());
        one_.scheduler->pump();
        std::vector<Wish> wishes;
        if (random_() % 3 == 0) wishes.push_back(make_wish(Class::page));
        if (wishes.empty() || random_() % 8 != 0) wishes.push_back(make_wish(Class::exact));

        const Nanos begin = one_.clock.now();
        const size_t first_read = one_.engine.history().size();
        std::array<Batch, 2> batches;
        for (size_t i = 0; i < wishes.size(); ++i) {
            pages_ = pages_ || wishes[i].cls == Class::page;
            one_.scheduler->want(batches[i], wishes[i].leased, wishes[i].which, {.cls = wishes[i].cls});
            EXPECT_EQ(one_.scheduler->queued(Class::page), 0U) << "small reads never stand in a queue";
        }
        for (size_t i = 0; i < wishes.size(); ++i) ASSERT_TRUE(one_.scheduler->wait(batches[i]).ok());
        const Nanos took = one_.clock.now() - begin;
        for (const Wish& w : wishes) {
            for (const Scheduler::Part& p : w.missing) check_bytes(p);
            for (const RecordId r : w.leased) one_.slots->cache().release(r);
        }

        luck_.clear();
        for (size_t n = first_read; n < one_.engine.history().size(); ++n) {
            const io::SimRead& read = one_.engine.history()[n];
            if (read.op.priority == io::Priority::exact) luck_[read_of_[n]] = read.times;
        }
        twin_.clock.advance_to(begin);
        std::array<Batch, 2> twins;
        for (size_t i = 0; i < wishes.size(); ++i) {
            for (const Scheduler::Part& p : wishes[i].missing) {
                ASSERT_NE(twin_.slots->cache().lease(p.record), cache::kNoSlot);
            }
            twin_.scheduler->want(twins[i], wishes[i].missing, {.cls = wishes[i].cls});
        }
        for (size_t i = 0; i < wishes.size(); ++i) ASSERT_TRUE(twin_.scheduler->wait(twins[i]).ok());
        worst = std::max(worst, took - (twin_.clock.now() - begin));
        ++compared;
        for (const Wish& w : wishes) {
            for (const Scheduler::Part& p : w.missing) twin_.slots->cache().release(p.record);
        }
        for (const Wish& w : wishes) {
            for (const Scheduler::Part& p : w.missing) twin_.slots->cache().discard(p.record);
        }
    }

    void check_bytes(const Scheduler::Part& p) {
        for (uint32_t c = 0; c < one_.store->n_components(one_.store->set_of(p.record)); ++c) {
            if ((p.which & (1U << c)) == 0) continue;
            const std::span<const std::byte> want = small_model().bytes(*one_.store, p.record, c);
            ASSERT_TRUE(std::equal(want.begin(), want.end(), one_.slots->data(p.record, c)));
        }
    }

    void check_read(const io::ReadOp& op) {
        const auto [record, component] = read_of_.emplace_back(one_.owner_of(op));
        const size_t there = one_.watched.at_device().size();
        const DeviceModel& d = device_.model;
        if (op.priority == io::Priority::speculative) {
            EXPECT_LE(op.length, d.chunk);
            EXPECT_LT(there + d.reserved_lanes, d.lanes) << "exact reads find a lane";
            for (const Watched::Read& r : one_.watched.at_device())
                EXPECT_TRUE(is_speculation(r)) << "beside an exact read";
            return;
        }
        const Ticket* t = one_.scheduler->find(one_.scheduler->live_ticket(record, component));
        ASSERT_NE(t, nullptr);
        if (pages_ && t->cls == Class::exact && there > 0) {
            EXPECT_LT(there + d.reserved_lanes, d.lanes) << "small reads find a lane";
        }
    }
    // Nobody waits for it.
    bool is_speculation(const Watched::Read& r) const {
        if (r.op.priority != io::Priority::speculative) return false;
        const auto [record, component] = read_of_[r.number];
        const Ticket* t = one_.scheduler->find(one_.scheduler->live_ticket(record, component));
        return t != nullptr && !is_exact(t->cls);
    }
    void check_device() {
        uint64_t bytes = 0;
        uint32_t reads = 0;
        for (const Watched::Read& r : one_.watched.at_device()) {
            if (!is_speculation(r)) continue;
            bytes += r.op.length;
            ++reads;
        }
        EXPECT_LE(bytes, device_.model.window);
        EXPECT_EQ(bytes, one_.scheduler->speculative_in_flight());
        EXPECT_LE(reads, device_.model.lanes - device_.model.reserved_lanes);
        most_speculative = std::max(most_speculative, bytes);
    }

    const Device device_;
    std::mt19937_64 random_;
    Side one_, twin_;
    bool pages_ = false;
    std::array<RecordId, 8> hinted_{};
    std::vector<std::pair<RecordId, uint32_t>> read_of_;  // by its number at the engine
    std::map<std::pair<RecordId, uint32_t>, double> luck_;
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kRounds = 400;
#else
constexpr int kRounds = 2000;
#endif

class Bound : public ::testing::TestWithParam<Device (*)()> {};

// R4, R5, R80, R81, R82 of the wavefront.
TEST_P(Bound, NoAdversaryBreaksIt) {
    const Device device = GetParam()();
    for (const uint64_t seed : {1U, 2U}) {
        Duel duel(device, seed);
        duel.rounds(kRounds);
        EXPECT_LE(duel.worst, device.model.worst_delay());
        EXPECT_GT(duel.worst, 0) << "speculation is felt";
        // It was tried hard.
        EXPECT_EQ(duel.most_speculative, device.model.window);
        EXPECT_GT(duel.compared, kRounds / 4);
        EXPECT_GT(duel.one().scheduler->counters().promotions, static_cast<uint64_t>(kRounds / 2));
        EXPECT_GT(duel.one().scheduler->counters().late_promotions + duel.one().scheduler->counters().orphans, 0U);
    }
}
INSTANTIATE_TEST_SUITE_P(Devices, Bound, ::testing::Values(nvme, sata, stick, virtual_drive),
                         [](const auto& device) { return device.param().name; });

// An exact read beside which speculation went on would have only its part of the bandwidth for as long as it lasts: the
// window would be there once for every time that it is refilled meanwhile.
TEST(BoundParts, NothingIsSpeculatedBesideExactReads) {
    Side side(virtual_drive(), true, small_model().contents.size(), 1);
    const std::vector<RecordId> wanted{side.store->record(1, 0)};
    ASSERT_NE(side.slots->cache().lease(wanted[0]), cache::kNoSlot);
    Batch b;
    side.scheduler->want(b, wanted, 7, {});
    ASSERT_EQ(side.engine.outstanding(), 3U);
    for (uint32_t e = 0; e < kExperts; ++e)
        EXPECT_TRUE(side.scheduler->hint(side.store->record(0, e), Scheduler::Hint()));
    for (int i = 0; i < 10; ++i) side.scheduler->pump();
    EXPECT_EQ(side.engine.counters().reads, 3U);
    EXPECT_EQ(side.scheduler->counters().refused[static_cast<size_t>(Refusal::exact_waiting)], 10U);
    ASSERT_TRUE(side.scheduler->wait(b).ok());
    side.clock.advance_to(side.clock.now() + 1'000'000);
    side.scheduler->pump();
    EXPECT_GT(side.engine.counters().reads, 3U);
    side.slots->cache().release(wanted[0]);
}

// ---- where the bound is not the whole truth

// A drive that has rested owes its burst to nobody in particular: speculation may have it, and then exact reads go at
// the sustained rate. worst_delay() counts bytes in flight, and those that used up the burst are not in flight any
// more. So the bound is one on how exact reads come from the drive at its sustained rate, not on how they would come
// from the rested one; the difference is what the burst saves.
TEST(BoundParts, ABurstThatSpeculationUsedUpIsOutsideOfIt) {
    const Device device = rested_drive();
    Device without_burst = device;
    without_burst.sim.bandwidth.burst = 0;
    const io::Bandwidth& b = device.sim.bandwidth;
    const auto saved = static_cast<Nanos>(static_cast<double>(b.burst) * (1 / b.sustained - 1 / b.burst_rate));
    for (const uint64_t seed : {1U, 2U}) {
        Duel with_rested_twin(device, seed);
        with_rested_twin.rounds(kRounds);
        EXPECT_GT(with_rested_twin.worst, device.model.worst_delay());
        EXPECT_LE(with_rested_twin.worst, device.model.worst_delay() + saved);
        Duel with_steady_twin(device, without_burst, seed);
        with_steady_twin.rounds(kRounds);
        EXPECT_LE(with_steady_twin.worst, device.model.worst_delay());
    }
}

// A piece that is read ahead, is one of the slow ones, and then turns out to be wanted: whoever wants it waits for it,
// because the device cannot be told. The bound has one service time for it, and takes the median. It holds with that of
// the slowest piece.
TEST(BoundParts, ThePieceThatIsSlowIsSlowerThanTheMedian) {
    const Device device = drive_with_tail();
    const Nanos window = device.model.worst_delay() - device.model.service;
    for (const uint64_t seed : {1U, 2U}) {
        Duel duel(device, seed);
        duel.rounds(2000);  // in every build: a tail is met rarely
        EXPECT_GT(duel.worst, device.model.worst_delay());
        EXPECT_LE(duel.worst, window + duel.slowest_piece());
    }
}

}  // namespace
}  // namespace sluice::sched
