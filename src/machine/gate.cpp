#include "machine/gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "base/text.h"
#include "machine/kept_json.h"
#include "machine/user_directory.h"

namespace sluice::machine {
namespace {

constexpr const char* kFormat = "sluice-gate";
constexpr std::array<const char*, 3> kOutcomes{"yes", "no", "unknown"};

Json json_of(const GateVerdict& v) {
    Json inputs = Json::array(), checks = Json::array(), figures = Json::array();
    for (const GateInput& i : v.inputs)
        inputs.push_back({{"name", i.name}, {"path", i.path}, {"bytes", i.bytes}, {"digest", i.digest}});
    for (const GateCheck& c : v.checks) {
        checks.push_back(
            {{"name", c.name}, {"outcome", outcome_name(c.outcome)}, {"found", c.found}, {"needed", c.needed}});
    }
    for (const GateFigure& f : v.figures)
        figures.push_back({{"name", f.name}, {"value", f.value ? Json(*f.value) : Json(nullptr)}, {"unit", f.unit}});
    Json settings = Json::object();
    for (const GateSetting& s : v.settings) settings[s.name] = s.value;
    return {{"format", kFormat},
            {"version", kGateVersion},
            {"gate", v.gate},
            {"question", v.question},
            {"verdict", outcome_name(v.outcome())},
            {"made", v.made},
            {"sluice", v.sluice},
            {"commit", v.commit},
            {"kernel", v.kernel},
            {"inputs", inputs},
            {"settings", settings},
            {"checks", checks},
            {"figures", figures},
            {"notes", v.notes}};
}

// What is wrong with it; empty if nothing is.
std::string impossible(const GateVerdict& v) {
    const auto long_text = [](const std::string& s) { return s.size() > kMostGateText; };
    const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); };
    if (v.gate.empty() || v.gate.size() > 16 || !std::all_of(v.gate.begin(), v.gate.end(), letter))
        return "the gate's name";
    if (v.inputs.empty() || v.inputs.size() > kMostGateEntries) return "the number of inputs";
    if (std::max({v.settings.size(), v.checks.size(), v.figures.size(), v.notes.size()}) > kMostGateEntries)
        return "the length of a list";
    for (const std::string* s : {&v.question, &v.made, &v.sluice, &v.commit, &v.kernel}) {
        if (long_text(*s)) return "the length of a text";
    }
    if (std::any_of(v.notes.begin(), v.notes.end(), long_text)) return "the length of a note";
    std::set<std::string> names;
    for (const GateInput& i : v.inputs) {
        if (i.name.empty() || i.digest.empty() || !std::all_of(i.digest.begin(), i.digest.end(), letter) ||
            i.digest.size() > 128 || long_text(i.name) || long_text(i.path) || !names.insert("input " + i.name).second)
            return "input " + i.name;
    }
    for (const GateSetting& s : v.settings) {
        if (s.name.empty() || long_text(s.name) || long_text(s.value) || !names.insert("setting " + s.name).second)
            return "setting " + s.name;
    }
    for (const GateCheck& c : v.checks) {
        if (c.name.empty() || long_text(c.name) || long_text(c.found) || long_text(c.needed) ||
            !names.insert("check " + c.name).second)
            return "check " + c.name;
    }
    for (const GateFigure& f : v.figures) {
        if (f.name.empty() || long_text(f.name) || long_text(f.unit) || (f.value && !std::isfinite(*f.value)) ||
            !names.insert("figure " + f.name).second)
            return "figure " + f.name;
    }
    return {};
}

