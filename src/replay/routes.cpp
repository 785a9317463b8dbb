#include "replay/routes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <string_view>

namespace sluice::replay {
namespace {

// Together they bound what is allocated for a file, and keep every sum of bytes below 2^63.
constexpr size_t kMostRows = size_t{1} << 26U;
constexpr size_t kMostVisits = size_t{1} << 24U;
constexpr size_t kLongestLine = 1U << 16U;
constexpr size_t kMostOptions = 512;  // bytes of their names
constexpr uint32_t kMostExperts = 1U << 16U;
constexpr uint32_t kMostChosen = 1U << 12U;  // by one token in one layer
constexpr int32_t kMostLayers = 4096;
constexpr uint64_t kMostRecords = uint64_t{1} << 22U;  // of all layers
constexpr uint64_t kMostExpertBytes = uint64_t{1} << 36U;

template <typename T>
std::optional<T> number(std::string_view text) {
    T value{};
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (problem != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
}

// The value of "key=value" in a comment line, up to the next blank.
std::optional<std::string_view> value_of(std::string_view line, std::string_view key) {
    for (size_t at = line.find(key); at != std::string_view::npos; at = line.find(key, at + 1)) {
        const bool starts = at > 0 && (line[at - 1] == ' ' || line[at - 1] == '#');
        const size_t after = at + key.size();
        if (!starts || after >= line.size() || line[after] != '=') continue;
        const size_t end = line.find(' ', after + 1);
        return line.substr(after + 1, end == std::string_view::npos ? end : end - after - 1);
    }
    return std::nullopt;
}

struct Columns {
    enum Name : uint8_t { turn, phase, step, layer, slot, expert, kColumns };
    std::array<size_t, kColumns> at{};
    size_t last = 0;            // of these
    size_t dropped = SIZE_MAX;  // where it says that the router's choice was not computed, if it does
};

std::optional<Columns> columns_of(std::string_view header) {
    constexpr std::array<std::string_view, Columns::kColumns> names{"turn", "phase", "step", "layer", "slot", "expert"};
    Columns out;
    std::array<bool, Columns::kColumns> found{};
    size_t i = 0;
    for (size_t begin = 0; begin <= header.size(); ++i) {
        const size_t comma = std::min(header.find(',', begin), header.size());
        const auto* it = std::find(names.begin(), names.end(), header.substr(begin, comma - begin));
        if (it != names.end()) {
            out.at[static_cast<size_t>(it - names.begin())] = i;
            found[static_cast<size_t>(it - names.begin())] = true;
            out.last = std::max(out.last, i);
        }
        if (header.substr(begin, comma - begin) == "dropped") out.dropped = i;
        begin = comma + 1;
    }
    if (std::find(found.begin(), found.end(), false) != found.end()) return std::nullopt;
    return out;
}

struct Row {
    std::array<int64_t, Columns::kColumns> fields{};
    bool dropped = false;
    int64_t operator[](Columns::Name c) const { return fields[c]; }
};

std::optional<Row> row_of(std::string_view line, const Columns& columns) {
    std::array<std::string_view, 64> fields;
    size_t n = 0;
    for (size_t begin = 0; begin <= line.size() && n < fields.size();) {
        const size_t comma = std::min(line.find(',', begin), line.size());
        fields[n++] = line.substr(begin, comma - begin);
        begin = comma + 1;
    }
    if (columns.last >= n) return std::nullopt;
    Row row;
    for (size_t c = 0; c < row.fields.size(); ++c) {
        const auto value = number<int64_t>(fields[columns.at[c]]);
        if (!value || *value < 0) return std::nullopt;
        row.fields[c] = *value;
    }
    row.dropped = columns.dropped < n && fields[columns.dropped] == "1";
    return row;
}

// Rows as they come, cut into passes and visits. Layers are numbered densely at the end, when all are known.
class Reader {
  public:
    explicit Reader(std::string name) : name_(std::move(name)) {}
    Status line(std::string_view text) {
        ++line_;
        if (!text.empty() && text.back() == '\r') text.remove_suffix(1);
        if (text.empty()) return {};
        if (text.front() == '#') return comment(text);
        if (!columns_) {
            columns_ = columns_of(text);
            return columns_ ? Status()
                            : wrong(
                                  "should name the columns turn, phase, step, layer, slot and expert: is this a "
                                  "route trace (--route-trace)?");
        }
        return row(text);
    }
    // The next line has no end within kLongestLine.
    Status too_long() {
        ++line_;
        return wrong("is longer than any line of a route trace");
    }
    Result<Routes> finish();

  private:
    Status wrong(std::string_view what) const { return error(Code::corrupt, "{}: line {} {}", name_, line_, what); }
    Status comment(std::string_view text) {
        constexpr std::string_view kLossy = "# lossy=";
        if (text.starts_with(kLossy)) {
            out_.lossy = text.substr(kLossy.size(), kMostOptions);
            // It is shown on a terminal.
            std::replace_if(
                out_.lossy.begin(), out_.lossy.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
            return {};
        }
        if (const auto layer = value_of(text, "layer")) {
            const auto l = number<int32_t>(*layer);
            const auto bytes = value_of(text, "expert_bytes");
            if (!l || *l < 0 || *l >= kMostLayers) return wrong("is not about a layer");
            if (!bytes) return {};
            const uint64_t b = number<uint64_t>(*bytes).value_or(UINT64_MAX);
            if (b > kMostExpertBytes) return wrong("gives an expert a size that none has");
            bytes_[*l] = b;
            return {};
        }
        if (const auto model = value_of(text, "model")) out_.model = *model;
        if (const auto arch = value_of(text, "arch")) out_.architecture = *arch;
        if (const auto experts = value_of(text, "n_expert")) {
            const auto n = number<uint32_t>(*experts);
            if (!n || *n > kMostExperts) return wrong("gives the model a number of experts that none has");
            n_expert_ = *n;
        }
        return {};
    }
    Status row(std::string_view text) {
        const auto fields = row_of(text, *columns_);
        if (!fields) return wrong("is not a row of whole numbers");
        const Row& r = *fields;
        if (r[Columns::layer] >= kMostLayers) return wrong("names a layer that no model has");
        if (r[Columns::expert] >= kMostExperts || (n_expert_ > 0 && r[Columns::expert] >= n_expert_))
            return wrong("names an expert that the model does not have");
        if (r[Columns::turn] > UINT32_MAX) return wrong("counts turns that nobody has waited for");
        if (out_.choices.size() >= kMostRows || out_.visits.size() >= kMostVisits)
            return wrong("is one too many: the trace is too long");
        if (r.dropped) {  // nobody asked a cache for it
            if (out_.lossy.empty()) out_.lossy = "lossy options";
            return {};
        }
        const auto layer = static_cast<int32_t>(r[Columns::layer]);
        const bool prompt = r[Columns::phase] == 0;
        const bool same_batch = have_ && r[Columns::turn] == turn_ && prompt == prompt_ && layer >= layer_;
        // In one layer tokens and ranks rise; where they begin again, a new batch does.
        const bool goes_on = same_batch && (layer > layer_ || r[Columns::step] > step_ ||
                                            (r[Columns::step] == step_ && r[Columns::slot] > slot_));
        if (!goes_on) {
            close_pass();
            out_.passes.push_back({.prompt = prompt,
                                   .turn = static_cast<uint32_t>(r[Columns::turn]),
                                   .begin = static_cast<uint32_t>(out_.visits.size()),
                                   .end = 0,
                                   .tokens = 0});
        }
        const auto at = static_cast<uint32_t>(out_.choices.size());
        if (!goes_on || layer != layer_) {
            out_.visits.push_back({.set = static_cast<uint32_t>(layer), .begin = at, .end = at, .tokens = 1});
            rank_ = 0;
        } else if (r[Columns::step] != step_) {
            ++out_.visits.back().tokens;
            rank_ = 0;
        }
        Visit& visit = out_.visits.back();
        if (rank_ >= kMostChosen) return wrong("lets a token choose more experts than any model does");
        const auto expert = static_cast<uint32_t>(r[Columns::expert]);
        for (size_t i = at - rank_; i < at; ++i) {
            if (out_.choices[i].expert == expert) return wrong("lets a token choose an expert twice");
        }
        out_.choices.push_back({expert, visit.tokens - 1});
        visit.end = at + 1;
        out_.top_k = std::max(out_.top_k, ++rank_);
        most_[layer] = std::max(most_[layer], expert);
        have_ = true;
        turn_ = r[Columns::turn];
        prompt_ = prompt;
        layer_ = layer;
        step_ = r[Columns::step];
        slot_ = r[Columns::slot];
        return {};
    }
    void close_pass() {
        if (out_.passes.empty()) return;
        Pass& pass = out_.passes.back();
        pass.end = static_cast<uint32_t>(out_.visits.size());
        for (uint32_t v = pass.begin; v < pass.end; ++v) pass.tokens = std::max(pass.tokens, out_.visits[v].tokens);
        if (!pass.prompt) out_.decode_tokens += pass.tokens;
    }

    std::string name_;
    size_t line_ = 0;
    Routes out_;
    std::optional<Columns> columns_;
    uint32_t n_expert_ = 0;
    std::map<int32_t, uint64_t> bytes_;
    std::map<int32_t, uint32_t> most_;
    bool have_ = false, prompt_ = false;
    int32_t layer_ = 0;
    int64_t turn_ = 0, step_ = 0, slot_ = 0;
    uint32_t rank_ = 0;
};

Result<Routes> Reader::finish() {
    if (out_.choices.empty()) return error(Code::corrupt, "{}: a route trace without rows", name_);
    close_pass();
    std::map<int32_t, uint32_t> number_of;
    uint64_t records = 0;
    out_.first.push_back(0);
    for (const auto& [layer, most] : most_) {
        // The header may have come after the rows.
        if (n_expert_ > 0 && most >= n_expert_)
            return error(Code::corrupt, "{}: layer {} chooses expert {}, but the model is said to have {}", name_,
                         layer, most, n_expert_);
        records += n_expert_ > 0 ? n_expert_ : most + 1;
        if (records > kMostRecords)
            return error(Code::corrupt, "{}: {} layers with up to {} experts each are more than any model has", name_,
                         most_.size(), n_expert_ > 0 ? n_expert_ : kMostExperts);
        number_of[layer] = static_cast<uint32_t>(out_.sets.size());
        const auto bytes = bytes_.find(layer);
        out_.sets.push_back({.layer = layer,
                             .n_expert = n_expert_ > 0 ? n_expert_ : most + 1,
                             .expert_bytes = bytes == bytes_.end() ? 0 : bytes->second});
        out_.first.push_back(static_cast<uint32_t>(records));
    }
    for (Visit& v : out_.visits) v.set = number_of[static_cast<int32_t>(v.set)];
    return std::move(out_);
}

}  // namespace

void Routes::records(const Visit& visit, std::vector<RecordId>& out) const {
    out.clear();
    for (uint32_t i = visit.begin; i < visit.end; ++i) out.push_back(record(visit.set, choices[i].expert));
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
}

uint64_t Routes::full_bytes() const {
    uint64_t sum = 0;
    for (const RouteSet& s : sets) sum += s.expert_bytes * s.n_expert;
    return sum;
}

uint64_t Routes::cycle_bytes() const {
    uint64_t sum = 0;
    for (const RouteSet& s : sets) sum += s.expert_bytes * std::min(top_k, s.n_expert);
    return sum;
}

Result<Routes> read_routes(std::istream& in, const std::string& name) {
    Reader reader(name);
    // A source without ends of lines must not fill the memory.
    std::vector<char> buffer(kLongestLine + 2);
    for (;;) {
        in.getline(buffer.data(), static_cast<std::streamsize>(buffer.size()));
        if (in.bad()) return error(Code::io_error, "cannot read {}", name);
        if (in.fail() && !in.eof()) return reader.too_long();
        if (in.fail()) break;
        auto n = static_cast<size_t>(in.gcount());
        if (!in.eof()) --n;  // the end of the line is counted
        const std::string_view line(buffer.data(), n);
        if (line.starts_with("\xFD"
                             "7zXZ") ||
            line.starts_with("\x1F\x8B"))
            return error(Code::unsupported, "{} is compressed: unpack it first, with xz -dc or gzip -dc", name);
        if (Status s = reader.line(line); !s.ok()) return s;
    }
    return reader.finish();
}

Result<Routes> read_routes(const std::string& path) {
    if (path == "-") return read_routes(std::cin, "standard input");
    std::ifstream in(path, std::ios::binary);
    if (!in) return error(Code::not_found, "cannot open {}", path);
    return read_routes(in, path);
}

std::string lossy_note(const Routes& routes, const std::string& name) {
    if (routes.lossy.empty()) return "";
    return fmt::format(
        "{} is of a run with {}: its experts are those that were computed, not those that the routers chose, and "
        "partly "
        "follow the cache of that run",
        name, routes.lossy);
}

Status take_sizes(Routes& routes, const model::Geometry& geometry) {
    for (RouteSet& s : routes.sets) {
        const auto it = std::find_if(geometry.sets.begin(), geometry.sets.end(),
                                     [&](const model::ExpertSet& e) { return e.layer == s.layer; });
        if (it == geometry.sets.end() || it->n_expert < s.n_expert)
            return error(Code::conflict, "the trace is not of this model: it has {} experts in layer {}", s.n_expert,
                         s.layer);
        if (it->record_bytes() > kMostExpertBytes)
            return error(Code::corrupt, "the model's experts of layer {} are larger than any are", s.layer);
        s.expert_bytes = it->record_bytes();
    }
    return {};
}

}  // namespace sluice::replay
