// Owns: the traces of single events as outputs of a recorder.
// Keeps: events of one row are written together, when the row is.
#pragma once

#include <memory>

#include "trace/record_file.h"
#include "trace/recorder.h"

namespace sluice::trace {

// "--route-trace": its preamble describes the model, its rows are the routings.
struct RouteTrace {
    std::unique_ptr<Sink> sink;
    std::unique_ptr<EventSink> events;
};
RouteTrace make_route_trace(std::unique_ptr<LineFile> file);
// "--io-trace", "--compute-trace", "--compute-trace-layers".
std::unique_ptr<EventSink> make_io_trace(std::unique_ptr<LineFile> file);
std::unique_ptr<EventSink> make_compute_trace(std::unique_ptr<LineFile> file);
std::unique_ptr<EventSink> make_layer_trace(std::unique_ptr<LineFile> file);
// "--token-trace": the decode row with this number.
std::unique_ptr<EventSink> make_token_trace(std::unique_ptr<LineFile> file, int64_t row);

}  // namespace sluice::trace
