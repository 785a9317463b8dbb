// The scheduler and the cache over real engines and a real file, while the drive misbehaves and whoever asks changes
// his mind all the time. What sanitizers watch here is memory: a thread or the kernel writes into slots that are
// leased, evicted and given to others beside it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "cache/layout.h"
#include "io/engine.h"
#include "io/mmap_engine.h"
#include "io/pool_engine.h"
#include "io/uring_engine.h"
#include "sched/scheduler.h"
#include "tests/io/refused.h"
#include "tests/sched/layered_model.h"

namespace sluice::sched {
namespace {

constexpr Nanos kEver = Nanos{1} << 60;
constexpr uint32_t kExperts = 12;

const LayeredModel& model() {
    static const LayeredModel model(
        kExperts, 2, std::array<LayerSizes, 3>{{{3001, 3001, 9000}, {0, 12'345, 700}, {20'000, 20'000, 24'000}}}, 3);
    return model;
}

class TempModel {
  public:
    TempModel() : path_(::testing::TempDir() + "/sluice-chaos-XXXXXX") {
        const int fd = mkstemp(path_.data());
        EXPECT_GE(fd, 0);
        const std::vector<std::byte>& bytes = model().contents;
        EXPECT_EQ(write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
        EXPECT_EQ(fsync(fd), 0);
        close(fd);
    }
    ~TempModel() { unlink(path_.c_str()); }
    TempModel(const TempModel&) = delete;
    TempModel& operator=(const TempModel&) = delete;
    [[nodiscard]] const std::string& path() const { return path_; }

  private:
    std::string path_;
};

// Between an engine and its user: holds completions back, mixes them up, and spoils some of them.
class Chaos final : public io::Engine {
  public:
    Chaos(std::unique_ptr<io::Engine> inner, uint32_t seed) : inner_(std::move(inner)), random_(seed) {}

    void submit(std::span<const io::ReadOp> batch) override {
        for (const io::ReadOp& op : batch) reads_.push_back(op);
        inner_->submit(batch);
    }
    size_t wait(std::span<io::Completion> out) override {
        do {
            if (inner_->outstanding() > 0) fetch([&](auto some) { return inner_->wait(some); });
        } while (inner_->outstanding() > 0 && random_() % 3 != 0);
        return hand_out(out, held_.empty() ? 0 : 1 + random_() % held_.size());
    }
    size_t poll(std::span<io::Completion> out) override {
        fetch([&](auto some) { return inner_->poll(some); });
        return hand_out(out, random_() % (held_.size() + 1));
    }
    Status register_memory(std::span<std::byte> memory) override { return inner_->register_memory(memory); }
    [[nodiscard]] size_t outstanding() const override { return inner_->outstanding() + held_.size(); }
    [[nodiscard]] const char* name() const override { return "chaos"; }
    [[nodiscard]] const io::EngineTotals& totals() const override { return inner_->totals(); }

    bool calm = false;  // does no more harm
    uint64_t errors = 0, flips = 0;

  private:
    template <typename Take>
    void fetch(const Take& take) {
        std::array<io::Completion, 16> some;
        const size_t n = take(std::span(some).first(1 + random_() % some.size()));
        held_.insert(held_.end(), some.begin(), some.begin() + static_cast<std::ptrdiff_t>(n));
    }
    size_t hand_out(std::span<io::Completion> out, size_t n) {
        n = std::min(n, out.size());
        for (size_t i = 0; i < n; ++i) {
            const size_t pick = random_() % held_.size();
            out[i] = held_[pick];
            held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(pick));
            spoil(out[i]);
        }
        return n;
    }
    void spoil(io::Completion& done) {
        const auto read =
            std::find_if(reads_.begin(), reads_.end(), [&](const io::ReadOp& op) { return op.tag == done.tag; });
        ASSERT_NE(read, reads_.end()) << "completed twice, or never asked for";
        EXPECT_EQ(done.error, 0) << "the file is whole";
        const auto what = calm ? 99 : random_() % 100;
        if (what < 6) {
            done.error = std::array{EIO, ESTALE, ENODATA, ETIMEDOUT}[random_() % 4];
            ++errors;
        } else if (what < 12 && read->need > 0) {
            read->dst[random_() % read->need] ^= std::byte{1} << (random_() % 8);
            ++flips;
        }
        reads_.erase(read);
    }

