#include "cache/budget.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/bytes.h"

namespace sluice::cache {
namespace {

class BudgetTest : public ::testing::Test {
  protected:
    BudgetTest() : root_(std::filesystem::temp_directory_path() / ("sluice-budget-" + std::to_string(getpid()))) {}
    ~BudgetTest() override { std::filesystem::remove_all(root_); }
    void write(const std::string& path, const std::string& text) {
        const std::filesystem::path p = root_ / path;
        std::filesystem::create_directories(p.parent_path());
        std::ofstream(p) << text;
    }
    [[nodiscard]] MemoryRoom read() const { return read_memory_room(root_.string()); }
    std::filesystem::path root_;
};

TEST_F(BudgetTest, NothingReadableMeansUnknown) {
    const MemoryRoom room = read();
    EXPECT_FALSE(room.available.has_value());
    EXPECT_FALSE(room.cgroup_limit.has_value());
    EXPECT_EQ(choose_budget(room, 10 * MiB, 100 * MiB).bytes, 100 * MiB);
    EXPECT_EQ(choose_budget(room, 10 * MiB, 100 * GiB).bytes, GiB);
}

TEST_F(BudgetTest, TakesWhatIsFreeLessAReserve) {
    write("proc/meminfo", "MemTotal: 100 kB\nMemAvailable:   8388608 kB\n");
    const MemoryRoom room = read();
    ASSERT_EQ(room.available, 8 * GiB);
    EXPECT_EQ(choose_budget(room, MiB, 100 * GiB).bytes, 7 * GiB);
    EXPECT_EQ(choose_budget(room, MiB, 3 * GiB).bytes, 3 * GiB);
    EXPECT_EQ(choose_budget(room, MiB, 3 * GiB).why, "all experts fit");
}

TEST_F(BudgetTest, KnowsLimitsOfCgroupVersion1AndOfParents) {
    write("proc/meminfo", "MemAvailable: 8388608 kB\n");
    write("proc/self/cgroup", "5:devices:/\n4:memory:/a/b\n0::/\n");
    write("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
    write("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "1000\n");
    write("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1073741824\n");
    write("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "536870912\n");
    write("sys/fs/cgroup/memory/a/memory.stat", "cache 5\ntotal_inactive_file 268435456\n");
    const MemoryRoom room = read();
    ASSERT_EQ(room.cgroup_limit, GiB);
    EXPECT_EQ(room.cgroup_used, 256 * MiB);
    EXPECT_EQ(choose_budget(room, MiB, 100 * GiB).bytes, 512 * MiB);
}

TEST_F(BudgetTest, KnowsLimitsOfCgroupVersion2) {
    write("proc/meminfo", "MemAvailable: 8388608 kB\n");
    write("proc/self/cgroup", "0::/user/x\n");
    write("sys/fs/cgroup/user/x/memory.max", "2147483648\n");
    write("sys/fs/cgroup/user/x/memory.current", "1073741824\n");
    const MemoryRoom room = read();
    ASSERT_EQ(room.cgroup_limit, 2 * GiB);
    EXPECT_EQ(choose_budget(room, MiB, 100 * GiB).bytes, 768 * MiB);
}

TEST_F(BudgetTest, WordsInsteadOfNumbersMeanNoLimit) {
    write("proc/self/cgroup", "0::/\n");
    write("sys/fs/cgroup/memory.max", "max\n");
    write("sys/fs/cgroup/memory.current", "5\n");
    EXPECT_FALSE(read().cgroup_limit.has_value());
}

TEST_F(BudgetTest, NeverLessThanOneExpert) {
    write("proc/meminfo", "MemAvailable: 1024 kB\n");
    EXPECT_EQ(choose_budget(read(), 30 * MiB, 100 * GiB).bytes, 30 * MiB);
}

}  // namespace
}  // namespace sluice::cache
