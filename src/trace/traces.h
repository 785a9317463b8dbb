// Owns: the traces of single events as CSV files: routings, reads, nodes of the graph.
// Keeps: the events of one call are one write, so a killed run leaves whole rows; nothing allocates once the buffer has
// grown. docs/record.md has the columns.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trace/events.h"
#include "trace/record_file.h"

namespace sluice::trace {

// What the preamble of a routing trace says of the model.
struct RouteTraceModel {
    std::string name, arch;
    std::string lossy;              // options that changed what the routers chose, or what was made of it; empty: none
    Measure layers, experts, used;  // of the model; experts of one layer, of which `used` run for a token
    struct Layer {
        int64_t layer = 0;
        Measure expert_bytes, dense_bytes;  // of one expert, all projections; of the layer's other tensors
    };
    std::vector<Layer> sizes;  // layers with experts
};
// From a line "kind": "model" of the record.
RouteTraceModel route_trace_model(const Json& model);

// "--route-trace"
class RouteTraceFile {
  public:
    explicit RouteTraceFile(std::unique_ptr<LineFile> file) : file_(std::move(file)) {}
    // Once, before the rows. Without a beginning there are none: what failed is said once.
    Status begin(const RouteTraceModel& model);
    // `position`: of the batch's first token in its sequence; the column "step" is that of each token.
    Status rows(int64_t turn, Phase phase, int64_t position, std::span<const RouteEvent> events);

  private:
    std::unique_ptr<LineFile> file_;
    fmt::memory_buffer buffer_;
    bool begun_ = false;
};

// "--io-trace"
class IoTraceFile {
  public:
    explicit IoTraceFile(std::unique_ptr<LineFile> file) : file_(std::move(file)) {}
    Status begin();
    Status rows(int64_t turn, Phase phase, int64_t step, std::span<const ReadEvent> events);

  private:
    std::unique_ptr<LineFile> file_;
    fmt::memory_buffer buffer_;
};

// "--compute-trace": a row for each node. "--compute-trace-layers": the nodes of each layer together, what comes before
// the first and after the last as "pre" and "post".
class ComputeTraceFile {
  public:
    enum class Detail : uint8_t { nodes, layers };
    ComputeTraceFile(std::unique_ptr<LineFile> file, Detail detail) : file_(std::move(file)), detail_(detail) {}
    Status begin();
    Status rows(int64_t turn, Phase phase, int64_t step, std::span<const NodeEvent> events);

  private:
    struct Sum {
        Nanos wall = 0;
        int64_t major_faults = 0;
        bool routed = false, seen = false;
    };
    void append_node(int64_t seq, int64_t layer, std::string_view op, std::string_view name, const Sum& sum);
    void append_layers(std::span<const NodeEvent> events);

    std::unique_ptr<LineFile> file_;
    Detail detail_;
    fmt::memory_buffer buffer_, prefix_;
    std::vector<Sum> layers_;
};

}  // namespace sluice::trace