    std::unique_ptr<io::Engine> inner_;
    std::mt19937 random_;
    std::vector<io::ReadOp> reads_;  // not handed back
    std::vector<io::Completion> held_;
};

struct Setup {
    const char* name;
    Result<std::unique_ptr<io::Engine>> (*engine)();
    io::Access access;
    bool mirror;
    bool convert;
};

Result<std::unique_ptr<io::Engine>> uring() {
    return io::make_uring_engine(4);
}
Result<std::unique_ptr<io::Engine>> pool() {
    return io::make_pool_engine(3);
}
Result<std::unique_ptr<io::Engine>> mapped() {
    return io::make_mmap_engine(2);
}

class ChaosTest : public ::testing::TestWithParam<Setup> {
  protected:
    struct Wish {
        Batch batch;
        std::vector<RecordId> leased;
        ComponentMask which = 0;
        explicit Wish(Owner owner) : batch(owner) {}
    };

    void SetUp() override { SLUICE_SKIP_IF_REFUSED(GetParam().name); }
    void start(uint32_t seed) {
        random_.seed(seed);
        file_ = open();
        const io::File* files[] = {&file_};
        store_.emplace(store::RecordStore::over(model().geometry, files));
        store_->set_checksums(model().sums(*store_));
        if (GetParam().mirror) {
            store::Holder mirror;
            mirror.name = "mirror";
            mirror.shares = true;
            mirror.files.push_back(std::make_unique<io::File>(open()));
            for (const model::ExpertSet& set : model().geometry.sets) {
                mirror.places.emplace_back();
                for (const model::ExpertTensor& t : set.tensors)
                    mirror.places.back().push_back({mirror.files[0].get(), t.offset, t.bytes_per_expert});
            }
            store_->add_holder(std::move(mirror));
        }
        auto engine = GetParam().engine();
        ASSERT_TRUE(engine.ok()) << engine.status().message();
        chaos_ = std::make_unique<Chaos>(std::move(*engine), seed + 1);
        Slots::Options so;
        if (GetParam().convert) {
            so.converted = {{true, true, false}, {false, true}, {true, false, true}};
            so.convert = [](uint32_t, uint32_t, const std::byte* raw, std::byte* slot, uint64_t bytes) {
                std::transform(raw, raw + bytes, slot, [](std::byte b) { return ~b; });
            };
        }
        so.budget = cache::full_budget(Slots::shapes(*store_, so.converted)) / 5;
        so.min_slots = 2;
        auto slots = Slots::create(*store_, std::move(so));
        ASSERT_TRUE(slots.ok()) << slots.status().message();
        slots_ = std::move(*slots);
        Scheduler::Options o;
        o.max_tickets = 96;
        o.max_hints = 40;
        // As permissive as can be: what holds speculation back is tested elsewhere.
        o.device = {
            .bytes_per_ns = 1e6, .service = 1, .chunk = 8192, .window = 64 * KiB, .reserved_lanes = 1, .lanes = 9};
        scheduler_ = std::make_unique<Scheduler>(*slots_, *chaos_, SystemClock::instance(), std::move(o));
        scheduler_->expect_exact(kEver);
    }
    io::File open() {
        auto file = io::File::open(temp_.path(), GetParam().access);
        EXPECT_TRUE(file.ok()) << file.status().message();
        return std::move(*file);
    }

    uint32_t below(uint32_t n) { return static_cast<uint32_t>(random_() % n); }
    RecordId any_record() { return below(store_->n_records()); }
    Owner any_owner() { return {.id = below(3), .generation = 1}; }

