#include "trace/perfetto.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <numeric>

#include "trace/write.h"

namespace sluice::trace {
namespace {

constexpr int64_t kProcess = 1;
constexpr int64_t kCompute = 1;
constexpr int64_t kFirstLane = 2;

class Picture {
  public:
    explicit Picture(Nanos zero) : zero_(zero) { append(out_, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":["); }

    void name(const char* what, int64_t thread, std::string_view value) {
        begin(what, "M", thread);
        append(out_, ",\"args\":{\"name\":");
        append_json_string(out_, value);
        append(out_, "}}");
    }
    void order(int64_t thread) {
        begin("thread_sort_index", "M", thread);
        fmt::format_to(std::back_inserter(out_), ",\"args\":{{\"sort_index\":{}}}}}", thread);
    }
    // Arguments follow until close().
    void span(std::string_view name, int64_t thread, Nanos from, Nanos to) {
        begin(name, "X", thread);
        append(out_, ",\"ts\":");
        micros(from - zero_);
        append(out_, ",\"dur\":");
        micros(std::max<Nanos>(0, to - from));
        append(out_, ",\"args\":{");
        first_argument_ = true;
    }
    void argument(std::string_view name, int64_t value) {
        key(name);
        append(out_, value);
    }
    void argument(std::string_view name, std::string_view value) {
        key(name);
        append_json_string(out_, value);
    }
    void close() { append(out_, "}}"); }
    std::string text() {
        append(out_, "\n]}\n");
        return {out_.data(), out_.size()};
    }

  private:
    void begin(std::string_view name, std::string_view kind, int64_t thread) {
        append(out_, first_ ? "\n" : ",\n");
        first_ = false;
        append(out_, "{\"name\":");
        append_json_string(out_, name);
        fmt::format_to(std::back_inserter(out_), R"(,"ph":"{}","pid":{},"tid":{})", kind, kProcess, thread);
    }
    void key(std::string_view name) {
        if (!first_argument_) out_.push_back(',');
        first_argument_ = false;
        append_json_string(out_, name);
        out_.push_back(':');
    }
    // Fractions kept: a double would round long ones.
    void micros(Nanos n) {
        if (n < 0) out_.push_back('-');
        const uint64_t size = n < 0 ? uint64_t{0} - static_cast<uint64_t>(n) : static_cast<uint64_t>(n);
        fmt::format_to(std::back_inserter(out_), "{}.{:03}", size / 1000, size % 1000);
    }

    Nanos zero_;
    fmt::memory_buffer out_;
    bool first_ = true, first_argument_ = true;
};

// A lane for each read, so that those of one lane never overlap: in the order of issue, the first lane that is free.
std::vector<size_t> lanes_of(const std::vector<ReadEvent>& reads) {
    std::vector<size_t> order(reads.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return reads[a].issued < reads[b].issued; });
    std::vector<size_t> lanes(reads.size());
    std::vector<Nanos> free_at;
    for (const size_t r : order) {
        auto lane = std::find_if(free_at.begin(), free_at.end(), [&](Nanos t) { return t <= reads[r].issued; });
        if (lane == free_at.end()) lane = free_at.insert(free_at.end(), 0);
        *lane = std::max(reads[r].issued, reads[r].ready);
        lanes[r] = static_cast<size_t>(lane - free_at.begin());
    }
    return lanes;
}

}  // namespace

std::string perfetto_json(const Capture& capture) {
    Picture picture(capture.begin);
    picture.name("process_name", kCompute, fmt::format("sluice, row {}", capture.row));
    picture.name("thread_name", kCompute, "compute");
    picture.order(kCompute);
    const std::vector<size_t> lanes = lanes_of(capture.reads);
    const size_t n_lanes = lanes.empty() ? 0 : *std::max_element(lanes.begin(), lanes.end()) + 1;
    for (size_t l = 0; l < n_lanes; ++l) {
        const int64_t thread = kFirstLane + static_cast<int64_t>(l);
        picture.name("thread_name", thread, fmt::format("reads, lane {}", l));
        picture.order(thread);
    }
    for (const Span& s : capture.spans) {
        picture.span(part_name(s.part), kCompute, s.begin, s.end);
        if (s.layer >= 0) picture.argument("layer", s.layer);
        picture.close();
    }
    for (size_t r = 0; r < capture.reads.size(); ++r) {
        const ReadEvent& e = capture.reads[r];
        picture.span(fmt::format("{}.{} {}", e.layer, e.expert, e.projection),
                     kFirstLane + static_cast<int64_t>(lanes[r]), e.issued, e.ready);
        picture.argument("layer", e.layer);
        picture.argument("expert", e.expert);
        picture.argument("projection", e.projection);
        picture.argument("ticket", e.ticket);
        picture.argument("offset", static_cast<int64_t>(e.offset));
        picture.argument("needed_bytes", e.need);
        picture.argument("read_bytes", e.length);
        picture.argument("latency_ns", e.ready - e.issued);
        if (e.error != 0) picture.argument("error", e.error);
        picture.close();
    }
    return picture.text();
}

}  // namespace sluice::trace
