#include "trace/record_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>

#include "base/write_all.h"
#include "trace/json_values.h"
#include "trace/write.h"

namespace sluice::trace {
namespace {

// Of one line of a record that is read back. The longest real ones hold an expert's use counts: a few hundred KiB.
constexpr size_t kMaxLine = size_t{64} << 20;
constexpr size_t kMaxRows = 10'000'000;
constexpr size_t kMaxModels = 4096;
constexpr size_t kMaxLayers = 4096;
constexpr int kMaxDepth = 64;

template <typename Member>
void append_layers(fmt::memory_buffer& out, const char* name, const std::vector<Row::Layer>& layers, Member member) {
    append(out, name);
    for (size_t i = 0; i < layers.size(); ++i) {
        if (i > 0) out.push_back(',');
        append(out, layers[i].*member);
    }
}

Json totals_json(const Totals& totals) {
    Json j = Json::object();
    for (const Column& c : columns()) {
        if (c.total == Total::none) continue;
        const Measure m = value_of(c, totals.sum);
        j[c.name] = m.known() ? Json(m.value()) : Json(nullptr);
    }
    return j;
}

Json summary_json(const Book& book, Phase phase) {
    const Totals& totals = book.of(phase);
    Json figures_json = Json::object();
    for (const Figure& f : figures()) {
        const auto v = f.of(totals);
        figures_json[f.name] = v ? Json(*v) : Json(nullptr);
    }
    const std::string binds = what_binds(totals);
    return {{"kind", "summary"},       {"phase", phase_name(phase)},
            {"rows", totals.rows},     {"totals", totals_json(totals)},
            {"figures", figures_json}, {"binds", binds.empty() ? Json(nullptr) : Json(binds)}};
}

Json rest_json(const Book& book) {
    Json j = {{"kind", "rest"}, {"phase", phase_name(book.rest_phase)}};
    for (const Column& c : columns()) {
        const Measure m = value_of(c, *book.rest);
        if (m.known()) j[c.name] = m.value();
    }
    return j;
}

Json latency_json(const Book& book, Phase phase) {
    const Histogram& h = book.of(phase).reads;
    Json buckets = Json::array();
    for (size_t b = 0; b < Histogram::kBuckets; ++b) {
        if (h.in_bucket(b) > 0) buckets.push_back({Histogram::upper_bound(b), h.in_bucket(b)});
    }
    return {{"kind", "latency"},
            {"phase", phase_name(phase)},
            {"rows", book.of(phase).rows},
            {"largest_ns", h.largest()},
            {"sum_ns", h.sum().known() ? Json(h.sum().value()) : Json(nullptr)},
            {"buckets", std::move(buckets)}};
}

class RecordSink final : public Sink {
  public:
    explicit RecordSink(std::unique_ptr<LineFile> file) : file_(std::move(file)) {}

    Status begin(const Book& book) override { return line(book.header); }
    Status model(const Book& book, size_t number) override { return line(book.models[number]); }
    Status cache(const Book&, const Json& cache) override { return line(cache); }
    Status guesses(const Book&, const Json& guesses) override { return line(guesses); }
    Status load(const Book& book) override { return line(book.load); }
    Status row(const Book&, const Row& row, std::string_view) override {
        buffer_.clear();
        append_row_json(buffer_, row);
        return file_->write({buffer_.data(), buffer_.size()});
    }
    Status checkpoint(const Book& book) override {
        for (const Phase phase : {Phase::prefill, Phase::decode}) {
            if (book.of(phase).reads.count() == 0) continue;
            if (Status s = line(latency_json(book, phase)); !s.ok()) return s;
        }
        for (size_t m = 0; m < book.experts.size(); ++m) {
            const ExpertUse& e = book.experts[m];
            if (Status s = line({{"kind", "experts"}, {"model", m}, {"uses", e.uses}, {"misses", e.misses}}); !s.ok())
                return s;
        }
        return {};
    }
    Status end(const Book& book) override {
        if (Status s = checkpoint(book); !s.ok()) return s;
        if (book.rest) {
            if (Status s = line(rest_json(book)); !s.ok()) return s;
        }
        for (const Phase phase : {Phase::prefill, Phase::decode}) {
            if (book.of(phase).rows == 0) continue;
            if (Status s = line(summary_json(book, phase)); !s.ok()) return s;
        }
        const Ending& e = book.ending;
        return line({{"kind", "end"},
                     {"status", e.status},
                     {"error", e.error.empty() ? Json(nullptr) : Json(e.error)},
                     {"output_digest", e.output_digest.empty() ? Json(nullptr) : Json(e.output_digest)},
                     {"routes_digest", book.of(Phase::prefill).rows + book.of(Phase::decode).rows == 0
                                           ? Json(nullptr)
                                           : Json(fmt::format("{:016x}", book.routes_digest))}});
    }

