#include "report/data.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "trace/json_values.h"

namespace sluice::report {
namespace {

using trace::Column;
using trace::Figure;
using trace::Histogram;
using trace::Json;
using trace::Measure;
using trace::Part;
using trace::Phase;
using trace::Record;
using trace::Row;
using trace::Totals;

constexpr size_t kMaxCurve = 400;  // points of a latency curve
constexpr size_t kMaxLayers = 1024;

Json number(std::optional<double> value) {
    return plain_number(value);
}

Json number(double value) {
    return number(std::optional(value));
}

Json number(Measure m) {
    return m.known() ? Json(m.value()) : Json(nullptr);
}

std::optional<double> figure(const char* name, const Totals& totals) {
    return trace::figure(name, totals);
}

// What a part of the wall time of `of` comes to per token. The figure says what a token is; here it is asked about a
// run in which that part was all.
std::optional<double> ms_per_token(Measure part, const Totals& of) {
    Totals t;
    t.sum.tokens = of.sum.tokens;
    t.sum.output_tokens = of.sum.output_tokens;
    t.sum.wall = part;
    return figure("ms_per_token", t);
}

std::string name_of(Part part) {
    return std::string(trace::part_name(part));
}

Measure part_of(const Totals& totals, Part part) {
    return totals.sum.parts[static_cast<size_t>(part)];
}

Json parts_json(const Totals& totals) {
    Json out = Json::array();
    const auto wall = figure("ms_per_token", totals);
    for (size_t i = 0; i < trace::kParts; ++i) {
        const auto part = static_cast<Part>(i);
        const auto ms = ms_per_token(part_of(totals, part), totals);
        Json share = nullptr;
        if (ms && wall && *wall > 0) share = number(*ms / *wall);
        out.push_back({{"name", name_of(part)},
                       {"label", trace::part_label(part)},
                       {"ms_per_token", number(ms)},
                       {"share", std::move(share)}});
    }
    return out;
}

// Reads by latency: the share of them that took no longer than so many ms.
Json latency_json(const Totals& totals) {
    const Histogram& h = totals.reads;
    if (h.count() == 0) return nullptr;
    Json curve = Json::array();
    std::vector<size_t> filled;
    for (size_t b = 0; b < Histogram::kBuckets; ++b) {
        if (h.in_bucket(b) > 0) filled.push_back(b);
    }
    const size_t step = (filled.size() + kMaxCurve - 1) / kMaxCurve;
    double seen = 0;
    for (size_t i = 0; i < filled.size(); ++i) {
        seen += static_cast<double>(h.in_bucket(filled[i]));
        if (i % step != 0 && i + 1 != filled.size()) continue;
        const Nanos top = Histogram::upper_bound(filled[i]);
        const Nanos largest = h.largest();
        const Nanos bound = i + 1 == filled.size() && largest > 0 ? std::min(top, largest) : top;
        curve.push_back({number(static_cast<double>(bound) * 1e-6), number(seen / static_cast<double>(h.count()))});
    }
    return {{"reads", h.count()},
            {"curve", std::move(curve)},
            {"largest_ms", number(static_cast<double>(h.largest()) * 1e-6)}};
}

Json layers_json(const Totals& totals) {
    const auto& layers = totals.sum.layers;
    if (layers.empty()) return nullptr;
    Json out{{"wait_ms", Json::array()},
             {"routed_ms", Json::array()},
             {"hit_rate", Json::array()},
             {"physical_bytes", Json::array()}};
    for (size_t i = 0; i < std::min(layers.size(), kMaxLayers); ++i) {
        const Row::Layer& l = layers[i];
        Totals t;
        t.sum.hits = l.hits;
        t.sum.lookups = l.lookups;
        out["wait_ms"].push_back(number(ms_per_token(l.wait, totals)));
        out["routed_ms"].push_back(number(ms_per_token(l.routed, totals)));
        out["hit_rate"].push_back(number(figure("hit_rate", t)));
        out["physical_bytes"].push_back(l.physical);
    }
    return out;
}

std::vector<const Row*> rows_of(const Record& record, Phase phase) {
    std::vector<const Row*> rows;
    for (const Row& row : record.rows) {
        if (row.phase.or_zero() == static_cast<int64_t>(phase)) rows.push_back(&row);
    }
    return rows;
}

// The median of the rows around `at`, of those that have a value; half of the window before, half behind.
std::optional<double> median_around(const std::vector<std::optional<double>>& values, size_t at, size_t window) {
    const size_t first = at > window / 2 ? at - window / 2 : 0;
    const size_t last = std::min(values.size(), at + window / 2 + 1);
    std::vector<double> known;
    for (size_t i = first; i < last; ++i) {
        if (values[i]) known.push_back(*values[i]);
    }
    if (known.empty()) return std::nullopt;
    const auto middle = known.begin() + static_cast<std::ptrdiff_t>((known.size() - 1) / 2);
    std::nth_element(known.begin(), middle, known.end());
    return *middle;
}

// A column of the plots: what a bin comes to.
struct Curve {
    const char* name;
    Json (*of)(const Totals& bin);
};
constexpr Curve kCurves[] = {
    {"tokens_per_second", [](const Totals& t) { return number(figure("tokens_per_second", t)); }},
    {"ms_per_token", [](const Totals& t) { return number(figure("ms_per_token", t)); }},
    {"hit_rate", [](const Totals& t) { return number(figure("hit_rate", t)); }},
    {"cache_resident", [](const Totals& t) { return number(t.sum.cache_resident); }},
    {"cache_slots", [](const Totals& t) { return number(t.sum.cache_slots); }},
    {"cache_bytes", [](const Totals& t) { return number(t.sum.cache_bytes); }},
};

bool all_null(const Json& list) {
    return std::all_of(list.begin(), list.end(), [](const Json& j) { return j.is_null(); });
}

Json series_json(const Record& record, Phase phase) {
    const std::vector<const Row*> rows = rows_of(record, phase);
    if (rows.empty()) return nullptr;
    const size_t per_bin = (rows.size() + kMaxBins - 1) / kMaxBins;
    const size_t window = std::max<size_t>(9, std::min<size_t>(rows.size() / 20, 2001)) | 1U;

    std::vector<std::optional<double>> speeds;
    std::vector<std::optional<double>> hit_rates;
    Totals one;
    for (const Row* row : rows) {
        one.sum = Row{};
        one.add(*row);
        speeds.push_back(figure("tokens_per_second", one));
        hit_rates.push_back(figure("hit_rate", one));
    }
    Json out{{"rows", rows.size()},        {"rows_per_bin", per_bin},   {"median_window", window},
             {"first_row", Json::array()}, {"start_ns", Json::array()}, {"speed_median", Json::array()}};
    Json parts = Json::object();
    for (size_t i = 0; i < trace::kParts; ++i) parts[name_of(static_cast<Part>(i))] = Json::array();
    for (const Curve& c : kCurves) out[c.name] = Json::array();
    const auto spread = [&](const char* name, const std::vector<std::optional<double>>& values, size_t from,
                            size_t to) {
        std::optional<double> low;
        std::optional<double> high;
        for (size_t i = from; i < to; ++i) {
            if (!values[i]) continue;
            if (!low || *values[i] < *low) low = values[i];
            if (!high || *values[i] > *high) high = values[i];
        }
        out[fmt::format("{}_low", name)].push_back(number(low));
        out[fmt::format("{}_high", name)].push_back(number(high));
    };
    Totals bin;
    for (size_t from = 0; from < rows.size(); from += per_bin) {
        const size_t to = std::min(rows.size(), from + per_bin);
        bin.sum = Row{};
        for (size_t i = from; i < to; ++i) bin.add(*rows[i]);
        out["first_row"].push_back(from + 1);
        out["start_ns"].push_back(number(rows[from]->start));
        out["speed_median"].push_back(number(median_around(speeds, from + (to - from) / 2, window)));
        for (const Curve& c : kCurves) out[c.name].push_back(c.of(bin));
        if (per_bin > 1) {
            spread("tokens_per_second", speeds, from, to);
            spread("hit_rate", hit_rates, from, to);
        }
        for (size_t i = 0; i < trace::kParts; ++i) {
            const auto part = static_cast<Part>(i);
            parts[name_of(part)].push_back(number(ms_per_token(part_of(bin, part), bin)));
        }
    }
    // What was never measured is one null instead of hundreds.
    for (auto& [name, list] : parts.items()) {
        if (all_null(list)) list = nullptr;
    }
    for (auto& [name, list] : out.items()) {
        if (list.is_array() && all_null(list)) list = nullptr;
    }
    out["parts_ms"] = std::move(parts);
    return out;
}

// Memory is sampled every now and then, over both phases.
Json memory_json(const Record& record) {
    std::vector<const Row*> sampled;
    for (const Row& row : record.rows) {
        if (row.start.known() && (row.rss.known() || row.anon.known() || row.file.known())) sampled.push_back(&row);
    }
    if (sampled.empty()) return nullptr;
    const size_t per_bin = (sampled.size() + kMaxBins - 1) / kMaxBins;
    Json out{{"samples", sampled.size()}, {"samples_per_bin", per_bin}, {"start_ns", Json::array()}};
    constexpr const char* kShown[] = {"rss_bytes", "anon_bytes", "file_bytes", "swap_bytes", "mem_available_bytes"};
    for (const char* name : kShown) out[name] = Json::array();
    for (size_t from = 0; from < sampled.size(); from += per_bin) {
        // The largest, so that no peak is lost; of what is available, the smallest.
        out["start_ns"].push_back(number(sampled[from]->start));
        for (const char* name : kShown) {
            const bool smallest = std::string_view(name) == "mem_available_bytes";
            Measure most;
            for (size_t i = from; i < std::min(sampled.size(), from + per_bin); ++i) {
                const Measure m = trace::value_of(*trace::find_column(name), *sampled[i]);
                if (!m.known()) continue;
                if (!most.known() || (smallest ? m.value() < most.value() : m.value() > most.value())) most = m;
            }
            out[name].push_back(number(most));
        }
    }
    for (const char* name : kShown) {
        if (all_null(out[name])) out[name] = nullptr;
    }
    return out;
}

// A table of counts; null where it is too large to draw.
Json table_json(const std::vector<std::vector<uint32_t>>& table) {
    size_t cells = 0;
    for (const auto& row : table) cells += row.size();
    return cells == 0 || cells > kMaxCells ? Json(nullptr) : Json(table);
}

Json experts_json(const Record& record) {
    Json out = Json::array();
    for (size_t m = 0; m < record.book.experts.size(); ++m) {
        const trace::ExpertUse& use = record.book.experts[m];
        if (use.uses.empty() && use.misses.empty()) continue;
        size_t cells = 0;
        for (const auto& row : use.uses) cells += row.size();
        out.push_back({{"model", m},
                       {"too_many", cells > kMaxCells},
                       {"uses", table_json(use.uses)},
                       {"misses", table_json(use.misses)}});
    }
    return out;
}

// The numbers of the layers with experts, where the record of a single model has them.
Json layer_numbers(const Record& record) {
    if (record.book.models.size() != 1) return nullptr;
    const auto it = record.book.models[0].find("layers");
    if (it == record.book.models[0].end() || !it->is_array() || it->size() > kMaxLayers) return nullptr;
    Json out = Json::array();
    for (const Json& n : *it) {
        if (!n.is_number_integer()) return nullptr;
        out.push_back(n.get<int64_t>());
    }
    return out;
}

Json phase_json(const Record& record, Phase phase) {
    const Totals& totals = record.book.of(phase);
    if (totals.rows == 0) return nullptr;
    Json sums = Json::object();
    for (const Column& c : trace::columns()) {
        if (c.total != trace::Total::none) sums[c.name] = number(trace::value_of(c, totals.sum));
    }
    Json made = Json::object();
    for (const Figure& f : trace::figures()) made[f.name] = number(f.of(totals));
    const std::string binds = trace::what_binds(totals);
    return {{"rows", totals.rows},
            {"totals", std::move(sums)},
            {"figures", std::move(made)},
            {"binds", binds.empty() ? Json(nullptr) : Json(binds)},
            {"parts", parts_json(totals)},
            {"layers", layers_json(totals)},
            {"latency", latency_json(totals)},
            {"series", series_json(record, phase)}};
}

Json status_json(const Record& record) {
    const trace::Ending& e = record.book.ending;
    if (!record.ended) {
        std::string words = fmt::format("Killed, or still running: the record ends after row {}", record.rows.size());
        words += record.cut_short ? ", in the middle of a line." : ".";
        return {{"state", "unended"}, {"words", words}, {"error", nullptr}};
    }
    const Json why = e.error.empty() ? Json(nullptr) : Json(valid_text(e.error));
    if (e.status == "ok") return {{"state", "ok"}, {"words", "Ended well."}, {"error", why}};
    if (e.status == "interrupted") return {{"state", "interrupted"}, {"words", "Interrupted."}, {"error", why}};
    if (e.status == "failed") return {{"state", "failed"}, {"words", "Failed."}, {"error", why}};
    return {{"state", "unknown"}, {"words", "Ended, but does not say how."}, {"error", why}};
}

std::string letter_of(size_t i) {
    return std::string(1, static_cast<char>('A' + i % kMaxRecords));
}

std::string text_at(const Json& j, const char* key) {
    const auto it = j.is_object() ? j.find(key) : j.end();
    return it != j.end() && it->is_string() ? it->get<std::string>() : "";
}

Json estimate_json(const std::optional<Estimate>& e) {
    if (!e) return nullptr;
    return {{"median", number(e->median)}, {"low", number(e->low)}, {"high", number(e->high)}};
}

// One sentence: what a comparison of speeds is worth depends on it.
std::string outputs_words(const Outputs& o, const std::string& a, const std::string& b) {
    const std::string who = fmt::format("{} and {}", a, b);
    switch (o.text) {
        case Agreement::same:
            return who + " wrote the same text.";
        case Agreement::differs:
            return who + " did not write the same text: their speeds are those of different work.";
        case Agreement::unknown:
            break;
    }
    switch (o.routes) {
        case Agreement::same:
            return fmt::format("The text of {} is not in both records; their routers chose the same experts.", who);
        case Agreement::differs:
            return fmt::format(
                "The text of {} is not in both records; their routers did not choose the same experts: "
                "their speeds are those of different work.",
                who);
        case Agreement::unknown:
            return fmt::format("Whether {} wrote the same is not known.", who);
    }
    return "";
}

Json comparison_json(std::span<const Record> records, const std::vector<Speed>& speeds) {
    Json groups = Json::array();
    for (const DifferenceGroup& g : differences(records)) {
        Json rows = Json::array();
        for (const Difference& d : g.differences) {
            Json values = Json::array();
            for (const auto& v : d.values) values.push_back(v ? Json(*v) : Json(nullptr));
            rows.push_back({{"key", d.key}, {"values", std::move(values)}});
        }
        groups.push_back({{"name", g.name}, {"rows", std::move(rows)}});
    }
    Json ratios = Json::array();
    Json outputs = Json::array();
    for (size_t i = 1; i < speeds.size(); ++i) {
        outputs.push_back(outputs_words(compare_outputs(records[0], records[i]), letter_of(0), letter_of(i)));
        const Ratio r = ratio_of(speeds[i], speeds[0]);
        ratios.push_back({{"of", i},
                          {"over", 0},
                          {"ms_per_token", estimate_json(r.ms_per_token)},
                          {"tokens_per_second", estimate_json(r.tokens_per_second)}});
    }
    return {{"differences", std::move(groups)}, {"outputs", std::move(outputs)}, {"ratios", std::move(ratios)}};
}

// Where the host program did the rest.
constexpr const char* kGraphNote =
    "Only llama.cpp's graph was recorded: speeds leave out sampling and text. Rows are told apart by their tokens: "
    "batches of several are prompts, but also several sequences decoded at once, or drafts being verified.";

// What a reader has to know before he compares; null: nothing.
Json note_of(const Json& header) {
    std::string out = text_at(header, "scope") == "graph" ? kGraphNote : "";
    if (const std::string lossy = trace::lossy_in(header); !lossy.empty())
        out += fmt::format("{}Options were on that change what the model answers: {}.", out.empty() ? "" : " ", lossy);
    return out.empty() ? Json(nullptr) : Json(out);
}

}  // namespace

// Six digits are more than a plot or a table shows, and half as long in the page.
Json plain_number(std::optional<double> value) {
    if (!value || !std::isfinite(*value)) return nullptr;
    return std::strtod(fmt::format("{:.6g}", *value).c_str(), nullptr);
}

std::string valid_text(const std::string& text) {
    const std::string quoted = Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
    return Json::parse(quoted).get<std::string>();
}

std::string name_of_file(const std::string& path) {
    std::string name = path.substr(path.rfind('/') + 1);
    if (name.ends_with(".jsonl") && name.size() > 6) name.resize(name.size() - 6);
    return valid_text(name);
}

const char* phase_words(const Record& record, Phase phase) {
    if (text_at(record.book.header, "scope") != "graph") return trace::phase_name(phase);
    return phase == Phase::prefill ? "batches" : "single tokens";
}

Json report_data(std::span<const Record> records, std::span<const RaceResult> races) {
    Json columns = Json::object();
    for (const Column& c : trace::columns()) {
        if (c.total != trace::Total::none) columns[c.name] = {{"help", c.help}};
    }
    Json figures = Json::object();
    for (const Figure& f : trace::figures()) figures[f.name] = {{"unit", f.unit}, {"help", f.help}};

    Json list = Json::array();
    std::vector<Speed> speeds;
    for (size_t i = 0; i < records.size(); ++i) {
        const Record& r = records[i];
        speeds.push_back(speed_of(r, i));
        Json facts = Json::array();
        for (const FactGroup& g : facts_of(r)) {
            Json rows = Json::array();
            for (const Fact& f : g.facts)
                rows.push_back({{"key", f.key}, {"value", f.value}, {"set", f.set ? Json(*f.set) : Json(nullptr)}});
            facts.push_back({{"name", g.name}, {"facts", std::move(rows)}});
        }
        std::string model;
        for (const Json& m : r.book.models) {
            const std::string name = text_at(m, "name");
            model += (model.empty() ? "" : ", ") + (name.empty() ? "a model without a name" : name);
        }
        const Speed& s = speeds.back();
        list.push_back(
            {{"letter", letter_of(i)},
             {"name", name_of_file(r.path)},
             {"model", model.empty() ? Json(nullptr) : Json(model)},
             {"program", text_at(r.book.header, "program")},
             {"scope", text_at(r.book.header, "scope")},
             {"phases", {{"prefill", phase_words(r, Phase::prefill)}, {"decode", phase_words(r, Phase::decode)}}},
             {"note", note_of(r.book.header)},
             {"time", text_at(r.book.header, "time")},
             {"status", status_json(r)},
             {"rows", r.rows.size()},
             {"layer_numbers", layer_numbers(r)},
             {"prefill", phase_json(r, Phase::prefill)},
             {"decode", phase_json(r, Phase::decode)},
             {"memory", memory_json(r)},
             {"experts", experts_json(r)},
             {"speed",
              {{"values", s.values},
               {"used", s.used},
               {"block", s.block},
               {"ms_per_token", estimate_json(s.ms_per_token)},
               {"tokens_per_second", estimate_json(s.tokens_per_second)}}},
             {"facts", std::move(facts)}});
    }
    Json race_list = Json::array();
    for (const RaceResult& race : races) race_list.push_back(race_data(race));
    return {{"figures", std::move(figures)},
            {"columns", std::move(columns)},
            {"resamples", kResamples},
            {"records", std::move(list)},
            {"comparison", records.size() > 1 ? comparison_json(records, speeds) : Json(nullptr)},
            {"races", std::move(race_list)}};
}

}  // namespace sluice::report
