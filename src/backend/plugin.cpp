// Owns: the entry by which unmodified llama.cpp tools load Sluice (GGML_BACKEND_PATH=.../libggml-sluice.so).
// Keeps: a wrong option stops the model from loading, in words, instead of being ignored.
#include <ggml-backend-impl.h>

#include "backend/device.h"
#include "backend/options.h"
#include "base/log.h"

extern char** environ;

extern "C" __attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init() {
    auto registry = sluice::backend::make_registry();
    if (!registry.ok()) {
        sluice::log(sluice::LogLevel::error, "{}", registry.status().message());
        return nullptr;
    }
    sluice::Config config;
    sluice::Status status = sluice::backend::read_environment(config, environ);
    if (status.ok()) {
        sluice::backend::set_config(config);
    } else {
        sluice::log(sluice::LogLevel::error, "{}", status.message());
        sluice::backend::set_config_error(std::move(status));
    }
    return *registry;
}