    void step() {
        while (scheduler_->admission().off()) (void)scheduler_->admission().layer();
        switch (below(8)) {
            case 0:
            case 1:
                for (uint32_t n = below(6); n > 0; --n) {
                    hinted_ = any_record();
                    Scheduler::Hint hint;
                    hint.cls = std::array{Class::near, Class::speculative, Class::warming}[below(3)];
                    hint.owner = any_owner();
                    (void)scheduler_->hint(hinted_, hint);
                }
                break;
            case 2:
                scheduler_->pump();
                break;
            case 3:
            case 4:
                if (open_.size() < 5) want();
                break;
            case 5:
                if (!open_.empty()) finish(take_wish());
                break;
            case 6:
                if (!open_.empty() && below(2) == 0) {
                    const std::unique_ptr<Wish> wish = take_wish();
                    if (below(2) == 0) (void)scheduler_->wait_some(wish->batch);
                    scheduler_->abandon(wish->batch);
                    release(*wish);
                } else if (below(4) == 0) {
                    cancel(any_owner());
                }
                break;
            case 7:
                if (below(4) == 0) forget(any_record());
                check_published();
                break;
        }
    }

    void forget(RecordId r) {
        const cache::SlotId slot = slots_->cache().find(r);
        if (slot != cache::kNoSlot && slots_->cache().leases(slot) == 0) slots_->cache().discard(r);
    }
    void want() {
        owners_.push_back(any_owner());
        auto wish = std::make_unique<Wish>(owners_.back());
        wish->which = static_cast<ComponentMask>(1 + below(7));
        for (uint32_t n = 1 + below(3); n > 0; --n) {
            const RecordId r = below(3) == 0 ? hinted_ : any_record();
            if (slots_->cache().lease(r) != cache::kNoSlot) wish->leased.push_back(r);
        }
        Scheduler::Wish how;
        if (below(6) == 0) how.cls = Class::page;
        scheduler_->want(wish->batch, wish->leased, wish->which, how);
        open_.push_back(std::move(wish));
    }
    std::unique_ptr<Wish> take_wish() {
        const auto at = static_cast<std::ptrdiff_t>(below(static_cast<uint32_t>(open_.size())));
        std::unique_ptr<Wish> wish = std::move(open_[static_cast<size_t>(at)]);
        open_.erase(open_.begin() + at);
        owners_.erase(owners_.begin() + at);
        return wish;
    }
    void finish(const std::unique_ptr<Wish>& wish) {
        const Status s = scheduler_->wait(wish->batch);
        if (s.ok()) {
            ++good_;
            for (const RecordId r : wish->leased) {
                for (uint32_t c = 0; c < store_->n_components(store_->set_of(r)); ++c) {
                    if ((wish->which & (1U << c)) == 0) continue;
                    ASSERT_TRUE(slots_->ready(r, c)) << "it was promised";
                    check_component(r, c);
                }
            }
        } else {
            ++bad_;
            ASSERT_NE(s.message().find("expert"), std::string::npos) << s.message();
        }
        scheduler_->abandon(wish->batch);
        release(*wish);
    }
    void release(const Wish& wish) {
        for (const RecordId r : wish.leased) slots_->cache().release(r);
    }
    // A request goes away: its wishes are answered with nothing.
    void cancel(Owner owner) {
        scheduler_->cancel(owner);
        for (size_t i = open_.size(); i-- > 0;) {
            if (!(owners_[i] == owner)) continue;
            EXPECT_TRUE(open_[i]->batch.done());
            release(*open_[i]);
            open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(i));
            owners_.erase(owners_.begin() + static_cast<std::ptrdiff_t>(i));
        }
    }

    void check_component(RecordId r, uint32_t c) {
        const std::span<const std::byte> want = model().bytes(*store_, r, c);
        const bool converted = slots_->converted(store_->set_of(r), c);
        const std::byte* got = slots_->data(r, c);
        ASSERT_TRUE(std::equal(want.begin(), want.end(), got,
                               [&](std::byte w, std::byte g) { return (converted ? ~w : w) == g; }))
            << "record " << r << ", component " << c;
        ++checked_;
    }
    // Whatever says that it is ready.
    void check_published() {
        for (cache::SlotId s = 0; s < slots_->cache().n_slots(); ++s) {
            const RecordId r = slots_->cache().record(s);
            if (r == kNoRecord) continue;
            for (uint32_t c = 0; c < store_->n_components(store_->set_of(r)); ++c) {
                if (slots_->ready(r, c)) check_component(r, c);
            }
        }
    }

