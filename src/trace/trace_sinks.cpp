#include "trace/trace_sinks.h"

#include <utility>

#include "trace/json_values.h"
#include "trace/perfetto.h"
#include "trace/traces.h"

namespace sluice::trace {
namespace {

// Where in its sequence a row begins. Traces count tokens, the record counts rows.
class Position {
  public:
    int64_t of(const Row& row) {
        if (row.turn != turn_) next_ = 0;
        turn_ = row.turn;
        const int64_t begin = next_;
        next_ += row.tokens.or_zero();
        return begin;
    }

  private:
    Measure turn_;
    int64_t next_ = 0;
};

Phase phase_of(const Row& row) {
    return row.phase == Measure(0) ? Phase::prefill : Phase::decode;
}

class RouteSink final : public Sink {
  public:
    explicit RouteSink(std::shared_ptr<RouteTraceFile> file) : file_(std::move(file)) {}
    Status model(const Book& book, size_t number) override {
        if (number != 0) return {};
        RouteTraceModel model = route_trace_model(book.models[0]);
        model.lossy = lossy_in(book.header);
        return file_->begin(model);
    }

  private:
    std::shared_ptr<RouteTraceFile> file_;
};

// The preamble describes one model; a second one's rows would be taken for its.
class RouteEvents final : public EventSink {
  public:
    explicit RouteEvents(std::shared_ptr<RouteTraceFile> file) : file_(std::move(file)) {}
    Status events(const Row& row, const Pass& pass) override {
        if (row.model != Measure(0)) return {};
        return file_->rows(row.turn.or_zero(), phase_of(row), position_.of(row), pass.route_events);
    }

  private:
    std::shared_ptr<RouteTraceFile> file_;
    Position position_;
};

class IoEvents final : public EventSink {
  public:
    explicit IoEvents(std::unique_ptr<LineFile> file) : file_(std::move(file)) {}
    Status events(const Row& row, const Pass& pass) override {
        if (!begin_.ok()) return begin_;
        return file_.rows(row.turn.or_zero(), phase_of(row), position_.of(row), pass.read_events);
    }

  private:
    IoTraceFile file_;
    Status begin_ = file_.begin();
    Position position_;
};

class NodeEvents final : public EventSink {
  public:
    NodeEvents(std::unique_ptr<LineFile> file, ComputeTraceFile::Detail detail) : file_(std::move(file), detail) {}
    Status events(const Row& row, const Pass& pass) override {
        if (!begin_.ok()) return begin_;
        return file_.rows(row.turn.or_zero(), phase_of(row), position_.of(row), pass.node_events);
    }

  private:
    ComputeTraceFile file_;
    Status begin_ = file_.begin();
    Position position_;
};

class TokenEvents final : public EventSink {
  public:
    TokenEvents(std::unique_ptr<LineFile> file, int64_t row) : file_(std::move(file)), row_(row) {}
    Status events(const Row& row, const Pass& pass) override {
        if (phase_of(row) != Phase::decode || decoded_++ != row_ || !pass.capturing) return {};
        Capture capture;
        capture.row = row_;
        capture.begin = pass.spans.empty() ? 0 : pass.spans.front().begin;
        capture.end = capture.begin + row.wall.or_zero();
        capture.spans = pass.spans;
        capture.reads = pass.read_events;
        written_ = true;
        return file_->write(perfetto_json(capture) + "\n");
    }
    Status end() override {
        if (written_) return {};
        return error(Code::not_found, "{} is empty: token {} was never decoded, the run had {}", file_->path(), row_,
                     decoded_);
    }

  private:
    std::unique_ptr<LineFile> file_;
    int64_t row_;
    int64_t decoded_ = 0;
    bool written_ = false;
};

}  // namespace

RouteTrace make_route_trace(std::unique_ptr<LineFile> file) {
    auto shared = std::make_shared<RouteTraceFile>(std::move(file));
    return {std::make_unique<RouteSink>(shared), std::make_unique<RouteEvents>(shared)};
}

std::unique_ptr<EventSink> make_io_trace(std::unique_ptr<LineFile> file) {
    return std::make_unique<IoEvents>(std::move(file));
}

std::unique_ptr<EventSink> make_compute_trace(std::unique_ptr<LineFile> file) {
    return std::make_unique<NodeEvents>(std::move(file), ComputeTraceFile::Detail::nodes);
}

std::unique_ptr<EventSink> make_layer_trace(std::unique_ptr<LineFile> file) {
    return std::make_unique<NodeEvents>(std::move(file), ComputeTraceFile::Detail::layers);
}

std::unique_ptr<EventSink> make_token_trace(std::unique_ptr<LineFile> file, int64_t row) {
    return std::make_unique<TokenEvents>(std::move(file), row);
}

}  // namespace sluice::trace
