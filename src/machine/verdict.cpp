#include "machine/verdict.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <set>
#include <tuple>

#include "machine/kept_json.h"
#include "machine/probe.h"
#include "machine/user_directory.h"

namespace sluice::machine {
namespace {

constexpr const char* kFormat = "sluice-probe";
constexpr size_t kMostText = 4096;  // of one sentence or path
constexpr unsigned kMostDepth = 64;
constexpr uint64_t kMostBytes = uint64_t{1} << 60U;
constexpr Nanos kMostNanos = Nanos{24} * 3600 * 1'000'000'000;
constexpr double kMostRate = 1000;  // bytes per nanosecond: above any memory
constexpr double kMostSpread = 1e9;

// --- names of values

template <typename T>
struct Word {
    T value;
    const char* text;
};
constexpr std::array<Word<io::EngineKind>, 3> kEngines{
    {{io::EngineKind::io_uring, "io_uring"}, {io::EngineKind::pread, "pread"}, {io::EngineKind::mmap, "mmap"}}};
constexpr std::array<Word<Source>, 3> kSources{
    {{Source::device, "device"}, {Source::memory, "memory"}, {Source::unknown, "unknown"}}};

const auto& words_of(io::EngineKind) {
    return kEngines;
}
const auto& words_of(Source) {
    return kSources;
}
template <typename T>
const char* word_of(T value) {
    for (const auto& w : words_of(value)) {
        if (w.value == value) return w.text;
    }
    return "";
}

// --- the fields of a verdict, listed once for writing and reading

template <typename Archive>
void fields(Archive& a, DriveIdentity& d) {
    a("device", d.device);
    a("model", d.model);
    a("serial", d.serial);
    a("bytes", d.bytes);
    a("file_system", d.file_system);
    a("scheduler", d.scheduler);
    a("source", d.source);
    a("virtual", d.virtual_drive);
    a("memory", d.memory);
}
template <typename Archive>
void fields(Archive& a, Latency& l) {
    a("p50_ns", l.p50);
    a("p95_ns", l.p95);
    a("p99_ns", l.p99);
}
template <typename Archive>
void fields(Archive& a, SizeName& s) {
    a("bytes", s.bytes);
    a("name", s.name);
}
template <typename Archive>
void fields(Archive& a, Cell& c) {
    a("engine", c.engine);
    a("direct", c.direct);
    a("under_load", c.under_load);
    a("size", c.size);
    a("depth", c.depth);
    a("source", c.source);
    a("reads", c.reads);
    a("bytes", c.bytes);
    a("elapsed_ns", c.elapsed);
    a("device_bytes", c.device_bytes);
    a("spread", c.spread);
    fields(a, c.latency);
}
template <typename Archive>
void fields(Archive& a, Sustained& s) {
    a("engine", s.engine);
    a("direct", s.direct);
    a("size", s.size);
    a("depth", s.depth);
    a("source", s.source);
    a("bytes", s.bytes);
    a("elapsed_ns", s.elapsed);
    a("burst_bytes_per_ns", s.burst);
    a("bytes_per_ns", s.rate);
    a("steady", s.steady);
    a("steady_after_ns", s.steady_after);
}
template <typename Archive>
void fields(Archive& a, Interference& i) {
    a("exact_size", i.exact);
    a("chunk", i.chunk);
    a("pieces", i.pieces);
    a("priorities", i.priorities);
    a("source", i.source);
    a("reads", i.reads);
    a("exact_bytes_per_ns", i.exact_rate);
    a("speculative_bytes_per_ns", i.speculative_rate);
    fields(a, i.latency);
}
template <typename Archive>
void fields(Archive& a, MemorySpeeds& m) {
    a("checksum_bytes_per_ns", m.checksum);
    a("first_touch_bytes_per_ns", m.first_touch);
    a("again_bytes_per_ns", m.again);
}
template <typename Archive>
void fields(Archive& a, Derived& d) {
    a("engine", d.engine);
    a("direct", d.direct);
    a("size", d.size);
    a("depth", d.depth);
    a("best_bytes_per_ns", d.best);
    a("sustained_bytes_per_ns", d.sustained);
    a("burst_bytes_per_ns", d.burst);
    a("steady", d.steady);
    a("chunk", d.chunk);
    a("service_ns", d.service);
    a("window", d.window);
    a("lanes", d.lanes);
    a("reserved_lanes", d.reserved);
    a("priorities", d.priorities);
}
template <typename Archive>
void fields(Archive& a, Verdict& v) {
    a("made", v.made);
    a("sluice", v.sluice);
    a("kernel", v.kernel);
    a("drive", v.drive);
    a("path", v.path);
    a("path_bytes", v.path_bytes);
    a("model_digest", v.model_digest);
    a("full", v.full);
    a("took_ns", v.took);
    a("load_threads", v.load_threads);
    a("derived", v.derived);
    a("memory", v.memory);
    a("notes", v.notes, kMostNotes);
    a("sizes", v.sizes, kMostCells);
    a("sustained", v.sustained, kMostCells);
    a("interference", v.interference, kMostInterference);
    a("cells", v.cells, kMostCells);
}

class Writer {
  public:
    explicit Writer(Json& out) : out_(out) {}
    template <typename T>
    void operator()(const char* name, T& value) {
        out_[name] = json(value);
    }
    template <typename T>
    void operator()(const char* name, std::vector<T>& values, size_t) {
        Json list = Json::array();
        for (T& v : values) list.push_back(json(v));
        out_[name] = std::move(list);
    }

