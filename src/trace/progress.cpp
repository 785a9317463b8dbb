#include "trace/progress.h"

#include <cmath>
#include <iterator>
#include <utility>

#include "trace/json_values.h"
#include "trace/write.h"

namespace sluice::trace {
namespace {

// Appends to one object.
class Object {
  public:
    Object(fmt::memory_buffer& out, std::string_view word) : out_(out) {
        out_.clear();
        append(out_, word);
        append(out_, " {");
    }
    void number(std::string_view name, std::optional<double> value, int decimals) {
        key(name);
        if (value && std::isfinite(*value)) {
            fmt::format_to(std::back_inserter(out_), "{:.{}f}", *value, decimals);
        } else {
            append(out_, "null");
        }
    }
    void number(std::string_view name, Measure value) {
        key(name);
        if (value.known()) {
            append(out_, value.value());
        } else {
            append(out_, "null");
        }
    }
    void text(std::string_view name, std::string_view value) {
        key(name);
        append_json_string(out_, value);
    }
    // Null where it is empty.
    void text_or_null(std::string_view name, std::string_view value) {
        if (value.empty()) {
            number(name, Measure());
        } else {
            text(name, value);
        }
    }
    void begin(std::string_view name) {
        key(name);
        out_.push_back('{');
        first_ = true;
    }
    void end() {
        out_.push_back('}');
        first_ = false;
    }
    std::string_view line() {
        append(out_, "}\n");
        return {out_.data(), out_.size()};
    }

  private:
    void key(std::string_view name) {
        if (!first_) out_.push_back(',');
        first_ = false;
        append_json_string(out_, name);
        out_.push_back(':');
    }
    fmt::memory_buffer& out_;
    bool first_ = true;
};

std::optional<double> scaled(Measure m, double by) {
    return m.known() ? std::optional<double>(static_cast<double>(m.value()) * by) : std::nullopt;
}

constexpr double kMiB = 1.0 / (1 << 20);

class ProgressSink final : public Sink {
  public:
    ProgressSink(LineWriter write, Planned planned) : write_(std::move(write)), planned_(planned) {}

    Status load(const Book& book) override {
        Object o(buffer_, "SLUICE_LOAD");
        o.number("mb", scaled(measure_in(book.load, "dense_bytes"), kMiB), 1);
        o.number("ms", scaled(measure_in(book.load, "load_ns"), 1e-6), 1);
        const Json& model = book.models.empty() ? Json() : book.models.front();
        o.text_or_null("model", text_in(model, "name"));
        o.text_or_null("arch", text_in(model, "arch"));
        if (const std::string lossy = lossy_in(book.header); !lossy.empty()) o.text("lossy", lossy);
        return write_(o.line());
    }

    Status row(const Book& book, const Row& row, std::string_view text) override {
        Object o(buffer_, "SLUICE_PROGRESS");
        o.text_or_null("phase", row.phase.known() ? phase_name(static_cast<Phase>(row.phase.value())) : "");
        o.number("tokens", row.tokens);
        o.number("output_tokens", row.output_tokens);
        for (const char* name : {"turn", "step", "steps", "wall_ms", "io_ms", "compute_ms", "mgmt_ms", "stall_ms"})
            plain(o, name, book, row);
        o.number("read_mb", scaled(asked_of_drive(row), kMiB), 3);
        for (const char* name : {"cache_hit_pct", "majflt", "cpu_ms", "dense_resident_frac"}) plain(o, name, book, row);
        o.number("tokens_per_second", figure("tokens_per_second", book.of(Phase::decode)), 3);
        o.text("delta_text", text);
        return write_(o.line());
    }

    Status end(const Book& book) override {
        Object o(buffer_, "SLUICE_END");
        o.text("status", book.ending.status);
        o.text_or_null("error", book.ending.error);
        o.text_or_null("output_digest", book.ending.output_digest);
        for (const Phase phase : {Phase::prefill, Phase::decode}) {
            const Totals& totals = book.of(phase);
            o.begin(phase_name(phase));
            o.number("rows", static_cast<int64_t>(totals.rows));
            for (const char* name : {"tokens", "output_tokens", "wall_ns"})
                o.number(name, value_of(*find_column(name), totals.sum));
            for (const Figure& f : figures()) o.number(f.name, f.of(totals), 6);
            o.text_or_null("binds", what_binds(totals));
            o.end();
        }
        return write_(o.line());
    }

  private:
    void plain(Object& o, const char* name, const Book& book, const Row& row) const {
        const PlainColumn& c = *find_plain_column(name);
        o.number(name, c.of(book, row, planned_), c.decimals);
    }

    LineWriter write_;
    Planned planned_;
    fmt::memory_buffer buffer_;
};

}  // namespace

std::unique_ptr<Sink> make_progress_sink(LineWriter write, Planned planned) {
    return std::make_unique<ProgressSink>(std::move(write), planned);
}

}  // namespace sluice::trace
