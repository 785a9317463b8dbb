#include "sched/profile.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "base/little_endian.h"
#include "machine/user_directory.h"

namespace sluice::sched {
namespace {

// "SLUICEPF", version, digest of the model, sets; for each set experts, tokens, and two bytes for each expert; XXH3-64
// over all before it. Little-endian.
constexpr std::string_view kMagic = "SLUICEPF";
constexpr size_t kDigest = 16;
constexpr double kFull = 65535;
// With so many tokens a profile is half believed.
constexpr double kHalfTrust = 32;

}  // namespace

uint32_t Profile::most_tokens() const {
    uint32_t most = 0;
    for (const Set& s : sets) most = std::max(most, s.tokens);
    return most;
}

Result<std::string> profile_bytes(const Profile& profile) {
    if (profile.model.size() != kDigest) return error(Code::invalid_argument, "a profile needs a model's digest");
    size_t bytes = kMagic.size() + kDigest + 2 * sizeof(uint32_t) + sizeof(uint64_t);
    for (const Profile::Set& s : profile.sets) bytes += 2 * sizeof(uint32_t) + s.uses.size() * sizeof(uint16_t);
    if (bytes > kMostProfileBytes)
        return error(Code::unsupported, "a profile of so many experts would be larger than {}",
                     human_bytes(kMostProfileBytes));
    std::string out(kMagic);
    put_number(out, kProfileVersion);
    out += profile.model;
    put_number(out, static_cast<uint32_t>(profile.sets.size()));
    for (const Profile::Set& s : profile.sets) {
        put_number(out, static_cast<uint32_t>(s.uses.size()));
        put_number(out, s.tokens);
        for (const uint16_t u : s.uses) put_number(out, u);
    }
    put_number(out, static_cast<uint64_t>(XXH3_64bits(out.data(), out.size())));
    return out;
}

Result<Profile> parse_profile(std::string_view bytes) {
    if (!bytes.starts_with(kMagic)) return error(Code::invalid_argument, "it is no profile");
    const Status broken = error(Code::corrupt, "it is cut off or was changed");
    if (bytes.size() < kMagic.size() + sizeof(uint32_t) + sizeof(uint64_t) || bytes.size() > kMostProfileBytes)
        return broken;
    NumberReader version{bytes.substr(kMagic.size())};
    if (const auto v = version.take<uint32_t>(); v != kProfileVersion)
        return error(Code::unsupported, "it is of version {}, not {}", v, kProfileVersion);
    const std::string_view body = bytes.substr(0, bytes.size() - sizeof(uint64_t));
    NumberReader sum{bytes.substr(body.size())};
    if (sum.take<uint64_t>() != XXH3_64bits(body.data(), body.size())) return broken;
    NumberReader in{body.substr(kMagic.size() + sizeof(uint32_t))};
    Profile out;
    if (in.rest.size() < kDigest) return broken;
    out.model = in.rest.substr(0, kDigest);
    in.rest.remove_prefix(kDigest);
    const auto sets = in.take<uint32_t>();
    for (uint32_t s = 0; s < sets && in.ok; ++s) {
        const auto experts = in.take<uint32_t>();
        Profile::Set set{in.take<uint32_t>(), {}};
        if (experts > in.rest.size() / sizeof(uint16_t)) return broken;
        for (uint32_t e = 0; e < experts; ++e) set.uses.push_back(in.take<uint16_t>());
        out.sets.push_back(std::move(set));
    }
    if (!in.ok || !in.rest.empty()) return broken;
    return out;
}

Result<Profile> read_profile(const std::string& path, const std::string& model, const std::vector<uint32_t>& experts) {
    if (!store::exists(path)) return error(Code::not_found, "there is no {}", path);
    std::error_code ec;
    // Too large to be one, or a directory or a device: none of ours.
    if (!std::filesystem::is_regular_file(path, ec) || std::filesystem::file_size(path, ec) > kMostProfileBytes || ec)
        return error(Code::invalid_argument, "{} is no profile of Sluice; it stays as it is and is not used", path);
    const auto bytes = store::read_whole(path, kMostProfileBytes);
    if (!bytes.ok()) return bytes.status();
    auto profile = parse_profile(*bytes);
    if (!profile.ok()) return profile.status().within(fmt::format("{} is not used", path));
    const bool same = profile->model == model && profile->sets.size() == experts.size() &&
                      std::equal(experts.begin(), experts.end(), profile->sets.begin(),
                                 [](uint32_t n, const Profile::Set& s) { return s.uses.size() == n; });
    if (!same) return error(Code::conflict, "{} is not used: it is of another model", path);
    return profile;
}

Status write_profile(store::Files& files, const std::string& path, const Profile& profile) {
    const auto bytes = profile_bytes(profile);
    if (!bytes.ok()) return bytes.status();
    std::error_code ec;
    if (const auto parent = std::filesystem::path(path).parent_path(); !parent.empty())
        std::filesystem::create_directories(parent, ec);
    return store::replace_file(files, path, std::as_bytes(std::span(*bytes)));
}

std::optional<Profile> learned(const cache::Order& order, const std::string& model,
                               const std::optional<Profile>& before) {
    Profile out;
    out.model = model;
    bool any = false;
    for (uint32_t set = 0; set < order.n_sets(); ++set) {
        const uint64_t now = order.tokens(set);
        any = any || now > 0;
        const Profile::Set* past = before ? &before->sets[set] : nullptr;
        const double then = past != nullptr ? past->tokens : 0;
        const double all = then + static_cast<double>(now);
        Profile::Set& s = out.sets.emplace_back();
        s.tokens = static_cast<uint32_t>(std::min<double>(all, kProfileMemory));
        for (RecordId r = order.begin(set); r < order.begin(set + 1); ++r) {
            const double old = past != nullptr ? past->uses[r - order.begin(set)] / kFull : 0;
            const double share = all > 0 ? (old * then + static_cast<double>(order.token_uses(r))) / all : 0;
            s.uses.push_back(static_cast<uint16_t>(std::lround(std::min(share, 1.0) * kFull)));
        }
    }
    if (!any) return std::nullopt;
    return out;
}

void expect(cache::Order& order, const Profile& profile) {
    for (uint32_t set = 0; set < order.n_sets(); ++set) {
        const Profile::Set& s = profile.sets[set];
        const double trust = s.tokens / (s.tokens + kHalfTrust);
        for (RecordId r = order.begin(set); r < order.begin(set + 1); ++r)
            order.expect(r, s.uses[r - order.begin(set)] / kFull, trust);
    }
}

Result<std::string> profile_path(const std::string& asked, const std::string& model) {
    if (asked != "auto") return asked;
    const auto directory = machine::user_directory();
    if (!directory.ok()) return directory.status().within("nowhere to keep a profile (--profile FILE names a place)");
    return fmt::format("{}/profiles/{}", *directory, model);
}

}  // namespace sluice::sched
