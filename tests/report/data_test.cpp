#include "report/data.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <random>

#include "report/page.h"
#include "report/text.h"
#include "tests/report/records.h"

namespace sluice::report {
namespace {

using trace::Json;
using trace::Record;

std::string pretty(const Json& data) {
    return data.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

TEST(Data, goldens) {
    expect_golden("complete.json", pretty(report_data(records_of({"complete"}))));
    expect_golden("nulls.json", pretty(report_data(records_of({"nulls"}))));
}

TEST(Data, figures_are_those_of_the_record) {
    const auto records = records_of({"complete"});
    const Json data = report_data(records);
    const Json& r = data["records"][0];
    for (const char* phase : {"prefill", "decode"}) {
        const trace::Totals& totals =
            records[0].book.of(phase == std::string("decode") ? trace::Phase::decode : trace::Phase::prefill);
        for (const trace::Figure& f : trace::figures()) {
            const auto v = f.of(totals);
            ASSERT_TRUE(v.has_value() == r[phase]["figures"][f.name].is_number()) << f.name;
            if (v) {
                EXPECT_NEAR(r[phase]["figures"][f.name].get<double>(), *v, 1e-5 * std::abs(*v)) << f.name;
            }
        }
        double share = 0;
        double ms = 0;
        for (const Json& part : r[phase]["parts"]) {
            share += part["share"].is_number() ? part["share"].get<double>() : 0;
            ms += part["ms_per_token"].is_number() ? part["ms_per_token"].get<double>() : 0;
        }
        EXPECT_NEAR(share, 1, 1e-4) << "the parts of a row sum to its wall time";
        EXPECT_NEAR(ms, r[phase]["figures"]["ms_per_token"].get<double>(), 1e-3);
    }
    EXPECT_EQ(r["decode"]["series"]["rows_per_bin"], 1);
    EXPECT_EQ(r["decode"]["series"]["first_row"].size(), 24U);
    EXPECT_DOUBLE_EQ(r["decode"]["latency"]["curve"].back()[1].get<double>(), 1);
    EXPECT_EQ(r["layer_numbers"], Json({1, 2, 3, 4, 5, 6}));
}

TEST(Data, what_was_not_measured_is_null) {
    const Json data = report_data(records_of({"nulls"}));
    const Json& r = data["records"][0];
    for (const auto& [name, value] : r["decode"]["figures"].items()) EXPECT_TRUE(value.is_null()) << name;
    EXPECT_TRUE(r["decode"]["binds"].is_null());
    EXPECT_TRUE(r["decode"]["latency"].is_null());
    EXPECT_TRUE(r["decode"]["layers"].is_null());
    EXPECT_TRUE(r["decode"]["series"]["hit_rate"].is_null());
    EXPECT_TRUE(r["memory"].is_null());
    EXPECT_TRUE(r["speed"]["ms_per_token"].is_null());
    EXPECT_TRUE(r["model"].is_null());
}

TEST(Data, options_that_change_answers_are_said) {
    std::vector<Record> records = records_of({"complete"});
    const Json before = report_data(records)["records"][0]["note"];
    records[0].book.header["lossy"] = {"--n-expert-used 3", "--drop-cold-experts 0.5"};
    const Json note = report_data(records)["records"][0]["note"];
    ASSERT_TRUE(note.is_string());
    EXPECT_NE(note, before);
    EXPECT_NE(note.get<std::string>().find("--n-expert-used 3, --drop-cold-experts 0.5"), std::string::npos) << note;
}

TEST(Data, states) {
    const auto state = [](const char* name) { return report_data(records_of({name}))["records"][0]["status"]; };
    EXPECT_EQ(state("complete")["state"], "ok");
    EXPECT_EQ(state("prefill_only")["state"], "interrupted");
    EXPECT_EQ(state("hostile")["state"], "failed");
    EXPECT_EQ(state("header_only")["words"], "Killed, or still running: the record ends after row 0.");
    const Record killed = record_of("killed");
    EXPECT_TRUE(killed.cut_short);
    EXPECT_EQ(state("killed")["words"], "Killed, or still running: the record ends after row " +
                                            std::to_string(killed.rows.size()) + ", in the middle of a line.");
}

// A hundred thousand tokens: bins, which say so, and a page that can still be mailed.
TEST(Data, a_long_run_is_drawn_in_bins) {
    Record record = record_of("complete");
    const trace::Row last = record.rows.back();
    record.rows.clear();
    record.book.phases = {};
    std::mt19937_64 random(5);
    for (int64_t i = 0; i < 100'000; ++i) {
        trace::Row row = last;
        row.step = i;
        row.start = i * 7'000'000;
        row.wall = 5'000'000 + static_cast<int64_t>(random() % 3'000'000);
        row.rss = (int64_t{1} << 30) + i;
        record.rows.push_back(row);
        record.book.of(trace::Phase::decode).add(row);
    }
    const std::vector<Record> records{record};
    const Json data = report_data(records);
    const Json& s = data["records"][0]["decode"]["series"];
    EXPECT_EQ(s["rows_per_bin"], 125);
    EXPECT_EQ(s["first_row"].size(), 800U);
    EXPECT_EQ(s["first_row"][1], 126);
    for (size_t i = 0; i < 800; ++i) {
        EXPECT_LT(s["tokens_per_second_low"][i].get<double>(), s["tokens_per_second"][i].get<double>());
        EXPECT_GT(s["tokens_per_second_high"][i].get<double>(), s["tokens_per_second"][i].get<double>());
    }
    // A bin is what its tokens come to together, which the figure says of the totals.
    trace::Totals first;
    for (size_t i = 0; i < 125; ++i) first.add(record.rows[i]);
    EXPECT_NEAR(s["tokens_per_second"][0].get<double>(), *trace::figure("tokens_per_second", first), 1e-3);
    EXPECT_LE(data["records"][0]["memory"]["start_ns"].size(), kMaxBins);
    EXPECT_LT(html_page(data).size(), 5'000'000U);
}

TEST(Data, too_many_experts_are_not_drawn) {
    Record record = record_of("complete");
    record.book.experts[0].uses.assign(4000, std::vector<uint32_t>(64, 1));
    const std::vector<Record> records{record};
    const Json data = report_data(records);
    EXPECT_TRUE(data["records"][0]["experts"][0]["uses"].is_null());
    EXPECT_EQ(data["records"][0]["experts"][0]["too_many"], true);
}

// Any record that can be read can be shown; what cannot be read is an error.
TEST(Data, broken_records_never_end_the_program) {
    const std::string path = testing::TempDir() + "sluice_broken_" + std::to_string(::getpid()) + ".jsonl";
    std::mt19937_64 random(11);
    size_t shown = 0;
    for (const char* name : {"complete", "hostile", "killed", "one_row"}) {
        const std::string whole = file_text(data_path(std::string(name) + ".jsonl"));
        for (int round = 0; round < 60; ++round) {
            std::string text = whole;
            if (round % 3 == 0) text.resize(random() % text.size());
            const int changes = round % 3 == 0 ? 0 : 1 + static_cast<int>(random() % 6);
            for (int i = 0; i < changes && !text.empty(); ++i) {
                const size_t at = random() % text.size();
                switch (random() % 5) {
                    case 0:
                        text[at] = static_cast<char>(random());
                        break;
                    case 1:
                        text.erase(at, random() % 40);
                        break;
                    case 2:
                        text.insert(at, "9999999999999999999");
                        break;
                    case 3:  // one value of the many becomes another kind
                        if (const size_t colon = text.find(':', at); colon != std::string::npos) {
                            constexpr const char* kValues[] = {"null", "-1", "1e300",   "\"x\"",
                                                               "[]",   "{}", "[[[1]]]", "true"};
                            const size_t end = text.find_first_of(",}\n", colon);
                            if (end != std::string::npos)
                                text.replace(colon + 1, end - colon - 1, kValues[random() % 8]);
                        }
                        break;
                    default:
                        text.insert(at, text.substr(random() % text.size(), random() % 200));
                }
            }
            std::ofstream(path, std::ios::binary) << text;
            auto record = trace::read_record(path);
            if (!record.ok()) {
                EXPECT_FALSE(record.status().message().empty());
                continue;
            }
            std::vector<Record> records;
            records.push_back(std::move(*record));
            if (round % 7 == 0) records.push_back(record_of("one_row"));
            const Json data = report_data(records);
            EXPECT_FALSE(text_report(data).empty());
            EXPECT_FALSE(html_page(data).empty());
            ++shown;
        }
    }
    std::remove(path.c_str());
    EXPECT_GT(shown, 30U);
}

}  // namespace
}  // namespace sluice::report
