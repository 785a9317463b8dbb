// Owns: the command line of `sluice gate b`.
#include "replay/gate_b.h"

#include <charconv>

#include "cli/gate.h"
#include "machine/text.h"

namespace sluice::cli {

Result<machine::GateVerdict> measure_gate_b(std::vector<std::string> arguments, const GateHost& host) {
    replay::GateB asked;
    asked.stopped = host.stopped;
    asked.progress = host.progress;
    for (size_t i = 0; i < arguments.size(); ++i) {
        const std::string& a = arguments[i];
        const std::string value = i + 1 < arguments.size() ? arguments[i + 1] : "";
        if (a == "--slots") {
            const auto n = machine::parse_number(value);
            if (!n || *n < 1 || *n > 65536)
                return error(Code::invalid_argument, "{}: a number from 1 to 65536 is needed", a);
            asked.slots = static_cast<uint32_t>(*n);
            ++i;
        } else if (a == "--accept") {
            const auto [end, problem] =
                std::from_chars(value.data(), value.data() + value.size(), asked.accepted, std::chars_format::fixed);
            if (value.empty() || problem != std::errc() || end != value.data() + value.size() ||
                !(asked.accepted >= 0 && asked.accepted < 1))
                return error(Code::invalid_argument, "{}: a chance from 0 to below 1 is needed", a);
            ++i;
        } else if (!a.starts_with('-') && !a.empty()) {
            asked.traces.push_back(a);
        } else {
            return error(Code::invalid_argument, "do not understand \"{}\"; sluice gate b --help", a);
        }
    }
    if (asked.traces.empty()) return error(Code::invalid_argument, "which trace? sluice gate b TRACE...");
    return replay::gate_b(asked);
}

}  // namespace sluice::cli
