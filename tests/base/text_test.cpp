#include "base/text.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(Text, FillsLinesUpToTheWidth) {
    EXPECT_EQ(wrap_text("one two three", 2, 9), "  one two\n  three\n");
    EXPECT_EQ(wrap_text("one two three", 0, 100), "one two three\n");
}

TEST(Text, AWordThatIsTooLongStandsAlone) {
    EXPECT_EQ(wrap_text("a incomprehensible b", 0, 5), "a\nincomprehensible\nb\n");
}

}  // namespace
}  // namespace sluice