  private:
    template <typename T>
    static Json json(T& value) {
        if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
            return value;
        } else if constexpr (std::is_enum_v<T>) {
            return word_of(value);
        } else {
            Json j = Json::object();
            Writer writer(j);
            fields(writer, value);
            return j;
        }
    }
    template <typename T>
    static Json json(std::optional<T>& value) {
        return value ? json(*value) : Json(nullptr);
    }
    Json& out_;
};

// What is missing or of another kind is remembered by name; nothing throws.
class Reader {
  public:
    explicit Reader(const Json& in, std::string& wrong) : in_(in), wrong_(wrong) {}
    template <typename T>
    void operator()(const char* name, T& value) {
        const Json* j = find(name);
        if (j == nullptr || !take(*j, value)) fail(name);
    }
    template <typename T>
    void operator()(const char* name, std::vector<T>& values, size_t most) {
        const Json* j = find(name);
        if (j == nullptr || !j->is_array() || j->size() > most) {
            fail(name);
            return;
        }
        for (const Json& element : *j) {
            if (!take(element, values.emplace_back())) {
                fail(name);
                return;
            }
        }
    }

  private:
    [[nodiscard]] const Json* find(const char* name) const {
        if (!in_.is_object()) return nullptr;
        const auto it = in_.find(name);
        return it == in_.end() ? nullptr : &*it;
    }
    void fail(const char* name) {
        if (wrong_.empty()) wrong_ = name;
    }
    static bool take(const Json& j, std::string& out) {
        if (!j.is_string() || j.get_ref<const std::string&>().size() > kMostText) return false;
        out = j.get<std::string>();
        return true;
    }
    static bool take(const Json& j, bool& out) {
        if (!j.is_boolean()) return false;
        out = j.get<bool>();
        return true;
    }
    static bool take(const Json& j, double& out) {
        if (!j.is_number()) return false;
        out = j.get<double>();
        return std::isfinite(out);
    }
    static bool take(const Json& j, uint64_t& out) {
        if (!j.is_number_unsigned()) return false;
        out = j.get<uint64_t>();
        return true;
    }
    static bool take(const Json& j, Nanos& out) {
        uint64_t n = 0;
        if (!take(j, n) || n > static_cast<uint64_t>(kMostNanos)) return false;
        out = static_cast<Nanos>(n);
        return true;
    }
    static bool take(const Json& j, unsigned& out) {
        uint64_t n = 0;
        if (!take(j, n) || n > UINT32_MAX) return false;
        out = static_cast<unsigned>(n);
        return true;
    }
    template <typename T>
    bool take(const Json& j, std::optional<T>& out) {
        out.reset();
        return j.is_null() || take(j, out.emplace());
    }
    template <typename T>
    bool take(const Json& j, T& out) {
        if constexpr (std::is_enum_v<T>) {
            for (const auto& w : words_of(T())) {
                if (!j.is_string() || j.get_ref<const std::string&>() != w.text) continue;
                out = w.value;
                return true;
            }
            return false;
        } else {
            Reader reader(j, wrong_);
            fields(reader, out);
            return wrong_.empty();
        }
    }
    const Json& in_;
    std::string& wrong_;
};

Json json_of(const Verdict& verdict) {
    Json j;
    j["format"] = kFormat;
    j["version"] = kVerdictVersion;
    Writer writer(j);
    Verdict copy = verdict;
    fields(writer, copy);
    return j;
}

// --- limits

bool is_rate(double r) {
    return r > 0 && r <= kMostRate;
}
bool is_rate(const std::optional<double>& r) {
    return !r || is_rate(*r);
}
bool is_time(Nanos t) {
    return t > 0 && t <= kMostNanos;
}
bool is_count(uint64_t n) {
    return n > 0 && n <= kMostBytes;
}
bool is_size(uint64_t n) {
    return n > 0 && n <= kMostProbeRead;
}
bool is_depth(unsigned n) {
    return n > 0 && n <= kMostDepth;
}
bool is_read_engine(io::EngineKind k) {
    return k == io::EngineKind::io_uring || k == io::EngineKind::pread;
}
bool is_latency(const Latency& l) {
    return is_time(l.p50) && (!l.p95 || (is_time(*l.p95) && *l.p95 >= l.p50)) &&
           (!l.p99 || (is_time(*l.p99) && *l.p99 >= l.p95.value_or(l.p50)));
}

bool can_be(const Cell& c) {
    return is_read_engine(c.engine) && is_size(c.size) && is_depth(c.depth) && is_count(c.reads) && is_count(c.bytes) &&
           c.bytes >= c.reads && is_time(c.elapsed) && is_rate(c.bytes_per_ns()) &&
           c.device_bytes.value_or(0) <= kMostBytes && c.spread >= 1 && c.spread <= kMostSpread &&
           is_latency(c.latency);
}
bool can_be(const Sustained& s) {
    return is_read_engine(s.engine) && is_size(s.size) && is_depth(s.depth) && is_count(s.bytes) &&
           is_time(s.elapsed) && is_rate(s.burst) && is_rate(s.rate) && s.steady_after >= 0 &&
           s.steady_after <= s.elapsed;
}
bool can_be(const Interference& i) {
    const bool alone = i.chunk == 0 && i.pieces == 0 && i.speculative_rate == 0;
    const bool beside =
        is_size(i.chunk) && is_depth(i.pieces) && i.speculative_rate >= 0 && i.speculative_rate <= kMostRate;
    return is_size(i.exact) && (alone || beside) && is_count(i.reads) && is_rate(i.exact_rate) && is_latency(i.latency);
}
bool can_be(const MemorySpeeds& m) {
    return is_rate(m.checksum) && is_rate(m.first_touch) && is_rate(m.again);
}
bool can_be(const Derived& d) {
    return is_read_engine(d.engine) && is_size(d.size) && is_depth(d.depth) && is_rate(d.best) &&
           is_rate(d.sustained) && is_rate(d.burst) && is_size(d.chunk) && is_time(d.service) &&
           (d.window == 0 || (d.window >= d.chunk && d.window <= kMostDepth * kMostProbeRead)) && is_depth(d.lanes) &&
           d.reserved >= 1 && d.reserved <= d.lanes;
}

template <typename T, typename Key>
bool all_can_be(const std::vector<T>& list, size_t most, const Key& key) {
    std::set<decltype(key(list[0]))> keys;
    return list.size() <= most &&
           std::all_of(list.begin(), list.end(), [&](const T& x) { return can_be(x) && keys.insert(key(x)).second; });
}

// What is wrong with it; empty if nothing is.
std::string impossible(const Verdict& v) {
    const auto short_enough = [](const std::string& s) { return s.size() <= kMostText; };
    const auto cell_key = [](const Cell& c) { return std::tuple(c.engine, c.direct, c.under_load, c.size, c.depth); };
    const auto beside_key = [](const Interference& i) { return std::tuple(i.exact, i.chunk, i.pieces, i.priorities); };
    const DriveIdentity& d = v.drive;
    if (v.path_bytes > kMostBytes || d.bytes > kMostBytes || v.took < 0 || v.took > kMostNanos) return "sizes or times";
    for (const std::string* s : {&v.made, &v.sluice, &v.kernel, &v.path, &v.model_digest, &d.device, &d.model,
                                 &d.serial, &d.file_system, &d.scheduler, &d.source}) {
        if (!short_enough(*s)) return "a text";
    }
    if (v.notes.size() > kMostNotes || !std::all_of(v.notes.begin(), v.notes.end(), short_enough)) return "notes";
    if (v.sizes.size() > kMostCells || !std::all_of(v.sizes.begin(), v.sizes.end(), [&](const SizeName& s) {
            return is_size(s.bytes) && short_enough(s.name);
        }))
        return "sizes";
    if (!all_can_be(v.cells, kMostCells, cell_key)) return "cells";
    if (!all_can_be(v.interference, kMostInterference, beside_key)) return "interference";
    size_t number = 0;
    if (!all_can_be(v.sustained, kMostCells, [&](const Sustained&) { return number++; })) return "sustained";
    if (!can_be(v.memory)) return "memory";
    if (v.derived && !can_be(*v.derived)) return "derived";
    return "";
}

// --- identity

std::string plain(const std::optional<std::string>& text) {
    constexpr size_t kMost = 256;
    std::string out = text.value_or("").substr(0, kMost);
    for (char& c : out) {
        if (c < ' ' || c > '~') c = '?';
    }
    return out;
}

std::string slug(const std::string& text) {
    constexpr size_t kMost = 40;
    std::string out;
    for (const char c : text.substr(0, kMost)) {
        const bool word = std::isalnum(static_cast<unsigned char>(c)) != 0;
        if (word) {
            out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        } else if (!out.empty() && out.back() != '-') {
            out += '-';
        }
    }
    while (!out.empty() && out.back() == '-') out.pop_back();
    return out;
}

// A drive with a serial number keeps it whatever it is called after the next start.
std::string device_of(const DriveIdentity& d) {
    return d.serial.empty() ? d.device : "";
}
std::string source_of(const DriveIdentity& d) {
    return d.device.empty() ? d.source : "";
}

// --- interpolation

// The neighbours of x in sorted values; nullopt outside of them.
template <typename T>
std::optional<std::pair<T, T>> around(const std::vector<T>& sorted, T x) {
    const auto above = std::lower_bound(sorted.begin(), sorted.end(), x);
    if (above == sorted.end()) return std::nullopt;
    if (*above == x) return std::pair(x, x);
    if (above == sorted.begin()) return std::nullopt;
    return std::pair(*std::prev(above), *above);
}

template <typename T>
double part_of(T x, const std::pair<T, T>& between) {
    if (between.first == between.second) return 0;
    return static_cast<double>(x - between.first) / static_cast<double>(between.second - between.first);
}

Nanos mix(Nanos a, Nanos b, double part) {
    return a + static_cast<Nanos>(std::llround(static_cast<double>(b - a) * part));
}
std::optional<Nanos> mix(const std::optional<Nanos>& a, const std::optional<Nanos>& b, double part) {
    if (!a || !b) return std::nullopt;
    return mix(*a, *b, part);
}
Latency mix(const Latency& a, const Latency& b, double part) {
    if (part == 0) return a;
    return {mix(a.p50, b.p50, part), mix(a.p95, b.p95, part), mix(a.p99, b.p99, part)};
}

}  // namespace

