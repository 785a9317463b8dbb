// Owns: a judged race as data for the page.
// Keeps: medians, intervals, ratios and verdicts are copied from the judge; nothing is judged here.
#include "report/data.h"

namespace sluice::report {
namespace {

using trace::Json;

Json interval(const std::optional<Interval>& i) {
    if (!i) return nullptr;
    return {plain_number(i->low), plain_number(i->high)};
}

// Whether a speed may be looked at beside the others of its cell.
bool counts(Verdict verdict) {
    return verdict == Verdict::baseline || verdict == Verdict::faster || verdict == Verdict::slower ||
           verdict == Verdict::undecided;
}

Json measured(const Measured& m, bool left_out) {
    return {{"verdict", left_out ? "not run" : verdict_text(m.verdict)},
            {"counts", counts(m.verdict)},
            {"median", plain_number(m.median)},
            {"spread", interval(m.spread)},
            {"interval", interval(m.median_interval)},
            {"runs", m.values.size()},
            {"ratio", plain_number(m.ratio)},
            {"ratio_interval", interval(m.ratio_interval)}};
}

const char* digest_words(Digest digest) {
    switch (digest) {
        case Digest::unknown:
            return "not compared";
        case Digest::same:
            return "the baseline's";
        case Digest::differs:
            return "another one";
    }
    return "";
}

Json text(const std::string& words) {
    return words.empty() ? Json(nullptr) : Json(valid_text(words));
}

}  // namespace

Json race_data(const RaceResult& race) {
    Json arms = Json::array();
    for (const RaceArm& a : race.arms) {
        arms.push_back({{"name", valid_text(a.name)},
                        {"command", valid_text(a.command)},
                        {"version", text(a.version)},
                        {"includes", text(a.includes)},
                        {"baseline", a.baseline},
                        {"exact", a.exact}});
    }
    Json cells = Json::array();
    for (const RaceCell& c : race.cells) {
        Json entries = Json::array();
        for (const RaceEntry& e : c.entries) {
            entries.push_back({{"arm", e.arm},
                               {"runs", e.runs},
                               {"failures", e.failures},
                               {"error", text(e.error)},
                               {"left_out", text(e.left_out)},
                               {"digest", digest_words(e.digest)},
                               {"decode", measured(e.decode, !e.left_out.empty())},
                               {"prefill", measured(e.prefill, !e.left_out.empty())},
                               {"load_seconds", plain_number(e.load_seconds)},
                               {"wall_seconds", plain_number(e.wall_seconds)},
                               {"read_bytes", plain_number(e.read_bytes)},
                               {"peak_bytes", plain_number(e.peak_bytes)}});
        }
        cells.push_back({{"name", valid_text(c.name)},
                         {"ram_bytes", c.ram_bytes ? Json(*c.ram_bytes) : Json(nullptr)},
                         {"decode_drift", plain_number(c.decode_drift)},
                         {"entries", std::move(entries)}});
    }
    Json remarks = Json::array();
    for (const std::string& r : race.remarks) remarks.push_back(valid_text(r));
    return {{"name", name_of_file(race.path)}, {"state", race.ended ? "ok" : "unended"},
            {"time", text(race.time)},         {"machine", text(race.machine)},
            {"model", text(race.model)},       {"drift_limit", plain_number(race.drift_limit)},
            {"arms", std::move(arms)},         {"cells", std::move(cells)},
            {"remarks", std::move(remarks)},   {"text", valid_text(race_text(race))}};
}

}  // namespace sluice::report
