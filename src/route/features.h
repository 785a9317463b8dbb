// Owns: the form of the file of what routers were given and what they chose, token by token, from which guesses of
// their choices are trained.
// Keeps: all rows are equally long and each has a checksum, so a file that was cut off ends with a row that is known to
// be none; what a header says is checked before anything is sized by it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace sluice::route {

// Raised whenever a value changes its meaning.
inline constexpr uint32_t kFeatureVersion = 2;
// Of the names of lossy options; what is longer is cut off.
inline constexpr size_t kMostFeatureLossy = 4096;
// No header is longer.
inline constexpr size_t kMostFeatureHeader = size_t{2} << 20U;

// What the rows of a file are made of.
struct FeatureShape {
    struct Set {
        uint32_t layer = 0;
        uint32_t n_expert = 0, n_used = 0;
        uint32_t n_input = 0;  // numbers that the router is given; 0: its layer has no router that is known
        bool operator==(const Set&) const = default;
    };
    std::string model;  // digest
    std::vector<Set> sets;
    std::string lossy = {};  // options of the run that change what is computed, and so what routers are given
    [[nodiscard]] bool same_rows(const FeatureShape& other) const { return model == other.model && sets == other.sets; }
    bool operator==(const FeatureShape&) const = default;
};

// Fails where the shape is more than a file may describe.
Result<std::string> feature_header(const FeatureShape& shape);
// From the first bytes of a file, at least its header or all there is. `invalid_argument`: no such file. `unsupported`:
// another version. `corrupt`: cut off or changed.
Result<FeatureShape> parse_feature_header(std::string_view head);
size_t feature_header_bytes(const FeatureShape& shape);
size_t feature_row_bytes(const FeatureShape& shape);

// One token, as a row.
class FeatureRow {
  public:
    explicit FeatureRow(const FeatureShape& shape);
    // No layer is known.
    void begin();
    // What the router of `set` was given and chose. Ignored where it is not of the shape.
    void put(uint32_t set, std::span<const float> input, std::span<const int32_t> chosen);
    // The row, valid until the next begin().
    std::string_view end();

  private:
    const FeatureShape& shape_;
    std::vector<size_t> begin_;  // of each set
    std::string bytes_;
};

// Whether the checksum of a row is right.
bool is_feature_row(std::string_view row);
// Where in a row the part of `set` begins, and how long it is.
size_t feature_offset(const FeatureShape& shape, uint32_t set);
size_t feature_bytes(const FeatureShape::Set& set);
// That part, into `input` (n_input) and `chosen` (n_used). False if it is not known of this token, or not of numbers.
bool read_feature(const FeatureShape::Set& set, std::string_view part, std::span<float> input,
                  std::span<int32_t> chosen);

}  // namespace sluice::route
