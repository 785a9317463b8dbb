#include "report/race.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string_view>
#include <tuple>

#include "base/bytes.h"

namespace sluice::report {
namespace {

using Json = nlohmann::json;

constexpr int kRaceSchema = 1;
constexpr size_t kMaxLine = size_t{4} << 20;
constexpr size_t kMaxArms = 64;
constexpr size_t kMaxCells = 64;
constexpr uint64_t kMaxRounds = 1000;
constexpr size_t kMaxSamples = 4096;  // the bootstrap looks at each ten thousand times
// Cores; the kernel's own threads, which work for the run, are counted too.
constexpr double kOthersMayUse = 0.3;
// Bytes of a name, of a sentence and of a command that are shown.
constexpr size_t kMaxText = 300;
constexpr size_t kMaxSentence = 1000;
constexpr size_t kMaxCommand = 4000;

// ---- taking values out of a file that may hold anything

const Json* member(const Json& j, const char* name) {
    if (!j.is_object()) return nullptr;
    const auto it = j.find(name);
    return it == j.end() ? nullptr : &*it;
}

std::string text_in(const Json& j, const char* name) {
    const Json* v = member(j, name);
    return v != nullptr && v->is_string() ? v->get<std::string>() : "";
}

std::optional<uint64_t> whole_in(const Json& j, const char* name) {
    const Json* v = member(j, name);
    return v != nullptr && v->is_number_unsigned() ? std::optional(v->get<uint64_t>()) : std::nullopt;
}

std::optional<double> number_in(const Json& j, const char* name) {
    const Json* v = member(j, name);
    if (v == nullptr || !v->is_number()) return std::nullopt;
    const auto d = v->get<double>();
    return std::isfinite(d) ? std::optional(d) : std::nullopt;
}

bool flag_in(const Json& j, const char* name) {
    const Json* v = member(j, name);
    return v != nullptr && v->is_boolean() && v->get<bool>();
}

// A speed so large or small that ratios of it leave the range of a double is none.
std::optional<double> speed_in(const Json& j, const char* name) {
    const auto v = number_in(j, name);
    return v && *v > 1e-100 && *v < 1e100 ? v : std::nullopt;
}

// ---- spelling

// Where a text stands in the Markdown.
enum class As { words, code };

// On one line, without control characters, and with what Markdown would take for structure made harmless. What is
// longer than `longest` is cut, never inside a character.
std::string plain(std::string_view text, As as = As::words, size_t longest = kMaxText) {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
        const auto c = static_cast<unsigned char>(text[i]);
        if (out.size() > longest && (c & 0xC0U) != 0x80) return out + " ...";
        const bool c1 = c == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;
        if (c < 0x20 || c == 0x7F || c1) {
            if (c1) ++i;
            if (!out.empty() && out.back() != ' ') out += ' ';
        } else if (c == '`') {
            out += '\'';
        } else if (as == As::words && c == '|') {
            out += "\\|";
        } else if (as == As::words && c == '<') {
            out += "&lt;";
        } else {
            out += static_cast<char>(c);
        }
    }
    return out;
}

// As a shell wants it.
std::string quoted(const std::string& word) {
    const auto harmless = [](unsigned char c) {
        return std::isalnum(c) != 0 || (c != 0 && std::strchr("_-./=:,+@%~{}", c) != nullptr);
    };
    if (!word.empty() && std::all_of(word.begin(), word.end(), harmless)) return word;
    std::string out = "'";
    for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return out + "'";
}

std::string speed_text(double v) {
    return v >= 0.095 && v < 1e6 ? fmt::format("{:.2f}", v) : fmt::format("{:.3g}", v);
}

std::string interval_text(const std::optional<Interval>& i, std::string (*spell)(double)) {
    return i ? fmt::format("{}–{}", spell(i->low), spell(i->high)) : "";
}

std::string bytes_text(double bytes) {
    return bytes >= 0 && bytes < 1e18 ? human_bytes(static_cast<uint64_t>(bytes)) : "not measured";
}

std::string percent_text(double share) {
    return std::abs(share) < 1e4 ? fmt::format("{:+.1f} %", 100 * share) : fmt::format("{:+.1e} %", 100 * share);
}

// ---- reading

struct Sample {
    size_t cell = 0, arm = 0;
    uint64_t round = 0;
    bool ok = false;
    std::string error, digest;
    std::optional<double> decode, prefill, load_seconds, wall_seconds, read_bytes, peak_bytes;
    bool disturbed = false, not_emptied = false;
};

std::string machine_line(const Json& m) {
    std::vector<std::string> parts;
    const auto add = [&](const char* name, const char* before, const char* after) {
        if (const std::string v = text_in(m, name); !v.empty()) parts.push_back(before + v + after);
    };
    add("cpu", "", "");
    if (const auto n = whole_in(m, "cores")) parts.push_back(fmt::format("{} cores", *n));
    if (const auto n = whole_in(m, "ram_bytes")) parts.push_back(human_bytes(*n) + " of memory");
    if (const auto n = whole_in(m, "swap_bytes")) parts.push_back(*n == 0 ? "no swap" : human_bytes(*n) + " of swap");
    add("drive", "drive ", "");
    add("file_system", "", "");
    add("kernel", "kernel ", "");
    if (const auto n = whole_in(m, "cgroup")) parts.push_back(fmt::format("cgroup v{}", *n));
    return fmt::format("{}", fmt::join(parts, ", "));
}

Status take_header(RaceResult& race, const Json& j) {
    const auto schema = whole_in(j, "sluice_record");
    if (!schema) return error(Code::corrupt, "not a race (its first line is no header)");
    if (text_in(j, "kind") != "race")
        return error(Code::unsupported, "a record of kind \"{}\", not of a race", plain(text_in(j, "kind")));
    if (*schema > kRaceSchema)
        return error(Code::unsupported, "schema {}, this Sluice knows up to {}", *schema, kRaceSchema);
    race.time = text_in(j, "time");
    race.commit = text_in(j, "commit");
    if (const Json* m = member(j, "machine")) race.machine = machine_line(*m);
    if (const Json* m = member(j, "model")) {
        race.model = text_in(*m, "name");
        race.model_digest = text_in(*m, "digest");
        race.model_bytes = whole_in(*m, "bytes");
    }
    race.prompt_sha256 = text_in(j, "prompt_sha256");
    race.n_predict = whole_in(j, "n_predict");
    race.threads = whole_in(j, "threads");
    race.rounds = whole_in(j, "rounds");
    const auto limit = number_in(j, "drift_limit");
    if (!limit || *limit < 0) return error(Code::corrupt, "the header has no drift limit");
    race.drift_limit = *limit;

    std::set<std::string> names;
    const Json* arms = member(j, "arms");
    if (arms == nullptr || !arms->is_array() || arms->empty()) return error(Code::corrupt, "the header has no arms");
    if (arms->size() > kMaxArms) return error(Code::unsupported, "more than {} arms", kMaxArms);
    for (const Json& a : *arms) {
        RaceArm arm;
        arm.name = text_in(a, "name");
        if (!names.insert(arm.name).second || arm.name.empty())
            return error(Code::corrupt, "an arm without a name, or two named \"{}\"", plain(arm.name));
        const Json* env = member(a, "env");
        if (env != nullptr && env->is_object()) {
            for (const auto& [key, value] : env->items())
                arm.command += key + "=" + quoted(value.is_string() ? value.get<std::string>() : "") + " ";
        }
        const Json* command = member(a, "command");
        if (command != nullptr && command->is_array()) {
            for (const Json& word : *command)
                arm.command += quoted(word.is_string() ? word.get<std::string>() : "") + " ";
        }
        if (!arm.command.empty()) arm.command.pop_back();
        arm.version = text_in(a, "version");
        arm.includes = text_in(a, "includes");
        arm.baseline = flag_in(a, "baseline");
        arm.exact = flag_in(a, "exact");
        arm.forced = flag_in(a, "forced");
        race.arms.push_back(std::move(arm));
    }
    if (std::count_if(race.arms.begin(), race.arms.end(), [](const RaceArm& a) { return a.baseline; }) != 1)
        return error(Code::corrupt, "a race has one baseline");

    names.clear();
    const Json* cells = member(j, "cells");
    if (cells == nullptr || !cells->is_array() || cells->empty())
        return error(Code::corrupt, "the header has no cells");
    if (cells->size() > kMaxCells) return error(Code::unsupported, "more than {} cells", kMaxCells);
    for (const Json& c : *cells) {
        RaceCell cell;
        cell.name = text_in(c, "name");
        cell.ram_bytes = whole_in(c, "ram_bytes");
        if (!names.insert(cell.name).second || cell.name.empty())
            return error(Code::corrupt, "a cell without a name, or two named \"{}\"", plain(cell.name));
        for (size_t a = 0; a < race.arms.size(); ++a) {
            cell.entries.emplace_back();
            cell.entries.back().arm = a;
        }
        race.cells.push_back(std::move(cell));
    }
    return {};
}

template <typename T>
std::optional<size_t> index_of(const std::vector<T>& list, const std::string& name) {
    const auto it = std::find_if(list.begin(), list.end(), [&](const T& t) { return t.name == name; });
    return it == list.end() ? std::nullopt : std::optional(static_cast<size_t>(it - list.begin()));
}

void take_skipped(RaceResult& race, const Json& header) {
    const Json* skipped = member(header, "skipped");
    if (skipped == nullptr || !skipped->is_array()) return;
    for (const Json& s : *skipped) {
        const auto cell = index_of(race.cells, text_in(s, "cell"));
        const auto arm = index_of(race.arms, text_in(s, "arm"));
        if (cell && arm) race.cells[*cell].entries[*arm].left_out = text_in(s, "why");
    }
}

Result<Sample> sample_from(const RaceResult& race, const Json& j) {
    const auto cell = index_of(race.cells, text_in(j, "cell"));
    const auto arm = index_of(race.arms, text_in(j, "arm"));
    const auto round = whole_in(j, "round");
    if (!cell || !arm) return error(Code::corrupt, "a run of an arm or cell that the header does not name");
    if (!round || *round >= kMaxRounds) return error(Code::corrupt, "a run of no round");
    Sample s;
    s.cell = *cell;
    s.arm = *arm;
    s.round = *round;
    s.error = text_in(j, "error");
    s.digest = text_in(j, "output_digest");
    s.decode = speed_in(j, "decode_tokens_per_second");
    s.prefill = speed_in(j, "prefill_tokens_per_second");
    s.load_seconds = number_in(j, "load_s");
    s.wall_seconds = number_in(j, "wall_s");
    s.read_bytes = number_in(j, "read_bytes");
    s.peak_bytes = number_in(j, "peak_bytes");
    const Json* code = member(j, "exit");
    const bool ended_well = code != nullptr && code->is_number_unsigned() && code->get<uint64_t>() == 0;
    if (s.error.empty() && !ended_well) s.error = "it did not end well";
    if (s.error.empty() && !s.decode) s.error = "no speed of decode was read";
    s.ok = s.error.empty();
    const Json* load = member(j, "load");
    s.disturbed = (load != nullptr && member(*load, "quiet") != nullptr && !flag_in(*load, "quiet")) ||
                  number_in(j, "other_cores").value_or(0) > kOthersMayUse;
    s.not_emptied = whole_in(j, "page_cache_left_bytes") != std::optional<uint64_t>(0);
    return s;
}

// ---- the judge

std::optional<double> median_if(std::vector<double> values) {
    return values.empty() ? std::nullopt : std::optional(median_of(std::move(values)));
}

// Samples of one arm in one cell, by round.
using Runs = std::vector<const Sample*>;
using Field = std::optional<double> Sample::*;

std::vector<double> values_of(const Runs& runs, Field field) {
    std::vector<double> out;
    for (const Sample* s : runs) {
        if (s->ok && s->*field) out.push_back(*(s->*field));
    }
    return out;
}

std::optional<double> drift_of(const std::vector<double>& values) {
    const auto half = static_cast<std::ptrdiff_t>(values.size() / 2);
    if (half == 0) return std::nullopt;
    return median_of({values.end() - half, values.end()}) / median_of({values.begin(), values.begin() + half}) - 1;
}

void measure(Measured& m, const Runs& runs, Field field) {
    m.values = values_of(runs, field);
    if (m.values.empty()) return;
    m.median = median_of(m.values);
    const auto [low, high] = std::minmax_element(m.values.begin(), m.values.end());
    m.spread = Interval{*low, *high};
    if (m.values.size() >= kFewestRounds) m.median_interval = bootstrap_median(m.values);
}

struct Situation {
    bool all_failed = false;
    bool exact = false;
    bool baseline = false;
    bool drifted = false;
    Digest digest = Digest::unknown;
};

void judge(Measured& m, const Situation& is, const Runs& runs, const Runs& baseline, Field field) {
    m.verdict = is.all_failed ? Verdict::failed : Verdict::not_measured;
    if (m.values.empty()) return;
    const bool compared = is.exact && !is.baseline;
    m.verdict = compared && is.digest == Digest::differs   ? Verdict::digest_differs
                : compared && is.digest == Digest::unknown ? Verdict::digest_unknown
                : is.drifted                               ? Verdict::drift
                : m.values.size() < kFewestRounds          ? Verdict::too_few
                : is.baseline                              ? Verdict::baseline
                                                           : Verdict::no_baseline;
    if (m.verdict != Verdict::no_baseline) return;

    std::vector<double> ours;
    std::vector<double> theirs;
    for (const Sample* s : runs) {
        const auto same =
            std::find_if(baseline.begin(), baseline.end(), [&](const Sample* b) { return b->round == s->round; });
        if (same == baseline.end() || !s->ok || !(*same)->ok || !(s->*field) || !((*same)->*field)) continue;
        ours.push_back(*(s->*field));
        theirs.push_back(*((*same)->*field));
    }
    if (ours.size() < kFewestRounds) return;
    m.ratio = median_of(ours) / median_of(theirs);
    m.ratio_interval = bootstrap_ratio(ours, theirs);
    m.verdict = m.ratio_interval->low > 1    ? Verdict::faster
                : m.ratio_interval->high < 1 ? Verdict::slower
                                             : Verdict::undecided;
}

// What the baseline wrote: the same in every cell, or the race knows nothing to compare with.
std::string reference_digest(RaceResult& race, const std::vector<Sample>& samples) {
    std::string reference;
    for (const Sample& s : samples) {
        if (!race.arms[s.arm].baseline || !s.ok || s.digest.empty()) continue;
        if (!reference.empty() && reference != s.digest) {
            race.remarks.emplace_back("The baseline itself wrote different texts, so no output can be compared.");
            return "";
        }
        reference = s.digest;
    }
    return reference;
}

void judge_cell(const RaceResult& race, RaceCell& cell, std::vector<Runs>& by_arm, const std::string& reference) {
    size_t base = 0;
    for (RaceEntry& e : cell.entries) {
        Runs& runs = by_arm[e.arm];
        std::sort(runs.begin(), runs.end(), [](const Sample* a, const Sample* b) { return a->round < b->round; });
        if (race.arms[e.arm].baseline) base = e.arm;
        bool known = !reference.empty();
        for (const Sample* s : runs) {
            ++e.runs;
            if (s->disturbed) ++cell.disturbed;
            if (s->not_emptied) ++cell.not_emptied;
            if (!s->ok) {
                ++e.failures;
                if (e.error.empty()) e.error = s->error;
                continue;
            }
            if (s->digest.empty()) known = false;
            if (!s->digest.empty() && !reference.empty() && s->digest != reference) e.digest = Digest::differs;
        }
        if (e.digest == Digest::unknown && known && e.failures < e.runs) e.digest = Digest::same;
        measure(e.decode, runs, &Sample::decode);
        measure(e.prefill, runs, &Sample::prefill);
        e.load_seconds = median_if(values_of(runs, &Sample::load_seconds));
        e.wall_seconds = median_if(values_of(runs, &Sample::wall_seconds));
        e.read_bytes = median_if(values_of(runs, &Sample::read_bytes));
        e.peak_bytes = median_if(values_of(runs, &Sample::peak_bytes));
    }

    cell.decode_drift = drift_of(cell.entries[base].decode.values);
    cell.prefill_drift = drift_of(cell.entries[base].prefill.values);
    const auto beyond = [&](std::optional<double> drift) { return drift && std::abs(*drift) > race.drift_limit; };
    const bool all = beyond(cell.decode_drift);
    for (RaceEntry& e : cell.entries) {
        Situation is{.all_failed = e.runs > 0 && e.failures == e.runs,
                     .exact = race.arms[e.arm].exact,
                     .baseline = e.arm == base,
                     .drifted = all,
                     .digest = e.digest};
        judge(e.decode, is, by_arm[e.arm], by_arm[base], &Sample::decode);
        is.drifted = all || beyond(cell.prefill_drift);
        judge(e.prefill, is, by_arm[e.arm], by_arm[base], &Sample::prefill);
    }
}

void remark(RaceResult& race, const RaceCell& cell) {
    const std::string name = cell.name;
    for (const RaceEntry& e : cell.entries) {
        const std::string arm = race.arms[e.arm].name;
        if (!e.left_out.empty()) {
            race.remarks.push_back(fmt::format("{}, {}: not run: {}.", name, arm, e.left_out));
            continue;
        }
        if (e.runs == 0) race.remarks.push_back(fmt::format("{}, {}: no run was made.", name, arm));
        if (race.rounds && e.runs > 0 && e.runs < *race.rounds)
            race.remarks.push_back(fmt::format("{}, {}: {} of {} runs were made.", name, arm, e.runs, *race.rounds));
        if (e.failures > 0) {
            race.remarks.push_back(
                fmt::format("{}, {}: {} of {} runs failed, first with: {}", name, arm, e.failures, e.runs, e.error));
        }
        if (e.digest == Digest::differs && !race.arms[e.arm].exact)
            race.remarks.push_back(fmt::format("{}, {}: wrote another text than the baseline.", name, arm));
    }
    const auto drift = [&](const char* phase, std::optional<double> d) {
        if (d && std::abs(*d) > race.drift_limit) {
            race.remarks.push_back(fmt::format("{}: the baseline's {} drifted by {} (limit {:.0f} %).", name, phase,
                                               percent_text(*d), std::min(100 * race.drift_limit, 1e6)));
        }
    };
    drift("decode", cell.decode_drift);
    drift("prefill", cell.prefill_drift);
    size_t runs = 0;
    for (const RaceEntry& e : cell.entries) runs += e.runs;
    if (cell.disturbed > 0) {
        race.remarks.push_back(
            fmt::format("{}: others used the machine before or during {} of {} runs.", name, cell.disturbed, runs));
    }
    if (cell.not_emptied > 0) {
        race.remarks.push_back(
            fmt::format("{}: before {} of {} runs the page cache was not known to be free of the model.", name,
                        cell.not_emptied, runs));
    }
}

// The standard fixes what this engine yields (but not what its distributions do), so intervals repeat everywhere.
class Dice {
  public:
    size_t below(size_t n) { return static_cast<size_t>(engine_() % n); }

