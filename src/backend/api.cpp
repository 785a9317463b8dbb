// Owns: the public interface of libsluice (include/sluice/sluice.h) over the rooms.
#include <ggml-backend.h>

#include "backend/device.h"
#include "backend/options.h"
#include "backend/process_memory.h"
#include "backend/recording.h"
#include "sluice/sluice.h"

extern char** environ;

namespace sluice {
namespace {

bool report(const Status& status, std::string* error) {
    if (error != nullptr) *error = status.message();
    return status.ok();
}

}  // namespace

bool start(const Config& config, std::string* error) {
    if (Status s = backend::validate(config); !s.ok()) return report(s, error);
    if (Status s = backend::check_place(config, backend::host().place); !s.ok()) return report(s, error);
    // A program without any backend yet has no CPU backend to compute with.
    if (ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU) == nullptr) ggml_backend_load_all();
    auto registry = backend::make_registry();
    if (!registry.ok()) return report(registry.status(), error);
    if (Status s = backend::start_recording(config); !s.ok()) return report(s, error);
    backend::set_config(config);
    if (ggml_backend_reg_by_name("SLUICE") == nullptr) ggml_backend_register(*registry);
    return report({}, error);
}

bool config_from_environment(Config* config, std::string* error) {
    return report(backend::read_environment(*config, environ, backend::host().place), error);
}

void set_cache_limit(std::optional<uint64_t> bytes) {
    backend::set_experts_limit(bytes);
}

Stats stats() {
    return backend::collect_stats();
}
void reset_stats() {
    backend::reset_counters();
}
std::string last_error() {
    return backend::last_compute_error();
}
const char* version() {
    return SLUICE_VERSION;
}
const char* llama_version_needed() {
    return "llama.cpp v" SLUICE_LLAMA_VERSION " (ggml " SLUICE_GGML_VERSION ")";
}

}  // namespace sluice