  private:
    Status line(const Json& j) {
        // Names of files need not be UTF-8.
        return file_->write(j.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
    }

    std::unique_ptr<LineFile> file_;
    fmt::memory_buffer buffer_;
};

// ---- reading

// The values that a record may hold are ours; a file may hold anything. Everything below looks before it takes.
void read_layers(const Json& layers, const char* name, std::vector<Row::Layer>& out, int64_t Row::Layer::*member) {
    const auto it = layers.find(name);
    if (it == layers.end() || !it->is_array() || it->size() > kMaxLayers) return;
    if (out.size() < it->size()) out.resize(it->size());
    for (size_t i = 0; i < it->size(); ++i) {
        if ((*it)[i].is_number_integer()) out[i].*member = std::max<int64_t>(0, (*it)[i].get<int64_t>());
    }
}

Row row_from(const Json& j) {
    Row row;
    for (const Column& c : columns()) c.of(row) = measure_in(j, c.name);
    const auto layers = j.find("layers");
    if (layers == j.end() || !layers->is_object()) return row;
    read_layers(*layers, "wait_ns", row.layers, &Row::Layer::wait);
    read_layers(*layers, "routed_ns", row.layers, &Row::Layer::routed);
    read_layers(*layers, "lookups", row.layers, &Row::Layer::lookups);
    read_layers(*layers, "hits", row.layers, &Row::Layer::hits);
    read_layers(*layers, "physical_bytes", row.layers, &Row::Layer::physical);
    return row;
}

std::vector<std::vector<uint32_t>> table_from(const Json& j, const char* name) {
    std::vector<std::vector<uint32_t>> out;
    const auto it = j.find(name);
    if (it == j.end() || !it->is_array() || it->size() > kMaxLayers) return out;
    for (const Json& row : *it) {
        out.emplace_back();
        if (!row.is_array()) continue;
        for (const Json& n : row) {
            const uint64_t v = n.is_number_unsigned() ? n.get<uint64_t>() : 0;
            out.back().push_back(static_cast<uint32_t>(std::min<uint64_t>(v, UINT32_MAX)));
        }
    }
    return out;
}

Histogram histogram_from(const Json& j) {
    Histogram h;
    const auto it = j.find("buckets");
    if (it == j.end() || !it->is_array()) return h;
    for (const Json& b : *it) {
        if (!b.is_array() || b.size() != 2 || !b[0].is_number_integer() || !b[1].is_number_unsigned()) continue;
        h.add_bucket(Histogram::bucket_of(b[0].get<int64_t>()), b[1].get<uint64_t>());
    }
    h.note_largest(measure_in(j, "largest_ns").or_zero());
    h.note_sum(measure_in(j, "sum_ns"));
    return h;
}

Phase phase_in(const Json& j) {
    return text_in(j, "phase") == "prefill" ? Phase::prefill : Phase::decode;
}

// Deeper ones would exhaust the stack of whoever walks through them.
bool is_nested_too_deeply(std::string_view text) {
    int depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (quoted) {
            if (c == '\\') ++i;
            if (c == '"') quoted = false;
        } else if (c == '"') {
            quoted = true;
        } else if (c == '[' || c == '{') {
            if (++depth > kMaxDepth) return true;
        } else if (c == ']' || c == '}') {
            --depth;
        }
    }
    return false;
}

// One line of a record after the first.
Status take_line(Record& record, const Json& j, size_t number) {
    const std::string kind = text_in(j, "kind");
    Book& book = record.book;
    if (kind == "row") {
        if (record.rows.size() >= kMaxRows) return error(Code::unsupported, "more than {} rows", kMaxRows);
        record.rows.push_back(row_from(j));
        const Row& row = record.rows.back();
        if (!row.phase.known() || row.phase.value() > 1)
            return error(Code::corrupt, "line {}: a row of no phase", number);
        book.phases[static_cast<size_t>(row.phase.value())].add(row);
    } else if (kind == "model") {
        if (book.models.size() >= kMaxModels) return error(Code::unsupported, "more than {} models", kMaxModels);
        book.models.push_back(j);
    } else if (kind == "cache") {
        book.caches.push_back(j);
    } else if (kind == "predict") {
        if (book.guesses.size() >= kMaxModels)
            return error(Code::unsupported, "guesses of more than {} models", kMaxModels);
        book.guesses.push_back(j);
    } else if (kind == "load") {
        book.load = j;
    } else if (kind == "latency") {
        book.of(phase_in(j)).reads = histogram_from(j);
    } else if (kind == "experts") {
        const int64_t m = measure_in(j, "model").or_zero();
        if (m >= static_cast<int64_t>(kMaxModels)) return error(Code::corrupt, "line {}: model {}", number, m);
        if (book.experts.size() <= static_cast<size_t>(m)) book.experts.resize(static_cast<size_t>(m) + 1);
        book.experts[static_cast<size_t>(m)] = {table_from(j, "uses"), table_from(j, "misses")};
    } else if (kind == "rest") {
        book.rest = row_from(j);
        book.rest_phase = phase_in(j);
        book.of(book.rest_phase).add_rest(*book.rest);
    } else if (kind == "end") {
        record.ended = true;
        book.ending = {text_in(j, "status"), text_in(j, "error"), text_in(j, "output_digest")};
        book.routes_digest = std::strtoull(text_in(j, "routes_digest").c_str(), nullptr, 16);
    }
    // Summaries are made anew; kinds of later versions are passed over.
    return {};
}

}  // namespace

Result<std::unique_ptr<LineFile>> LineFile::open(const std::string& path) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) return error(Code::io_error, "cannot open {} for writing: {}", path, std::strerror(errno));
    std::unique_ptr<LineFile> file(new LineFile(fd, path));
    struct stat st {};
    file->regular_ = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    if (!file->regular_) return file;
    // A slip of the hand must not cost a model.
    const int look = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    std::array<char, 4> magic{};
    const bool model = look >= 0 && ::pread(look, magic.data(), magic.size(), 0) == 4 &&
                       std::string_view(magic.data(), magic.size()) == "GGUF";
    if (look >= 0) ::close(look);
    if (model) return error(Code::invalid_argument, "{} is a model: it is not overwritten", path);
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        return error(Code::invalid_argument, "{} is being written already, by another output or another process", path);
    }
    return file;
}