const char* engine_name(io::EngineKind engine) {
    return word_of(engine);
}

Latency latency_of(std::vector<Nanos>& took) {
    std::sort(took.begin(), took.end());
    Latency l{.p50 = percentile(took, 0.50), .p95 = {}, .p99 = {}};
    if (took.size() >= kReadsForP95) l.p95 = percentile(took, 0.95);
    if (took.size() >= kReadsForP99) l.p99 = percentile(took, 0.99);
    return l;
}

std::string DriveIdentity::id() const {
    std::string all;
    for (const std::string& part :
         {model, serial, std::to_string(bytes), file_system, device_of(*this), source_of(*this)})
        all += part + '\n';
    std::string name;
    for (const std::string* part : {&model, &serial, &device, &source}) {
        name = slug(*part);
        if (!name.empty()) break;
    }
    const std::string fs = slug(file_system);
    return fmt::format("{}-{}-{:016x}", name.empty() ? "drive" : name, fs.empty() ? "unknown" : fs,
                       XXH3_64bits(all.data(), all.size()));
}

DriveIdentity identify(const DriveFacts& f) {
    DriveIdentity d;
    d.device = plain(f.drive);
    d.model = plain(f.model);
    d.serial = plain(f.serial);
    d.file_system = plain(f.file_system);
    d.scheduler = plain(f.scheduler);
    if (!f.drive) d.source = plain(f.mount_source.value_or("") + " at " + f.mount_point.value_or(""));
    d.bytes = f.drive_bytes.value_or(0);
    d.virtual_drive = f.virtual_drive;
    d.memory = f.reach == Reach::memory;
    return d;
}

