#include "sched/drives.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "sched/scheduler.h"
#include "tests/sched/support.h"

namespace sluice::sched {
namespace {

// The simulated model in the file that the geometry describes, in a copy of it on a second drive, and in a pack: the
// same components at other places, aligned.
class Holders : public SimulatedModel {
  protected:
    enum class Second { copy, pack };

    void start(Second second, bool shares, const io::SimOptions& sim = {}, bool convert = false) {
        scheduler_.reset();
        slots_.reset();
        engine_ = std::make_unique<io::SimEngine>(clock_, sim);
        engine_->set_contents(file_, contents_);
        const io::File* files[] = {&file_};
        store_ = std::make_unique<store::RecordStore>(store::RecordStore::over(geometry_, files));
        store_->set_checksums(right_sums());
        store_->add_holder(second == Second::copy ? make_copy(shares) : make_pack(shares));
        Slots::Options slots;
        slots.budget = 1 * MiB;
        slots.min_slots = 2;
        if (convert) {
            slots.converted = {{true, false, true}, {false, true, false}};
            slots.convert = [](uint32_t, uint32_t, const std::byte* raw, std::byte* slot, uint64_t bytes) {
                for (uint64_t i = 0; i < bytes; ++i) slot[i] = raw[i] ^ std::byte{0xFF};
            };
        }
        converted_ = slots.converted;
        auto made = Slots::create(*store_, std::move(slots));
        ASSERT_TRUE(made.ok()) << made.status().message();
        slots_ = std::move(*made);
        scheduler_ = std::make_unique<Scheduler>(*slots_, *engine_, clock_, Scheduler::Options{});
    }

    store::Holder make_copy(bool shares) {
        store::Holder h;
        h.name = "copy.gguf";
        h.shares = shares;
        h.files.push_back(std::make_unique<io::File>(io::File::simulated("copy.gguf", contents_.size(), 512, 512)));
        engine_->set_contents(*h.files[0], contents_);
        for (const model::ExpertSet& set : geometry_.sets) {
            h.places.emplace_back();
            for (const model::ExpertTensor& t : set.tensors)
                h.places.back().push_back({h.files[0].get(), t.offset, t.bytes_per_expert});
        }
        second_ = h.files[0].get();
        return h;
    }
    store::Holder make_pack(bool shares) {
        store::Holder h;
        h.name = "model.sluice";
        h.shares = shares;
        std::vector<std::byte> bytes;
        for (const model::ExpertSet& set : geometry_.sets) {
            h.places.emplace_back();
            for (const model::ExpertTensor& t : set.tensors) {
                const uint64_t stride = align_up(t.bytes_per_expert, uint64_t{4096});
                const uint64_t begin = bytes.size();
                bytes.resize(begin + stride * set.n_expert);
                for (uint32_t e = 0; e < set.n_expert; ++e)
                    std::copy_n(contents_.begin() + static_cast<std::ptrdiff_t>(t.expert_offset(e)), t.bytes_per_expert,
                                bytes.begin() + static_cast<std::ptrdiff_t>(begin + e * stride));
                h.places.back().push_back({nullptr, begin, stride});
            }
        }
        h.files.push_back(std::make_unique<io::File>(io::File::simulated("model.sluice.1", bytes.size(), 4096, 512)));
        second_ = h.files[0].get();
        for (auto& set : h.places) {
            for (store::Place& p : set) p.file = second_;
        }
        engine_->set_contents(*second_, std::move(bytes));
        return h;
    }

    std::vector<RecordId> everything() const {
        std::vector<RecordId> all;
        for (RecordId r = 0; r < store_->n_records(); ++r) all.push_back(r);
        return all;
    }
    // Reads `records`, checks every byte in the slots, and forgets them.
    Status read(const std::vector<RecordId>& records) {
        for (const RecordId r : records) EXPECT_NE(slots_->cache().lease(r), cache::kNoSlot);
        Batch b;
        scheduler_->want(b, records, kAll, {});
        Status s = scheduler_->wait(b);
        for (const RecordId r : records) {
            for (uint32_t c = 0; s.ok() && c < 3; ++c) {
                const store::Extent e = store_->extent(r, c);
                const bool converted = slots_->converted(store_->set_of(r), c);
                const std::byte* got = slots_->data(r, c);
                for (uint64_t i = 0; i < e.bytes; ++i)
                    EXPECT_EQ(got[i], contents_[e.offset + i] ^ (converted ? std::byte{0xFF} : std::byte{0})) << r;
            }
            slots_->cache().release(r);
            slots_->cache().discard(r);
        }
        return s;
    }
    size_t reads_of(const io::File* file) const {
        return static_cast<size_t>(std::count_if(engine_->history().begin(), engine_->history().end(),
                                                 [&](const io::SimRead& r) { return r.op.file == file; }));
    }

