// Owns: the two ways by which unmodified llama.cpp tools load Sluice.
//   LD_PRELOAD=.../libggml-sluice.so          works with every build of the tools
//   GGML_BACKEND_PATH=.../libggml-sluice.so   where llama.cpp reads it: builds with GGML_BACKEND_DL, and llama-bench.
// A tool that has its backends linked in asks for others only when an option names a device (llama_backend_init loads
// plug-ins only if there is no backend at all), hence the first way.
// Keeps: a wrong option stops the model from loading, in words, instead of being ignored.
#include <dlfcn.h>
#include <ggml-backend-impl.h>

#include <cstdlib>
#include <cstring>

#include "backend/device.h"
#include "backend/host_flags.h"
#include "backend/options.h"
#include "backend/recording.h"
#include "base/log.h"

extern char** environ;

extern "C" __attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init() {
    auto registry = sluice::backend::make_registry();
    if (!registry.ok()) {
        sluice::log(sluice::LogLevel::error, "{}", registry.status().message());
        return nullptr;
    }
    sluice::Config config;
    sluice::backend::Given given;
    sluice::Status status = sluice::backend::read_environment(config, environ, sluice::backend::Place::library, &given);
    if (status.ok()) status = sluice::backend::validate(config, given);
    const std::vector<std::string> arguments = sluice::backend::own_arguments();
    if (status.ok()) status = sluice::backend::check_host_flags(arguments);
    if (sluice::backend::asks_verbose(arguments)) sluice::backend::say_more(config, given);
    if (status.ok()) status = sluice::backend::start_recording(config);
    if (status.ok()) {
        sluice::backend::set_config(config);
    } else {
        sluice::backend::set_config_error(std::move(status));
    }
    return *registry;
}

namespace {

// Runs when the library is preloaded, before the program's main. Programs without llama.cpp (a shell that inherits the
// variable) are left alone.
__attribute__((constructor)) void register_when_preloaded() {
    const char* preload = std::getenv("LD_PRELOAD");
    if (preload == nullptr || std::strstr(preload, "ggml-sluice") == nullptr) return;
    if (dlsym(RTLD_DEFAULT, "llama_backend_init") == nullptr) return;
    // With nothing registered yet, ours would keep the tool from looking for its own backends.
    if (ggml_backend_reg_count() == 0) ggml_backend_load_all();
    if (ggml_backend_reg_by_name("SLUICE") != nullptr) return;
    if (ggml_backend_reg_t registry = ggml_backend_init()) ggml_backend_register(registry);
}

}  // namespace
