#include "trace/record_file.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/trace/support.h"

namespace sluice::trace {
namespace {

bool same(const Row& a, const Row& b) {
    for (const Column& c : columns()) {
        if (!(value_of(c, a) == value_of(c, b))) return false;
    }
    if (a.layers.size() != b.layers.size()) return false;
    for (size_t i = 0; i < a.layers.size(); ++i) {
        const Row::Layer &x = a.layers[i], &y = b.layers[i];
        if (x.wait != y.wait || x.routed != y.routed || x.lookups != y.lookups || x.hits != y.hits ||
            x.physical != y.physical)
            return false;
    }
    return true;
}

Row random_row(Random& random, int64_t phase) {
    Row row;
    for (const Column& c : columns()) {
        if (random.below(3) > 0) c.of(row) = static_cast<int64_t>(random.next() >> (1 + random.below(62)));
    }
    row.phase = phase;
    row.layers.resize(random.below(5));
    for (Row::Layer& l : row.layers) {
        l = {static_cast<int64_t>(random.below(1U << 30U)), static_cast<int64_t>(random.below(100)), 3, 2,
             static_cast<int64_t>(random.next() >> 2U)};
    }
    return row;
}

Record random_record(uint64_t seed, size_t rows) {
    Random random(seed);
    Record r;
    r.book.header = {{"kind", "run"}, {"sluice_record", kSchemaVersion}, {"program", "a \"test\" \xC3\xA4"}};
    r.book.models.push_back({{"kind", "model"}, {"name", "m"}});
    r.book.load = {{"kind", "load"}, {"load_ns", 5}};
    r.book.caches.push_back({{"kind", "cache"}, {"bytes", 7}});
    r.book.guesses.push_back({{"kind", "predict"}, {"model", 0}, {"predictors", {{"control", {{"overlap", 1.0}}}}}});
    for (size_t i = 0; i < rows; ++i) {
        const auto phase = static_cast<int64_t>(i > rows / 3);
        r.rows.push_back(random_row(random, phase));
        Totals& t = r.book.phases[static_cast<size_t>(phase)];
        t.add(r.rows.back());
        for (int k = 0; k < 5; ++k) t.reads.add(static_cast<Nanos>(random.next() >> 40U));
    }
    r.book.experts = {{{{1, 2, 3}, {4, 0, UINT32_MAX}}, {{0, 1, 0}, {2, 0, 1}}}};
    r.book.ending = {"failed", "a sentence", "0011"};
    r.book.routes_digest = 0x8000000000000001;
    return r;
}

std::string written(const Record& record) {
    const TempFile file;
    const auto sink = make_record_sink(file.open());
    EXPECT_TRUE(replay(record, *sink).ok());
    return file.text();
}

Result<Record> read_back(const std::string& text) {
    const TempFile file;
    write_text(file.path(), text);
    return read_record(file.path());
}

void expect_same(const Record& a, const Record& b) {
    EXPECT_EQ(a.book.header, b.book.header);
    EXPECT_EQ(a.book.models, b.book.models);
    EXPECT_EQ(a.book.caches, b.book.caches);
    EXPECT_EQ(a.book.guesses, b.book.guesses);
    EXPECT_EQ(a.book.load, b.book.load);
    ASSERT_EQ(a.rows.size(), b.rows.size());
    for (size_t i = 0; i < a.rows.size(); ++i) EXPECT_TRUE(same(a.rows[i], b.rows[i])) << i;
    for (size_t p = 0; p < 2; ++p) {
        const Totals &x = a.book.phases[p], &y = b.book.phases[p];
        EXPECT_TRUE(same(x.sum, y.sum));
        EXPECT_EQ(x.rows, y.rows);
        EXPECT_EQ(x.reads.count(), y.reads.count());
        EXPECT_EQ(x.reads.largest(), y.reads.largest());
        EXPECT_EQ(x.reads.sum(), y.reads.sum());
        for (size_t i = 0; i < Histogram::kBuckets; ++i) EXPECT_EQ(x.reads.in_bucket(i), y.reads.in_bucket(i));
    }
    ASSERT_EQ(a.book.experts.size(), b.book.experts.size());
    for (size_t m = 0; m < a.book.experts.size(); ++m) {
        EXPECT_EQ(a.book.experts[m].uses, b.book.experts[m].uses);
        EXPECT_EQ(a.book.experts[m].misses, b.book.experts[m].misses);
    }
    EXPECT_EQ(a.book.ending.status, b.book.ending.status);
    EXPECT_EQ(a.book.ending.error, b.book.ending.error);
    EXPECT_EQ(a.book.ending.output_digest, b.book.ending.output_digest);
    EXPECT_EQ(a.book.routes_digest, b.book.routes_digest);
}

TEST(RecordFile, WhatIsWrittenIsReadBack) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
        const Record record = random_record(seed, 2 + seed);
        const Result<Record> back = read_back(written(record));
        ASSERT_TRUE(back.ok()) << back.status().message();
        EXPECT_TRUE(back->ended);
        EXPECT_FALSE(back->cut_short);
        expect_same(record, *back);
    }
}

