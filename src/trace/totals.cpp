#include "trace/totals.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>

namespace sluice::trace {
namespace {

using Value = std::optional<double>;

Value number(Measure m) {
    return m.known() ? Value(static_cast<double>(m.value())) : std::nullopt;
}

Value ratio(Value a, Value b) {
    return a && b && *b > 0 ? Value(*a / *b) : std::nullopt;
}

Value scaled(Value a, double by) {
    return a ? Value(*a * by) : std::nullopt;
}

Value tokens_of(const Totals& t) {
    return number(counted_tokens(t));
}

Value per_token(Measure m, const Totals& t) {
    return ratio(number(m), tokens_of(t));
}

Measure sum_of(const Row& row, std::initializer_list<Part> parts) {
    Measure sum;
    for (const Part p : parts) sum.add(row.parts[static_cast<size_t>(p)]);
    return sum;
}

Measure exposed(const Totals& t) {
    return exposed_wait(t.sum);
}

Value wall_ns(const Totals& t) {
    return per_token(t.sum.wall, t);
}

// All of a token that is not standing still for reads: arithmetic, but also managing, sampling, printing.
Value without_waiting_ns(const Totals& t) {
    const Value wall = number(t.sum.wall);
    const Value waits = number(exposed(t));
    return wall && waits ? ratio(Value(*wall - *waits), tokens_of(t)) : std::nullopt;
}

Value drive_ns(const Totals& t) {
    return per_token(t.sum.read_busy, t);
}

Value roofline_ns(const Totals& t) {
    const Value compute = without_waiting_ns(t);
    const Value drive = drive_ns(t);
    return compute && drive ? Value(std::max(*compute, *drive)) : std::nullopt;
}

Value layers_waiting(const Totals& t) {
    const auto& layers = t.sum.layers;
    const auto waits = [](const Row::Layer& l) {
        const auto wait = static_cast<double>(l.wait);
        return wait > 0 && wait >= 0.1 * (wait + static_cast<double>(l.routed));
    };
    const auto n = std::count_if(layers.begin(), layers.end(), waits);
    return ratio(static_cast<double>(n), static_cast<double>(layers.size()));
}

constexpr double kMilli = 1e-6;  // ns to ms

constexpr Figure kFigures[] = {
    {"tokens_per_second", "tok/s", "tokens over wall time",
     [](const Totals& t) { return scaled(ratio(tokens_of(t), number(t.sum.wall)), 1e9); }},
    {"ms_per_token", "ms", "wall time of a token", [](const Totals& t) { return scaled(wall_ns(t), kMilli); }},
    {"hit_rate", "1", "look-ups that found their expert wholly resident",
     [](const Totals& t) { return ratio(number(t.sum.hits), number(t.sum.lookups)); }},
    {"logical_bytes_per_token", "bytes", "expert bytes that were missing, per token",
     [](const Totals& t) { return per_token(t.sum.exact_bytes, t); }},
    {"physical_bytes_per_token", "bytes", "bytes asked of the drive for them, per token",
     [](const Totals& t) { return per_token(t.sum.exact_physical, t); }},
    {"amplification", "1", "physical over logical bytes",
     [](const Totals& t) { return ratio(number(t.sum.exact_physical), number(t.sum.exact_bytes)); }},
    {"exposed_wait_fraction", "1", "share of the wall time standing still for reads",
     [](const Totals& t) { return ratio(number(exposed(t)), number(t.sum.wall)); }},
    {"layers_waiting_fraction", "1",
     "layers that stand still for reads for a tenth or more of their experts' time: few slow layers, or bubbles in all",
     layers_waiting},
    {"hidden_fraction", "1", "share of the reads' time that compute did not stand still for",
     [](const Totals& t) {
         const Value share = ratio(number(exposed(t)), number(t.sum.read_busy));
         return share ? Value(1.0 - *share) : std::nullopt;
     }},
    {"drive_bytes_per_second", "bytes/s", "expert bytes asked of the drive, over the time it had something to do",
     [](const Totals& t) { return scaled(ratio(number(t.sum.exact_physical), number(t.sum.read_busy)), 1e9); }},
    {"compute_ms_per_token", "ms", "arithmetic of the graph, per token",
     [](const Totals& t) { return scaled(per_token(computing(t.sum), t), kMilli); }},
    {"without_waiting_ms_per_token", "ms", "wall time of a token less standing still for reads",
     [](const Totals& t) { return scaled(without_waiting_ns(t), kMilli); }},
    {"drive_ms_per_token", "ms", "time of a token with at least one read on its way",
     [](const Totals& t) { return scaled(drive_ns(t), kMilli); }},
    {"roofline_ms_per_token", "ms", "the larger of those two: what perfect overlap would leave",
     [](const Totals& t) { return scaled(roofline_ns(t), kMilli); }},
    {"roofline_tokens_per_second", "tok/s", "speed at the roofline",
     [](const Totals& t) {
         const Value r = roofline_ns(t);
         return r && *r > 0 ? Value(1e9 / *r) : std::nullopt;
     }},
    {"residual_fraction", "1", "wall time above the roofline, as a share of the roofline",
     [](const Totals& t) {
         const Value share = ratio(wall_ns(t), roofline_ns(t));
         return share ? Value(*share - 1.0) : std::nullopt;
     }},
    {"read_p50_ms", "ms", "issue to ready of a read, median",
     [](const Totals& t) { return scaled(number(t.reads.percentile(0.50)), kMilli); }},
    {"read_p95_ms", "ms", "issue to ready of a read, 95th percentile",
     [](const Totals& t) { return scaled(number(t.reads.percentile(0.95)), kMilli); }},
    {"read_p99_ms", "ms", "issue to ready of a read, 99th percentile",
     [](const Totals& t) { return scaled(number(t.reads.percentile(0.99)), kMilli); }},
    {"major_faults_per_token", "1", "page faults that needed the drive, per token",
     [](const Totals& t) { return per_token(t.sum.major_faults, t); }},
    {"cpu_utilisation", "cores", "CPU time over wall time",
     [](const Totals& t) { return ratio(number(t.sum.cpu), number(t.sum.wall)); }},
};

}  // namespace

Measure exposed_wait(const Row& row) {
    return sum_of(row, {Part::wait_read, Part::wait_join, Part::wait_late});
}

Measure computing(const Row& row) {
    return sum_of(row, {Part::dense, Part::router, Part::shared, Part::routed});
}

Measure outside_graph(const Row& row) {
    return sum_of(row, {Part::sample, Part::detokenise, Part::output, Part::record});
}

Measure asked_of_drive(const Row& row) {
    Measure sum = row.exact_physical;
    sum.add(row.predicted_physical);
    return sum;
}

Measure counted_tokens(const Totals& totals) {
    const bool came_out = totals.phase == Phase::decode && totals.sum.output_tokens.known();
    return came_out ? totals.sum.output_tokens : totals.sum.tokens;
}

std::optional<double> share_of_wall(Part part, const Totals& totals) {
    return ratio(number(totals.sum.parts[static_cast<size_t>(part)]), number(totals.sum.wall));
}

std::optional<double> hit_rate(const Row::Layer& layer) {
    return ratio(static_cast<double>(layer.hits), static_cast<double>(layer.lookups));
}

void Totals::add_rest(const Row& rest) {
    for (const Column& c : columns()) {
        const Measure m = value_of(c, rest);
        if (!m.known()) continue;
        Measure& to = c.of(sum);
        switch (c.total) {
            case Total::sum:
                to.add(m);
                break;
            case Total::last:
                to = m;
                break;
            case Total::highest:
                if (!to.known() || to.value() < m.value()) to = m;
                break;
            case Total::none:
                break;
        }
    }
}

void Totals::add(const Row& row) {
    if (row.phase == Measure(0)) phase = Phase::prefill;
    add_rest(row);
    if (sum.layers.size() < row.layers.size()) sum.layers.resize(row.layers.size());
    for (size_t i = 0; i < row.layers.size(); ++i) {
        Row::Layer& to = sum.layers[i];
        const Row::Layer& from = row.layers[i];
        to.wait = Measure::saturating_add(to.wait, from.wait);
        to.routed = Measure::saturating_add(to.routed, from.routed);
        to.lookups = Measure::saturating_add(to.lookups, from.lookups);
        to.hits = Measure::saturating_add(to.hits, from.hits);
        to.physical = Measure::saturating_add(to.physical, from.physical);
    }
    ++rows;
}

std::span<const Figure> figures() {
    return kFigures;
}

const Figure* find_figure(std::string_view name) {
    const auto* it =
        std::find_if(std::begin(kFigures), std::end(kFigures), [&](const Figure& f) { return name == f.name; });
    return it == std::end(kFigures) ? nullptr : it;
}

std::optional<double> figure(std::string_view name, const Totals& totals) {
    const Figure* f = find_figure(name);
    return f == nullptr ? std::nullopt : f->of(totals);
}

std::string what_binds(const Totals& totals) {
    const Value compute = without_waiting_ns(totals);
    const Value drive = drive_ns(totals);
    if (!compute || !drive) return "";
    return *drive > *compute ? "drive" : "compute";
}

}  // namespace sluice::trace
