#include "trace/metrics.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>
#include <vector>

#include "trace/json_values.h"
#include "trace/utf8.h"
#include "trace/write.h"

namespace sluice::trace {
namespace {

constexpr Phase kPhases[] = {Phase::prefill, Phase::decode};
constexpr double kNanos = 1e9;  // in a second
// Upper bounds of the latency buckets: below powers of two, 16 us to 17 s. The histogram's own buckets end there, so
// the counts are exact.
constexpr unsigned kFirstPower = 14, kLastPower = 34;

void append_label(std::string& out, std::string_view name, std::string_view value) {
    out += out.empty() ? "{" : ",";
    out += name;
    out += "=\"";
    for (const char c : valid_utf8(value)) {
        if (c == '\\' || c == '"') out += '\\';
        if (c == '\n') {
            out += "\\n";
        } else {
            out += c;
        }
    }
    out += '"';
}

class Labels {
  public:
    Labels& with(std::string_view name, std::string_view value) {
        append_label(text_, name, value);
        return *this;
    }
    Labels& phase(Phase phase) { return with("phase", phase_name(phase)); }
    [[nodiscard]] std::string text() const { return text_.empty() ? "" : text_ + "}"; }

  private:
    std::string text_;
};

// One family at a time: all its lines stand together, under one HELP and TYPE.
class Exposition {
  public:
    // Its heading is written with its first line, so a family without values leaves no trace.
    void family(std::string name, const char* type, std::string help) {
        name_ = std::move(name);
        type_ = type;
        help_ = std::move(help);
        headed_ = false;
    }
    void value(const Labels& labels, double v, std::string_view suffix = "") {
        head();
        fmt::format_to(std::back_inserter(out_), "{}{}{} ", name_, suffix, labels.text());
        // Whole numbers whole: {:g} would round large counts.
        if (std::floor(v) == v && std::fabs(v) < 9e15) {
            append(out_, static_cast<int64_t>(v));
        } else {
            fmt::format_to(std::back_inserter(out_), "{}", v);
        }
        out_.push_back('\n');
    }
    // Divides, because dividing by 1e9 rounds correctly and multiplying with 1e-9 does not.
    void value(const Labels& labels, Measure m, double by) {
        if (m.known()) value(labels, static_cast<double>(m.value()) / by);
    }
    std::string text() { return {out_.data(), out_.size()}; }

