// Owns: what a gate found out: its verdict, and the file of it. A gate is a question with a limit, answered by
// measuring on this machine with these inputs. Keeps: the verdict is no as soon as one check says no, and yes only if
// every check was made and says yes; what was read from a file is whole, of this version and within limits, or it is an
// error; a verdict of other inputs never counts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"

namespace sluice::machine {

// Raised whenever a value changes its meaning.
inline constexpr unsigned kGateVersion = 1;

enum class Outcome : uint8_t { yes, no, unknown };
const char* outcome_name(Outcome outcome);

// What the answer is about: a model, a trace, another verdict.
struct GateInput {
    std::string name;  // "model"
    std::string path;
    uint64_t bytes = 0;
    std::string digest;  // never empty
    bool operator==(const GateInput&) const = default;
};

struct GateCheck {
    std::string name;  // unique within the verdict
    Outcome outcome = Outcome::unknown;
    std::string found;   // in words and numbers
    std::string needed;  // what would have been yes
    bool operator==(const GateCheck&) const = default;
};

// A number that decides nothing.
struct GateFigure {
    std::string name;                  // unique within the verdict
    std::optional<double> value = {};  // absent: not measured
    std::string unit;
    bool operator==(const GateFigure&) const = default;
};

struct GateSetting {
    std::string name, value;
    bool operator==(const GateSetting&) const = default;
};

struct GateVerdict {
    std::string gate;      // "c"
    std::string question;  // what yes is the answer to
    std::string made;      // "2025-03-01T12:00:00Z"
    std::string sluice;    // version of the program
    std::string commit;    // empty: unknown
    std::string kernel;
    std::vector<GateInput> inputs;
    std::vector<GateSetting> settings;
    std::vector<GateCheck> checks;
    std::vector<GateFigure> figures;
    std::vector<std::string> notes;

    [[nodiscard]] Outcome outcome() const;
    bool operator==(const GateVerdict&) const = default;
};

// Longer lists and texts are neither written nor read.
inline constexpr size_t kMostGateEntries = 1024;
inline constexpr size_t kMostGateText = 4 * KiB;
inline constexpr size_t kMostGateBytes = 1 * MiB;

// As JSON, with a digest over all of it. An error if it breaks a limit: then it could not be read back.
Result<std::string> gate_json(const GateVerdict& verdict);
// `corrupt`: not a verdict of a gate, cut off, changed since. `unsupported`: another version.
Result<GateVerdict> parse_gate(std::string_view text);
// not_found if there is none.
Result<GateVerdict> read_gate(const std::string& path);

// Where verdicts of gates are: "gates" beside the directory of the drives' verdicts.
Result<std::string> gate_directory();
// One file for each gate and digest of its first input.
Result<std::string> gate_path(const std::string& directory, const GateVerdict& verdict);

// Whether a verdict is about these inputs, by name and digest; if not, `conflict` says what differs. For whoever builds
// on another gate's answer.
Status check_inputs(const GateVerdict& verdict, const std::vector<GateInput>& now);

// For people; ends with the answer.
std::string gate_text(const GateVerdict& verdict, size_t columns);

}  // namespace sluice::machine
