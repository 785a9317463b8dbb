// Keeps: an engine allocates when it is made and never again, however many reads pass through it.
#include <array>

#include "tests/io/support.h"

// Sanitizers bring their own operator new; there the count stays 0 and the test says nothing.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#include "tests/count_allocations.h"

namespace sluice::io {
namespace {

using namespace testing_support;

TEST(Engines, DoNotAllocatePerRead) {
    const TempFile temp(64 * 4096);
    const File file = temp.open(Access::direct);
    const Buffer buffer(1024 * 4096);
    std::vector<ReadOp> batch(1024);
    for (size_t i = 0; i < batch.size(); ++i) {
        batch[i] = {&file, i % 64 * 4096, 4096, 4096, buffer.data() + i * 4096, i};
    }
    for (const Kind& kind : {Kind{"io_uring", make_uring}, Kind{"pread", make_pool}, Kind{"mmap", make_mmap}}) {
        if (!refused_by_kernel(kind.name).empty()) continue;
        const std::unique_ptr<Engine> engine = kind.make(8);
        ASSERT_NE(engine, nullptr) << kind.name;
        std::array<Completion, 32> out;
        // The first round lets the pool's threads reach their loop.
        for (int round = 0; round < 2; ++round) {
            const uint64_t before = allocations.load();
            engine->submit(batch);
            while (engine->wait(out) > 0) {
            }
            if (round > 0) {
                EXPECT_EQ(allocations.load(), before) << engine->name();
            }
        }
    }
}

}  // namespace
}  // namespace sluice::io
#endif
