// Owns: the command line of `sluice gate c`.
#include "engine/gate_c.h"

#include <llama.h>

#include <algorithm>

#include "base/log.h"
#include "cli/gate.h"
#include "cli/number_after.h"

namespace sluice::cli {

Result<machine::GateVerdict> measure_gate_c(std::vector<std::string> arguments, const GateHost& host) {
    engine::GateC asked;
    // Before the other options, which may say more than it.
    if (std::find(arguments.begin(), arguments.end(), "--quick") != arguments.end()) {
        asked.orders = 2;
        asked.faults = asked.cancels = 4;
    }
    asked.stop = host.stopped;
    asked.progress = host.progress;
    asked.config.verbosity = Verbosity::error;
    for (size_t i = 0; i < arguments.size(); ++i) {
        const std::string& a = arguments[i];
        const auto number = [&](uint64_t least, uint64_t most) { return number_after(arguments, i, least, most); };
        const auto field = [&]() -> int* {
            if (a == "--prompt") return &asked.shape.prompt;
            if (a == "--decode") return &asked.shape.decode;
            if (a == "-t" || a == "--threads") return &asked.shape.threads;
            if (a == "--orders") return &asked.orders;
            if (a == "--faults") return &asked.faults;
            if (a == "--cancels") return &asked.cancels;
            return nullptr;
        };
        if (a == "--quick") {
            asked.quick = true;
        } else if (a == "--repack") {
            asked.shape.repack = true;
        } else if (int* value = field(); value != nullptr) {
            const bool may_be_none = value == &asked.orders || value == &asked.faults || value == &asked.cancels;
            const auto n = number(may_be_none ? 0 : 1, value == &asked.shape.threads ? 512 : 8192);
            if (!n.ok()) return n.status();
            *value = static_cast<int>(*n);
        } else if (a == "--seed") {
            const auto n = number(0, UINT32_MAX);
            if (!n.ok()) return n.status();
            asked.seed = *n;
        } else if ((a == "-m" || a == "--model") && i + 1 < arguments.size() && asked.model.empty()) {
            asked.model = arguments[++i];
        } else if (!a.starts_with('-') && !a.empty() && asked.model.empty()) {
            asked.model = a;
        } else {
            return error(Code::invalid_argument, "do not understand \"{}\"; sluice gate c --help", a);
        }
    }
    if (asked.model.empty()) return error(Code::invalid_argument, "which model? sluice gate c MODEL");
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    set_log_sink([](LogLevel, const std::string&) {});  // reads are made to fail
    llama_backend_init();
    return engine::gate_c(asked);
}

}  // namespace sluice::cli
