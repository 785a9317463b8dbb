#include "backend/load_error.h"

#include <mutex>
#include <utility>

#include "base/log.h"

namespace sluice::backend {
namespace {

std::mutex g_mutex;
Status g_error;

}  // namespace

void report_load_error(Status status) {
    const std::lock_guard<std::mutex> lock(g_mutex);
    if (!g_error.ok()) return;
    log(LogLevel::error, "{}", status.message());
    g_error = std::move(status);
}

Status take_load_error() {
    const std::lock_guard<std::mutex> lock(g_mutex);
    return std::exchange(g_error, Status());
}

}  // namespace sluice::backend
