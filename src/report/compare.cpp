#include "report/compare.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "base/bytes.h"

namespace sluice::report {
namespace {

using trace::Json;
using trace::Phase;
using trace::Record;
using trace::Row;
using trace::Totals;

// A head that somebody else wrote may nest without end.
constexpr int kDeepest = 12;
constexpr size_t kMaxFacts = 4000;
constexpr size_t kMaxSpeedValues = 100'000;

std::string spelled(const Json& value, const std::string& key) {
    if (value.is_null()) return "none";
    if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
    if (value.is_string()) return value.get<std::string>();
    if (value.is_number_float()) return fmt::format("{}", value.get<double>());
    if (value.is_number_integer() && !value.is_number_unsigned() && value.get<int64_t>() < 0)
        return fmt::format("{}", value.get<int64_t>());
    if (value.is_number_integer()) {
        const auto n = value.get<uint64_t>();
        return key.ends_with("bytes") && n >= KiB ? fmt::format("{} ({})", n, human_bytes(n)) : fmt::format("{}", n);
    }
    return "";
}

bool scalar(const Json& j) {
    return !j.is_object() && !j.is_array();
}

void flatten(const Json& j, const std::string& key, int depth, std::vector<Fact>& out) {
    if (out.size() >= kMaxFacts) return;
    if (depth > kDeepest) {
        out.push_back({key, "(too deep to show)", {}});
        return;
    }
    if (scalar(j)) {
        out.push_back({key, spelled(j, key), {}});
    } else if (j.is_object() && j.contains("value") && scalar(j["value"])) {  // an option that says where it comes from
        Fact fact{key, spelled(j["value"], key), {}};
        const auto set = j.find("set");
        const auto source = j.find("source");
        if (set != j.end() && set->is_boolean()) fact.set = set->get<bool>();
        if (source != j.end() && source->is_string()) fact.set = source->get_ref<const std::string&>() != "default";
        out.push_back(std::move(fact));
    } else if (j.is_object()) {
        for (const auto& [name, value] : j.items())
            flatten(value, key.empty() ? name : key + "." + name, depth + 1, out);
    } else if (std::all_of(j.begin(), j.end(), scalar)) {
        std::string list;
        // Layers, files: equal neighbours as one.
        for (size_t i = 0; i < j.size();) {
            size_t same = i + 1;
            while (same < j.size() && j[same] == j[i]) ++same;
            list += (list.empty() ? "" : ", ") + spelled(j[i], "");
            if (same - i > 1) list += fmt::format(" (x{})", same - i);
            i = same;
        }
        out.push_back({key, list.empty() ? "none" : list, {}});
    } else {
        for (size_t i = 0; i < j.size(); ++i) flatten(j[i], fmt::format("{}.{}", key, i), depth + 1, out);
    }
}

// Where a run wrote to says nothing of the run.
bool is_output(const std::string& group, const std::string& key) {
    return group == "options" && (key == "record" || key == "csv");
}

bool is_volatile(const std::string& key) {
    const size_t dot = key.rfind('.');
    const std::string last = dot == std::string::npos ? key : key.substr(dot + 1);
    return last == "time" || last == "pid" || last == "load_ns" || last == "load_average";
}

const char* group_of(const std::string& key) {
    for (const char* name : {"options", "versions", "machine", "host"}) {
        if (key == name) return name;
    }
    return "run";
}

// Neighbouring tokens are alike (the same experts, the same text), so single values must not be drawn: that would call
// a difference certain that one slow stretch made. Blocks of neighbours are drawn instead, with overlap: the moving
// block bootstrap (H. R. Kuensch, The jackknife and the bootstrap for general stationary observations, Annals of
// Statistics 17, 1989). Their length is the cube root of the number of values, the order of growth that P. Hall,
// J. L. Horowitz and B.-Y. Jing give (On blocking rules for the bootstrap with dependent data, Biometrika 82, 1995).
// The interval is the percentile one (B. Efron, R. Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13).
size_t block_length(size_t n) {
    size_t length = 1;
    while (length * length * length < n) ++length;
    return length;
}

// Below `n`, the same on every machine. (The standard's distributions are not.)
size_t draw(std::mt19937_64& random, size_t n) {
    return static_cast<size_t>(((random() >> 32U) * n) >> 32U);
}

// The two middle places of n values in order; the same place where n is odd.
struct Middle {
    size_t low, high;
};
Middle middle_of(size_t n) {
    return {(n - 1) / 2, n / 2};
}

double median_of_sorted(const std::vector<double>& sorted) {
    const Middle m = middle_of(sorted.size());
    return (sorted[m.low] + sorted[m.high]) / 2;
}

Estimate percentile_interval(double median, std::vector<double> resampled) {
    std::sort(resampled.begin(), resampled.end());
    const auto at = [&](double share) {
        return resampled[static_cast<size_t>(std::lround(share * static_cast<double>(resampled.size() - 1)))];
    };
    return {median, at(0.025), at(0.975)};
}

// Which value of all, in order, is in the middle of each resample: drawing places instead of values gives the medians
// of both figures at once, since one falls where the other rises. Counting is faster than sorting ten thousand times.
class Resampler {
  public:
    Resampler(const std::vector<double>& values, uint64_t seed)
        : n_(values.size()), block_(block_length(n_)), random_(seed), order_(n_), place_(n_), sample_(n_) {
        std::iota(order_.begin(), order_.end(), size_t{0});
        std::stable_sort(order_.begin(), order_.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
        for (size_t i = 0; i < n_; ++i) place_[order_[i]] = static_cast<uint32_t>(i);
        while ((n_ >> shift_) >= kBuckets) ++shift_;
    }
    [[nodiscard]] size_t block() const { return block_; }
    [[nodiscard]] size_t index_at(size_t place) const { return order_[place]; }

    Middle next() {
        std::array<uint32_t, kBuckets> count{};
        for (size_t at = 0; at < n_;) {
            const size_t first = draw(random_, n_ - block_ + 1);
            for (size_t i = 0; i < block_ && at < n_; ++i, ++at) {
                sample_[at] = place_[first + i];
                ++count[sample_[at] >> shift_];
            }
        }
        const Middle m = middle_of(n_);
        return {find(count, m.low), find(count, m.high)};
    }

  private:
    static constexpr size_t kBuckets = 2048;

    size_t find(const std::array<uint32_t, kBuckets>& count, size_t rank) {
        size_t bucket = 0;
        while (rank >= count[bucket]) rank -= count[bucket++];
        if (shift_ == 0) return bucket;
        bucket_.clear();
        for (const uint32_t p : sample_) {
            if (p >> shift_ == bucket) bucket_.push_back(p);
        }
        std::nth_element(bucket_.begin(), bucket_.begin() + static_cast<std::ptrdiff_t>(rank), bucket_.end());
        return bucket_[rank];
    }

    size_t n_;
    size_t block_;
    unsigned shift_ = 0;
    std::mt19937_64 random_;
    std::vector<size_t> order_;
    std::vector<uint32_t> place_, sample_, bucket_;
};

}  // namespace

std::vector<FactGroup> facts_of(const Record& record) {
    std::vector<FactGroup> groups{{"options", {}}, {"versions", {}}, {"model", {}}, {"machine", {}},
                                  {"cache", {}},   {"host", {}},     {"run", {}}};
    const auto facts_in = [&](std::string_view name) -> std::vector<Fact>& {
        return std::find_if(groups.begin(), groups.end(), [&](const FactGroup& g) { return g.name == name; })->facts;
    };
    for (const auto& [key, value] : record.book.header.items()) {
        if (key == "kind" || key == "sluice_record") continue;
        const char* group = group_of(key);
        flatten(value, std::string_view(group) == key ? "" : key, 0, facts_in(group));
    }
    const auto numbered = [&](const char* group, const std::vector<Json>& lines) {
        for (size_t i = 0; i < lines.size(); ++i) {
            for (const auto& [key, value] : lines[i].items()) {
                if (key == "kind") continue;
                flatten(value, lines.size() == 1 ? key : fmt::format("{}.{}", i, key), 0, facts_in(group));
            }
        }
    };
    numbered("model", record.book.models);
    numbered("cache", record.book.caches);
    if (record.book.load.is_object()) {
        for (const auto& [key, value] : record.book.load.items()) {
            if (key == "kind") continue;
            if (key == "host") {
                flatten(value, "", 0, facts_in("host"));
            } else {
                flatten(value, key == "load_ns" ? key : "load." + key, 0, facts_in("run"));
            }
        }
    }
    std::vector<Fact>& run = facts_in("run");
    for (FactGroup& g : groups) {
        if (&g.facts == &run) continue;
        const auto moved =
            std::stable_partition(g.facts.begin(), g.facts.end(), [](const Fact& f) { return !is_volatile(f.key); });
        for (auto it = moved; it != g.facts.end(); ++it) run.push_back({g.name + "." + it->key, it->value, it->set});
        g.facts.erase(moved, g.facts.end());
    }
    std::erase_if(groups, [](const FactGroup& g) { return g.facts.empty(); });
    return groups;
}

std::vector<DifferenceGroup> differences(std::span<const Record> records) {
    std::vector<DifferenceGroup> out;
    for (size_t r = 0; r < records.size(); ++r) {
        for (const FactGroup& group : facts_of(records[r])) {
            auto to = std::find_if(out.begin(), out.end(), [&](const auto& g) { return g.name == group.name; });
            if (to == out.end()) to = out.insert(out.end(), {group.name, {}});
            for (const Fact& fact : group.facts) {
                if (is_volatile(fact.key) || is_output(group.name, fact.key)) continue;
                auto& list = to->differences;
                auto row = std::find_if(list.begin(), list.end(), [&](const auto& d) { return d.key == fact.key; });
                if (row == list.end())
                    row = list.insert(list.end(), {fact.key, std::vector<std::optional<std::string>>(records.size())});
                row->values[r] = fact.value;
            }
        }
    }
    for (DifferenceGroup& group : out) {
        std::erase_if(group.differences, [](const Difference& d) {
            return std::all_of(d.values.begin(), d.values.end(), [&](const auto& v) { return v == d.values[0]; });
        });
    }
    std::erase_if(out, [](const DifferenceGroup& g) { return g.differences.empty(); });
    return out;
}

Outputs compare_outputs(const Record& a, const Record& b) {
    Outputs out;
    const trace::Ending &x = a.book.ending, &y = b.book.ending;
    if (!x.output_digest.empty() && !y.output_digest.empty())
        out.text = x.output_digest == y.output_digest ? Agreement::same : Agreement::differs;
    if (a.book.routes_digest != 0 && b.book.routes_digest != 0)
        out.routes = a.book.routes_digest == b.book.routes_digest ? Agreement::same : Agreement::differs;
    return out;
}

Speed speed_of(const Record& record, size_t number) {
    static const trace::Figure& time = *trace::find_figure("ms_per_token");
    static const trace::Figure& speed = *trace::find_figure("tokens_per_second");
    std::vector<double> times;
    std::vector<double> speeds;
    Totals one;
    for (const Row& row : record.rows) {
        if (row.phase.or_zero() != static_cast<int64_t>(Phase::decode)) continue;
        one.sum = Row{};
        one.add(row);
        const auto ms = time.of(one);
        const auto per_second = speed.of(one);
        if (!ms || !per_second) continue;
        times.push_back(*ms);
        speeds.push_back(*per_second);
    }
    Speed out;
    out.values = times.size();
    if (times.size() > kMaxSpeedValues) {
        const size_t step = (times.size() + kMaxSpeedValues - 1) / kMaxSpeedValues;
        size_t kept = 0;
        for (size_t i = 0; i < times.size(); i += step, ++kept) {
            times[kept] = times[i];
            speeds[kept] = speeds[i];
        }
        times.resize(kept);
        speeds.resize(kept);
    }
    const size_t n = times.size();
    out.used = n;
    if (n == 0) return out;
    std::vector<double> sorted_times = times;
    std::vector<double> sorted_speeds = speeds;
    std::sort(sorted_times.begin(), sorted_times.end());
    std::sort(sorted_speeds.begin(), sorted_speeds.end());
    out.ms_per_token = Estimate{median_of_sorted(sorted_times), {}, {}};
    out.tokens_per_second = Estimate{median_of_sorted(sorted_speeds), {}, {}};
    if (n < kFewestValues) return out;

    Resampler resampler(times, kSeed + number);
    out.block = resampler.block();
    for (size_t i = 0; i < kResamples; ++i) {
        const Middle m = resampler.next();
        const size_t low = resampler.index_at(m.low);
        const size_t high = resampler.index_at(m.high);
        out.resampled_ms.push_back((times[low] + times[high]) / 2);
        out.resampled_speed.push_back((speeds[low] + speeds[high]) / 2);
    }
    out.ms_per_token = percentile_interval(out.ms_per_token->median, out.resampled_ms);
    out.tokens_per_second = percentile_interval(out.tokens_per_second->median, out.resampled_speed);
    return out;
}

Ratio ratio_of(const Speed& a, const Speed& b) {
    const auto one = [](const std::optional<Estimate>& x, const std::optional<Estimate>& y,
                        const std::vector<double>& xs, const std::vector<double>& ys) -> std::optional<Estimate> {
        if (!x || !y || y->median <= 0) return std::nullopt;
        const double median = x->median / y->median;
        if (xs.empty() || xs.size() != ys.size()) return Estimate{median, {}, {}};
        std::vector<double> ratios;
        ratios.reserve(xs.size());
        for (size_t i = 0; i < xs.size(); ++i) {
            if (ys[i] > 0) ratios.push_back(xs[i] / ys[i]);
        }
        if (ratios.empty()) return Estimate{median, {}, {}};
        return percentile_interval(median, std::move(ratios));
    };
    return {one(a.ms_per_token, b.ms_per_token, a.resampled_ms, b.resampled_ms),
            one(a.tokens_per_second, b.tokens_per_second, a.resampled_speed, b.resampled_speed)};
}

}  // namespace sluice::report
