// Owns: what two or more records have in common and in what they differ: their settings, and their speed with its
// uncertainty.
// Keeps: the same records give the same numbers, always; every value compared is a figure of src/trace.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trace/record_file.h"

namespace sluice::report {

// One setting or fact of a record's head, with its path: "options.cache_mb".
struct Fact {
    std::string key;
    std::string value;
    std::optional<bool> set;  // somebody chose it; false: a default; absent: the record does not say
};
struct FactGroup {
    std::string name;
    std::vector<Fact> facts;
};
// All that a record says before its first row, in groups: options, versions, model, machine, cache, host, run. What
// changes with every run anyhow (time, process number) is in the last one only.
std::vector<FactGroup> facts_of(const trace::Record& record);

struct Difference {
    std::string key;
    std::vector<std::optional<std::string>> values;  // by record; absent: it says nothing of it
};
struct DifferenceGroup {
    std::string name;
    std::vector<Difference> differences;
};
// Groups in which nothing differs are left out.
std::vector<DifferenceGroup> differences(std::span<const trace::Record> records);

// Whether two runs wrote the same text, and whether their routers chose the same experts in the same order.
enum class Agreement { unknown, same, differs };  // unknown: one of the records does not say
struct Outputs {
    Agreement text = Agreement::unknown;
    Agreement routes = Agreement::unknown;
};
Outputs compare_outputs(const trace::Record& a, const trace::Record& b);

// A median and the interval that holds it in 95 of 100 resamples.
struct Estimate {
    double median = 0;
    std::optional<double> low, high;  // absent: too few tokens to say
};

inline constexpr size_t kResamples = 10'000;
inline constexpr uint64_t kSeed = 20'250'817;
inline constexpr size_t kFewestValues = 8;

// The speed of the decoded tokens of one record.
struct Speed {
    size_t values = 0;  // rows with a known time
    size_t used = 0;    // of those, looked at: every so many of a very long run
    size_t block = 0;   // length of the blocks that were drawn
    std::optional<Estimate> ms_per_token, tokens_per_second;
    // The medians of each resample, for ratios. Empty where there are too few values.
    std::vector<double> resampled_ms, resampled_speed;
};
// `number`: of the record among those compared; each draws from a stream of its own.
Speed speed_of(const trace::Record& record, size_t number);

// Medians of `a` over medians of `b`.
struct Ratio {
    std::optional<Estimate> ms_per_token, tokens_per_second;
};
Ratio ratio_of(const Speed& a, const Speed& b);

}  // namespace sluice::report
