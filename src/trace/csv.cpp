#include "trace/csv.h"

#include <iterator>

#include "trace/write.h"

namespace sluice::trace {
namespace {

void append_pair(fmt::memory_buffer& out, std::string_view key, std::string_view value) {
    append_csv_field(out, key);
    out.push_back('=');
    append_csv_field(out, value);
}

class CsvSink final : public Sink {
  public:
    CsvSink(std::unique_ptr<LineFile> file, Planned planned) : file_(std::move(file)), planned_(planned) {}

    Status begin(const Book& book) override {
        buffer_.clear();
        append(buffer_, "# sluice_metrics v1\n");
        append_values(book.header, "");
        return flush();
    }
    Status model(const Book& book, size_t number) override {
        return values(book.models[number], "model." + std::to_string(number));
    }
    Status cache(const Book&, const Json& cache) override { return values(cache, "cache"); }
    Status load(const Book& book) override { return values(book.load, "load"); }

    Status row(const Book& book, const Row& row, std::string_view) override {
        buffer_.clear();
        append_header_once();
        for (const PlainColumn& c : plain_columns()) {
            if (&c != plain_columns().data()) buffer_.push_back(',');
            const auto v = c.of(book, row, planned_);
            if (v) fmt::format_to(std::back_inserter(buffer_), "{:.{}f}", *v, c.decimals);
        }
        for (const Column& c : columns()) {
            if (find_plain_column(c.name) != nullptr) continue;
            buffer_.push_back(',');
            const Measure m = value_of(c, row);
            if (m.known()) append(buffer_, m.value());
        }
        buffer_.push_back('\n');
        return flush();
    }

    Status end(const Book& book) override {
        buffer_.clear();
        append_header_once();
        for (const Phase phase : {Phase::prefill, Phase::decode}) {
            if (book.of(phase).rows > 0) append_summary(book.of(phase), phase);
        }
        append(buffer_, "# end ");
        append_pair(buffer_, "status", book.ending.status);
        buffer_.push_back(' ');
        append_pair(buffer_, "error", book.ending.error);
        buffer_.push_back('\n');
        return flush();
    }

  private:
    void append_header_once() {
        if (has_header_) return;
        append(buffer_, csv_header());
        has_header_ = true;
    }
    void append_values(const Json& j, const std::string& path) {
        for_each_value(j, path, [&](const std::string& key, const std::string& value) {
            if (key == "kind" || (key.size() > 5 && key.ends_with(".kind"))) return;
            append(buffer_, "# ");
            append_pair(buffer_, key, value);
            buffer_.push_back('\n');
        });
    }
    Status values(const Json& j, const std::string& path) {
        buffer_.clear();
        append_values(j, path);
        return flush();
    }
    void append_summary(const Totals& totals, Phase phase) {
        append(buffer_, "# summary phase=");
        append(buffer_, phase_name(phase));
        append(buffer_, " rows=");
        append(buffer_, totals.rows);
        for (const Column& c : columns()) {
            if (c.total == Total::none) continue;
            const Measure m = value_of(c, totals.sum);
            buffer_.push_back(' ');
            append(buffer_, c.name);
            buffer_.push_back('=');
            if (m.known()) append(buffer_, m.value());
        }
        for (const Figure& f : figures()) {
            const auto v = f.of(totals);
            fmt::format_to(std::back_inserter(buffer_), " {}=", f.name);
            if (v) fmt::format_to(std::back_inserter(buffer_), "{:.6g}", *v);
        }
        append(buffer_, " binds=");
        append(buffer_, what_binds(totals));
        buffer_.push_back('\n');
    }
    Status flush() { return file_->write({buffer_.data(), buffer_.size()}); }

    std::unique_ptr<LineFile> file_;
    Planned planned_;
    fmt::memory_buffer buffer_;
    bool has_header_ = false;
};

}  // namespace

std::unique_ptr<Sink> make_csv_sink(std::unique_ptr<LineFile> file, Planned planned) {
    return std::make_unique<CsvSink>(std::move(file), planned);
}

std::string csv_header() {
    std::string out;
    for (const PlainColumn& c : plain_columns()) out += std::string(out.empty() ? "" : ",") + c.name;
    for (const Column& c : columns()) {
        if (find_plain_column(c.name) == nullptr) out += std::string(",") + c.name;
    }
    return out + "\n";
}

}  // namespace sluice::trace
