// A golden record gives golden outputs; and no bytes whatever break a line of one.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/trace/support.h"
#include "trace/caches.h"
#include "trace/csv.h"
#include "trace/progress.h"
#include "trace/summary.h"
#include "trace/utf8.h"
#include "trace/write.h"

namespace sluice::trace {
namespace {

std::vector<std::string> split(const std::string& text, char at) {
    std::vector<std::string> out;
    std::istringstream in(text);
    for (std::string part; std::getline(in, part, at);) out.push_back(part);
    if (!text.empty() && text.back() == at && at != '\n') out.emplace_back();
    return out;
}

std::string csv_of(const Record& record) {
    const TempFile file;
    const auto sink = make_csv_sink(file.open(), {5});
    EXPECT_TRUE(replay(record, *sink).ok());
    return file.text();
}

std::string progress_of(const Record& record) {
    std::string out;
    const auto sink = make_progress_sink(
        [&](std::string_view line) {
            out += line;
            return Status();
        },
        {5});
    EXPECT_TRUE(replay(record, *sink).ok());
    return out;
}

TEST(Csv, Golden) {
    expect_golden("golden.csv", csv_of(golden_record()));
}

TEST(Csv, RowsHaveAsManyFieldsAsThereAreNames) {
    const Record record = golden_record();
    size_t names = 0, rows = 0;
    for (const std::string& line : split(csv_of(record), '\n')) {
        if (line.starts_with("#")) continue;
        const size_t fields = split(line, ',').size();
        if (names == 0) {
            names = fields;
            EXPECT_TRUE(
                line.starts_with("step,steps,wall_ms,io_ms,compute_ms,read_bytes,cache_hit_pct,stall_ms,mgmt_ms,"
                                 "majflt,cpu_ms,dense_resident_frac,turn,majflt_mib,cache_budget_mib,rss_mib,"));
            continue;
        }
        ++rows;
        EXPECT_EQ(fields, names);
    }
    EXPECT_EQ(rows, record.rows.size());
    EXPECT_EQ(names, plain_columns().size() + columns().size() - 2);  // step and turn are in both
}

TEST(Csv, WhatWasNotMeasuredIsEmpty) {
    Record record;
    record.book.header = {{"kind", "run"}};
    record.rows.emplace_back();
    record.rows.back().phase = 1;
    const auto lines = split(csv_of(record), '\n');
    for (const std::string& line : lines) {
        if (line.starts_with("#") || line.starts_with("step,")) continue;
        for (const std::string& field : split(line, ','))
            EXPECT_TRUE(field.empty() || field == "5" /* steps */ || field == "1" /* phase */) << field;
    }
}

TEST(Csv, ARunWithoutRowsHasItsNames) {
    Record record;
    record.book.header = {{"kind", "run"}};
    const std::string text = csv_of(record);
    EXPECT_NE(text.find("\n" + csv_header() + "# end status=ok"), std::string::npos) << text;
}

TEST(Csv, NamesOfFilesCannotBreakALine) {
    Record record;
    record.book.header = {{"kind", "run"}, {"file", "a\nb,\"c\"\r\x01\xff.gguf"}};
    const auto lines = split(csv_of(record), '\n');
    ASSERT_GE(lines.size(), 2U);
    EXPECT_EQ(lines[1], "# file=\"a b,\"\"c\"\"  \xEF\xBF\xBD.gguf\"");
}

TEST(Progress, Golden) {
    expect_golden("golden.progress", progress_of(golden_record()));
}

TEST(Progress, OptionsThatChangeAnswersAreNamedAtTheLoad) {
    Record record = golden_record();
    record.book.header["lossy"] = {"--drop-cold-experts 0.5"};
    const std::string text = progress_of(record);
    EXPECT_NE(text.substr(0, text.find('\n')).find("\"lossy\":\"--drop-cold-experts 0.5\""), std::string::npos) << text;
}

TEST(Progress, AnyBytesGiveOneLineOfValidJson) {
    Random random(11);
    std::string line;
    const auto sink = make_progress_sink([&](std::string_view l) {
        line = l;
        return Status();
    });
    Book book;
    Row row;
    row.phase = 1;
    for (int round = 0; round < 2000; ++round) {
        std::string text(random.below(30), ' ');
        for (char& c : text) c = static_cast<char>(random.below(4) == 0 ? random.below(128) : random.next());
        if (round % 3 == 0) text += "\xE2\x80\xA8\xC2\x85\x7F\xF0\x9F\x98\x80";
        ASSERT_TRUE(sink->row(book, row, text).ok());
        ASSERT_TRUE(line.starts_with("SLUICE_PROGRESS "));
        ASSERT_EQ(line.find('\n'), line.size() - 1);
        ASSERT_EQ(line.find("\xE2\x80\xA8"), std::string::npos);
        ASSERT_EQ(valid_utf8(line), line);
        const auto j = nlohmann::json::parse(line.substr(16), nullptr, false);
        ASSERT_TRUE(j.is_object());
        ASSERT_EQ(j["delta_text"], valid_utf8(text));
        ASSERT_TRUE(j["wall_ms"].is_null());
    }
}

TEST(Progress, AWriterThatFailsIsToldOf) {
    const auto sink = make_progress_sink([](std::string_view) { return error(Code::io_error, "closed"); });
    Row row;
    row.phase = 0;
    EXPECT_FALSE(sink->row(Book(), row, "x").ok());
    EXPECT_FALSE(sink->load(Book()).ok());
    EXPECT_FALSE(sink->end(Book()).ok());
}

TEST(Summary, Golden) {
    expect_golden("golden.summary", summary_text(golden_record().book, {200000000, {}}));
}

TEST(Summary, AnEmptyRunSaysWhatItDoesNotKnow) {
    EXPECT_EQ(
        summary_text(Book()),
        "generated 0 tokens at not measured (whole loop), prompt 0 tokens at not measured, loaded in not measured\n"
        "experts:  cache not measured holds ? of ?, decode hit rate not measured, not measured read per token (not "
        "measured needed)\n"
        "memory:   not measured resident, peak not measured, major faults per token not measured\n"
        "lossy:    none\n");
    Book book;
    book.header = {{"scope", "graph"}};
    const std::string text = summary_text(book, {Measure(), {"--drop", "--top-k"}});
    EXPECT_NE(text.find("(graph only)"), std::string::npos);
    EXPECT_NE(text.find("lossy:    --drop, --top-k\n"), std::string::npos);
    book.header["lossy"] = {"--drop-cold-experts 0.5"};
    Row row;
    row.routed = 200;
    row.dropped = 50;
    row.substituted = 1;
    row.unedited = 3;
    book.of(Phase::decode).add(row);
    EXPECT_NE(summary_text(book).find("lossy:    --drop-cold-experts 0.5: 25.0 % of 200 routed slots dropped, 0.5 % "
                                      "substituted; 3 layer visits left as routed\n"),
              std::string::npos);
}

TEST(Summary, WhoseWordWasActedOnIsTagged) {
    Book book;
    Row row;
    row.tokens = 10;
    row.hints = 4;
    row.predicted_bytes = 0;
    book.of(Phase::decode).add(row);
    const auto with = [&](const char* option, const char* value) {
        book.header["options"][option] = {{"value", value}, {"set", true}};
        return summary_text(book);
    };
    EXPECT_NE(summary_text(book).find("moe-prefetch: 4 experts hinted"), std::string::npos) << "it is not known whose";
    EXPECT_NE(with("prefetch", "2").find("moe-prefetch: [prev-token] 4 experts hinted"), std::string::npos);
    EXPECT_NE(with("predict-prefetch", "on").find("moe-prefetch: [stale-gate] 4 experts hinted"), std::string::npos);
    EXPECT_NE(with("predict-model", "m.gate").find("moe-prefetch: [trained] 4 experts hinted"), std::string::npos);
}

TEST(Summary, RouteAheadSaysWhatPassedItByAndWhy) {
    Book book;
    book.header["options"]["route-ahead"] = {{"value", "2"}, {"set", true}};
    Row prompt, row;
    prompt.ra_committed = 0;
    prompt.ra_passed = 16;
    book.of(Phase::prefill).add(prompt);
    row.tokens = 4;
    row.ra_committed = 18;
    row.ra_passed = 15;
    row.ra_passed_below = 6;
    row.ra_passed_first = 8;
    row.ra_slots = 36;
    row.ra_agreed = 27;
    row.ra_rank = 2'000'000;
    row.ahead_bytes = 4 << 20;
    row.predicted_used = 4 << 20;
    book.of(Phase::decode).add(row);
    const std::string text = summary_text(book);
    EXPECT_NE(text.find("moe-prefetch: [route-ahead] 4.0 MiB read early, 100.0 % of it used\n"
                        "moe-route-ahead: 2 layers early: 18 routings committed, 31 passed through (6 of the first 2 "
                        "layers, 16 of prompts, 8 of first tokens, 1 others); committed selection agreed with the "
                        "router on 75.0 % of slots; per token 0.50 ms ranking, 0.00 ms asking, 0.00 ms checking\n"),
              std::string::npos)
        << text;
    EXPECT_EQ(route_ahead_text(1, {.committed = 0, .passed = 8, .below = 0, .first = 8}, 8),
              "1 layers early: 0 routings committed, 16 passed through (0 of the first 1 layers, 8 of prompts, 8 of "
              "first tokens); nothing was committed");
}

TEST(Summary, ACacheThatChangedIsToldAsItIsAndWas) {
    Book book;
    book.caches.push_back({{"model", 0}, {"bytes", 64 << 20}, {"slots", 40}, {"records", 64}});
    EXPECT_NE(summary_text(book).find("cache 64.0 MiB holds 40 of 64,"), std::string::npos) << summary_text(book);
    book.caches.push_back({{"model", 0}, {"bytes", 32 << 20}, {"slots", 20}, {"records", 64}});
    EXPECT_NE(summary_text(book).find("cache 32.0 MiB (at first 64.0 MiB) holds 20 of 64,"), std::string::npos)
        << summary_text(book);
}

TEST(Caches, OneSizeInDecodeIsTheOneThatRowsRanWith) {
    Book book;
    EXPECT_FALSE(one_cache_in_decode(book, 0)) << "there is none";
    const auto line = [&](int64_t model, int64_t bytes, int64_t after) {
        book.caches.push_back({{"model", model}, {"bytes", bytes}, {"after_decode", after}});
    };
    line(0, 1000, 0);
    book.of(Phase::decode).rows = 20;
    EXPECT_TRUE(one_cache_in_decode(book, 0));
    line(1, 5, 10);
    EXPECT_TRUE(one_cache_in_decode(book, 0)) << "that is another model's";
    line(0, 980, 10);
    EXPECT_TRUE(one_cache_in_decode(book, 0)) << "nearly the same";
    line(0, 500, 20);
    EXPECT_FALSE(one_cache_in_decode(book, 0));
    EXPECT_EQ(*newest_cache(book, 0), book.caches[3]);
    EXPECT_EQ(*first_cache(book, 0), book.caches[0]);
    EXPECT_EQ(newest_cache(book, 2), nullptr);

    book.caches.clear();
    line(0, 1000, 0);
    line(0, 100, 0);
    EXPECT_TRUE(one_cache_in_decode(book, 0)) << "it went down before the first token";
    line(0, 1000, 5);
    EXPECT_FALSE(one_cache_in_decode(book, 0));
    book.caches.push_back({{"model", "x"}, {"bytes", nullptr}});  // of a file
    EXPECT_FALSE(one_cache_in_decode(book, 0));
}

TEST(Utf8, StrictAndComplete) {
    EXPECT_EQ(valid_utf8("a\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80"), "a\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80");
    const std::string r = "\xEF\xBF\xBD";
    EXPECT_EQ(valid_utf8("\xC0\xAF"), r + r);                  // overlong
    EXPECT_EQ(valid_utf8("\xED\xA0\x80"), r + r + r);          // a surrogate
    EXPECT_EQ(valid_utf8("\xF4\x90\x80\x80"), r + r + r + r);  // beyond the last
    EXPECT_EQ(valid_utf8("\xE2\x82"), r + r);                  // broken off
    for (char32_t c : {U'a', U'\u00E4', U'\u20AC', U'\U0001F600', U'\U0010FFFF'}) {
        std::string s;
        append_utf8(s, c);
        const CodePoint back = code_point_at(s, 0);
        EXPECT_TRUE(back.valid && back.value == c && back.bytes == s.size());
    }
    EXPECT_EQ(columns_of("ab\xE4\xBD\xA0\xCC\x81\xF0\x9F\x98\x80"), 2 + 2 + 0 + 2);
    EXPECT_EQ(columns_of(U'\x1B'), -1);
}

TEST(Write, NestedValuesHaveDottedNames) {
    std::string out;
    Json deep = 1;
    for (int i = 0; i < 100; ++i) deep = Json::array({deep});
    for_each_value({{"a", {{"b", 1}, {"c", nullptr}}}, {"d", {true, "x"}}, {"e", {{{"f", 2}}, 3}}, {"deep", deep}}, "",
                   [&](const std::string& key, const std::string& value) { out += key + "=" + value + ";"; });
    EXPECT_EQ(out, "a.b=1;a.c=;d=true x;e.0.f=2;e.1=3;deep.0.0.0.0.0.0.0=;");
}

}  // namespace
}  // namespace sluice::trace
