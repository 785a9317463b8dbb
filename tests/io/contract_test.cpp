// The contract of Engine, the same for every engine, direct and buffered.
#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <thread>
#include <tuple>

#include "tests/io/support.h"

namespace sluice::io {
namespace {

using namespace testing_support;

constexpr uint64_t file_bytes = 1 * MiB + 777;

class Contract : public ::testing::TestWithParam<std::tuple<Kind, Access>> {
  protected:
    void SetUp() override {
        file_ = temp_.open(std::get<1>(GetParam()));
        SLUICE_SKIP_IF_REFUSED(std::get<0>(GetParam()).name);
        engine_ = make(8);
        ASSERT_NE(engine_, nullptr);
    }
    static std::unique_ptr<Engine> make(unsigned lanes) { return std::get<0>(GetParam()).make(lanes); }

    // A read of [offset, offset + need), rounded out as the file demands; the wanted range starts aligned.
    ReadOp op(uint64_t offset, uint32_t need, std::byte* dst, uint64_t tag) const {
        ReadOp o;
        o.file = &file_;
        o.offset = offset;
        o.length = static_cast<uint32_t>(align_up(need, std::max<uint32_t>(file_.offset_align(), 1)));
        o.need = need;
        o.dst = dst;
        o.tag = tag;
        return o;
    }
    Completion one(const ReadOp& o) {
        engine_->submit({&o, 1});
        const std::vector<Completion> all = drain(*engine_);
        EXPECT_EQ(all.size(), 1U);
        return all.empty() ? Completion{} : all[0];
    }