    // Nothing is wanted any more.
    void end() {
        for (uint32_t id = 0; id < 3; ++id) cancel({.id = id, .generation = 1});
        ASSERT_TRUE(open_.empty());
        chaos_->calm = true;
        // Orphans come while somebody waits for something.
        for (int i = 0; i < 10'000 && scheduler_->live() > 0; ++i) {
            const std::vector<RecordId> small{store_->record(1, 0)};
            if (slots_->cache().lease(small[0]) == cache::kNoSlot) {
                scheduler_->pump();
                continue;
            }
            Batch b;
            scheduler_->want(b, small, 2, {});
            ASSERT_TRUE(scheduler_->wait(b).ok());
            slots_->cache().release(small[0]);
            slots_->cache().discard(small[0]);
        }
        EXPECT_EQ(scheduler_->live(), 0U);
        EXPECT_EQ(slots_->cache().total_leases(), 0U);
        EXPECT_EQ(chaos_->outstanding(), 0U);
        EXPECT_EQ(scheduler_->speculative_in_flight(), 0U);
        if (GetParam().convert) {
            EXPECT_EQ(slots_->free_staging(), Slots::kStagingBuffers);
        }
        check_published();
    }

    TempModel temp_;
    std::mt19937 random_;
    io::File file_;
    std::optional<store::RecordStore> store_;
    std::unique_ptr<Chaos> chaos_;
    std::unique_ptr<Slots> slots_;
    std::unique_ptr<Scheduler> scheduler_;  // ends first
    std::vector<std::unique_ptr<Wish>> open_;
    std::vector<Owner> owners_;  // of the open wishes
    RecordId hinted_ = 0;
    uint64_t good_ = 0, bad_ = 0, checked_ = 0;
};

TEST_P(ChaosTest, OnlyTheFilesBytesAreEverPublished) {
    for (const uint32_t seed : {1U, 2U}) {
        start(seed);
        // Which reads of a batch fail depends on the order in which the machine ends them; nearly always some do in
        // 2500.
        const auto rare = [&] { return !GetParam().mirror && bad_ == 0; };
        for (int i = 0; (i < 2500 || (i < 25'000 && rare())) && !HasFatalFailure(); ++i) step();
        const SchedCounters& c = scheduler_->counters();
        EXPECT_GT(chaos_->errors, 10U);
        EXPECT_GT(chaos_->flips, 10U);
        EXPECT_GT(c.mismatches, 5U);
        EXPECT_GT(c.retries, 10U);
        EXPECT_GT(c.promotions, 5U);
        EXPECT_GT(c.orphans, 5U);
        EXPECT_GT(c.predicted_bytes, 0U);
        EXPECT_GT(slots_->cache().counters().evictions, 50U);
        EXPECT_GT(good_, 50U);
        EXPECT_GT(checked_, 1000U);
        if (GetParam().mirror) {
            EXPECT_GT(c.rescued, 0U);
        } else {
            EXPECT_GT(bad_, 0U);
        }
        end();
    }
}

// It ends while reads are at the device.
TEST_P(ChaosTest, ASchedulerThatEndsWaitsForWhatWritesIntoItsSlots) {
    for (uint32_t seed = 10; seed < 16; ++seed) {
        start(seed);
        for (int i = 0; i < 60; ++i) step();
        while (open_.size() < 4) want();
        for (const auto& wish : open_) scheduler_->abandon(wish->batch);
        for (const auto& wish : open_) release(*wish);
        open_.clear();
        owners_.clear();
        scheduler_.reset();
        EXPECT_EQ(slots_->cache().total_leases(), 0U);
        EXPECT_EQ(chaos_->outstanding(), 0U);
        slots_.reset();
    }
}

INSTANTIATE_TEST_SUITE_P(Engines, ChaosTest,
                         ::testing::Values(Setup{"uring_direct", uring, io::Access::direct, false, false},
                                           Setup{"uring_buffered_converted", uring, io::Access::buffered, false, true},
                                           Setup{"uring_mirror", uring, io::Access::direct, true, false},
                                           Setup{"pread_direct", pool, io::Access::direct, false, true},
                                           Setup{"pread_buffered", pool, io::Access::buffered, false, false},
                                           Setup{"pread_mirror_converted", pool, io::Access::buffered, true, true},
                                           Setup{"mmap", mapped, io::Access::buffered, false, false}),
                         [](const auto& setup) { return std::string(setup.param.name); });

}  // namespace
}  // namespace sluice::sched
