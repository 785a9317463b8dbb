#include "backend/host_flags.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

#include "backend/options.h"

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

bool asks_verbose(std::span<const std::string> arguments) {
    constexpr int kDebug = 5;  // LOG_LEVEL_DEBUG of llama.cpp's tools
    const auto is_debug = [](const char* text) { return std::atoi(text) >= kDebug; };
    for (size_t i = 0; i < arguments.size(); ++i) {
        const std::string& a = arguments[i];
        if (takes_free_text(a)) {
            ++i;
        } else if (a == "-v" || a == "--verbose" || a == "--log-verbose") {
            return true;
        } else if (a == "-lv" || a == "--verbosity" || a == "--log-verbosity") {
            return i + 1 < arguments.size() && is_debug(arguments[i + 1].c_str());
        }
    }
    const char* level = std::getenv("LLAMA_ARG_LOG_VERBOSITY");
    return level != nullptr && is_debug(level);
}

std::vector<std::string> own_arguments() {
    std::ifstream f("/proc/self/cmdline", std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(f)), std::istreambuf_iterator<char>());
    std::vector<std::string> arguments;
    std::istringstream parts(text);
    std::string argument;
    while (std::getline(parts, argument, '\0')) arguments.push_back(argument);
    return arguments;
}

}  // namespace sluice::backend
