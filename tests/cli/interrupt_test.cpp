#include "cli/interrupt.h"

#include <gtest/gtest.h>

namespace sluice::cli {
namespace {

TEST(CommandLine, CanBeTypedAgain) {
    EXPECT_EQ(command_line("pack", {"/m/a-b_1.gguf", "--split=4G"}), "sluice pack /m/a-b_1.gguf --split=4G");
    EXPECT_EQ(command_line("pack", {"my model.gguf", "it's", ""}), "sluice pack 'my model.gguf' 'it'\\''s' ''");
}

}  // namespace
}  // namespace sluice::cli