    TempFile temp_{file_bytes};
    File file_;
    std::unique_ptr<Engine> engine_;
};

TEST_P(Contract, NothingAskedNothingDone) {
    engine_->submit({});
    std::array<Completion, 4> out;
    EXPECT_EQ(engine_->outstanding(), 0U);
    EXPECT_EQ(engine_->wait(out), 0U);
    EXPECT_NE(engine_->name(), nullptr);
}

TEST_P(Contract, EveryByteOfTheFileArrives) {
    constexpr uint32_t step = 64 * KiB;
    const Buffer buffer(align_up(file_bytes, step));
    std::vector<ReadOp> batch;
    for (uint64_t at = 0; at < file_bytes; at += step) {
        const auto need = static_cast<uint32_t>(std::min<uint64_t>(step, file_bytes - at));
        batch.push_back(op(at, need, buffer.data() + at, at));
    }
    engine_->submit(batch);
    EXPECT_EQ(engine_->outstanding(), batch.size());
    const std::vector<Completion> all = drain(*engine_);
    EXPECT_EQ(all.size(), batch.size());
    for (const Completion& c : all) EXPECT_EQ(c.error, 0);
    EXPECT_EQ(first_wrong(buffer.span().first(file_bytes), 0), file_bytes);
}

TEST_P(Contract, WaitingForALimitedTimeLosesNothing) {
    constexpr uint32_t step = 64 * KiB;
    const Buffer buffer(align_up(file_bytes, step));
    std::vector<ReadOp> batch;
    for (uint64_t at = 0; at + step < file_bytes; at += step) batch.push_back(op(at, step, buffer.data() + at, at));
    std::array<Completion, 3> some;
    EXPECT_EQ(engine_->wait_for(some, 1'000'000), 0U) << "nothing is asked";
    engine_->submit(batch);
    std::set<uint64_t> seen;
    for (Nanos most = 0; engine_->outstanding() > 0; most += 1000) {
        const size_t before = engine_->outstanding();
        const size_t n = engine_->wait_for(some, most);
        EXPECT_EQ(engine_->outstanding(), before - n);
        for (size_t i = 0; i < n; ++i) {
            EXPECT_EQ(some[i].error, 0);
            EXPECT_TRUE(seen.insert(some[i].tag).second);
        }
    }
    EXPECT_EQ(seen.size(), batch.size());
    EXPECT_EQ(first_wrong(buffer.span().first(batch.size() * step), 0), batch.size() * step);
}

TEST_P(Contract, UnalignedEndsAndTags) {
    std::mt19937_64 random(3);
    const Buffer buffer(64 * 8192);
    std::vector<ReadOp> batch;
    for (uint64_t i = 0; i < 64; ++i) {
        const uint64_t at = align_down(random() % (file_bytes - 8192), 4096);
        batch.push_back(op(at, 1 + static_cast<uint32_t>(random() % 8192), buffer.data() + i * 8192, UINT64_MAX - i));
    }
    engine_->submit(batch);
    const std::vector<Completion> all = drain(*engine_, 3);
    ASSERT_EQ(all.size(), batch.size());
    for (const Completion& c : all) {
        const ReadOp& o = batch[UINT64_MAX - c.tag];
        EXPECT_EQ(c.error, 0);
        EXPECT_GE(c.bytes, o.need);
        EXPECT_LE(c.bytes, o.length);
        EXPECT_EQ(first_wrong({o.dst, o.need}, o.offset), o.need);
    }
}

TEST_P(Contract, BufferedReadsNeedNoAlignment) {
    const File buffered = temp_.open(Access::buffered);
    const Buffer buffer(10000);
    ReadOp o = op(12345, 6789, buffer.data() + 3, 1);
    o.file = &buffered;
    o.length = 6789;
    EXPECT_EQ(one(o).error, 0);
    EXPECT_EQ(first_wrong({o.dst, o.need}, o.offset), o.need);
    EXPECT_EQ(buffer.data()[3 + 6789], std::byte{0xEE});
}

TEST_P(Contract, LengthMayPassTheEnd) {
    const Buffer buffer(64 * KiB);
    const uint64_t at = align_down(file_bytes - 5000, 4096);
    ReadOp o = op(at, static_cast<uint32_t>(file_bytes - at), buffer.data(), 1);
    o.length = 64 * KiB;
    const Completion c = one(o);
    EXPECT_EQ(c.error, 0);
    EXPECT_EQ(c.bytes, o.need);
    EXPECT_EQ(first_wrong({o.dst, o.need}, o.offset), o.need);
}

TEST_P(Contract, NeedMustNotPassTheEnd) {
    const Buffer buffer(64 * KiB);
    const uint64_t at = align_down(file_bytes - 5000, 4096);
    ReadOp o = op(at, static_cast<uint32_t>(file_bytes - at) + 1, buffer.data(), 1);
    o.length = 64 * KiB;
    EXPECT_EQ(one(o).error, ENODATA);
    // Wholly behind the end.
    o = op(align_up(file_bytes, 4096), 1, buffer.data(), 2);
    EXPECT_EQ(one(o).error, ENODATA);
    // Asking for nothing there is fine.
    o.need = 0;
    EXPECT_EQ(one(o).error, 0);
    // The engine is as good as before.
    EXPECT_EQ(one(op(0, 4096, buffer.data(), 3)).error, 0);
    EXPECT_EQ(first_wrong(buffer.span().first(4096), 0), 4096U);
}

TEST_P(Contract, EmptyRead) {
    const Buffer buffer(4096);
    const Completion c = one(op(4096, 0, buffer.data(), 9));
    EXPECT_EQ(c.tag, 9U);
    EXPECT_EQ(c.error, 0);
    EXPECT_EQ(c.bytes, 0U);
}

TEST_P(Contract, AsManyOutstandingAsPromised) {
    constexpr size_t n = Engine::max_outstanding();
    const Buffer buffer(n * 4096);
    std::vector<ReadOp> batch;
    for (size_t i = 0; i < n; ++i) batch.push_back(op((i % 256) * 4096, 4096, buffer.data() + i * 4096, i));
    for (int round = 0; round < 2; ++round) {
        engine_->submit(batch);
        EXPECT_EQ(engine_->outstanding(), n);
        const std::vector<Completion> all = drain(*engine_, 100);
        ASSERT_EQ(all.size(), n);
        for (const Completion& c : all) EXPECT_EQ(c.error, 0);
        size_t wrong = 0;
        for (const ReadOp& o : batch) wrong += first_wrong({o.dst, 4096}, o.offset) == 4096 ? 0 : 1;
        EXPECT_EQ(wrong, 0U);
    }
}

TEST_P(Contract, SubmitAndWaitInterleave) {
    constexpr size_t depth = 24;
    constexpr size_t total = 500;
    const Buffer buffer(depth * 4096);
    std::mt19937_64 random(11);
    std::map<uint64_t, ReadOp> under_way;
    std::vector<std::byte*> free;
    for (size_t i = 0; i < depth; ++i) free.push_back(buffer.data() + i * 4096);
    size_t next = 0;
    size_t done = 0;
    while (done < total) {
        std::vector<ReadOp> batch;
        while (next < total && !free.empty() && random() % 4 != 0) {
            batch.push_back(op(random() % 256 * 4096, 4096, free.back(), next++));
            free.pop_back();
            under_way[batch.back().tag] = batch.back();
        }
        engine_->submit(batch);
        std::array<Completion, 5> out;
        const size_t n = engine_->wait(out);
        EXPECT_EQ(n == 0, under_way.empty());
        for (size_t i = 0; i < n; ++i) {
            const auto found = under_way.find(out[i].tag);
            ASSERT_NE(found, under_way.end());
            EXPECT_EQ(out[i].error, 0);
            EXPECT_EQ(first_wrong({found->second.dst, 4096}, found->second.offset), 4096U);
            free.push_back(found->second.dst);
            under_way.erase(found);
            ++done;
        }
    }
    EXPECT_EQ(engine_->outstanding(), 0U);
}

TEST_P(Contract, OneLaneKeepsTheOrder) {
    engine_ = make(1);
    const Buffer buffer(100 * 4096);
    std::vector<ReadOp> batch;
    for (size_t i = 0; i < 100; ++i) batch.push_back(op((99 - i) * 4096, 4096, buffer.data() + i * 4096, i));
    engine_->submit(std::span(batch).first(40));
    engine_->submit(std::span(batch).subspan(40));
    const std::vector<Completion> all = drain(*engine_);
    ASSERT_EQ(all.size(), 100U);
    for (size_t i = 0; i < 100; ++i) EXPECT_EQ(all[i].tag, i);
}

TEST_P(Contract, BadDescriptorIsAnErrorOfItsReadOnly) {
    const File nothing = File::simulated("nothing", 4096);
    const Buffer buffer(3 * 4096);
    std::array<ReadOp, 3> batch = {op(0, 4096, buffer.data(), 0), op(0, 4096, buffer.data() + 4096, 1),
                                   op(4096, 4096, buffer.data() + 8192, 2)};
    batch[1].file = &nothing;
    engine_->submit(batch);
    const std::vector<Completion> all = drain(*engine_);
    ASSERT_EQ(all.size(), 3U);
    for (const Completion& c : all) EXPECT_EQ(c.error, c.tag == 1 ? EBADF : 0);
    EXPECT_EQ(first_wrong({batch[2].dst, 4096}, 4096), 4096U);
}

TEST_P(Contract, EndsWithReadsOutstanding) {
    constexpr size_t n = 512;
    auto buffer = std::make_unique<Buffer>(n * 4096);
    std::vector<ReadOp> batch;
    for (size_t i = 0; i < n; ++i) batch.push_back(op((i % 256) * 4096, 4096, buffer->data() + i * 4096, i));
    engine_->submit(batch);
    std::array<Completion, 1> out;
    EXPECT_EQ(engine_->wait(out), 1U);
    engine_.reset();
    // Whatever was not read by now never will be: the memory can serve others, and be freed.
    std::fill_n(buffer->data(), n * 4096, std::byte{0x11});
    engine_ = make(8);
    const Buffer other(64 * KiB);
    EXPECT_EQ(one(op(0, 64 * KiB, other.data(), 1)).error, 0);
    EXPECT_EQ(std::count(buffer->data(), buffer->data() + n * 4096, std::byte{0x11}),
              static_cast<std::ptrdiff_t>(n * 4096));
    buffer.reset();
}

// A kernel may cancel the reads of a thread that ends; the engine asks again.
TEST_P(Contract, OutlivesTheThreadThatSubmitted) {
    const Buffer buffer(128 * 4096);
    std::thread([&] {
        std::vector<ReadOp> batch;
        for (size_t i = 0; i < 128; ++i) batch.push_back(op(i * 4096, 4096, buffer.data() + i * 4096, i));
        engine_->submit(batch);
    }).join();
    const std::vector<Completion> all = drain(*engine_);
    EXPECT_EQ(all.size(), 128U);
    for (const Completion& c : all) EXPECT_EQ(c.error, 0);
    EXPECT_EQ(first_wrong(buffer.span(), 0), buffer.size());
}

TEST_P(Contract, FileShrinksUnderWay) {
    constexpr uint64_t left = 300 * KiB + 100;
    constexpr uint64_t n = 256;
    const Buffer buffer(n * 4096);
    std::vector<ReadOp> batch;
    for (uint64_t i = 0; i < n; ++i) batch.push_back(op(i * 4096, 4096, buffer.data() + i * 4096, i));
    engine_->submit(batch);
    std::array<Completion, 1> out;
    EXPECT_EQ(engine_->wait(out), 1U);
    temp_.truncate(left);
    const std::vector<Completion> all = drain(*engine_);
    EXPECT_EQ(all.size(), n - 1);
    for (const Completion& c : all) {
        const bool inside = (c.tag + 1) * 4096 <= left;
        if (inside) {
            EXPECT_EQ(c.error, 0);
            EXPECT_EQ(first_wrong({buffer.data() + c.tag * 4096, 4096}, c.tag * 4096), 4096U);
        } else {
            EXPECT_TRUE(c.error == 0 || c.error == ENODATA) << c.error;
        }
    }
    // From now on the end is where it is.
    EXPECT_EQ(one(op(align_down(left, 4096), 4096, buffer.data(), 1)).error, ENODATA);
    EXPECT_EQ(one(op(align_down(left, 4096), 100, buffer.data(), 1)).error, 0);
    EXPECT_EQ(one(op(512 * KiB, 4096, buffer.data(), 1)).error, ENODATA);
}

TEST_P(Contract, PollTakesWhatIsThere) {
    std::array<Completion, 7> out;
    EXPECT_EQ(engine_->poll(out), 0U);
    constexpr size_t n = 200;
    const Buffer buffer(n * 4096);
    std::vector<ReadOp> batch;
    for (size_t i = 0; i < n; ++i) batch.push_back(op(i * 4096, 4096, buffer.data() + i * 4096, i));
    engine_->submit(batch);
    std::vector<bool> seen(n);
    for (size_t done = 0; done < n;) {
        const size_t got = engine_->poll(out);
        for (size_t i = 0; i < got; ++i) {
            EXPECT_EQ(out[i].error, 0);
            EXPECT_FALSE(seen[out[i].tag]);
            seen[out[i].tag] = true;
            EXPECT_EQ(first_wrong({buffer.data() + out[i].tag * 4096, 4096}, out[i].tag * 4096), 4096U);
        }
        done += got;
        EXPECT_EQ(engine_->outstanding(), n - done);
        if (got == 0) std::this_thread::yield();
    }
    EXPECT_EQ(engine_->poll(out), 0U);
    EXPECT_EQ(engine_->wait(out), 0U);
}

TEST_P(Contract, CountsWhatWasAsked) {
    const Buffer buffer(40 * 4096);
    std::vector<ReadOp> batch;
    uint64_t bytes = 0;
    for (size_t i = 0; i < 40; ++i) {
        batch.push_back(op(i * 4096, 4000, buffer.data() + i * 4096, i));
        bytes += batch.back().length;
    }
    engine_->submit(batch);
    EXPECT_EQ(engine_->totals().reads, 40U);
    EXPECT_EQ(engine_->totals().bytes, bytes);
    drain(*engine_);
    EXPECT_EQ(engine_->totals().reads, 40U);
}

// Inside, outside, and over the edge of what was registered.
TEST_P(Contract, RegisteredMemoryChangesNothing) {
    const Buffer buffer(64 * 4096);
    ASSERT_TRUE(engine_->register_memory({}));
    ASSERT_TRUE(engine_->register_memory(buffer.span().subspan(8 * 4096, 16 * 4096)));
    ASSERT_TRUE(engine_->register_memory(buffer.span().subspan(32 * 4096, 8 * 4096)));
    std::vector<ReadOp> batch;
    for (size_t i = 0; i < 64; i += 2) batch.push_back(op(i * 4096, 8192, buffer.data() + i * 4096, i));
    batch.push_back(op(7 * 4096, 0, buffer.data() + 7 * 4096, 100));
    batch.push_back(op(9 * 4096, 0, buffer.data() + 9 * 4096, 101));
    engine_->submit(batch);
    std::vector<Completion> all = drain(*engine_);
    EXPECT_EQ(all.size(), batch.size());
    for (const Completion& c : all) EXPECT_EQ(c.error, 0);
    EXPECT_EQ(first_wrong(buffer.span(), 0), buffer.size());
    // Over both edges of a region, from another place of the file.
    const std::array<ReadOp, 2> edges = {op(100 * 4096, 8192, buffer.data() + 7 * 4096, 1),
                                         op(102 * 4096, 8192, buffer.data() + 23 * 4096, 2)};
    engine_->submit(edges);
    for (const Completion& c : drain(*engine_)) EXPECT_EQ(c.error, 0);
    for (const ReadOp& o : edges) EXPECT_EQ(first_wrong({o.dst, o.need}, o.offset), o.need);
    engine_.reset();  // before the memory
}

TEST_P(Contract, SpeculativeReadsAreReadsToo) {
    const Buffer buffer(64 * 4096);
    std::vector<ReadOp> batch;
    for (size_t i = 0; i < 64; ++i) {
        batch.push_back(op(i * 4096, 4096, buffer.data() + i * 4096, i));
        if (i % 3 != 0) batch.back().priority = Priority::speculative;
    }
    engine_->submit(batch);
    const std::vector<Completion> all = drain(*engine_);
    EXPECT_EQ(all.size(), 64U);
    for (const Completion& c : all) EXPECT_EQ(c.error, 0);
    EXPECT_EQ(first_wrong(buffer.span(), 0), buffer.size());
}

// Files come and go, with the same descriptor and address; more of them than a ring has places for.
TEST_P(Contract, AnotherFileInTheSamePlace) {
    const Buffer buffer(4096);
    for (int i = 0; i < 200; ++i) {
        const TempFile other(4096, ::testing::TempDir());
        file_ = i % 2 == 0 ? other.open(std::get<1>(GetParam())) : temp_.open(std::get<1>(GetParam()));
        const uint64_t at = i % 2 == 0 ? 0 : 8192;
        const ReadOp o = op(at, 4096, buffer.data(), 1);
        EXPECT_EQ(one(o).error, 0);
        ASSERT_EQ(first_wrong(buffer.span(), at), 4096U) << i;
    }
}

INSTANTIATE_TEST_SUITE_P(Engines, Contract,
                         ::testing::Combine(::testing::ValuesIn(all_kinds()),
                                            ::testing::Values(Access::direct, Access::buffered)),
                         [](const auto& kind) {
                             return std::string(std::get<0>(kind.param).name) +
                                    (std::get<1>(kind.param) == Access::direct ? "_direct" : "_buffered");
                         });

}  // namespace
}  // namespace sluice::io
