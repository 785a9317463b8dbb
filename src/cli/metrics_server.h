// Owns: the HTTP endpoint that gives the run record's metrics to Prometheus, beside the stock server.
// Keeps: it listens on this machine only and answers nothing but GET /metrics.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "trace/metrics.h"

namespace sluice::cli {

class MetricsServer {
  public:
    // Listens on 127.0.0.1:`port` until destroyed. `metrics` outlives it. A port that is taken is an error.
    static Result<std::unique_ptr<MetricsServer>> start(uint16_t port, const trace::Metrics& metrics);
    ~MetricsServer();
    MetricsServer(const MetricsServer&) = delete;
    MetricsServer& operator=(const MetricsServer&) = delete;

  private:
    struct Server;
    MetricsServer();
    std::unique_ptr<Server> server_;
};

}  // namespace sluice::cli
