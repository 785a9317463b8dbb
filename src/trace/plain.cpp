#include "trace/plain.h"

#include <fmt/core.h>

#include <algorithm>

namespace sluice::trace {
namespace {

using Value = std::optional<double>;

Value scaled(Measure m, double by) {
    return m.known() ? Value(static_cast<double>(m.value()) * by) : std::nullopt;
}
Value plain(Measure m) {
    return scaled(m, 1);
}
Value ms(Measure m) {
    return scaled(m, 1e-6);
}
Value mib(Measure m) {
    return scaled(m, 1.0 / (1 << 20));
}
Value part_ms(const Row& row, Part part) {
    return ms(row.parts[static_cast<size_t>(part)]);
}

Value absent(const Book&, const Row&, const Planned&) {
    return std::nullopt;
}

// NOLINTBEGIN(cppcoreguidelines-macro-usage): a lambda with these three arguments, as short as what it says
#define SLUICE_OF(expression)                                              \
    []([[maybe_unused]] const Book& book, [[maybe_unused]] const Row& row, \
       [[maybe_unused]] const Planned& planned) -> Value { return expression; }
// NOLINTEND(cppcoreguidelines-macro-usage)

constexpr PlainColumn kPlain[] = {
    {"step", 0, "step", SLUICE_OF(plain(row.step))},
    {"steps", 0, "tokens asked for; not a column of the record", SLUICE_OF(plain(planned.steps))},
    {"wall_ms", 3, "wall_ns; the whole loop, not only the decode call, where the record's scope is loop",
     SLUICE_OF(ms(row.wall))},
    {"io_ms", 3, "read_busy_ns: at least one read on its way, however many", SLUICE_OF(ms(row.read_busy))},
    {"compute_ms", 3, "dense_ns + router_ns + shared_ns + routed_ns: measured, not what is left of the wall time",
     SLUICE_OF(ms(computing(row)))},
    {"read_bytes", 0, "exact_physical_bytes + predicted_physical_bytes", SLUICE_OF(plain(asked_of_drive(row)))},
    {"cache_hit_pct", 2, "figure hit_rate of decode, cumulative; prefill does not count",
     SLUICE_OF(figure("hit_rate", book.of(Phase::decode)).has_value()
                   ? Value(*figure("hit_rate", book.of(Phase::decode)) * 100)
                   : std::nullopt)},
    {"stall_ms", 3, "wait_read_ns + wait_join_ns + wait_late_ns", SLUICE_OF(ms(exposed_wait(row)))},
    {"mgmt_ms", 3, "manage_ns", SLUICE_OF(part_ms(row, Part::manage))},
    {"majflt", 0, "major_faults", SLUICE_OF(plain(row.major_faults))},
    {"cpu_ms", 3, "cpu_ns", SLUICE_OF(ms(row.cpu))},
    {"dense_resident_frac", 3, "", absent},
    {"turn", 0, "turn", SLUICE_OF(plain(row.turn))},
    {"majflt_mib", 3, "", absent},
    {"cache_budget_mib", 3, "cache_bytes", SLUICE_OF(mib(row.cache_bytes))},
    {"rss_mib", 3, "rss_bytes", SLUICE_OF(mib(row.rss))},
    {"rss_anon_mib", 3, "anon_bytes", SLUICE_OF(mib(row.anon))},
    {"rss_file_mib", 3, "file_bytes", SLUICE_OF(mib(row.file))},
    {"swap_mib", 3, "swap_bytes", SLUICE_OF(mib(row.swap))},
    {"mem_available_mib", 3, "mem_available_bytes", SLUICE_OF(mib(row.mem_available))},
    {"mem_free_mib", 3, "mem_free_bytes", SLUICE_OF(mib(row.mem_free))},
    {"swap_free_mib", 3, "swap_free_bytes", SLUICE_OF(mib(row.swap_free))},
    {"loop_overhead_ms", 3, "sample_ns + detokenise_ns + output_ns + record_ns; here it is part of wall_ms",
     SLUICE_OF(ms(outside_graph(row)))},
    {"mtp_batch", 0, "", absent},
    {"mtp_draft_ms", 3, "draft_ns; here it is part of wall_ms", SLUICE_OF(part_ms(row, Part::draft))},
    {"drain_ms", 3, "", absent},
    {"adopt_ms", 3, "", absent},
    {"ra_issue_ms", 3, "ra_issue_ns", SLUICE_OF(ms(row.ra_issue))},
    {"ra_wd_ms", 3, "ra_watch_ns", SLUICE_OF(ms(row.ra_watch))},
};

}  // namespace

std::span<const PlainColumn> plain_columns() {
    return kPlain;
}

const PlainColumn* find_plain_column(std::string_view name) {
    const auto* it =
        std::find_if(std::begin(kPlain), std::end(kPlain), [&](const PlainColumn& c) { return name == c.name; });
    return it == std::end(kPlain) ? nullptr : it;
}

std::string plain_columns_markdown() {
    std::string out = "| column | made of |\n| --- | --- |\n";
    for (const PlainColumn& c : kPlain) {
        out +=
            fmt::format("| `{}` | {} |\n", c.name, *c.from != '\0' ? c.from : "always empty: Sluice has no such thing");
    }
    return out;
}

}  // namespace sluice::trace
