// Owns: how often each expert of a model was used in past runs, and the file of it.
// Keeps: a file is at most 1 MiB, and replaced whole or not at all, also when several programs write it; what was read
// is whole, of this version and of this model, or it is an error. A profile says what is worth keeping, never what is
// computed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "cache/policy.h"
#include "store/files.h"

namespace sluice::sched {

// Raised whenever a value changes its meaning.
inline constexpr uint32_t kProfileVersion = 1;
inline constexpr size_t kMostProfileBytes = 1 * MiB;
// Past tokens count as so many at most, so that a profile follows what its user does.
inline constexpr uint32_t kProfileMemory = 4096;

struct Profile {
    struct Set {
        uint32_t tokens = 0;
        std::vector<uint16_t> uses;  // of each expert, per token: 65535 is one in every token
        bool operator==(const Set&) const = default;
    };
    std::string model;  // digest
    std::vector<Set> sets;
    bool operator==(const Profile&) const = default;

    [[nodiscard]] uint32_t most_tokens() const;
};

// An error if it would be too large.
Result<std::string> profile_bytes(const Profile& profile);
// `invalid_argument`: no profile. `unsupported`: another version. `corrupt`: cut off or changed.
Result<Profile> parse_profile(std::string_view bytes);

// not_found if there is none; also those of parse_profile(); `conflict`: of another model, which has another digest or
// other numbers of experts.
Result<Profile> read_profile(const std::string& path, const std::string& model, const std::vector<uint32_t>& experts);
// Makes the directory if need be.
Status write_profile(store::Files& files, const std::string& path, const Profile& profile);

// What the order has counted since its first call, added to what was known before. Empty if nothing was counted.
std::optional<Profile> learned(const cache::Order& order, const std::string& model,
                               const std::optional<Profile>& before);
// The order expects these frequencies, the more the more tokens they come from.
void expect(cache::Order& order, const Profile& profile);

// `auto`: by the model's digest, in the user's directory.
Result<std::string> profile_path(const std::string& asked, const std::string& model);

}  // namespace sluice::sched
