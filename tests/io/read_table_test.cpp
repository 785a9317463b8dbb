#include "io/read_table.h"

#include <array>

#include "tests/io/support.h"

namespace sluice::io {
namespace {

ReadOp make_op(const File& file, uint32_t length, uint32_t need, std::byte* dst) {
    ReadOp op;
    op.file = &file;
    op.offset = 8192;
    op.length = length;
    op.need = need;
    op.dst = dst;
    op.tag = 5;
    return op;
}

TEST(PartialRead, ShortBufferedReadGoesOnWhereItStopped) {
    const File file = File::simulated("f", 1 << 20);
    std::array<std::byte, 1000> memory;
    PartialRead read(make_op(file, 1000, 1000, memory.data()));
    EXPECT_FALSE(read.take(301));
    EXPECT_EQ(read.offset(), 8192U + 301);
    EXPECT_EQ(read.length(), 699U);
    EXPECT_EQ(read.dst(), memory.data() + 301);
    EXPECT_TRUE(read.take(699));
    EXPECT_EQ(read.completion().error, 0);
    EXPECT_EQ(read.completion().bytes, 1000U);
    EXPECT_EQ(read.completion().tag, 5U);
}

TEST(PartialRead, ShortDirectReadGoesBackToAnAlignedPlace) {
    const File file = File::simulated("f", 1 << 20, 512, 4);
    const testing_support::Buffer memory(4096);
    PartialRead read(make_op(file, 4096, 4000, memory.data()));
    EXPECT_FALSE(read.take(1300));
    EXPECT_EQ(read.offset(), 8192U + 1024);
    EXPECT_EQ(read.length(), 3072U);
    EXPECT_EQ(read.dst(), memory.data() + 1024);
    EXPECT_FALSE(read.take(1024));
    EXPECT_EQ(read.offset(), 8192U + 2048);
    EXPECT_TRUE(read.take(1952));  // the need is met, the rest of the length is nobody's
    EXPECT_EQ(read.completion().error, 0);
    EXPECT_EQ(read.completion().bytes, 4000U);
}

// Memory may demand more than the file does.
TEST(PartialRead, ResumesWhereBothAlignmentsAllow) {
    const File file = File::simulated("f", 1 << 20, 512, 4096);
    const testing_support::Buffer memory(16384);
    PartialRead read(make_op(file, 16384, 16384, memory.data()));
    EXPECT_FALSE(read.take(8192 + 1024));
    EXPECT_EQ(read.offset(), 8192U + 8192);
}

TEST(PartialRead, EndOfFile) {
    const File buffered = File::simulated("f", 1 << 20);
    const File direct = File::simulated("f", 1 << 20, 512, 512);
    const testing_support::Buffer memory(4096);
    PartialRead read(make_op(buffered, 4096, 1000, memory.data()));
    EXPECT_FALSE(read.take(999));
    EXPECT_TRUE(read.take(0));
    EXPECT_EQ(read.completion().error, ENODATA);
    EXPECT_EQ(read.completion().bytes, 999U);

    // Directly, the same stop again and again is the end.
    read = PartialRead(make_op(direct, 4096, 1000, memory.data()));
    EXPECT_FALSE(read.take(999));
    unsigned repeats = 1;
    while (!read.take(999 - 512)) ++repeats;
    EXPECT_EQ(repeats, PartialRead::max_repeats);
    EXPECT_EQ(read.completion().error, ENODATA);
}

TEST(PartialRead, EndlessInterruptionsEnd) {
    const File file = File::simulated("f", 1 << 20);
    std::array<std::byte, 100> memory;
    for (const int e : {EINTR, EAGAIN, ECANCELED}) {
        PartialRead read(make_op(file, 100, 100, memory.data()));
        for (unsigned i = 1; i < PartialRead::max_interruptions; ++i) ASSERT_FALSE(read.take(-e));
        EXPECT_TRUE(read.take(-e));
        EXPECT_EQ(read.completion().error, EIO);
    }
    // Progress starts the count again.
    PartialRead read(make_op(file, 100, 100, memory.data()));
    for (unsigned i = 1; i < PartialRead::max_interruptions; ++i) ASSERT_FALSE(read.take(-EINTR));
    EXPECT_FALSE(read.take(1));
    EXPECT_FALSE(read.take(-EINTR));
    EXPECT_TRUE(read.take(99));
    EXPECT_EQ(read.completion().error, 0);
}

TEST(PartialRead, OtherErrorsPass) {
    const File file = File::simulated("f", 1 << 20);
    std::array<std::byte, 100> memory;
    PartialRead read(make_op(file, 100, 100, memory.data()));
    EXPECT_TRUE(read.take(-EINVAL));
    EXPECT_EQ(read.completion().error, EINVAL);
}

TEST(ReadTable, ChainsAreQueues) {
    const File file = File::simulated("f", 1 << 20);
    ReadTable table;
    ReadTable::Chain chain;
    const ReadTable::Index a = table.add(make_op(file, 0, 0, nullptr));
    const ReadTable::Index b = table.add(make_op(file, 0, 0, nullptr));
    const ReadTable::Index c = table.add(make_op(file, 0, 0, nullptr));
    EXPECT_EQ(table.size(), 3U);
    table.push_back(chain, b);
    table.push_back(chain, c);
    table.push_front(chain, a);
    EXPECT_EQ(table.pop_front(chain), a);
    EXPECT_EQ(table.pop_front(chain), b);
    EXPECT_EQ(table.pop_front(chain), c);
    EXPECT_TRUE(chain.empty());
    table.push_front(chain, c);
    table.push_back(chain, a);
    std::array<Completion, 1> out;
    EXPECT_EQ(table.hand_out(chain, out), 1U);
    EXPECT_EQ(table.hand_out(chain, out), 1U);
    EXPECT_EQ(table.hand_out(chain, out), 0U);
    EXPECT_EQ(table.size(), 1U);
}

}  // namespace
}  // namespace sluice::io
