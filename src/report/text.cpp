#include "report/text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/bytes.h"

namespace sluice::report {
namespace {

using trace::Json;

constexpr const char* kNothing = "not measured";

// Characters that turn the direction of what follows: U+202A to U+202E and U+2066 to U+2069.
bool turns_direction(const std::string& text, size_t at) {
    if (text.compare(at, 2, "\xe2\x80") == 0 && at + 2 < text.size())
        return text[at + 2] >= '\xaa' && text[at + 2] <= '\xae';
    if (text.compare(at, 2, "\xe2\x81") == 0 && at + 2 < text.size())
        return text[at + 2] >= '\xa6' && text[at + 2] <= '\xa9';
    return false;
}

// Text of a record for a cell of a table: no control characters, none that Markdown or HTML would act upon.
std::string cell(const std::string& text) {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
        const auto c = static_cast<unsigned char>(text[i]);
        if (c < 0x20 || c == 0x7f) {
            out += ' ';
        } else if (c == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0) {
            out += ' ';  // the second set of control characters
            ++i;
        } else if (turns_direction(text, i)) {
            out += ' ';
            i += 2;
        } else if (c == '|') {
            out += "\\|";
        } else if (c == '`') {
            out += '\'';
        } else {
            out += text[i];
        }
    }
    return out;
}

// As it is, whatever it is: between backquotes Markdown does nothing.
std::string quoted(const std::string& text) {
    const std::string inside = cell(text);
    return inside.find_first_not_of(' ') == std::string::npos ? "(empty)" : "`" + inside + "`";
}

// How many columns a text takes, near enough: continuation bytes take none.
size_t columns_of(const std::string& text) {
    return static_cast<size_t>(std::count_if(text.begin(), text.end(),
                                             [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80; }));
}

class Table {
  public:
    explicit Table(std::vector<std::string> head) : rows_{std::move(head)} {}
    void row(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

    // The first column is words, the others are numbers. Columns are aligned up to a width, so that one long name does
    // not push the others off the screen.
    [[nodiscard]] std::string text(bool numbers = true) const {
        std::vector<size_t> widths(rows_[0].size(), 3);
        for (const auto& row : rows_) {
            for (size_t c = 0; c < row.size(); ++c)
                widths[c] = std::max(widths[c], std::min<size_t>(columns_of(row[c]), 44));
        }
        std::string out;
        for (size_t r = 0; r < rows_.size(); ++r) {
            for (size_t c = 0; c < rows_[r].size(); ++c) {
                const std::string& text = rows_[r][c];
                const size_t columns = columns_of(text);
                const std::string fill(widths[c] > columns ? widths[c] - columns : 0, ' ');
                out += c > 0 && numbers ? "| " + fill + text + " " : "| " + text + fill + " ";
            }
            out += "|\n";
            if (r > 0) continue;
            for (size_t c = 0; c < widths.size(); ++c)
                out += c > 0 && numbers ? "| " + std::string(widths[c] - 1, '-') + ": "
                                        : "| " + std::string(widths[c], '-') + " ";
            out += "|\n";
        }
        return out + "\n";
    }

  private:
    std::vector<std::vector<std::string>> rows_;
};

std::string decimal(double v) {
    const double size = v < 0 ? -v : v;
    if (size >= 100 || v == 0) return fmt::format("{:.0f}", v);
    if (size >= 10) return fmt::format("{:.1f}", v);
    if (size >= 1) return fmt::format("{:.2f}", v);
    return fmt::format("{:.3g}", v);
}

std::string bytes(double v) {
    return v < 0x1p63 ? human_bytes(static_cast<uint64_t>(std::max(v, 0.0))) : decimal(v) + " B";
}

// Which figures are shares of something; the unit "1" is also that of counts and factors.
bool is_fraction(const std::string& name) {
    return name.ends_with("_fraction") || name.ends_with("_rate");
}

std::string spell_total(const Json& value, const std::string& name) {
    if (!value.is_number()) return kNothing;
    const auto v = value.get<double>();
    if (name.ends_with("_ns")) return v >= 1e9 ? decimal(v * 1e-9) + " s" : decimal(v * 1e-6) + " ms";
    if (name.ends_with("_bytes")) return bytes(v);
    return fmt::format("{:.0f}", v);
}

std::string words_of(std::string name) {
    std::replace(name.begin(), name.end(), '_', ' ');
    return name;
}

std::string title_of(const Json& record) {
    return record["letter"].get<std::string>() + ": " + quoted(record["name"].get<std::string>());
}

// Totals that a reader looks for; the page has all.
constexpr std::array kTotals = {"tokens",
                                "output_tokens",
                                "wall_ns",
                                "lookups",
                                "hits",
                                "misses",
                                "rereads",
                                "evictions_capacity",
                                "reads",
                                "retries",
                                "read_max_ns",
                                "exact_bytes",
                                "exact_physical_bytes",
                                "kernel_bytes",
                                "cache_bytes",
                                "rss_bytes",
                                "major_faults"};

std::string summary(const Json& data, const Json& record) {
    std::vector<std::string> phases;
    for (const char* phase : {"prefill", "decode"}) {
        if (record[phase].is_object()) phases.emplace_back(phase);
    }
    if (phases.empty()) return "No rows: nothing was computed, or the run ended before its first row.\n\n";
    std::vector<std::string> head{"figure"};
    for (const std::string& phase : phases) head.push_back(record["phases"][phase].get<std::string>());
    Table table(head);
    const auto line = [&](const std::string& name, auto spell) {
        std::vector<std::string> cells{name};
        for (const std::string& phase : phases) cells.push_back(spell(record[phase]));
        table.row(std::move(cells));
    };
    line("rows", [](const Json& p) { return fmt::format("{}", p["rows"].get<uint64_t>()); });
    for (const auto& [name, about] : data["figures"].items()) {
        line(words_of(name), [&, n = name, unit = about["unit"].get<std::string>()](const Json& p) {
            return spell_figure(p["figures"][n], unit, is_fraction(n));
        });
    }
    for (const char* name : kTotals) {
        std::string words = words_of(name);
        for (const char* unit : {" ns", " bytes"}) {
            if (words.ends_with(unit)) words.resize(words.size() - std::string_view(unit).size());
        }
        line(words, [&](const Json& p) { return spell_total(p["totals"][name], name); });
    }
    return table.text();
}

// Which of the two bounds the run, in words.
std::string roofline(const Json& record) {
    std::string out;
    for (const char* phase : {"decode", "prefill"}) {
        const Json& p = record[phase];
        if (!p.is_object()) continue;
        const Json& f = p["figures"];
        const auto words = record["phases"][phase].get<std::string>();
        if (!p["binds"].is_string()) {
            out += fmt::format("- {}: what binds is not measured.\n", words);
            continue;
        }
        out += fmt::format(
            "- {}: bound by {}. A token takes {} without waiting and keeps the drive busy for {}; perfect overlap "
            "would leave {}. The run is {} above "
            "that.\n",
            words, p["binds"].get<std::string>() == "drive" ? "the drive" : "compute",
            spell_figure(f["without_waiting_ms_per_token"], "ms", false),
            spell_figure(f["drive_ms_per_token"], "ms", false), spell_figure(f["roofline_ms_per_token"], "ms", false),
            spell_figure(f["residual_fraction"], "1", true));
    }
    return out.empty() ? out : out + "\n";
}

std::string where_it_goes(const Json& record) {
    const Json& main = record["decode"].is_object() ? record["decode"] : record["prefill"];
    if (!main.is_object()) return "";
    Table table({"part", "ms per token", "of the token"});
    std::string absent;
    for (const Json& part : main["parts"]) {
        const auto name = part["label"].get<std::string>();
        if (part["ms_per_token"].is_null()) {
            absent += (absent.empty() ? "" : ", ") + name;
            continue;
        }
        table.row({name, spell_figure(part["ms_per_token"], "ms", false), spell_figure(part["share"], "1", true)});
    }
    const char* phase = record["decode"].is_object() ? "decode" : "prefill";
    std::string out = fmt::format("Where a token goes ({}):\n\n", record["phases"][phase].get<std::string>());
    out += table.text();
    if (!absent.empty())
        out += fmt::format("Not measured, or nothing of the kind: {}. If it took time, that is within the others.\n\n",
                           absent);
    return out;
}

std::string spell_estimate(const Json& e, const std::string& unit) {
    if (!e.is_object()) return kNothing;
    const std::string median = spell_figure(e["median"], unit, false);
    if (!e["low"].is_number()) return median + " (too few tokens for an interval)";
    return fmt::format("{} ({} to {})", median, decimal(e["low"].get<double>()), decimal(e["high"].get<double>()));
}

// From the interval of one's time over the other's.
std::string verdict(const Json& ratio, const std::string& of, const std::string& over) {
    const Json& e = ratio["ms_per_token"];
    if (!e.is_object() || !e["low"].is_number()) return "too few tokens to say";
    if (e["low"].get<double>() > 1) return fmt::format("{} is faster", over);
    if (e["high"].get<double>() < 1) return fmt::format("{} is faster", of);
    return "no difference shown";
}

std::string comparison(const Json& data) {
    const Json& records = data["records"];
    std::string out = "## Compared\n\nMedians of the decoded tokens, with 95 % intervals:\n\n";
    Table speeds({"record", "tok/s", "ms per token", "tokens"});
    for (const Json& r : records) {
        const Json& s = r["speed"];
        speeds.row({title_of(r), spell_estimate(s["tokens_per_second"], ""), spell_estimate(s["ms_per_token"], ""),
                    fmt::format("{}", s["values"].get<uint64_t>())});
    }
    out += speeds.text();
    Table ratios({"ratio of medians", "tok/s", "ms per token", "says"});
    for (const Json& r : data["comparison"]["ratios"]) {
        const auto of = records[r["of"].get<size_t>()]["letter"].get<std::string>();
        const auto over = records[r["over"].get<size_t>()]["letter"].get<std::string>();
        ratios.row({of + " / " + over, spell_estimate(r["tokens_per_second"], ""),
                    spell_estimate(r["ms_per_token"], ""), verdict(r, of, over)});
    }
    out += ratios.text();
    for (const Json& words : data["comparison"]["outputs"]) out += words.get<std::string>() + " ";
    out.back() = '\n';
    out += '\n';
    out += fmt::format(
        "Moving-block bootstrap, {} resamples, percentile intervals; blocks of neighbouring tokens, as many as the "
        "cube root of the run's tokens. It knows the spread within each run. What changes from run to run (a warm "
        "drive, other programs) it cannot know: for that, repeat both in turns.\n\n",
        data["resamples"].get<size_t>());

    out += "## Differences\n\n";
    const Json& groups = data["comparison"]["differences"];
    if (groups.empty()) return out + "None in what the records say of themselves.\n\n";
    std::vector<std::string> head{"what"};
    for (const Json& r : records) head.push_back(r["letter"].get<std::string>());
    Table table(head);
    for (const Json& g : groups) {
        for (const Json& row : g["rows"]) {
            std::vector<std::string> cells{quoted(g["name"].get<std::string>() + "." + row["key"].get<std::string>())};
            for (const Json& v : row["values"])
                cells.push_back(v.is_string() ? quoted(v.get<std::string>()) : "(not said)");
            table.row(std::move(cells));
        }
    }
    return out + table.text(false);
}

}  // namespace

std::string spell_figure(const Json& value, const std::string& unit, bool fraction) {
    if (!value.is_number()) return kNothing;
    const auto v = value.get<double>();
    if (fraction) return v != 0 && std::fabs(v) < 0.0005 ? "<0.1 %" : fmt::format("{:.1f} %", v * 100);
    if (unit == "bytes") return bytes(v);
    if (unit == "bytes/s") return bytes(v) + "/s";
    return unit == "1" || unit.empty() ? decimal(v) : decimal(v) + " " + unit;
}

std::string text_report(const Json& data) {
    std::string out = data["records"].empty() ? "" : "# Sluice report\n\n";
    for (const Json& r : data["records"]) {
        out += fmt::format("## {}\n\n", title_of(r));
        if (r["model"].is_string()) out += fmt::format("Model {}. ", quoted(r["model"].get<std::string>()));
        out += r["status"]["words"].get<std::string>();
        if (r["status"]["error"].is_string()) out += " It says: " + quoted(r["status"]["error"].get<std::string>());
        if (r["note"].is_string()) out += " " + r["note"].get<std::string>();
        out += "\n\n";
        out += summary(data, r);
        out += roofline(r);
        out += where_it_goes(r);
    }
    if (data["comparison"].is_object()) out += comparison(data);
    for (const Json& race : data["races"]) out += race["text"].get<std::string>() + "\n";  // the judge's own
    while (out.ends_with("\n\n")) out.pop_back();
    return out;
}

}  // namespace sluice::report
