#include "cli/metrics_server.h"

// The stock server's own HTTP library, which this program contains anyway.
#include <cpp-httplib/httplib.h>

#include <thread>

namespace sluice::cli {

struct MetricsServer::Server {
    httplib::Server http;
    std::thread thread;
};

MetricsServer::MetricsServer() : server_(std::make_unique<Server>()) {}

Result<std::unique_ptr<MetricsServer>> MetricsServer::start(uint16_t port, const trace::Metrics& metrics) {
    std::unique_ptr<MetricsServer> made(new MetricsServer());
    httplib::Server& http = made->server_->http;
    // Scraping must not take threads from computing.
    http.new_task_queue = [] { return new httplib::ThreadPool(4); };
    // A client that says nothing, or keeps its connection, must not keep others out.
    http.set_keep_alive_max_count(1);
    http.set_read_timeout(1);
    http.set_write_timeout(1);
    http.Get("/metrics", [&metrics](const httplib::Request&, httplib::Response& response) {
        response.set_content(metrics.text(), trace::kMetricsContentType);
    });
    // Without the library's default of sharing the port with whoever listens there already.
    http.set_socket_options([](socket_t socket) {
        const int yes = 1;
        setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    if (!http.bind_to_port("127.0.0.1", port)) {
        return error(Code::io_error, "--metrics-port {}: the port is taken or not allowed", port);
    }
    made->server_->thread = std::thread([&http] { http.listen_after_bind(); });
    http.wait_until_ready();
    return made;
}

MetricsServer::~MetricsServer() {
    server_->http.stop();
    if (server_->thread.joinable()) server_->thread.join();
}

}  // namespace sluice::cli
