#include "report/text.h"

#include <gtest/gtest.h>

#include "report/data.h"
#include "tests/report/records.h"

namespace sluice::report {
namespace {

TEST(Text, goldens) {
    expect_golden("complete.md", text_report(report_data(records_of({"complete"}))));
    expect_golden("two.md", text_report(report_data(records_of({"small_cache", "large_cache"}))));
    expect_golden("nulls.md", text_report(report_data(records_of({"nulls"}))));
    expect_golden("hostile.md", text_report(report_data(records_of({"hostile", "header_only", "killed"}))));
}

// Prefill or decode is not known where only graphs were seen.
TEST(Text, a_record_of_graphs_claims_neither_the_whole_loop_nor_a_prompt) {
    std::vector<trace::Record> records = records_of({"complete"});
    records[0].book.header["scope"] = "graph";
    const std::string text = text_report(report_data(records));
    for (const char* word : {"prefill", "decode:", "(decode)", "whole loop"})
        EXPECT_EQ(text.find(word), std::string::npos) << word;
    for (const char* word : {"batches |", "single tokens |", "Only llama.cpp's graph was recorded"})
        EXPECT_NE(text.find(word), std::string::npos) << word;
    records[0].book.header["scope"] = "loop";
    EXPECT_EQ(text_report(report_data(records)).find("graph was recorded"), std::string::npos);
}

TEST(Text, a_comparison_says_whether_the_outputs_are_the_same) {
    std::vector<trace::Record> records = records_of({"complete", "complete"});
    const auto text = [&] { return text_report(report_data(records)); };
    records[0].book.ending.output_digest = records[1].book.ending.output_digest = "aa";
    EXPECT_NE(text().find("A and B wrote the same text."), std::string::npos);
    records[1].book.ending.output_digest = "ab";
    EXPECT_NE(text().find("A and B did not write the same text"), std::string::npos);
    records[1].book.ending.output_digest.clear();
    records[0].book.routes_digest = records[1].book.routes_digest = 5;
    EXPECT_NE(text().find("chose the same experts"), std::string::npos);
    records[1].book.routes_digest = 6;
    EXPECT_NE(text().find("did not choose the same experts"), std::string::npos);
    records[1].book.routes_digest = 0;
    EXPECT_NE(text().find("Whether A and B wrote the same is not known."), std::string::npos);
}

TEST(Text, numbers_have_units_and_null_has_words) {
    EXPECT_EQ(spell_figure(nullptr, "ms", false), "not measured");
    EXPECT_EQ(spell_figure(0, "ms", false), "0 ms");
    EXPECT_EQ(spell_figure(12.34, "ms", false), "12.3 ms");
    EXPECT_EQ(spell_figure(0.125, "1", true), "12.5 %");
    EXPECT_EQ(spell_figure(0.0001, "1", true), "<0.1 %");
    EXPECT_EQ(spell_figure(1.0 / 3, "1", false), "0.333");
    EXPECT_EQ(spell_figure(3 << 20, "bytes", false), "3.0 MiB");
    EXPECT_EQ(spell_figure(3 << 20, "bytes/s", false), "3.0 MiB/s");
    EXPECT_EQ(spell_figure(1e300, "bytes", false).substr(0, 3), "100");
}

TEST(Text, a_record_cannot_steer_the_terminal_or_leave_its_cell) {
    const std::string text = text_report(report_data(records_of({"hostile", "complete"})));
    for (const char c : text) EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 0x20) << static_cast<int>(c);
    EXPECT_EQ(text.find("\xe2\x80\xae"), std::string::npos) << "right to left";
    size_t bars = 0;
    for (size_t at = 0; at < text.size();) {
        const std::string line = text.substr(at, text.find('\n', at) - at);
        at += line.size() + 1;
        if (!line.starts_with('|')) continue;
        size_t n = 0;
        for (size_t i = 0; i < line.size(); ++i) n += line[i] == '|' && (i == 0 || line[i - 1] != '\\') ? 1 : 0;
        EXPECT_GE(n, 3U) << line;
        bars += n;
    }
    EXPECT_GT(bars, 0U);
}

}  // namespace
}  // namespace sluice::report
