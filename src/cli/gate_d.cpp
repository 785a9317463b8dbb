// Owns: the command line of `sluice gate d`.
#include "engine/gate_d.h"

#include <llama.h>

#include "base/log.h"
#include "cli/gate.h"
#include "machine/text.h"

namespace sluice::cli {

Result<machine::GateVerdict> measure_gate_d(std::vector<std::string> arguments, const GateHost& host) {
    engine::GateD asked;
    asked.stop = host.stopped;
    asked.progress = host.progress;
    asked.config.verbosity = Verbosity::error;
    for (size_t i = 0; i < arguments.size(); ++i) {
        const std::string& a = arguments[i];
        int* value = a == "--prompt"                 ? &asked.shape.prompt
                     : a == "--decode"               ? &asked.shape.decode
                     : a == "-t" || a == "--threads" ? &asked.shape.threads
                                                     : nullptr;
        if (value != nullptr) {
            const uint64_t most = value == &asked.shape.threads ? 512 : 8192;
            const auto n = i + 1 < arguments.size() ? machine::parse_number(arguments[i + 1]) : std::nullopt;
            if (!n || *n < 1 || *n > most)
                return error(Code::invalid_argument, "{}: a number from 1 to {} is needed", a, most);
            *value = static_cast<int>(*n);
            ++i;
        } else if (a == "--repack") {
            asked.shape.repack = true;
        } else if (a == "--act") {
            asked.act = true;
        } else if (a == "--predict-model") {
            if (i + 1 == arguments.size() || arguments[i + 1].empty())
                return error(Code::invalid_argument, "--predict-model needs a file that sluice predict train made");
            asked.config.predict_model = arguments[++i];
        } else if ((a == "-m" || a == "--model") && i + 1 < arguments.size() && asked.model.empty()) {
            asked.model = arguments[++i];
        } else if (!a.starts_with('-') && !a.empty() && asked.model.empty()) {
            asked.model = a;
        } else {
            return error(Code::invalid_argument, "do not understand \"{}\"; sluice gate d --help", a);
        }
    }
    if (asked.model.empty()) return error(Code::invalid_argument, "which model? sluice gate d MODEL");
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    set_log_sink([](LogLevel, const std::string&) {});
    llama_backend_init();
    return engine::gate_d(asked);
}

}  // namespace sluice::cli
