// A program that embeds Sluice: starts it, sees its device in ggml's list, and, if given a model, decodes one token.
#include <ggml-backend.h>
#include <llama.h>
#include <sluice/sluice.h>

#include <cstdio>
#include <string>

int main(int argc, char** argv) {
    sluice::Config config;
    config.cache_bytes = 16u << 20;
    config.verbosity = sluice::Verbosity::error;
    std::string error;
    if (!sluice::start(config, &error)) {
        std::printf("start: %s\n", error.c_str());
        return 1;
    }
    llama_backend_init();
    bool found = false;
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        const std::string name = ggml_backend_dev_name(ggml_backend_dev_get(i));
        found = found || name.find("luice") != std::string::npos || name.find("LUICE") != std::string::npos;
    }
    if (!found) {
        std::puts("ggml does not list the device");
        return 1;
    }
    if (argc > 1) {
        llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
        llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
        if (model == nullptr) return std::puts("the model does not load"), 1;
        llama_context_params params = llama_context_default_params();
        params.n_ctx = 64;
        llama_context* context = llama_init_from_model(model, params);
        llama_token token = 1;
        const int result = llama_decode(context, llama_batch_get_one(&token, 1));
        const sluice::Stats stats = sluice::stats();
        llama_free(context);
        llama_model_free(model);
        if (result != 0) return std::printf("decode: %d %s\n", result, sluice::last_error().c_str()), 1;
        if (stats.decode.bytes_read + stats.prefill.bytes_read == 0) return std::puts("no expert was read"), 1;
    }
    std::printf("%s with %s\n", sluice::version(), sluice::llama_version_needed());
    return 0;
}
