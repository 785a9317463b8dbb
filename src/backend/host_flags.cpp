#include "backend/host_flags.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <vector>

namespace sluice::backend {
namespace {

// `modes` may be a comma-separated list, as llama-bench takes it.
Status check_load_modes(const std::string& source, const std::string& modes) {
    std::istringstream list(modes);
    std::string mode;
    while (std::getline(list, mode, ',')) {
        if (mode == "mmap" || mode == "auto") continue;
        return error(Code::invalid_argument,
                     "{} {} would read all experts into memory at load; use mmap, the default, and Sluice streams them",
                     source, mode);
    }
    return {};
}

// Experts come to Sluice by themselves. Named as a device it would be given layers and the KV cache, which it cannot
// hold.
Status check_device(const std::string& flag, const std::string& value) {
    if (value.find("SLUICE") == std::string::npos) return {};
    return error(Code::invalid_argument, "{} {}: experts are streamed without being told to; leave SLUICE out of {}",
                 flag, value, flag);
}

}  // namespace

Status check_host_flags(std::span<const std::string> arguments) {
    for (size_t i = 0; i < arguments.size(); ++i) {
        if (arguments[i] == "--check-tensors") {
            return error(Code::invalid_argument, "--check-tensors would read all experts at load; leave it out");
        }
        if ((arguments[i] == "--load-mode" || arguments[i] == "-lm") && i + 1 < arguments.size()) {
            if (Status s = check_load_modes(arguments[i], arguments[i + 1]); !s.ok()) return s;
        }
        for (const char* flag : {"-dev", "--device", "-devd", "--device-draft", "--spec-draft-device"}) {
            if (arguments[i] != flag || i + 1 == arguments.size()) continue;
            if (Status s = check_device(arguments[i], arguments[i + 1]); !s.ok()) return s;
        }
    }
    if (const char* device = std::getenv("LLAMA_ARG_DEVICE")) {
        if (Status s = check_device("LLAMA_ARG_DEVICE", device); !s.ok()) return s;
    }
    if (const char* mode = std::getenv("LLAMA_ARG_LOAD_MODE")) return check_load_modes("LLAMA_ARG_LOAD_MODE", mode);
    return {};
}

Status check_own_host_flags() {
    std::ifstream f("/proc/self/cmdline", std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(f)), std::istreambuf_iterator<char>());
    std::vector<std::string> arguments;
    std::istringstream parts(text);
    std::string argument;
    while (std::getline(parts, argument, '\0')) arguments.push_back(argument);
    return check_host_flags(arguments);
}

}  // namespace sluice::backend
