// Owns: the single events that traces are made of: reads, routings, nodes.
// Keeps: plain values; times are those of the recorder's clock.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "trace/ledger.h"
#include "trace/measure.h"

namespace sluice::trace {

// One read of one component of one expert.
struct ReadEvent {
    RecordId record = 0;
    int32_t layer = 0;
    uint32_t expert = 0;
    uint8_t component = 0;        // number of the component in its set
    const char* projection = "";  // "gate", "up", "down", "gate_up"; lives as long as the program
    int32_t lane = 0;             // which of the reads on their way at once
    bool speculative = false;
    const char* ticket = "exact";  // class of the ticket
    Measure deadline;
    uint64_t offset = 0;  // of the read, in its file
    uint32_t need = 0;    // bytes of the component
    uint32_t length = 0;  // bytes that the drive was asked for
    Nanos issued = 0, ready = 0;
    int error = 0;
};

// One rank of one token's choice in one layer.
struct RouteEvent {
    RecordId record = 0;
    int32_t layer = 0;
    int32_t token = 0;  // within the ubatch
    int32_t rank = 0;   // 0: largest weight
    uint32_t expert = 0;
    float weight = 0;      // as applied; NaN: unknown
    int8_t residency = 0;  // 0 miss, 1 hit, 2 hit thanks to a speculative read
    uint64_t bytes = 0;    // read because of this routing; only the first row of a shared miss pays
    bool dropped = false;
};

// One node of the graph, or with layers only, a run of nodes of one layer.
struct NodeEvent {
    int32_t layer = -1;  // -1: before the first layer or after the last
    const char* op = "";
    std::string name;
    Nanos wall = 0;
    int64_t major_faults = 0;
    bool routed = false;  // computed by Sluice
};

// Everything that happened in one row, for a picture of it.
struct Capture {
    int64_t row = 0;
    Nanos begin = 0, end = 0;
    std::vector<Span> spans;
    std::vector<ReadEvent> reads;
};

}  // namespace sluice::trace
