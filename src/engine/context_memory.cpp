#include "engine/context_memory.h"

#include <common.h>
#include <fit.h>
#include <ggml-backend.h>
#include <llama.h>

#include <exception>
#include <vector>

namespace sluice::engine {
namespace {

// How many backends of a context compute in the CPU's memory. They share one buffer of the graph, but where nothing is
// allocated llama.cpp counts its size once for each: ggml_gallocr_reserve_n_size, other than
// ggml_gallocr_get_buffer_size, does not ask who shares. Sluice's own is one of them.
uint64_t sharers_of_cpu_memory() {
    ggml_backend_buffer_type_t host =
        ggml_backend_dev_buffer_type(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
    uint64_t n = 1;  // the CPU's
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        ggml_backend_dev_t device = ggml_backend_dev_get(i);
        if (ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_ACCEL) continue;
        ggml_backend_t backend = ggml_backend_dev_init(device, nullptr);
        if (backend == nullptr) continue;
        n += ggml_backend_get_default_buffer_type(backend) == host ? 1 : 0;
        ggml_backend_free(backend);
    }
    return n;
}

}  // namespace

Result<ContextMemory> context_memory(const common_params& params) {
    // llama.cpp throws where a model or its context cannot be made.
    try {
        common_params copy = params;
        llama_model_params model = common_model_params_to_llama(copy);
        model.progress_callback = [](float, void*) { return true; };
        const llama_context_params context = common_context_params_to_llama(copy);
        std::vector<ggml_backend_dev_t> devices;
        uint32_t layers = 0;
        uint32_t trained = 0;
        uint32_t experts = 0;
        const common_device_memory_data_vec all = common_get_device_memory_data(
            copy.model.path.c_str(), &model, &context, devices, layers, trained, experts, GGML_LOG_LEVEL_ERROR);
        // The last one is the host's memory, which is what a process is charged for.
        ContextMemory out{.context = all.back().context, .compute = all.back().compute};
        // Beside a GPU the CPU's graph may lie in memory of the GPU's driver, and the sum does not tell how much that
        // is: rather too much then.
        if (devices.empty()) out.compute /= sharers_of_cpu_memory();
        return out;
    } catch (const std::exception& e) {
        return error(Code::unsupported, "{}: llama.cpp cannot make a context of this model: {}", params.model.path,
                     e.what());
    }
}

}  // namespace sluice::engine