const Cell* Verdict::find(io::EngineKind engine, bool direct, uint64_t size, unsigned depth, bool under_load) const {
    const auto it = std::find_if(cells.begin(), cells.end(), [&](const Cell& c) {
        return c.engine == engine && c.direct == direct && c.size == size && c.depth == depth &&
               c.under_load == under_load;
    });
    return it == cells.end() ? nullptr : &*it;
}

std::optional<Latency> Verdict::at(io::EngineKind engine, bool direct, uint64_t size, unsigned depth,
                                   bool under_load) const {
    std::vector<uint64_t> all_sizes;
    std::vector<unsigned> all_depths;
    for (const Cell& c : cells) {
        if (c.engine != engine || c.direct != direct || c.under_load != under_load || c.source != Source::device)
            continue;
        all_sizes.push_back(c.size);
        all_depths.push_back(c.depth);
    }
    std::sort(all_sizes.begin(), all_sizes.end());
    std::sort(all_depths.begin(), all_depths.end());
    const auto between_sizes = around(all_sizes, size);
    const auto between_depths = around(all_depths, depth);
    if (!between_sizes || !between_depths) return std::nullopt;
    const auto corner = [&](uint64_t s, unsigned d) -> const Cell* {
        const Cell* c = find(engine, direct, s, d, under_load);
        return c != nullptr && c->source == Source::device ? c : nullptr;
    };
    const Cell* a = corner(between_sizes->first, between_depths->first);
    const Cell* b = corner(between_sizes->second, between_depths->first);
    const Cell* c = corner(between_sizes->first, between_depths->second);
    const Cell* d = corner(between_sizes->second, between_depths->second);
    if (a == nullptr || b == nullptr || c == nullptr || d == nullptr) return std::nullopt;
    const double across = part_of(size, *between_sizes);
    const double down = part_of(depth, *between_depths);
    return mix(mix(a->latency, b->latency, across), mix(c->latency, d->latency, across), down);
}