LineFile::~LineFile() {
    ::close(fd_);
}

namespace {

// A reader that has left must not end the host: the signal of a broken pipe is kept from it.
class NoPipeSignal {
  public:
    NoPipeSignal() {
        sigset_t pending;
        sigemptyset(&pipe_);
        sigaddset(&pipe_, SIGPIPE);
        sigpending(&pending);
        was_pending_ = sigismember(&pending, SIGPIPE) == 1;
        if (!was_pending_) pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
    }
    ~NoPipeSignal() {
        if (was_pending_) return;
        const timespec now{};
        while (sigtimedwait(&pipe_, nullptr, &now) < 0 && errno == EINTR) {
        }
        pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }
    NoPipeSignal(const NoPipeSignal&) = delete;
    NoPipeSignal& operator=(const NoPipeSignal&) = delete;

  private:
    sigset_t pipe_{}, before_{};
    bool was_pending_ = false;
};

}  // namespace

Status LineFile::write(std::string_view text) {
    // What was there before goes when there is something to put in its place.
    if (regular_ && !begun_ && ::ftruncate(fd_, 0) != 0) {
        return error(Code::io_error, "cannot empty {}: {}", path_, std::strerror(errno));
    }
    begun_ = true;
    std::optional<NoPipeSignal> quiet;
    if (!regular_) quiet.emplace();
    const int failed = write_all(fd_, text);
    return failed == 0 ? Status() : error(Code::io_error, "cannot write to {}: {}", path_, std::strerror(failed));
}

