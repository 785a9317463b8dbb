#include "route/trained_gate.h"

#include <array>
#include <bit>
#include <cmath>

#include "base/crc32c.h"
#include "base/half.h"
#include "base/little_endian.h"

namespace sluice::route {
namespace {

// "SLUICETG", version, digest of the model, tokens, sets; for each set experts, numbers, the set whose state is
// corrected, four counts of HeldOut, rank + 1 (0: no correction), and then scale and shift (four bytes each), down and
// up (two bytes each); CRC-32C of all before it. Little-endian.
constexpr std::string_view kMagic = "SLUICETG";
constexpr size_t kDigest = 16;
constexpr uint32_t kMostSets = 65536;
constexpr uint32_t kMostInput = 1U << 20U;
constexpr size_t kSum = sizeof(uint32_t);

void put_floats(std::string& out, std::span<const float> numbers) {
    for (const float f : numbers) put_number(out, std::bit_cast<uint32_t>(f));
}

void put_halves(std::string& out, std::span<const float> numbers) {
    for (const float f : numbers) put_number(out, to_half(f));
}

// False if there are not so many, or one is none.
bool take_floats(NumberReader& in, size_t n, std::vector<float>& out) {
    if (in.rest.size() / sizeof(uint32_t) < n) return false;
    out.resize(n);
    bool finite = true;
    for (float& f : out) {
        f = std::bit_cast<float>(in.take<uint32_t>());
        finite = finite && std::isfinite(f);
    }
    return finite;
}

bool take_halves(NumberReader& in, size_t n, std::vector<float>& out) {
    if (in.rest.size() / sizeof(uint16_t) < n) return false;
    out.resize(n);
    bool finite = true;
    for (float& f : out) {
        f = from_half(in.take<uint16_t>());
        finite = finite && std::isfinite(f);
    }
    return finite;
}

bool take_correction(NumberReader& in, uint32_t rank, uint32_t n, Correction& out) {
    out.rank = rank;
    const size_t matrix = size_t{rank} * n;
    return take_floats(in, n, out.scale) && take_floats(in, n, out.shift) && take_halves(in, matrix, out.down) &&
           take_halves(in, matrix, out.up);
}

// Several sums at once: one alone would wait for each addition.
float dot(const float* a, const float* b, size_t n) {
    constexpr size_t kSums = 16;
    std::array<float, kSums> sums{};
    size_t i = 0;
    for (; i + kSums <= n; i += kSums) {
        for (size_t k = 0; k < kSums; ++k) sums[k] += a[i + k] * b[i + k];
    }
    float sum = 0;
    for (; i < n; ++i) sum += a[i] * b[i];
    for (const float s : sums) sum += s;
    return sum;
}

}  // namespace

void Correction::apply(std::span<const float> from, std::span<float> to) const {
    const size_t numbers = n();
    for (size_t i = 0; i < numbers; ++i) to[i] = scale[i] * from[i] + shift[i];
    for (size_t r = 0; r < rank; ++r) {
        const float part = dot(down.data() + r * numbers, from.data(), numbers);
        const float* add = up.data() + r * numbers;
        for (size_t i = 0; i < numbers; ++i) to[i] += part * add[i];
    }
}

void Correction::round() {
    for (float& f : down) f = from_half(to_half(f));
    for (float& f : up) f = from_half(to_half(f));
}

HeldOut TrainedGate::held_out() const {
    HeldOut sum;
    for (const Set& s : sets) sum.add(s.held_out);
    return sum;
}

uint64_t TrainedGate::bytes() const {
    uint64_t sum = 0;
    for (const Set& s : sets) sum += s.correction ? s.correction->bytes() : 0;
    return sum;
}

Result<std::string> trained_bytes(const TrainedGate& gate) {
    if (gate.model.size() != kDigest || gate.sets.empty() || gate.sets.size() > kMostSets)
        return error(Code::invalid_argument, "a correction needs a model's digest and layers");
    // In memory it takes no less than in the file.
    if (gate.bytes() > kMostTrainedBytes / 2)
        return error(Code::unsupported, "the file would be larger than {}: a lower rank makes it smaller",
                     human_bytes(kMostTrainedBytes / 2));
    std::string out(kMagic);
    put_number(out, kTrainedVersion);
    out += gate.model;
    put_number(out, gate.tokens);
    put_number(out, static_cast<uint32_t>(gate.sets.size()));
    for (const TrainedGate::Set& s : gate.sets) {
        put_number(out, s.n_expert);
        put_number(out, s.n_input);
        put_number(out, s.from);
        for (const uint64_t n : {s.held_out.slots, s.held_out.stale, s.held_out.trained, s.held_out.control})
            put_number(out, n);
        put_number(out, s.correction ? s.correction->rank + 1 : 0U);
        if (!s.correction) continue;
        put_floats(out, s.correction->scale);
        put_floats(out, s.correction->shift);
        put_halves(out, s.correction->down);
        put_halves(out, s.correction->up);
    }
    put_number(out, crc32c(out));
    return out;
}

Result<TrainedGate> parse_trained(std::string_view bytes) {
    if (!bytes.starts_with(kMagic)) return error(Code::invalid_argument, "it is no file of sluice predict train");
    const Status broken = error(Code::corrupt, "it is cut off or was changed");
    NumberReader in{bytes.substr(kMagic.size())};
    const auto version = in.take<uint32_t>();
    if (in.ok && version != kTrainedVersion)
        return error(Code::unsupported, "it is of version {}, not {}", version, kTrainedVersion);
    if (!in.ok || bytes.size() < kMagic.size() + sizeof(uint32_t) + kSum || bytes.size() > kMostTrainedBytes)
        return broken;
    const std::string_view body = bytes.substr(0, bytes.size() - kSum);
    NumberReader sum{bytes.substr(body.size())};
    if (sum.take<uint32_t>() != crc32c(body)) return broken;
    in.rest.remove_suffix(kSum);
    TrainedGate gate;
    gate.model = in.take_bytes(kDigest);
    gate.tokens = in.take<uint64_t>();
    const auto sets = in.take<uint32_t>();
    if (!in.ok || sets == 0 || sets > kMostSets) return broken;
    for (uint32_t i = 0; i < sets && in.ok; ++i) {
        TrainedGate::Set s;
        s.n_expert = in.take<uint32_t>();
        s.n_input = in.take<uint32_t>();
        s.from = in.take<uint32_t>();
        for (uint64_t* n : {&s.held_out.slots, &s.held_out.stale, &s.held_out.trained, &s.held_out.control})
            *n = in.take<uint64_t>();
        const auto rank = in.take<uint32_t>();
        if (!in.ok || rank > kMostRank + 1 || s.n_input > kMostInput || s.from >= sets) return broken;
        if (rank > 0 && !take_correction(in, rank - 1, s.n_input, s.correction.emplace())) return broken;
        gate.sets.push_back(std::move(s));
    }
    if (!in.ok || !in.rest.empty()) return broken;
    return gate;
}

Status check_trained(const TrainedGate& gate, const FeatureShape& shape) {
    if (gate.model != shape.model)
        return error(Code::conflict, "it was trained for the model {}, and this one is {}", gate.model, shape.model);
    bool same = gate.sets.size() == shape.sets.size();
    for (size_t i = 0; same && i < gate.sets.size(); ++i) {
        const TrainedGate::Set& s = gate.sets[i];
        same = s.n_expert == shape.sets[i].n_expert && s.n_input == shape.sets[i].n_input &&
               (!s.correction || shape.sets[s.from].n_input == s.n_input);
    }
    return same ? Status() : error(Code::conflict, "it was trained for a model with other layers");
}

}  // namespace sluice::route