// Reads members and remembers the first that is missing or of another kind.
class Reader {
  public:
    Reader(const Json& in, std::string& wrong) : in_(in), wrong_(wrong) {}
    void text(const char* name, std::string& out) {
        const Json* j = member(name);
        if (j != nullptr && j->is_string()) {
            out = j->get<std::string>();
        } else {
            bad(name);
        }
    }
    void number(const char* name, uint64_t& out) {
        const Json* j = member(name);
        if (j != nullptr && j->is_number_unsigned()) {
            out = j->get<uint64_t>();
        } else {
            bad(name);
        }
    }
    void number(const char* name, std::optional<double>& out) {
        const Json* j = member(name);
        if (j != nullptr && j->is_null()) {
            out.reset();
        } else if (j != nullptr && j->is_number()) {
            out = j->get<double>();
        } else {
            bad(name);
        }
    }
    template <typename T, typename Read>
    void list(const char* name, std::vector<T>& out, const Read& read) {
        const Json* j = member(name);
        if (j == nullptr || !j->is_array() || j->size() > kMostGateEntries) {
            bad(name);
            return;
        }
        for (const Json& element : *j) read(element, out.emplace_back());
    }
    [[nodiscard]] const Json* member(const char* name) const {
        if (!in_.is_object()) return nullptr;
        const auto it = in_.find(name);
        return it != in_.end() ? &*it : nullptr;
    }
    void bad(const char* name) const {
        if (wrong_.empty()) wrong_ = name;
    }

  private:
    const Json& in_;
    std::string& wrong_;
};

}  // namespace

const char* outcome_name(Outcome outcome) {
    return kOutcomes[static_cast<size_t>(outcome)];
}

Outcome GateVerdict::outcome() const {
    const auto has = [&](Outcome o) {
        return std::any_of(checks.begin(), checks.end(), [&](const GateCheck& c) { return c.outcome == o; });
    };
    if (has(Outcome::no)) return Outcome::no;
    return checks.empty() || has(Outcome::unknown) ? Outcome::unknown : Outcome::yes;
}

Result<std::string> gate_json(const GateVerdict& verdict) {
    if (const std::string what = impossible(verdict); !what.empty())
        return error(Code::internal, "the verdict of gate {} cannot be written: {}", verdict.gate, what);
    Json j = json_of(verdict);
    // Over what a reader sees, where a path was no UTF-8.
    j["digest"] = digest_of(Json::parse(dump(j, -1)));
    std::string text = dump(j, 2) + "\n";
    if (text.size() > kMostGateBytes)
        return error(Code::internal, "the verdict of gate {} is too long to be read back", verdict.gate);
    return text;
}

Result<GateVerdict> parse_gate(std::string_view text) {
    if (text.size() > kMostGateBytes) return error(Code::corrupt, "it is larger than any verdict");
    const Json j = Json::parse(text, nullptr, false);
    if (j.is_discarded() || !j.is_object()) return error(Code::corrupt, "it is not JSON, or cut off");
    std::string wrong;
    Reader in(j, wrong);
    const Json* format = in.member("format");
    if (format == nullptr || *format != kFormat) return error(Code::corrupt, "it is no verdict of sluice gate");
    uint64_t version = 0;
    in.number("version", version);
    if (!wrong.empty()) return error(Code::corrupt, "it does not tell its version");
    if (version != kGateVersion) {
        return error(Code::unsupported, "it has version {}, and this Sluice reads {}; sluice gate measures again",
                     version, kGateVersion);
    }
    GateVerdict v;
    std::string said, digest;
    in.text("gate", v.gate);
    in.text("question", v.question);
    in.text("verdict", said);
    in.text("made", v.made);
    in.text("sluice", v.sluice);
    in.text("commit", v.commit);
    in.text("kernel", v.kernel);
    in.text("digest", digest);
    in.list("inputs", v.inputs, [&](const Json& element, GateInput& i) {
        Reader r(element, wrong);
        r.text("name", i.name);
        r.text("path", i.path);
        r.number("bytes", i.bytes);
        r.text("digest", i.digest);
    });
    in.list("checks", v.checks, [&](const Json& element, GateCheck& c) {
        Reader r(element, wrong);
        std::string outcome;
        r.text("name", c.name);
        r.text("outcome", outcome);
        r.text("found", c.found);
        r.text("needed", c.needed);
        const auto* const at = std::find(kOutcomes.begin(), kOutcomes.end(), outcome);
        if (at == kOutcomes.end()) {
            r.bad("outcome");
        } else {
            c.outcome = static_cast<Outcome>(at - kOutcomes.begin());
        }
    });
    in.list("figures", v.figures, [&](const Json& element, GateFigure& f) {
        Reader r(element, wrong);
        r.text("name", f.name);
        r.number("value", f.value);
        r.text("unit", f.unit);
    });
    in.list("notes", v.notes, [&](const Json& element, std::string& note) {
        if (element.is_string()) {
            note = element.get<std::string>();
        } else {
            in.bad("notes");
        }
    });
    const Json* settings = in.member("settings");
    if (settings == nullptr || !settings->is_object() || settings->size() > kMostGateEntries) {
        in.bad("settings");
    } else {
        for (const auto& [name, value] : settings->items()) {
            if (value.is_string()) {
                v.settings.push_back({name, value.get<std::string>()});
            } else {
                in.bad("settings");
            }
        }
    }
    if (!wrong.empty()) return error(Code::corrupt, "\"{}\" is missing, or not what it has to be", wrong);
    if (const std::string what = impossible(v); !what.empty()) return error(Code::corrupt, "{} cannot be", what);
    if (digest != digest_of(json_of(v)) || said != outcome_name(v.outcome()))
        return error(Code::corrupt, "its digest differs: somebody or something has changed it");
    return v;
}

