#include "trace/traces.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "trace/json_values.h"
#include "trace/write.h"

namespace sluice::trace {
namespace {

// Of a layer's number: anything above is no layer.
constexpr int32_t kMaxLayers = 4096;

void comma(fmt::memory_buffer& out) {
    out.push_back(',');
}

void append_number(fmt::memory_buffer& out, int64_t n) {
    append(out, n);
}

void append_flag(fmt::memory_buffer& out, bool flag) {
    out.push_back(flag ? '1' : '0');
}

// "turn,phase,step,"
void append_place(fmt::memory_buffer& out, int64_t turn, Phase phase, int64_t step) {
    append_number(out, turn);
    comma(out);
    append_number(out, static_cast<int64_t>(phase));
    comma(out);
    append_number(out, step);
    comma(out);
}

std::string_view text_of(const fmt::memory_buffer& buffer) {
    return {buffer.data(), buffer.size()};
}

// The number in `j[name]`, or in its member `i` where it is a list.
Measure number_at(const Json& j, const char* name, size_t i) {
    if (!j.is_object()) return {};
    const auto it = j.find(name);
    if (it == j.end()) return {};
    if (!it->is_array()) return measure_in(j, name);
    if (i >= it->size() || !(*it)[i].is_number_integer()) return {};
    const auto v = (*it)[i].get<int64_t>();
    return v < 0 ? Measure() : Measure(v);
}

}  // namespace

RouteTraceModel route_trace_model(const Json& model) {
    RouteTraceModel out;
    out.name = text_in(model, "name");
    out.arch = text_in(model, "arch");
    out.experts = number_at(model, "experts", 0);
    out.used = number_at(model, "top_k", 0);
    out.layers = number_at(model, "n_layer", 0);
    const auto layers = model.is_object() ? model.find("layers") : model.end();
    if (layers == model.end() || !layers->is_array()) return out;
    for (size_t i = 0; i < layers->size() && i < static_cast<size_t>(kMaxLayers); ++i) {
        const Measure layer = number_at(model, "layers", i);
        if (!layer.known()) continue;
        out.sizes.push_back(
            {layer.value(), number_at(model, "record_bytes", i), number_at(model, "layer_dense_bytes", i)});
    }
    return out;
}

Status RouteTraceFile::begin(const RouteTraceModel& model) {
    buffer_.clear();
    const auto pair = [&](std::string_view name, Measure value) {
        if (!value.known()) return;
        fmt::format_to(std::back_inserter(buffer_), " {}={}", name, value.value());
    };
    append(buffer_, "# route_trace v1\n# model=");
    append_csv_field(buffer_, model.name);
    append(buffer_, " arch=");
    append_csv_field(buffer_, model.arch);
    pair("n_layer", model.layers);
    pair("n_expert", model.experts);
    pair("n_expert_used", model.used);
    if (!model.lossy.empty()) {
        append(buffer_, "\n# lossy=");
        append(buffer_, model.lossy);
    }
    for (const RouteTraceModel::Layer& l : model.sizes) {
        append(buffer_, "\n#");
        pair("layer", l.layer);
        pair("expert_bytes", l.expert_bytes);
        pair("dense_bytes", l.dense_bytes);
    }
    append(buffer_, "\nturn,phase,step,layer,slot,expert,weight,residency,expert_bytes,dropped\n");
    Status s = file_->write(text_of(buffer_));
    begun_ = s.ok();
    return s;
}

Status RouteTraceFile::rows(int64_t turn, Phase phase, int64_t position, std::span<const RouteEvent> events) {
    if (events.empty() || !begun_) return {};
    buffer_.clear();
    for (const RouteEvent& e : events) {
        append_place(buffer_, turn, phase, Measure::saturating_add(position, e.token));
        append_number(buffer_, e.layer);
        comma(buffer_);
        append_number(buffer_, e.rank);
        comma(buffer_);
        append_number(buffer_, e.expert);
        comma(buffer_);
        if (std::isnan(e.weight)) {
            append(buffer_, "nan");
        } else {
            fmt::format_to(std::back_inserter(buffer_), "{}", e.weight);
        }
        comma(buffer_);
        append_number(buffer_, e.residency);
        comma(buffer_);
        append(buffer_, e.bytes);
        comma(buffer_);
        append_flag(buffer_, e.dropped);
        buffer_.push_back('\n');
    }
    return file_->write(text_of(buffer_));
}

Status IoTraceFile::begin() {
    return file_->write(
        "turn,phase,step,layer,expert,proj,lane,spec,offset,req_bytes,read_bytes,latency_ns,ticket,deadline_ns,issue_"
        "ns,"
        "ready_ns,error\n");
}

Status IoTraceFile::rows(int64_t turn, Phase phase, int64_t step, std::span<const ReadEvent> events) {
    if (events.empty()) return {};
    buffer_.clear();
    for (const ReadEvent& e : events) {
        append_place(buffer_, turn, phase, step);
        append_number(buffer_, e.layer);
        comma(buffer_);
        append_number(buffer_, e.expert);
        comma(buffer_);
        append(buffer_, e.projection);
        comma(buffer_);
        append_number(buffer_, e.lane);
        comma(buffer_);
        append_flag(buffer_, e.speculative);
        comma(buffer_);
        append(buffer_, e.offset);
        comma(buffer_);
        append_number(buffer_, e.need);
        comma(buffer_);
        append_number(buffer_, e.length);
        comma(buffer_);
        append_number(buffer_, e.ready - e.issued);
        comma(buffer_);
        append(buffer_, e.ticket);
        comma(buffer_);
        if (e.deadline.known()) append_number(buffer_, e.deadline.value());
        comma(buffer_);
        append_number(buffer_, e.issued);
        comma(buffer_);
        append_number(buffer_, e.ready);
        comma(buffer_);
        append_number(buffer_, e.error);
        buffer_.push_back('\n');
    }
    return file_->write(text_of(buffer_));
}

Status ComputeTraceFile::begin() {
    return file_->write("turn,phase,step,seq,layer,op,name,wall_ns,majflt,routed\n");
}

Status ComputeTraceFile::rows(int64_t turn, Phase phase, int64_t step, std::span<const NodeEvent> events) {
    if (events.empty()) return {};
    buffer_.clear();
    prefix_.clear();
    append_place(prefix_, turn, phase, step);
    if (detail_ == Detail::layers) {
        append_layers(events);
    } else {
        int64_t seq = 0;
        for (const NodeEvent& e : events) append_node(seq++, e.layer, e.op, e.name, {e.wall, e.major_faults, e.routed});
    }
    return file_->write(text_of(buffer_));
}

void ComputeTraceFile::append_node(int64_t seq, int64_t layer, std::string_view op, std::string_view name,
                                   const Sum& sum) {
    append(buffer_, text_of(prefix_));
    append_number(buffer_, seq);
    comma(buffer_);
    append_number(buffer_, layer);
    comma(buffer_);
    append_csv_field(buffer_, op);
    comma(buffer_);
    append_csv_field(buffer_, name);
    comma(buffer_);
    append_number(buffer_, sum.wall);
    comma(buffer_);
    append_number(buffer_, sum.major_faults);
    comma(buffer_);
    append_flag(buffer_, sum.routed);
    buffer_.push_back('\n');
}

void ComputeTraceFile::append_layers(std::span<const NodeEvent> events) {
    const auto is_layer = [](const NodeEvent& e) { return e.layer >= 0 && e.layer < kMaxLayers; };
    const auto first = std::find_if(events.begin(), events.end(), is_layer);
    const auto last = std::find_if(events.rbegin(), events.rend(), is_layer).base();  // one past it

    layers_.clear();
    Sum pre, post;
    size_t layer = 0;
    for (auto e = events.begin(); e != events.end(); ++e) {
        if (is_layer(*e)) layer = static_cast<size_t>(e->layer);
        if (layers_.size() <= layer) layers_.resize(layer + 1);
        // Nodes between two layers that name none belong to the one before.
        Sum& sum = e < first ? pre : e >= last ? post : layers_[layer];
        sum.wall = Measure::saturating_add(sum.wall, e->wall);
        sum.major_faults = Measure::saturating_add(sum.major_faults, e->major_faults);
        sum.routed = sum.routed || e->routed;
        sum.seen = true;
    }
    int64_t seq = 0;
    if (pre.seen) append_node(seq++, -1, "LAYER", "pre", pre);
    for (size_t l = 0; l < layers_.size(); ++l) {
        if (!layers_[l].seen) continue;
        fmt::basic_memory_buffer<char, 32> name;
        fmt::format_to(std::back_inserter(name), "blk.{}", l);
        append_node(seq++, static_cast<int64_t>(l), "LAYER", {name.data(), name.size()}, layers_[l]);
    }
    if (post.seen) append_node(seq, -1, "LAYER", "post", post);
}

}  // namespace sluice::trace
