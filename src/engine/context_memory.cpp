#include "engine/context_memory.h"

#include <common.h>
#include <fit.h>
#include <llama.h>

#include <exception>

namespace sluice::engine {

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
        ContextMemory out;
        for (const common_device_memory_data& d : all) {
            out.context += d.context;
            out.compute += d.compute;
        }
        return out;
    } catch (const std::exception& e) {
        return error(Code::unsupported, "{}: llama.cpp cannot make a context of this model: {}", params.model.path,
                     e.what());
    }
}

}  // namespace sluice::engine
