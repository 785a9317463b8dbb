#include "cli/progress_bar.h"

#include <gtest/gtest.h>

#include "base/bytes.h"

namespace sluice::cli {
namespace {

constexpr uint64_t kTotal = 18 * GiB + 123 * MiB;

TEST(ProgressLine, IsNeverWiderThanTheTerminal) {
    for (size_t columns = 8; columns < 200; ++columns) {
        for (const uint64_t done : {uint64_t{0}, uint64_t{1}, kTotal / 3, kTotal}) {
            for (const double seconds : {0.0, 1.5, 100.0, 1e7}) {
                EXPECT_LE(progress_line("writing a temporary file", done, kTotal, seconds, columns).size(), columns);
            }
        }
        EXPECT_LE(progress_line("gate c", 0.5, "cache of one token's experts, waves of all", columns).size(), columns);
    }
}

TEST(ProgressLine, KeepsHowLongItTakesAndCutsNoWord) {
    constexpr double kSeconds = 1234;
    const std::string wide = progress_line("verifying", kTotal / 2, kTotal, kSeconds, 200);
    EXPECT_EQ(wide, "verifying [############............]  50 %  9.06 GiB of 18.12 GiB  7.5 MiB/s  1234 s left");
    // At 80 columns all of it is there, with a shorter bar.
    const std::string usual = progress_line("verifying", kTotal / 2, kTotal, kSeconds, 79);
    EXPECT_NE(usual.find("7.5 MiB/s  1234 s left"), std::string::npos) << usual;
    EXPECT_NE(usual.find('#'), std::string::npos) << usual;
    for (size_t columns = 30; columns < 100; ++columns) {
        const std::string line = progress_line("verifying", kTotal / 2, kTotal, kSeconds, columns);
        EXPECT_TRUE(line.ends_with("  1234 s left")) << columns << ": " << line;
    }
    EXPECT_EQ(progress_line("verifying", kTotal / 2, kTotal, kSeconds, 8), "  50 %");
}

TEST(ProgressLine, SaysNothingOfTimeBeforeItKnows) {
    const std::string line = progress_line("packing", 0, kTotal, 30, 79);
    EXPECT_EQ(line.find("left"), std::string::npos) << line;
    EXPECT_EQ(progress_line("packing", 0, 0, 0, 79).find("nan"), std::string::npos);
}

TEST(ProgressLine, OfATaskInParts) {
    EXPECT_EQ(progress_line("gate c", 0.25, "orders of arrival", 60),
              "gate c [######..................]  25 %  orders of arrival");
    EXPECT_EQ(progress_line("gate c", 7, "", 40), "gate c [########################] 100 %");
    EXPECT_EQ(progress_line("gate c", 0.25, "a very long description of what is done", 30), "gate c  25 %");
}

}  // namespace
}  // namespace sluice::cli
