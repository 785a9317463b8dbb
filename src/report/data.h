// Owns: what a report says, as one JSON value: the page draws it, the text spells it.
// Keeps: every number in it is a column, a total or a figure of src/trace; what was not measured is null; all strings
// are valid UTF-8; its size does not grow with the length of a run beyond a bound.
#pragma once

#include <span>

#include "report/compare.h"
#include "report/race.h"
#include "trace/record_file.h"

namespace sluice::report {

// Of a plot over tokens, per phase. A longer run is drawn in bins of equal numbers of rows: what the rows of a bin come
// to, and the smallest and largest row.
inline constexpr size_t kMaxBins = 800;
// More experts than this are not drawn.
inline constexpr size_t kMaxCells = 150'000;
inline constexpr size_t kMaxRecords = 26;  // they are called A to Z

// Runs, races, or both.
trace::Json report_data(std::span<const trace::Record> records, std::span<const RaceResult> races = {});

// "prefill" and "decode"; where the record cannot know that, what it does know.
const char* phase_words(const trace::Record& record, trace::Phase phase);

// One race, of which all numbers are the judge's (race.h).
trace::Json race_data(const RaceResult& race);

// Rounded to what is shown; null where it is absent.
trace::Json plain_number(std::optional<double> value);
// With what is no UTF-8 replaced.
std::string valid_text(const std::string& text);
// The last part of a path, without ".jsonl".
std::string name_of_file(const std::string& path);

}  // namespace sluice::report
