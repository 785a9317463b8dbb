#include "trace/process.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/bytes.h"

namespace sluice::trace {
namespace {

TEST(Process, MemoryIsWhatTheKernelSays) {
    const ProcessMemory before = process_memory();
    ASSERT_TRUE(before.rss.has_value());
    ASSERT_TRUE(before.peak.has_value());
    EXPECT_GE(*before.peak, *before.rss / 2);
    const std::vector<char> block(64 * MiB, 1);
    EXPECT_GE(*process_memory().anon, *before.anon + 60 * MiB) << block.size();
}

TEST(Process, BytesReadOnlyGrow) {
    const auto first = process_bytes_read();
    ASSERT_TRUE(first.has_value());
    EXPECT_GE(*process_bytes_read(), *first);
}

}  // namespace
}  // namespace sluice::trace