std::optional<double> Verdict::checksum_share() const {
    if (!derived || !memory.checksum) return std::nullopt;
    return derived->best / *memory.checksum;
}

Result<std::string> verdict_text(const Verdict& verdict) {
    if (const std::string what = impossible(verdict); !what.empty())
        return error(Code::internal, "this measurement cannot be written down: {} out of range", what);
    Json j = json_of(verdict);
    j["digest"] = digest_of(j);
    std::string text = dump(j, 1) + "\n";
    if (text.size() > kMostVerdictBytes)
        return error(Code::internal, "this measurement is too large to be written down");
    return text;
}

Result<Verdict> parse_verdict(std::string_view text) {
    if (text.size() > kMostVerdictBytes) return error(Code::corrupt, "it is larger than any verdict");
    const Json j = Json::parse(text, nullptr, false);
    if (j.is_discarded() || !j.is_object()) return error(Code::corrupt, "it is not JSON, or cut off");
    const auto text_at = [&](const char* name) {
        const auto it = j.find(name);
        return it != j.end() && it->is_string() ? it->get<std::string>() : std::string();
    };
    if (text_at("format") != kFormat) return error(Code::corrupt, "it is no verdict of sluice probe");
    const auto version = j.find("version");
    if (version == j.end() || !version->is_number_unsigned())
        return error(Code::corrupt, "it does not tell its version");
    if (version->get<uint64_t>() != kVerdictVersion) {
        return error(Code::unsupported, "it has version {}, and this Sluice reads {}; sluice probe measures again",
                     version->get<uint64_t>(), kVerdictVersion);
    }
    Verdict v;
    std::string wrong;
    Reader reader(j, wrong);
    fields(reader, v);
    if (!wrong.empty()) return error(Code::corrupt, "\"{}\" is missing, or not what it has to be", wrong);
    if (const std::string what = impossible(v); !what.empty())
        return error(Code::corrupt, "it has numbers that cannot be: {}", what);
    if (text_at("digest") != digest_of(json_of(v)))
        return error(Code::corrupt, "its digest differs: somebody or something has changed it");
    return v;
}

