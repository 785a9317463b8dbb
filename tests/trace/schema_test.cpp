#include "trace/schema.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "tests/trace/support.h"
#include "trace/plain.h"

namespace sluice::trace {
namespace {

std::string record_document() {
    return read_text((std::filesystem::path(SLUICE_SOURCE_DIR) / "docs/record.md").string());
}

TEST(Schema, NamesAreUnique) {
    std::set<std::string> names;
    for (const Column& c : columns()) EXPECT_TRUE(names.insert(c.name).second) << c.name;
    for (const char* other : {"kind", "layers"}) EXPECT_TRUE(names.insert(other).second) << other;
}

TEST(Schema, UnitsAreInTheNames) {
    for (const Column& c : columns()) {
        const std::string name = c.name;
        EXPECT_EQ(name.ends_with("_ns"), c.unit == Unit::nanos) << name;
        EXPECT_EQ(name.ends_with("_bytes"), c.unit == Unit::bytes) << name;
        EXPECT_EQ(find_column(name), &c);
    }
    EXPECT_EQ(find_column("no_such_column"), nullptr);
}

TEST(Schema, EachColumnIsAFieldOfItsOwn) {
    Row row;
    int64_t value = 0;
    for (const Column& c : columns()) c.of(row) = ++value;
    value = 0;
    for (const Column& c : columns()) EXPECT_EQ(value_of(c, row), Measure(++value)) << c.name;
}

TEST(Schema, PartsHaveTheirColumns) {
    Row row;
    for (size_t p = 0; p < kParts; ++p) row.parts[p] = static_cast<int64_t>(p);
    for (size_t p = 0; p < kParts; ++p) {
        const Part part = static_cast<Part>(p);
        EXPECT_EQ(value_of(part_column(part), row), Measure(static_cast<int64_t>(p)));
        EXPECT_EQ(part_column(part).group, Group::time);
        EXPECT_FALSE(std::string(part_label(part)).empty());
    }
    EXPECT_EQ(part_name(Part::wait_read), "wait_read");
    EXPECT_EQ(part_name(Part::record), "record");
}

// docs/record.md holds the generated tables. When this fails, put the text it shows there.
TEST(Schema, TheDocumentHasEveryColumn) {
    const std::string document = record_document();
    EXPECT_NE(document.find(columns_markdown()), std::string::npos) << columns_markdown();
    EXPECT_NE(document.find(plain_columns_markdown()), std::string::npos) << plain_columns_markdown();
}

}  // namespace
}  // namespace sluice::trace
