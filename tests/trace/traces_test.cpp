#include "trace/traces.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/trace/support.h"
#include "trace/perfetto.h"

namespace sluice::trace {
namespace {

std::vector<RouteEvent> routings() {
    std::vector<RouteEvent> events;
    for (int32_t layer = 0; layer < 2; ++layer) {
        for (int32_t token = 0; token < 2; ++token) {
            for (int32_t rank = 0; rank < 2; ++rank) {
                RouteEvent e;
                e.layer = layer;
                e.token = token;
                e.rank = rank;
                e.expert = static_cast<uint32_t>(3 * layer + token + rank);
                e.weight = rank == 0 ? 0.529533F : NAN;
                e.residency = static_cast<int8_t>(rank);
                e.bytes = rank == 0 ? 13219200 : 0;
                e.dropped = layer == 1 && rank == 1;
                events.push_back(e);
            }
        }
    }
    return events;
}

std::vector<ReadEvent> reads() {
    std::vector<ReadEvent> events(4);
    const char* const projections[] = {"gate", "up", "down", "gate_up"};
    for (size_t i = 0; i < events.size(); ++i) {
        ReadEvent& e = events[i];
        e.layer = static_cast<int32_t>(i / 2);
        e.expert = static_cast<uint32_t>(7 + i);
        e.projection = projections[i];
        e.lane = static_cast<int32_t>(i % 2);
        e.speculative = i == 3;
        e.ticket = i == 3 ? "predicted" : "exact";
        if (i == 3) e.deadline = 5000123;
        e.offset = 4096 * i + 17;
        e.need = 3000;
        e.length = 8192;
        e.issued = 1000000 + 1500 * static_cast<Nanos>(i);
        e.ready = e.issued + 2001;
        e.error = i == 2 ? 5 : 0;
    }
    return events;
}

NodeEvent node(int32_t layer, const char* op, std::string name, Nanos wall, int64_t faults = 0, bool routed = false) {
    return {layer, op, std::move(name), wall, faults, routed};
}

std::vector<NodeEvent> nodes() {
    return {node(-1, "GET_ROWS", "inp_embd", 100, 1),    node(0, "MUL_MAT", "Qcur-0", 200),
            node(-1, "ADD", "between, \"unnamed\"", 5),  node(0, "MUL_MAT_ID", "ffn_moe_gate-0", 300, 2, true),
            node(1, "MUL_MAT", "Qcur-1", 250),           node(-1, "RMS_NORM", "result_norm", 7),
            node(-1, "MUL_MAT", "result_output", 400, 1)};
}

TEST(RouteTrace, Golden) {
    const TempFile out;
    RouteTraceFile trace(out.open());
    ASSERT_TRUE(trace.begin(route_trace_model(golden_record().book.models.at(0))).ok());
    const std::vector<RouteEvent> events = routings();
    ASSERT_TRUE(trace.rows(0, Phase::prefill, 10, events).ok());
    ASSERT_TRUE(trace.rows(1, Phase::decode, 12, std::span(events).subspan(0, 2)).ok());
    ASSERT_TRUE(trace.rows(1, Phase::decode, 13, {}).ok());
    expect_golden("golden.route.csv", out.text());
}

TEST(RouteTrace, SaysOfAModelWhatIsKnown) {
    const TempFile out;
    RouteTraceFile trace(out.open());
    RouteTraceModel model;
    model.name = "a b\n,c";
    model.sizes = {{3, Measure(100), Measure(20)}, {4, Measure(), Measure()}};
    ASSERT_TRUE(trace.begin(model).ok());
    EXPECT_TRUE(
        out.text().starts_with("# route_trace v1\n# model=\"a b ,c\" arch=\n# layer=3 expert_bytes=100 "
                               "dense_bytes=20\n# layer=4\nturn,phase,"))
        << out.text();
    for (const Json& odd : {Json(), Json(5), Json{{"layers", "x"}}, Json{{"layers", {-1, "a", 2}}}}) {
        const RouteTraceModel m = route_trace_model(odd);
        EXPECT_LE(m.sizes.size(), 1U);
    }
}

// Whoever learns from such a trace has to know that it does not show what routers choose.
TEST(RouteTrace, SaysWhichOptionsChangedTheChoices) {
    const TempFile out;
    RouteTraceFile trace(out.open());
    RouteTraceModel model;
    model.name = "m";
    model.lossy = "--route-ahead 2, --drop-cold-experts 0.5";
    ASSERT_TRUE(trace.begin(model).ok());
    EXPECT_TRUE(out.text().starts_with(
        "# route_trace v1\n# model=m arch=\n# lossy=--route-ahead 2, --drop-cold-experts 0.5\nturn,phase,"))
        << out.text();
}

TEST(IoTrace, Golden) {
    const TempFile out;
    IoTraceFile trace(out.open());
    ASSERT_TRUE(trace.begin().ok());
    ASSERT_TRUE(trace.rows(0, Phase::decode, 3, reads()).ok());
    expect_golden("golden.io.csv", out.text());
}

TEST(ComputeTrace, Golden) {
    const TempFile each, together;
    ComputeTraceFile a(each.open(), ComputeTraceFile::Detail::nodes);
    ComputeTraceFile b(together.open(), ComputeTraceFile::Detail::layers);
    for (ComputeTraceFile* trace : {&a, &b}) {
        ASSERT_TRUE(trace->begin().ok());
        ASSERT_TRUE(trace->rows(0, Phase::decode, 2, nodes()).ok());
    }
    expect_golden("golden.compute.csv", each.text());
    expect_golden("golden.layers.csv", together.text());
}

TEST(ComputeTrace, LayersHoldAllTimeOfTheNodes) {
    Random random(5);
    for (int round = 0; round < 50; ++round) {
        std::vector<NodeEvent> events(random.below(30));
        Nanos all = 0;
        for (NodeEvent& e : events) {
            e.layer = static_cast<int32_t>(random.below(6)) - 1;
            if (round % 10 == 0) e.layer = -1;
            if (random.below(20) == 0) e.layer = INT32_MAX;
            e.wall = static_cast<Nanos>(random.below(1000));
            all += e.wall;
        }
        const TempFile out;
        ComputeTraceFile trace(out.open(), ComputeTraceFile::Detail::layers);
        ASSERT_TRUE(trace.rows(0, Phase::decode, 0, events).ok());
        Nanos sum = 0;
        const std::string text = out.text();
        for (size_t at = 0; at < text.size();) {
            const size_t end = text.find('\n', at);
            const std::string line = text.substr(at, end - at);
            size_t field = 0;
            for (int i = 0; i < 7; ++i) field = line.find(',', field) + 1;
            sum += std::stoll(line.substr(field));
            at = end + 1;
        }
        EXPECT_EQ(sum, all);
    }
}

TEST(Traces, AFullDiskIsAnError) {
    Result<std::unique_ptr<LineFile>> full = LineFile::open("/dev/full");
    if (!full.ok()) GTEST_SKIP() << "no /dev/full";
    IoTraceFile trace(std::move(full).value());
    EXPECT_EQ(trace.begin().code(), Code::io_error);
    EXPECT_FALSE(LineFile::open("/no/such/folder/file").ok());
}

// Two sinks share the file: its head and its rows.
TEST(Traces, AFileOfRoutesThatCannotBeginIsOneError) {
    Result<std::unique_ptr<LineFile>> full = LineFile::open("/dev/full");
    if (!full.ok()) GTEST_SKIP() << "no /dev/full";
    RouteTraceFile trace(std::move(full).value());
    EXPECT_EQ(trace.begin({}).code(), Code::io_error);
    const std::vector<RouteEvent> events(1);
    EXPECT_TRUE(trace.rows(0, Phase::decode, 0, events).ok()) << "it was told already";
}

Capture capture() {
    Capture c;
    c.row = 7;
    c.begin = 999000;
    c.end = 1009000;
    c.spans = {{Part::dense, 0, 999000, 1000000},
               {Part::wait_read, 0, 1000000, 1003501},
               {Part::routed, 0, 1003501, 1004000},
               {Part::sample, -1, 1008000, 1009000}};
    c.reads = reads();
    return c;
}

TEST(Perfetto, Golden) {
    expect_golden("golden.perfetto.json", perfetto_json(capture()));
}

TEST(Perfetto, LanesNeverOverlap) {
    Random random(9);
    Capture c;
    for (int i = 0; i < 300; ++i) {
        ReadEvent e;
        e.issued = static_cast<Nanos>(random.below(100000));
        e.ready = e.issued + static_cast<Nanos>(random.below(5000)) - 10;
        c.reads.push_back(e);
    }
    const auto j = nlohmann::json::parse(perfetto_json(c), nullptr, false);
    ASSERT_TRUE(j.is_object());
    std::map<int64_t, std::vector<std::pair<double, double>>> lanes;
    std::map<int64_t, std::string> names;
    for (const auto& e : j["traceEvents"]) {
        if (e["ph"] == "M" && e["name"] == "thread_name") names[e["tid"]] = e["args"]["name"];
        if (e["ph"] != "X") continue;
        lanes[e["tid"]].emplace_back(e["ts"], e["dur"]);
    }
    size_t n = 0;
    for (auto& [thread, spans] : lanes) {
        EXPECT_TRUE(names.contains(thread));
        n += spans.size();
        std::sort(spans.begin(), spans.end());
        for (size_t i = 1; i < spans.size(); ++i)
            EXPECT_GE(spans[i].first, spans[i - 1].first + spans[i - 1].second - 1e-9);
    }
    EXPECT_EQ(n, c.reads.size());
}

TEST(Perfetto, AnEmptyCaptureIsAPicture) {
    EXPECT_TRUE(nlohmann::json::parse(perfetto_json({}), nullptr, false).is_object());
}

}  // namespace
}  // namespace sluice::trace