Result<Verdict> read_verdict(const std::string& path) {
    const auto text = read_kept(path);
    if (!text.ok()) return text.status();
    auto verdict = parse_verdict(*text);
    if (!verdict.ok()) return verdict.status().within(path);
    return verdict;
}

Result<std::string> verdict_directory() {
    const auto directory = user_directory();
    if (!directory.ok()) return directory.status();
    return *directory + "/probe";
}

std::string verdict_path(const std::string& directory, const DriveIdentity& drive) {
    return directory + "/" + drive.id() + ".json";
}

Status check_drive(const Verdict& verdict, const DriveIdentity& now) {
    const DriveIdentity& then = verdict.drive;
    struct Part {
        const char* name;
        std::string then, now;
    };
    for (const Part& p :
         {Part{"model", then.model, now.model}, Part{"serial number", then.serial, now.serial},
          Part{"size", std::to_string(then.bytes), std::to_string(now.bytes)},
          Part{"file system", then.file_system, now.file_system}, Part{"device", device_of(then), device_of(now)},
          Part{"source", source_of(then), source_of(now)}}) {
        if (p.then == p.now) continue;
        return error(Code::invalid_argument,
                     "the verdict is of another drive ({} \"{}\", here \"{}\"); sluice probe measures this one", p.name,
                     p.then, p.now);
    }
    if (then.scheduler != now.scheduler) {
        return error(
            Code::invalid_argument,
            "the drive was measured with the scheduler \"{}\", and has \"{}\" now; sluice probe measures again",
            then.scheduler, now.scheduler);
    }
    return {};
}

Result<Verdict> find_verdict(const std::string& path, const std::string& root) {
    const auto facts = read_drive(path, root);
    return facts.ok() ? find_verdict(*facts) : facts.status();
}

Result<Verdict> find_verdict(const DriveFacts& facts) {
    const auto directory = verdict_directory();
    if (!directory.ok()) return directory.status();
    const DriveIdentity now = identify(facts);
    auto verdict = read_verdict(verdict_path(*directory, now));
    if (!verdict.ok() && verdict.status().code() == Code::not_found)
        return error(Code::not_found, "the drive under {} was not measured yet: sluice probe {}", facts.path,
                     facts.path);
    if (!verdict.ok()) return verdict.status();
    if (Status s = check_drive(*verdict, now); !s) return s;
    return verdict;
}

}  // namespace sluice::machine