TEST(RecordFile, WhatBelongsToNoRowIsInTheTotalsThatAreReadBack) {
    Record record = random_record(4, 20);
    Row rest;
    rest.kernel_bytes = 12345;
    record.book.rest = rest;
    record.book.rest_phase = Phase::prefill;
    record.book.of(Phase::prefill).add_rest(rest);
    const TempFile file;
    write_text(file.path(), written(record));
    const auto back = read_record(file.path());
    ASSERT_TRUE(back.ok()) << back.status().message();
    EXPECT_EQ(back->book.of(Phase::prefill).sum.kernel_bytes, record.book.of(Phase::prefill).sum.kernel_bytes);
    EXPECT_EQ(back->book.of(Phase::prefill).rows, record.book.of(Phase::prefill).rows);
    EXPECT_EQ(written(*back), written(record));
}

TEST(RecordFile, TheGoldenRecordIsWhatItsOwnSinkWrites) {
    const Record record = golden_record();
    const Result<Record> back = read_back(written(record));
    ASSERT_TRUE(back.ok());
    expect_same(record, *back);
}

TEST(RecordFile, CutAnywhereItHasWhatCameBefore) {
    const Record record = random_record(3, 3);
    const std::string text = written(record);
    const size_t first_line = text.find('\n');
    std::vector<size_t> row_ends;  // the last byte of each row's object
    for (size_t at = 0, end = 0; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
        if (text.compare(at, 13, R"({"kind":"row")") == 0) row_ends.push_back(end);
    }
    ASSERT_EQ(row_ends.size(), record.rows.size());
    for (size_t cut = 0; cut <= text.size(); ++cut) {
        const Result<Record> back = read_back(text.substr(0, cut));
        if (cut < first_line) {  // without its first line it is no record, and says so
            ASSERT_FALSE(back.ok()) << cut;
            ASSERT_EQ(back.status().code(), Code::corrupt) << cut;
            continue;
        }
        ASSERT_TRUE(back.ok()) << cut << ": " << back.status().message();
        const auto whole = static_cast<size_t>(
            std::count_if(row_ends.begin(), row_ends.end(), [&](size_t end) { return end <= cut; }));
        ASSERT_EQ(back->rows.size(), whole) << cut;
        for (size_t i = 0; i < whole; ++i) ASSERT_TRUE(same(back->rows[i], record.rows[i])) << cut;
        ASSERT_EQ(back->book.phases[0].rows + back->book.phases[1].rows, whole);
        ASSERT_EQ(back->ended, cut + 1 >= text.size()) << cut;
        // Broken off in a line: neither at its end nor before its newline.
        const bool at_line_end = cut == text.size() || text[cut] == '\n' || text[cut - 1] == '\n';
        ASSERT_EQ(back->cut_short, !at_line_end) << cut;
        ASSERT_TRUE(replay(*back, *make_record_sink(TempFile().open())).ok());
    }
}

TEST(RecordFile, WhatIsNoRecordSaysSo) {
    const std::string header = R"({"kind":"run","sluice_record":1})";
    struct Case {
        std::string text;
        Code code;
        const char* words;
    };
    const Case cases[] = {
        {"", Code::corrupt, "is empty"},
        {"\n", Code::corrupt, "not a run record"},
        {"garbage\n", Code::corrupt, "not a run record"},
        {"[1]\n", Code::corrupt, "not a run record"},
        {"{}\n", Code::corrupt, "not a run record"},
        {std::string("\0\0\0\n", 4), Code::corrupt, "not a run record"},
        {R"({"kind":"run","sluice_record":-1})", Code::corrupt, "not a run record"},
        {R"({"kind":"run","sluice_record":"1"})", Code::corrupt, "not a run record"},
        {R"({"kind":"run","sluice_record":2})", Code::unsupported, "has schema 2"},
        {R"({"kind":"run","sluice_record":9223372036854775807})", Code::unsupported, "has schema"},
        {R"({"kind":"bench","sluice_record":1})", Code::unsupported, "of kind \"bench\""},
        {header + "\ngarbage\n{}\n", Code::corrupt, "line 2 is not JSON"},
        {header + "\n{\"kind\":\"row\"}\n", Code::corrupt, "line 2: a row of no phase"},
        {header + "\n{\"kind\":\"row\",\"phase\":2}\n", Code::corrupt, "line 2: a row of no phase"},
        {header + "\n{\"kind\":\"experts\",\"model\":4000000000}\n", Code::corrupt, "line 2: model"},
        {header + "\n\n" + header + "\n", Code::corrupt, "line 2 is not JSON"},
    };
    for (const Case& c : cases) {
        const Result<Record> r = read_back(c.text);
        ASSERT_FALSE(r.ok()) << c.text;
        EXPECT_EQ(r.status().code(), c.code) << c.text;
        EXPECT_NE(r.status().message().find(c.words), std::string::npos) << r.status().message();
    }
    EXPECT_EQ(read_record("/no/such/record").status().code(), Code::not_found);
}

