// Keeps: a sample of what the process uses allocates nothing, so that it may be taken while tokens are made.
#include <gtest/gtest.h>

#include "machine/usage.h"

// Sanitizers bring their own operator new; there the count stays 0 and the test says nothing.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#include "tests/count_allocations.h"

namespace sluice::machine {
namespace {

TEST(Usage, ASampleAllocatesNothing) {
    const UsageReader reader;
    const uint64_t before = allocations.load();
    const Usage u = reader.read();
    const Faults f = faults();
    EXPECT_EQ(allocations.load(), before);
    EXPECT_TRUE(u.rss.has_value() && f.cpu_ns.has_value());
}

}  // namespace
}  // namespace sluice::machine
#endif