  private:
    std::mt19937_64 engine_{kRaceSeed};
};

Interval percentiles(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const auto last = static_cast<double>(values.size() - 1);
    return {values[static_cast<size_t>(std::floor(0.025 * last))],
            values[static_cast<size_t>(std::ceil(0.975 * last))]};
}

}  // namespace

double median_of(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    if (values.size() % 2 == 1) return *middle;
    return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

Interval bootstrap_median(const std::vector<double>& values) {
    Dice dice;
    std::vector<double> medians(kRaceResamples);
    std::vector<double> drawn(values.size());
    for (double& m : medians) {
        for (double& d : drawn) d = values[dice.below(values.size())];
        m = median_of(drawn);
    }
    return percentiles(std::move(medians));
}

Interval bootstrap_ratio(const std::vector<double>& values, const std::vector<double>& baseline) {
    Dice dice;
    std::vector<double> ratios(kRaceResamples);
    std::vector<double> ours(values.size());
    std::vector<double> theirs(values.size());
    for (double& r : ratios) {
        for (size_t i = 0; i < values.size(); ++i) {
            const size_t pick = dice.below(values.size());
            ours[i] = values[pick];
            theirs[i] = baseline[pick];
        }
        r = median_of(ours) / median_of(theirs);
    }
    return percentiles(std::move(ratios));
}

const char* verdict_text(Verdict verdict) {
    switch (verdict) {
        case Verdict::not_measured:
            return "not measured";
        case Verdict::failed:
            return "failed";
        case Verdict::digest_differs:
            return "digest differs";
        case Verdict::digest_unknown:
            return "digest not compared";
        case Verdict::drift:
            return "drift: discarded";
        case Verdict::too_few:
            return "too few";
        case Verdict::baseline:
            return "baseline";
        case Verdict::no_baseline:
            return "nothing to compare with";
        case Verdict::faster:
            return "faster";
        case Verdict::slower:
            return "slower";
        case Verdict::undecided:
            return "no difference shown";
    }
    return "";
}

Result<RaceResult> read_race(const std::string& file_path, const std::string& path) {
    std::ifstream file(file_path, std::ios::binary);
    if (!file) return error(Code::not_found, "cannot open {}: {}", path, std::strerror(errno));
    RaceResult race;
    race.path = path;
    std::vector<Sample> samples;
    std::set<std::tuple<size_t, size_t, uint64_t>> seen;
    std::string line;
    size_t number = 0;
    while (std::getline(file, line)) {
        ++number;
        const bool whole = !file.eof();  // otherwise its newline is missing
        if (line.size() > kMaxLine) return error(Code::corrupt, "{}: line {} is longer than a race's", path, number);
        const Json j = Json::parse(line, nullptr, false);
        if (j.is_discarded() || !j.is_object()) {
            if (number == 1) return error(Code::corrupt, "{} is not a race (its first line is not JSON)", path);
            if (!whole) {
                race.cut_short = true;
                break;
            }
            return error(Code::corrupt, "{}: line {} is not JSON", path, number);
        }
        if (number == 1) {
            if (Status s = take_header(race, j); !s.ok()) return s.within(path);
            take_skipped(race, j);
            continue;
        }
        const std::string kind = text_in(j, "kind");
        if (kind == "end") race.ended = true;
        if (kind == "resume") ++race.resumes;
        if (kind != "sample") continue;  // kinds of later versions are passed over
        if (samples.size() >= kMaxSamples) return error(Code::unsupported, "{}: more than {} runs", path, kMaxSamples);
        const auto sample = sample_from(race, j);
        if (!sample.ok()) return sample.status().within(fmt::format("{}: line {}", path, number));
        if (!seen.insert({sample->cell, sample->arm, sample->round}).second)
            return error(Code::corrupt, "{}: line {}: a run that was there before", path, number);
        samples.push_back(*sample);
    }
    if (number == 0) return error(Code::corrupt, "{} is empty", path);

    if (!race.ended) race.remarks.emplace_back("The race is not complete: it was interrupted or still goes on.");
    if (race.resumes > 0) {
        race.remarks.push_back(race.resumes == 1
                                   ? "The race was interrupted and continued."
                                   : fmt::format("The race was interrupted and continued, {} times.", race.resumes));
    }
    const std::string reference = reference_digest(race, samples);
    std::vector<std::vector<Runs>> runs(race.cells.size(), std::vector<Runs>(race.arms.size()));
    for (const Sample& s : samples) runs[s.cell][s.arm].push_back(&s);
    for (size_t c = 0; c < race.cells.size(); ++c) {
        judge_cell(race, race.cells[c], runs[c], reference);
        remark(race, race.cells[c]);
    }
    return race;
}

std::string race_text(const RaceResult& race) {
    const auto known = [](const std::string& text) { return text.empty() ? "not known" : plain(text); };
    const auto count = [](std::optional<uint64_t> n) { return n ? std::to_string(*n) : "not known"; };
    std::string base;
    for (const RaceArm& a : race.arms) {
        if (a.baseline) base = plain(a.name);
    }

    std::string out = "# Race\n\n";
    out += fmt::format("- Machine: {}\n", known(race.machine));
    out += fmt::format("- Model: {}, {}, digest {}\n", known(race.model),
                       race.model_bytes ? human_bytes(*race.model_bytes) : "size not known",
                       known(race.model_digest.substr(0, 16)));
    out += fmt::format("- Begun {}, commit {}; {} tokens, {} threads, {} rounds\n", known(race.time),
                       known(race.commit), count(race.n_predict), count(race.threads), count(race.rounds));
    out += fmt::format(
        "- Ratios are to \"{}\". Intervals: 95 %, percentile bootstrap of {} resamples over rounds, fixed seed. A cell "
        "in which the baseline drifts by more than {:.0f} % is discarded.\n",
        base, kRaceResamples, std::min(100 * race.drift_limit, 1e6));

    for (const RaceCell& cell : race.cells) {
        out += fmt::format("\n## {}\n\n", cell.ram_bytes ? fmt::format("Memory of {} ({})",
                                                                       human_bytes(*cell.ram_bytes), plain(cell.name))
                                                         : "No memory limit");
        out += "| arm | phase | tok/s, median (smallest–largest) | 95 % | n | failed | ratio | 95 % | verdict |\n";
        out += "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
        for (const RaceEntry& e : cell.entries) {
            for (const auto& [phase, m] : {std::pair("decode", &e.decode), std::pair("prefill", &e.prefill)}) {
                out += fmt::format(
                    "| {} | {} | {} | {} | {} | {} | {} | {} | {} |\n", plain(race.arms[e.arm].name), phase,
                    m->median ? fmt::format("{} ({})", speed_text(*m->median), interval_text(m->spread, speed_text))
                              : "not measured",
                    interval_text(m->median_interval, speed_text), m->values.size(), e.failures,
                    m->ratio ? speed_text(*m->ratio) : "", interval_text(m->ratio_interval, speed_text),
                    e.left_out.empty() ? verdict_text(m->verdict) : "not run");
            }
        }
        out += "\n| arm | read from the drive | peak of memory | load | whole run | output |\n";
        out += "| --- | --- | --- | --- | --- | --- |\n";
        for (const RaceEntry& e : cell.entries) {
            const auto seconds = [](std::optional<double> s) {
                return s ? speed_text(*s) + " s" : std::string("not measured");
            };
            out += fmt::format("| {} | {} | {} | {} | {} | {} |\n", plain(race.arms[e.arm].name),
                               e.read_bytes ? bytes_text(*e.read_bytes) : "not measured",
                               e.peak_bytes ? bytes_text(*e.peak_bytes) : "not measured", seconds(e.load_seconds),
                               seconds(e.wall_seconds),
                               e.digest == Digest::same      ? "the baseline's"
                               : e.digest == Digest::differs ? "another"
                                                             : "not compared");
        }
    }

    out += "\n## Arms\n\n";
    for (const RaceArm& a : race.arms) {
        out += fmt::format("- **{}**{}: {}\n", plain(a.name), a.forced ? " (writes a given text)" : "",
                           a.version.empty() ? "version not known" : plain(a.version));
        if (!a.includes.empty()) out += fmt::format("  - {}\n", plain(a.includes, As::words, kMaxSentence));
        out += fmt::format("  - `{}`\n", plain(a.command, As::code, kMaxCommand));
    }
    if (!race.remarks.empty()) {
        out += "\n## Not measured, and what else to know\n\n";
        for (const std::string& r : race.remarks) out += fmt::format("- {}\n", plain(r, As::words, kMaxSentence));
    }
    return out;
}

}  // namespace sluice::report