TEST(RecordFile, OddValuesAreNullOrBounded) {
    const Result<Record> r = read_back(
        "{\"kind\":\"run\",\"sluice_record\":1,\"new\":{\"x\":[1,{}]}}\n"
        "{\"kind\":\"of a later version\",\"x\":1}\n"
        "{\"no\":\"kind\"}\n"
        "{\"kind\":\"row\",\"phase\":1,\"wall_ns\":1e300,\"tokens\":-5,\"reads\":18446744073709551615,\"hits\":\"x\","
        "\"misses\":9223372036854775807,\"late\":1.5,\"unknown\":7,\"layers\":{\"wait_ns\":[-1,99999999999999999999,2],"
        "\"hits\":5,\"lookups\":[[]]}}\n"
        "{\"kind\":\"row\",\"phase\":1,\"misses\":9223372036854775807,\"layers\":[1]}\n"
        "{\"kind\":\"latency\",\"phase\":7,\"buckets\":[[-5,3],[1],[9223372036854775807,18446744073709551615],[\"a\",1]"
        ","
        "[100,-1]],\"largest_ns\":-1}\n"
        "{\"kind\":\"experts\",\"model\":\"x\",\"uses\":[[1,-1,4294967296,\"a\",1e9],7],\"misses\":5}\n"
        "{\"kind\":\"end\",\"status\":5,\"routes_digest\":\"zz\"}\n");
    ASSERT_TRUE(r.ok()) << r.status().message();
    ASSERT_EQ(r->rows.size(), 2U);
    const Row& row = r->rows[0];
    EXPECT_FALSE(row.wall.known());
    EXPECT_FALSE(row.tokens.known());
    EXPECT_FALSE(row.reads.known());
    EXPECT_FALSE(row.hits.known());
    EXPECT_EQ(row.misses, Measure(INT64_MAX));
    ASSERT_EQ(row.layers.size(), 3U);
    EXPECT_EQ(row.layers[0].wait, 0);
    EXPECT_EQ(row.layers[2].wait, 2);
    EXPECT_EQ(r->book.of(Phase::decode).sum.misses, Measure(INT64_MAX));
    ASSERT_EQ(r->book.experts.size(), 1U);
    EXPECT_EQ(r->book.experts[0].uses[0], (std::vector<uint32_t>{1, 0, UINT32_MAX, 0, 0}));
    EXPECT_TRUE(r->ended);
    EXPECT_EQ(r->book.ending.status, "");
    EXPECT_TRUE(replay(*r, *make_record_sink(TempFile().open())).ok());
}

TEST(RecordFile, NestingHasALimit) {
    const std::string header = R"({"kind":"run","sluice_record":1})";
    const std::string deep = "{\"kind\":\"model\",\"x\":" + std::string(2000000, '[') + std::string(2000000, ']') + "}";
    EXPECT_EQ(read_back(header + "\n" + deep + "\n").status().code(), Code::corrupt);
    EXPECT_EQ(read_back(deep).status().code(), Code::corrupt);
    // Brackets in text are no nesting.
    const std::string text = "{\"kind\":\"model\",\"name\":\"\\\"" + std::string(1000, '[') + "\\\\\"}";
    const Result<Record> r = read_back(header + "\n" + text + "\n");
    ASSERT_TRUE(r.ok());
    EXPECT_EQ(r->book.models.size(), 1U);
}

TEST(RecordFile, RandomDamageNeverDoesMoreThanAnError) {
    Random random(17);
    const std::string text = written(random_record(5, 3));
    for (int round = 0; round < 3000; ++round) {
        std::string damaged = text;
        for (uint64_t n = 1 + random.below(4); n > 0; --n) {
            const size_t at = random.below(damaged.size());
            switch (random.below(3)) {
                case 0:
                    damaged[at] = static_cast<char>(random.next());
                    break;
                case 1:
                    damaged.erase(at, 1 + random.below(20));
                    break;
                default:
                    damaged.insert(at, std::string(1 + random.below(3), "0123456789-[]{}\",:e\n"[random.below(20)]));
            }
            if (damaged.empty()) damaged = "x";
        }
        const Result<Record> r = read_back(damaged);
        EXPECT_TRUE(!r.ok() || replay(*r, *make_record_sink(TempFile().open())).ok());
    }
}

TEST(RecordFile, ALineFileOfNamesThatAreNoUtf8) {
    Record record = random_record(1, 1);
    record.book.models[0]["name"] =
        "a\xff"
        "b";
    const Result<Record> back = read_back(written(record));
    ASSERT_TRUE(back.ok());
    EXPECT_EQ(back->book.models[0]["name"],
              "a\xEF\xBF\xBD"
              "b");
}

}  // namespace
}  // namespace sluice::trace
