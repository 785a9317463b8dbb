// Owns: the rules that say what is wrong with a machine for streaming a model, and what to change.
// Keeps: pure: the same facts give the same findings. Every rule gives exactly one finding; what could not be looked at
// is "not checked" with the reason, never "ok". A number in a finding was measured or read, never estimated.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "machine/drive.h"
#include "machine/facts.h"
#include "machine/probe.h"

namespace sluice::machine {

// In the order of how bad it is.
enum class Severity { ok, not_checked, note, warning, problem };
const char* severity_name(Severity severity);

struct Finding {
    std::string_view id;
    Severity severity = Severity::ok;
    std::string title;   // what was found
    std::string change;  // the command or setting that changes it; empty where nothing is to be changed
    std::string gain;    // what that gains
};

// The numbers of a model that matter here. None of a model without experts: then there is nothing to stream.
struct ModelSizes {
    uint64_t dense_bytes = 0;
    uint64_t expert_bytes = 0;
    uint64_t largest_expert_bytes = 0;
    uint64_t cycle_bytes = 0;  // experts of one token
};

// What the program was built with.
struct Build {
    std::string ggml_expected;
    std::string ggml_found;                           // empty: not looked at
    std::optional<std::vector<std::string>> kernels;  // what ggml's CPU backend was compiled for, in its own spelling
};

struct Examination {
    Facts facts;
    std::optional<DriveFacts> drive;  // absent when no file was named
    std::optional<ModelSizes> model;
    std::string no_model;  // why there is none, as the end of a sentence: "no model was named"
    Probe probe;
    // What `sluice probe` once found the drive to read for as long as it goes on; absent: not measured, or another
    // drive.
    std::optional<double> verdict_mib_per_second;
    std::string verdict_made;  // when
    Build build;
};

// One finding of each kind, in a fixed order.
std::vector<Finding> diagnose(const Examination& examination);
std::vector<std::string_view> finding_ids();
Severity worst(std::span<const Finding> findings);

// The fewest seconds a token can take that finds none of its experts in memory, as far as reading goes. Absent when the
// drive or the model was not measured. By the measurement of now, else by the verdict of sluice probe.
std::optional<double> seconds_per_cold_token(const Examination& examination);

}  // namespace sluice::machine
