#include "cli/probe_text.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <vector>

#include "base/bytes.h"
#include "base/text.h"

namespace sluice::cli {
namespace {

using machine::Cell;
using machine::Interference;
using machine::Source;
using machine::Verdict;

constexpr size_t kFirstColumn = 8;
constexpr size_t kColumn = 10;

std::string rate(double bytes_per_ns) {
    return fmt::format("{:.{}f}", bytes_per_ns, bytes_per_ns < 0.0995 ? 3 : bytes_per_ns < 9.995 ? 2 : 1);
}
std::string ms(Nanos t) {
    const double x = static_cast<double>(t) / 1e6;
    return fmt::format("{:.{}f}", x, x < 9.995 ? 2 : x < 99.95 ? 1 : 0);
}
std::string ms(const std::optional<Nanos>& t) {
    return t ? ms(*t) : "-";
}
std::string seconds(Nanos t) {
    return fmt::format("{:.1f} s", static_cast<double>(t) / 1e9);
}
std::string short_size(uint64_t bytes) {
    if (bytes % MiB == 0) return fmt::format("{} MiB", bytes / MiB);
    return bytes % KiB == 0 && bytes < MiB ? fmt::format("{} KiB", bytes / KiB) : human_bytes(bytes);
}
const char* mark(Source source) {
    return source == Source::memory ? "*" : source == Source::unknown ? "?" : "";
}

// The cells of one way to read.
struct Group {
    io::EngineKind engine;
    bool direct, under_load;
    [[nodiscard]] bool has(const Cell& c) const {
        return c.engine == engine && c.direct == direct && c.under_load == under_load;
    }
};

template <typename Value>
std::string table(const Verdict& v, const Group& group, const std::vector<uint64_t>& sizes, const char* unit,
                  const Value& value) {
    std::set<unsigned> depths;
    for (const Cell& c : v.cells) {
        if (group.has(c)) depths.insert(c.depth);
    }
    std::string out = fmt::format("  {:<{}}", unit, kFirstColumn);
    for (const uint64_t s : sizes) out += fmt::format("{:>{}}", short_size(s), kColumn);
    out += '\n';
    for (const unsigned depth : depths) {
        out += fmt::format("  {:>{}}", depth, kFirstColumn - 2) + "  ";
        for (const uint64_t s : sizes) {
            const Cell* c = v.find(group.engine, group.direct, s, depth, group.under_load);
            out += fmt::format("{:>{}}", c != nullptr ? value(*c) + mark(c->source) : "-", kColumn);
        }
        out += '\n';
    }
    return out;
}

std::string tables(const Verdict& v, size_t width) {
    std::string out;
    bool memory = false;
    bool unknown = false;
    const size_t across = std::max<size_t>(1, (width - kFirstColumn - 2) / kColumn);
    for (const bool under_load : {false, true}) {
        for (const bool direct : {true, false}) {
            for (const io::EngineKind engine : {io::EngineKind::io_uring, io::EngineKind::pread}) {
                const Group group{engine, direct, under_load};
                std::set<uint64_t> all;
                for (const Cell& c : v.cells) {
                    if (!group.has(c)) continue;
                    all.insert(c.size);
                    memory = memory || c.source == Source::memory;
                    unknown = unknown || c.source == Source::unknown;
                }
                if (all.empty()) continue;
                out += fmt::format("{}, {}, {}\n", machine::engine_name(engine),
                                   direct ? "direct" : "through the page cache, cold",
                                   under_load ? fmt::format("while {} threads compute", v.load_threads) : "idle");
                const std::vector<uint64_t> sizes(all.begin(), all.end());
                for (size_t from = 0; from < sizes.size(); from += across) {
                    const auto begin = sizes.begin() + static_cast<std::ptrdiff_t>(from);
                    const std::vector<uint64_t> some(
                        begin, begin + static_cast<std::ptrdiff_t>(std::min(across, sizes.size() - from)));
                    out += table(v, group, some, "GB/s", [](const Cell& c) { return rate(c.bytes_per_ns()); });
                    out += table(v, group, some, "p99 ms", [](const Cell& c) { return ms(c.latency.p99); });
                }
                out += '\n';
            }
        }
    }
    if (memory) out += "* memory answered a tenth of it or more: not the drive's speed\n";
    if (unknown) out += "? the kernel does not count what came from the drive\n";
    return memory || unknown ? out + "\n" : out;
}

std::string interference(const Verdict& v) {
    if (v.interference.empty()) return "";
    std::set<uint64_t> exact;
    std::set<std::tuple<uint64_t, unsigned, bool>> rows;
    for (const Interference& i : v.interference) {
        exact.insert(i.exact);
        rows.insert({i.chunk, i.pieces, i.priorities});
    }
    std::string out = "Exact reads, one at a time, beside speculative ones: p50 / p95 in ms\n";
    out += fmt::format("  {:<26}", "beside them");
    for (const uint64_t e : exact) out += fmt::format("{:>16}", short_size(e));
    out += fmt::format("{:>18}\n", "speculative GB/s");
    for (const auto& row : rows) {
        const auto& [chunk, pieces, priorities] = row;
        out += fmt::format("  {:<26}", chunk == 0 ? "nothing"
                                                  : fmt::format("{} x {}{}", pieces, short_size(chunk),
                                                                priorities ? ", priorities" : ""));
        std::string rates;
        for (const uint64_t e : exact) {
            const auto it = std::find_if(v.interference.begin(), v.interference.end(), [&](const Interference& i) {
                return i.exact == e && std::tuple(i.chunk, i.pieces, i.priorities) == row;
            });
            const bool there = it != v.interference.end();
            out += fmt::format(
                "{:>16}",
                there ? fmt::format("{} / {}{}", ms(it->latency.p50), ms(it->latency.p95), mark(it->source)) : "-");
            if (there && chunk > 0) rates += (rates.empty() ? "" : " / ") + rate(it->speculative_rate);
        }
        out += fmt::format("{:>18}\n", rates.empty() ? "-" : rates);
    }
    return out + "\n";
}

std::string conclusions(const Verdict& v, size_t width) {
    constexpr size_t kIndent = 2;
    std::string out;
    const auto line = [&](const std::string& text) { out += wrap_text(text, kIndent, width); };
    for (const machine::Sustained& s : v.sustained) {
        line(
            fmt::format("reading on and on ({} by {}, {} in flight): {} GB/s at its fastest, {} GB/s in the end, {} in "
                        "{}; {}{}",
                        short_size(s.size), machine::engine_name(s.engine), s.depth, rate(s.burst), rate(s.rate),
                        human_bytes(s.bytes), seconds(s.elapsed),
                        s.steady ? "steady from " + seconds(s.steady_after) + " on" : "no steady state was reached",
                        s.source == Source::memory ? "; * memory answered" : ""));
    }
    const auto speed = [](const std::optional<double>& x) { return x ? rate(*x) + " GB/s" : "not measured"; };
    std::string memory = "checksums (CRC-32C): " + speed(v.memory.checksum);
    if (const auto share = v.checksum_share())
        memory += fmt::format(", {:.0f} % of the time of the fastest reading", 100 * *share);
    line(memory);
    line(fmt::format("memory: {} at the first touch, {} again", speed(v.memory.first_touch), speed(v.memory.again)));
    if (!v.derived) return out + "\n";
    const machine::Derived& d = *v.derived;
    const std::string speculation =
        d.window > 0 ? fmt::format("{} in flight at most{}, {} of {} lanes left for exact reads", short_size(d.window),
                                   d.priorities ? ", with priorities" : "", d.reserved, d.lanes)
                     : "none";
    line(
        fmt::format("what follows: {}{}, {} reads of {} in flight, {} GB/s, {} GB/s {}; speculation: {}; chunks of {}, "
                    "{} ms each",
                    machine::engine_name(d.engine), d.direct ? "" : " through the page cache", d.depth,
                    short_size(d.size), rate(d.best), rate(d.sustained), d.steady ? "sustained" : "in the end",
                    speculation, short_size(d.chunk), ms(d.service)));
    return out + "\n";
}

}  // namespace

std::string probe_text(const Verdict& v, size_t width) {
    const machine::DriveIdentity& d = v.drive;
    std::string drive = d.device.empty() ? d.source : d.device;
    for (const std::string* part : {&d.model, &d.serial}) drive += part->empty() ? "" : ", " + *part;
    std::string out =
        wrap_text(fmt::format("Drive: {}{}, {}, scheduler {}; Linux {}", drive, d.virtual_drive ? " (virtual)" : "",
                              d.file_system.empty() ? "unknown file system" : d.file_system,
                              d.scheduler.empty() ? "unknown" : d.scheduler, v.kernel.empty() ? "unknown" : v.kernel),
                  0, width);
    out += wrap_text(fmt::format("Read: {} ({}), {} in all{}", v.path, human_bytes(v.path_bytes), seconds(v.took),
                                 v.full ? ", every combination" : ""),
                     0, width);
    std::string sizes;
    for (const machine::SizeName& s : v.sizes) {
        if (s.name.empty()) continue;
        sizes += fmt::format("{}{} {}", sizes.empty() ? "" : "; ", short_size(s.bytes), s.name);
    }
    if (!sizes.empty()) out += wrap_text("Sizes: " + sizes, 0, width);
    out += "\n" + tables(v, width) + interference(v) + conclusions(v, width);
    for (const std::string& note : v.notes) out += wrap_text("note: " + note, 0, width);
    return out;
}

}  // namespace sluice::cli
