// Owns: tiny GGUF files for tests, sound ones and ones broken in a chosen way.
// Keeps: what it writes is exactly what it was told to, so that a test may tell it nonsense.
#pragma once

#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "model/gguf.h"

namespace sluice::model::testing {

// Little-endian bytes of a number.
template <typename T>
void put(std::string& out, T value) {
    static_assert(std::is_arithmetic_v<T>);
    out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

inline void put_string(std::string& out, std::string_view text) {
    put(out, uint64_t{text.size()});
    out += text;
}

// GGUF's number for the metadata type that holds a T.
template <typename T>
constexpr uint32_t meta_type() {
    if constexpr (std::is_same_v<T, uint8_t>) return 0;
    if constexpr (std::is_same_v<T, int8_t>) return 1;
    if constexpr (std::is_same_v<T, uint16_t>) return 2;
    if constexpr (std::is_same_v<T, int16_t>) return 3;
    if constexpr (std::is_same_v<T, uint32_t>) return 4;
    if constexpr (std::is_same_v<T, int32_t>) return 5;
    if constexpr (std::is_same_v<T, float>) return 6;
    if constexpr (std::is_same_v<T, bool>) return 7;
    if constexpr (std::is_same_v<T, uint64_t>) return 10;
    if constexpr (std::is_same_v<T, int64_t>) return 11;
    if constexpr (std::is_same_v<T, double>) return 12;
    return 99;
}

class GgufBuilder {
  public:
    uint32_t version = 3;
    std::string magic = "GGUF";
    uint64_t alignment = 32;  // how tensors are laid out; the metadata key is the caller's

    template <typename T>
    GgufBuilder& meta(std::string_view key, T value) {
        put_string(pairs_, key);
        put(pairs_, meta_type<T>());
        put(pairs_, value);
        n_pairs_++;
        return *this;
    }
    GgufBuilder& meta_string(std::string_view key, std::string_view value) {
        put_string(pairs_, key);
        put(pairs_, uint32_t{8});
        put_string(pairs_, value);
        n_pairs_++;
        return *this;
    }
    template <typename T>
    GgufBuilder& meta_array(std::string_view key, const std::vector<T>& values) {
        put_string(pairs_, key);
        put(pairs_, uint32_t{9});
        put(pairs_, meta_type<T>());
        put(pairs_, uint64_t{values.size()});
        for (const T value : values) put(pairs_, value);
        n_pairs_++;
        return *this;
    }
    GgufBuilder& meta_strings(std::string_view key, const std::vector<std::string>& values) {
        put_string(pairs_, key);
        put(pairs_, uint32_t{9});
        put(pairs_, uint32_t{8});
        put(pairs_, uint64_t{values.size()});
        for (const std::string& value : values) put_string(pairs_, value);
        n_pairs_++;
        return *this;
    }
    // One metadata entry in raw bytes.
    GgufBuilder& meta_raw(std::string_view bytes) {
        pairs_ += bytes;
        n_pairs_++;
        return *this;
    }
    // The keys of one shard; `number` counts from 1.
    GgufBuilder& split(uint16_t number, uint16_t count, int32_t n_tensors) {
        meta<uint16_t>("split.no", static_cast<uint16_t>(number - 1));
        meta<uint16_t>("split.count", count);
        return meta<int32_t>("split.tensors.count", n_tensors);
    }

    // Laid out behind the one before.
    GgufBuilder& tensor(std::string_view name, TypeId type, const std::vector<uint64_t>& ne) {
        const uint64_t offset = payload_;
        const TypeTraits* traits = type_traits(type);
        uint64_t bytes = 0;
        if (traits != nullptr) {
            bytes = traits->block_bytes;
            for (size_t d = 0; d < ne.size(); d++) bytes *= d == 0 ? ne[d] / traits->block_elements : ne[d];
        }
        payload_ = align_up(payload_ + bytes, alignment);
        return tensor_at(name, type, ne, offset);
    }
    // Anywhere; adds no payload.
    GgufBuilder& tensor_at(std::string_view name, TypeId type, const std::vector<uint64_t>& ne, uint64_t offset) {
        put_string(tensors_, name);
        put(tensors_, static_cast<uint32_t>(ne.size()));
        for (const uint64_t n : ne) put(tensors_, n);
        put(tensors_, type);
        put(tensors_, offset);
        n_tensors_++;
        return *this;
    }

    // What the header claims, if that shall differ from what follows it.
    GgufBuilder& claim(uint64_t n_tensors, uint64_t n_pairs) {
        claimed_ = {n_tensors, n_pairs};
        return *this;
    }

    // Without padding and payload.
    [[nodiscard]] std::string header() const {
        std::string out = magic;
        put(out, version);
        put(out, claimed_.empty() ? n_tensors_ : claimed_[0]);
        put(out, claimed_.empty() ? n_pairs_ : claimed_[1]);
        return out + pairs_ + tensors_;
    }
    [[nodiscard]] std::string file() const {
        std::string out = header();
        if (n_tensors_ == 0) return out;
        out.resize(align_up(out.size(), alignment), '\0');
        for (uint64_t i = 0; i < payload_; i++) out += static_cast<char>(i * 37 + 11);
        return out;
    }

  private:
    std::string pairs_;
    std::string tensors_;
    uint64_t n_pairs_ = 0;
    uint64_t n_tensors_ = 0;
    uint64_t payload_ = 0;
    std::vector<uint64_t> claimed_;
};

inline constexpr TypeId kF32 = 0;
inline constexpr TypeId kQ4_0 = 2;
inline constexpr TypeId kQ8_0 = 8;

// A model with a dense layer 0 and MoE layers 1 and 2: 4 experts, 2 used, types mixed.
inline GgufBuilder tiny_moe() {
    GgufBuilder b;
    b.meta_string("general.architecture", "tiny").meta_string("general.name", "Tiny MoE");
    b.meta<uint32_t>("tiny.block_count", 3).meta<uint32_t>("tiny.expert_count", 4);
    b.meta<uint32_t>("tiny.expert_used_count", 2);
    b.meta_strings("tokenizer.ggml.tokens", {"a", "bc", ""}).meta_array<float>("tokenizer.ggml.scores", {0.5F, 1.5F});
    b.tensor("token_embd.weight", kF32, {32, 3});
    b.tensor("blk.0.ffn_up.weight", kF32, {32, 32});
    b.tensor("blk.1.ffn_gate_inp.weight", kF32, {32, 4});
    b.tensor("blk.1.ffn_down_exps.weight", kQ8_0, {64, 32, 4});
    b.tensor("blk.1.ffn_gate_exps.weight", kQ4_0, {32, 64, 4});
    b.tensor("blk.1.ffn_up_exps.weight", kQ4_0, {32, 64, 4});
    b.tensor("blk.2.ffn_gate_up_exps.weight", kQ4_0, {32, 128, 4});
    b.tensor("blk.2.ffn_down_exps.weight", kF32, {64, 32, 4});
    return b;
}

// A directory that disappears with its files.
class TempDir {
  public:
    TempDir() {
        std::string pattern = (std::filesystem::temp_directory_path() / "sluice-test-XXXXXX").string();
        path_ = ::mkdtemp(pattern.data());
    }
    ~TempDir() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    TempDir(const TempDir&) = delete;
    TempDir& operator=(const TempDir&) = delete;

    [[nodiscard]] std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }
    // Returns the file's path.
    [[nodiscard]] std::string write(std::string_view name, std::string_view bytes) const {
        std::string path = *this / name;
        std::ofstream(path, std::ios::binary) << bytes;
        return path;
    }

  private:
    std::string path_;
};

}  // namespace sluice::model::testing