std::unique_ptr<Sink> make_record_sink(std::unique_ptr<LineFile> file) {
    return std::make_unique<RecordSink>(std::move(file));
}

void append_row_json(fmt::memory_buffer& out, const Row& row) {
    append(out, R"({"kind":"row")");
    for (const Column& c : columns()) {
        append(out, ",\"");
        append(out, c.name);
        append(out, "\":");
        const Measure m = value_of(c, row);
        if (!m.known()) {
            append(out, "null");
            continue;
        }
        append(out, m.value());
    }
    if (!row.layers.empty()) {
        append_layers(out, R"(,"layers":{"wait_ns":[)", row.layers, &Row::Layer::wait);
        append_layers(out, R"(],"routed_ns":[)", row.layers, &Row::Layer::routed);
        append_layers(out, R"(],"lookups":[)", row.layers, &Row::Layer::lookups);
        append_layers(out, R"(],"hits":[)", row.layers, &Row::Layer::hits);
        append_layers(out, R"(],"physical_bytes":[)", row.layers, &Row::Layer::physical);
        append(out, "]}");
    }
    append(out, "}\n");
}

Result<Record> read_record(const std::string& file_path, const std::string& path) {
    std::ifstream file(file_path, std::ios::binary);
    if (!file) return error(Code::not_found, "cannot open {}: {}", path, std::strerror(errno));
    Record record;
    record.path = path;
    std::string text;
    size_t number = 0;
    while (std::getline(file, text)) {
        ++number;
        const bool whole = !file.eof();  // otherwise its newline is missing
        if (text.size() > kMaxLine) return error(Code::corrupt, "{}: line {} is longer than a record's", path, number);
        const Json j = is_nested_too_deeply(text) ? Json() : Json::parse(text, nullptr, false);
        if (j.is_discarded() || !j.is_object()) {
            if (number == 1) return error(Code::corrupt, "{} is not a run record (its first line is not JSON)", path);
            if (!whole) {
                record.cut_short = true;
                break;
            }
            return error(Code::corrupt, "{}: line {} is not JSON", path, number);
        }
        if (number == 1) {
            const Measure schema = measure_in(j, "sluice_record");
            if (!schema.known()) return error(Code::corrupt, "{} is not a run record", path);
            if (schema.value() > kSchemaVersion) {
                return error(Code::unsupported, "{} has schema {}, this Sluice knows up to {}", path, schema.value(),
                             kSchemaVersion);
            }
            if (text_in(j, "kind") != "run") {
                return error(Code::unsupported, "{} is a record of kind \"{}\", not of a run", path,
                             text_in(j, "kind"));
            }
            record.book.header = j;
            continue;
        }
        if (Status s = take_line(record, j, number); !s.ok()) return s.within(path);
    }
    if (number == 0) return error(Code::corrupt, "{} is empty", path);
    return record;
}

Status replay(const Record& record, Sink& sink) {
    Book book;
    const Book& whole = record.book;
    book.header = whole.header;
    if (Status s = sink.begin(book); !s.ok()) return s;
    for (const Json& m : whole.models) {
        book.models.push_back(m);
        if (Status s = sink.model(book, book.models.size() - 1); !s.ok()) return s;
    }
    if (!whole.load.is_null()) {
        book.load = whole.load;
        if (Status s = sink.load(book); !s.ok()) return s;
    }
    for (const Json& c : whole.caches) {
        book.caches.push_back(c);
        if (Status s = sink.cache(book, c); !s.ok()) return s;
    }
    for (const Row& row : record.rows) {
        book.phases[static_cast<size_t>(row.phase.value())].add(row);
        if (Status s = sink.row(book, row, ""); !s.ok()) return s;
    }
    for (const Json& g : whole.guesses) {
        book.guesses.push_back(g);
        if (Status s = sink.guesses(book, g); !s.ok()) return s;
    }
    book = whole;
    return sink.end(book);
}

}  // namespace sluice::trace