    std::unique_ptr<Slots> slots_;
    std::unique_ptr<Scheduler> scheduler_;
    const io::File* second_ = nullptr;
};

TEST_F(Holders, AMirrorTakesItsPartOfTheReads) {
    start(Second::copy, true);
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(read(everything()).ok());
    const double share = static_cast<double>(reads_of(second_)) / static_cast<double>(engine_->history().size());
    EXPECT_GT(share, 0.4);
    EXPECT_LT(share, 0.6);
}

TEST_F(Holders, WhatDoesNotShareIsNotReadWhileAllIsWell) {
    start(Second::pack, false);
    ASSERT_TRUE(read(everything()).ok());
    EXPECT_EQ(reads_of(second_), 0U);
}

// The bytes of a pack lie elsewhere in an aligned read than those of the GGUF, and slots are made for the latter.
TEST_F(Holders, BytesOfAnyHolderLandWhereTheSlotHasThem) {
    for (const bool convert : {false, true}) {
        start(Second::pack, true, {}, convert);
        for (int i = 0; i < 3; ++i) ASSERT_TRUE(read(everything()).ok());
        EXPECT_GT(reads_of(second_), 10U);
        EXPECT_EQ(scheduler_->live(), 0U);
        EXPECT_EQ(slots_->free_staging(), Slots::kStagingBuffers);
    }
}

TEST_F(Holders, DamageIsReadAgainAndThenTakenFromTheOtherHolder) {
    for (const Second second : {Second::copy, Second::pack}) {
        for (const bool convert : {false, true}) {
            start(second, false, {}, convert);
            std::vector<std::byte> damaged = contents_;
            const store::Extent e = store_->extent(2, 1);
            damaged[e.offset + 17] ^= std::byte{4};
            engine_->set_contents(file_, damaged);
            ASSERT_TRUE(read({2, 3}).ok());
            EXPECT_EQ(scheduler_->counters().mismatches, 2U);
            EXPECT_EQ(scheduler_->counters().rescued, 1U);
            EXPECT_EQ(reads_of(second_), 1U);
            EXPECT_EQ(slots_->cache().total_leases(), 0U);
        }
    }
}

TEST_F(Holders, WhatNobodyHasWholeIsAnErrorThatNamesBoth) {
    start(Second::copy, false);
    std::vector<std::byte> damaged = contents_;
    damaged[store_->extent(2, 1).offset] ^= std::byte{1};
    engine_->set_contents(file_, damaged);
    engine_->set_contents(*second_, damaged);
    const Status s = read({2});
    ASSERT_FALSE(s.ok());
    EXPECT_EQ(s.code(), Code::corrupt);
    for (const char* part : {"layer 0, expert 2, up", "model.gguf", "copy.gguf", "checksum"})
        EXPECT_NE(s.message().find(part), std::string::npos) << part << ": " << s.message();
    EXPECT_EQ(scheduler_->live(), 0U);
    ASSERT_TRUE(read({3}).ok()) << "the next wish is served";
}

TEST_F(Holders, ADriveThatKeepsFailingIsRetired) {
    start(Second::copy, true);
    engine_->truncate(*second_, 0);  // every read of it ends early
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(read(everything()).ok());
    EXPECT_TRUE(scheduler_->drives().retired(1));
    EXPECT_FALSE(scheduler_->drives().retired(0));
    const size_t before = reads_of(second_);
    EXPECT_LT(before, 40U) << "of " << engine_->history().size();
    ASSERT_TRUE(read(everything()).ok());
    EXPECT_EQ(reads_of(second_), before);
}

TEST_F(Holders, TheLastDriveIsNeverRetired) {
    start(Second::copy, true);
    engine_->truncate(*second_, 0);
    engine_->truncate(file_, 0);
    for (int i = 0; i < 8; ++i) ASSERT_FALSE(read({0}).ok());
    EXPECT_TRUE(scheduler_->drives().retired(0) != scheduler_->drives().retired(1));
    engine_->set_contents(file_, contents_);
    engine_->set_contents(*second_, contents_);
    EXPECT_TRUE(read({0}).ok()) << "drives come back";
}

// Of two drives the one that is four times as fast gets about four of five reads.
TEST(Drives, ReadsAreSharedOutBySpeed) {
    const io::File a = io::File::simulated("a", 1 << 30U), b = io::File::simulated("b", 1 << 30U);
    model::Geometry geometry;
    model::ExpertSet set;
    set.n_expert = 4;
    model::ExpertTensor tensor;
    tensor.bytes_per_expert = 1 << 20U;
    set.tensors.push_back(tensor);
    geometry.sets.push_back(set);
    const io::File* files[] = {&a};
    store::RecordStore store = store::RecordStore::over(geometry, files);
    store::Holder mirror;
    mirror.name = "b";
    mirror.shares = true;
    mirror.places = {{{&b, 0, 1 << 20U}}};
    store.add_holder(std::move(mirror));

    Drives drives(store);
    struct Read {
        HolderId holder;
        Nanos done;
    };
    std::vector<Read> reads;
    std::array<Nanos, 2> free_at{};
    std::array<int, 2> n{};
    Nanos now = 0;
    constexpr uint32_t kBytes = 1 << 20U;
    for (int i = 0; i < 2000; ++i) {
        while (reads.size() >= 8) {
            const auto first = std::min_element(reads.begin(), reads.end(),
                                                [](const Read& x, const Read& y) { return x.done < y.done; });
            now = std::max(now, first->done);
            drives.completed(first->holder, kBytes, now);
            reads.erase(first);
        }
        const HolderId h = drives.choose(0, 0, kBytes, 0);
        ASSERT_LT(h, 2);
        ++n[h];
        drives.submitted(h, kBytes, now);
        const Nanos takes = h == 0 ? 4'000'000 : 1'000'000;
        free_at[h] = std::max(free_at[h], now) + takes;
        reads.push_back({h, free_at[h]});
    }
    EXPECT_NEAR(static_cast<double>(n[1]) / 2000, 0.8, 0.08);
    EXPECT_GT(drives.speed(1), 2 * drives.speed(0));
}

}  // namespace
}  // namespace sluice::sched
