#include "cli/trial.h"

#include <ggml.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>

namespace sluice::cli {
namespace {

TEST(Trial, TellsAnAbortFromAnyOtherEnd) {
    EXPECT_TRUE(aborts([] { GGML_ABORT("too many"); }));
    EXPECT_FALSE(aborts([] {}));
    EXPECT_FALSE(aborts([] { std::exit(1); }));
    EXPECT_FALSE(aborts([] { raise(SIGKILL); }));
}

TEST(Trial, LeavesThisProcessAsItWas) {
    int here = 0;
    testing::internal::CaptureStdout();
    EXPECT_TRUE(aborts([&] {
        here = 1;
        std::puts("nobody sees this");
        std::fflush(stdout);
        GGML_ABORT("x");
    }));
    EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
    EXPECT_EQ(here, 0);
}

}  // namespace
}  // namespace sluice::cli