  private:
    void head() {
        if (headed_) return;
        headed_ = true;
        std::string help;
        for (const char c : help_) help += c == '\\' ? "\\\\" : c == '\n' ? "\\n" : std::string(1, c);
        fmt::format_to(std::back_inserter(out_), "# HELP {} {}\n# TYPE {} {}\n", name_, help, name_, type_);
    }
    fmt::memory_buffer out_;
    std::string name_, help_;
    const char* type_ = "";
    bool headed_ = false;
};

double factor(const Column& column) {
    return column.unit == Unit::nanos ? kNanos : 1;
}

bool is_part(const Column& column) {
    const Column& first = part_column(Part::overhead);
    return &column >= &first && &column < &first + kParts;
}

void latency(Exposition& out, const Book& book) {
    bool sums = true;
    for (const Phase phase : kPhases) sums = sums && (book.of(phase).reads.sum().known() || book.of(phase).rows == 0);
    if (!sums) {
        // A histogram without its sum would be a wrong one; a record of an older version has none.
        out.family("sluice_read_latency_quantile_seconds", "gauge",
                   "issue to ready of a read, percentiles of the phase");
        for (const Phase phase : kPhases) {
            for (const auto& [label, share] : {std::pair{"0.5", 0.5}, {"0.95", 0.95}, {"0.99", 0.99}})
                out.value(Labels().phase(phase).with("quantile", label), book.of(phase).reads.percentile(share),
                          kNanos);
        }
        return;
    }
    out.family("sluice_read_latency_seconds", "histogram", "issue to ready of a read");
    for (const Phase phase : kPhases) {
        const Histogram& h = book.of(phase).reads;
        if (h.count() == 0) continue;
        uint64_t seen = 0;
        size_t b = 0;
        for (unsigned power = kFirstPower; power <= kLastPower; ++power) {
            const Nanos bound = (Nanos{1} << power) - 1;
            for (; b < Histogram::kBuckets && Histogram::upper_bound(b) <= bound; ++b) seen += h.in_bucket(b);
            out.value(Labels().phase(phase).with("le", fmt::format("{}", static_cast<double>(bound) / kNanos)),
                      static_cast<double>(seen), "_bucket");
        }
        out.value(Labels().phase(phase).with("le", "+Inf"), static_cast<double>(h.count()), "_bucket");
        out.value(Labels().phase(phase), static_cast<double>(h.sum().value()) / kNanos, "_sum");
        out.value(Labels().phase(phase), static_cast<double>(h.count()), "_count");
    }
}

void models(Exposition& out, const Book& book) {
    const auto name_of = [&](Measure number) {
        const auto n = static_cast<size_t>(number.or_zero());
        return n < book.models.size() ? text_in(book.models[n], "name") : "";
    };
    out.family("sluice_model_info", "gauge", "a model that was opened; always 1");
    for (size_t m = 0; m < book.models.size(); ++m) {
        const Json& j = book.models[m];
        out.value(Labels()
                      .with("model", text_in(j, "name"))
                      .with("number", std::to_string(m))
                      .with("arch", text_in(j, "arch"))
                      .with("digest", text_in(j, "digest")),
                  1);
    }
    if (book.header.is_object() && book.header.contains("lossy") && book.header["lossy"].is_array()) {
        out.family("sluice_lossy_info", "gauge", "an option is on that changes what models answer; always 1");
        for (const Json& option : book.header["lossy"]) {
            if (option.is_string()) out.value(Labels().with("option", option.get_ref<const std::string&>()), 1);
        }
    }
    // Of each model's cache, the newest.
    std::vector<const Json*> newest;
    for (const Json& cache : book.caches) {
        const auto n = static_cast<size_t>(measure_in(cache, "model").or_zero());
        if (n > book.models.size() + book.caches.size()) continue;
        if (newest.size() <= n) newest.resize(n + 1);
        newest[n] = &cache;
    }
    struct Gauge {
        const char *key, *name, *help;
    };
    for (const Gauge& g : {Gauge{"bytes", "sluice_model_cache_bytes", "memory of a model's expert cache"},
                           Gauge{"slots", "sluice_model_cache_slots", "slots of a model's expert cache"},
                           Gauge{"records", "sluice_model_experts", "experts of a model, over all layers"}}) {
        out.family(g.name, "gauge", g.help);
        for (size_t m = 0; m < newest.size(); ++m) {
            if (newest[m] == nullptr) continue;
            out.value(Labels().with("model", name_of(static_cast<int64_t>(m))).with("number", std::to_string(m)),
                      measure_in(*newest[m], g.key), 1);
        }
    }
}

}  // namespace

std::string metric_name(const Column& column) {
    std::string name = std::string("sluice_") + column.name;
    if (column.unit == Unit::nanos) name = name.substr(0, name.size() - 3) + "_seconds";
    return column.total == Total::sum ? name + "_total" : name;
}

std::string metrics_text(const Book& book, const Row& newest) {
    Exposition out;
    out.family("sluice_rows_total", "counter", "batches of prefill, tokens of decode");
    for (const Phase phase : kPhases) out.value(Labels().phase(phase), static_cast<double>(book.of(phase).rows));

    out.family("sluice_part_seconds_total", "counter", "wall time by where it went; the parts sum to the wall time");
    for (const Phase phase : kPhases) {
        for (size_t p = 0; p < kParts; ++p) {
            out.value(Labels().phase(phase).with("part", part_name(static_cast<Part>(p))), book.of(phase).sum.parts[p],
                      kNanos);
        }
    }
    for (const Column& c : columns()) {
        if (c.total == Total::none || is_part(c)) continue;
        out.family(metric_name(c), c.total == Total::sum ? "counter" : "gauge", c.help);
        if (c.total == Total::last) {
            out.value(Labels(), value_of(c, newest), factor(c));
            continue;
        }
        for (const Phase phase : kPhases) out.value(Labels().phase(phase), value_of(c, book.of(phase).sum), factor(c));
    }
    latency(out, book);
    models(out, book);
    return out.text();
}

std::string metrics_text(const Book& book) {
    Row newest;
    for (const Column& c : columns()) {
        if (c.total != Total::last) continue;
        const Measure of_decode = value_of(c, book.of(Phase::decode).sum);
        c.of(newest) = of_decode.known() ? of_decode : value_of(c, book.of(Phase::prefill).sum);
    }
    return metrics_text(book, newest);
}

Status Metrics::take(const Book& book) {
    const std::lock_guard lock(mutex_);
    book_.header = book.header;
    book_.models = book.models;
    book_.caches = book.caches;
    book_.phases = book.phases;
    return {};
}

Status Metrics::begin(const Book& book) {
    return take(book);
}

Status Metrics::model(const Book& book, size_t) {
    return take(book);
}

Status Metrics::cache(const Book& book, const Json&) {
    return take(book);
}

Status Metrics::load(const Book& book) {
    return take(book);
}

Status Metrics::row(const Book& book, const Row& row, std::string_view) {
    const std::lock_guard lock(mutex_);
    book_.phases = book.phases;
    all_.add(row);
    return {};
}

Status Metrics::end(const Book& book) {
    return take(book);
}

std::string Metrics::text() const {
    Book book;
    Row newest;
    {
        const std::lock_guard lock(mutex_);
        book = book_;
        newest = all_.sum;
    }
    return metrics_text(book, newest);
}

}  // namespace sluice::trace