Result<GateVerdict> read_gate(const std::string& path) {
    const auto text = read_kept(path);
    if (!text.ok()) return text.status();
    auto verdict = parse_gate(*text);
    if (!verdict.ok()) return verdict.status().within(path);
    return verdict;
}

Result<std::string> gate_directory() {
    const auto directory = user_directory();
    if (!directory.ok()) return directory.status();
    return *directory + "/gates";
}

Result<std::string> gate_path(const std::string& directory, const GateVerdict& verdict) {
    if (const std::string what = impossible(verdict); !what.empty()) return error(Code::internal, "{} cannot be", what);
    return fmt::format("{}/{}-{}.json", directory, verdict.gate, verdict.inputs[0].digest);
}

Status check_inputs(const GateVerdict& verdict, const std::vector<GateInput>& now) {
    for (const GateInput& n : now) {
        const auto then = std::find_if(verdict.inputs.begin(), verdict.inputs.end(),
                                       [&](const GateInput& i) { return i.name == n.name; });
        if (then == verdict.inputs.end())
            return error(Code::conflict, "the verdict of gate {} knows nothing of a {}; sluice gate {} measures again",
                         verdict.gate, n.name, verdict.gate);
        if (then->digest != n.digest) {
            return error(Code::conflict,
                         "the verdict of gate {} is about another {} ({}, here {}); sluice gate {} "
                         "measures again",
                         verdict.gate, n.name, then->path, n.path, verdict.gate);
        }
    }
    return {};
}

std::string gate_text(const GateVerdict& v, size_t columns) {
    std::string out = fmt::format("gate {}: {}\n", v.gate, v.question);
    for (const GateInput& i : v.inputs)
        out += fmt::format("  {} {} ({}, digest {})\n", i.name, i.path, human_bytes(i.bytes), i.digest);
    out += "\n";
    for (const GateCheck& c : v.checks) {
        out += fmt::format("  {:<8}{}\n", outcome_name(c.outcome), c.name);
        out += wrap_text(c.found, 10, columns);
        if (c.outcome != Outcome::yes && !c.needed.empty()) out += wrap_text("needed: " + c.needed, 10, columns);
    }
    if (!v.figures.empty()) {
        out += "\n";
        size_t widest = 0;
        for (const GateFigure& f : v.figures) widest = std::max(widest, f.name.size());
        for (const GateFigure& f : v.figures) {
            out += f.value ? fmt::format("  {:<{}}  {:.4g} {}\n", f.name, widest, *f.value, f.unit)
                           : fmt::format("  {:<{}}  not measured\n", f.name, widest);
        }
    }
    if (!v.notes.empty()) out += "\n";
    for (const std::string& note : v.notes) out += wrap_text(note, 2, columns);
    out += fmt::format("\nverdict: {}\n", outcome_name(v.outcome()));
    return out;
}

}  // namespace sluice::machine
