// Owns: the seeds of the GGUF fuzz target: small files that reach every branch of the parser.
// Keeps: the same files on every run. Run by hand when the builder or the format grows; its output is committed.
#include <cstdio>
#include <fstream>
#include <map>

#include "tests/model/gguf_builder.h"

using namespace sluice::model::testing;

namespace {

// Like the tests' model, but with next to no payload: what the fuzzer changes there tells it nothing.
GgufBuilder moe_builder() {
    GgufBuilder b;
    b.meta_string("general.architecture", "t").meta<uint32_t>("t.block_count", 3);
    b.meta<uint32_t>("t.expert_used_count", 2).meta_strings("tokens", {"a", "bc", ""});
    b.tensor("token_embd.weight", kF32, {4, 3}).tensor("blk.0.ffn_up.weight", kF32, {4, 2});
    b.tensor("blk.1.ffn_gate_exps.weight", kQ4_0, {32, 1, 2}).tensor("blk.1.ffn_up_exps.weight", kQ4_0, {32, 1, 2});
    b.tensor("blk.1.ffn_down_exps.weight", kF32, {1, 32, 2});
    b.tensor("blk.2.ffn_gate_up_exps.weight", kQ8_0, {32, 2, 2}).tensor("blk.2.ffn_down_exps.weight", kF32, {1, 32, 2});
    return b;
}

std::map<std::string, std::string> seeds() {
    std::map<std::string, std::string> out;
    const std::string moe = moe_builder().file();
    out["moe.gguf"] = moe;
    out["moe-header-only.gguf"] = moe_builder().header();
    out["moe-cut-in-metadata.gguf"] = moe.substr(0, 150);
    out["moe-cut-in-tensors.gguf"] = moe.substr(0, moe_builder().header().size() - 20);
    out["moe-cut-in-data.gguf"] = moe.substr(0, moe.size() - 40);
    GgufBuilder v2 = moe_builder();
    v2.version = 2;
    out["moe-v2.gguf"] = v2.file();
    GgufBuilder big_endian;
    big_endian.version = 0x03000000;
    out["big-endian.gguf"] = big_endian.file();
    out["empty.gguf"] = GgufBuilder().file();
    out["not-gguf.gguf"] = "ggjt\x03";

    GgufBuilder meta;
    meta.meta<uint8_t>("u8", 1).meta<int8_t>("i8", -1).meta<uint16_t>("u16", 1).meta<int16_t>("i16", -1);
    meta.meta<uint32_t>("u32", 1).meta<int32_t>("i32", -1).meta<uint64_t>("u64", 1).meta<int64_t>("i64", -1);
    meta.meta<float>("f32", 1).meta<double>("f64", 1).meta<bool>("bool", true).meta_string("string", "text");
    meta.meta_array<int32_t>("i32s", {1, 2}).meta_array<float>("f32s", {1, 2}).meta_array<uint64_t>("u64s", {1, 2});
    meta.meta_strings("strings", {"a", "", "bc"}).meta_array<uint8_t>("u8s", {0, 1}).split(2, 3, 10);
    out["metadata.gguf"] = meta.file();

    GgufBuilder aligned;
    aligned.alignment = 64;
    aligned.meta<uint32_t>("general.alignment", 64).tensor("a", kF32, {1}).tensor("b", kQ4_0, {32, 2});
    out["aligned.gguf"] = aligned.file();

    GgufBuilder groups;
    groups.meta_string("general.architecture", "t").meta<uint32_t>("t.block_count", 2);
    groups.meta_array<uint32_t>("t.expert_used_count", {0, 2});
    groups.tensor("blk.1.ffn_up_exps.weight", kQ4_0, {32, 2, 4}).tensor("blk.1.ffn_down_exps.weight", kF32, {2, 4, 4});
    groups.tensor("blk.1.ffn_up_chexps.weight", kF32, {4, 2, 2}).tensor("blk.1.ffn_up_exps.bias", kF32, {2, 4});
    out["groups.gguf"] = groups.file();
    out["per-expert.gguf"] = GgufBuilder().tensor("blk.0.ffn_gate.0.weight", kF32, {4, 4}).file();

    out["overlap.gguf"] = GgufBuilder().tensor("a", kF32, {16}).tensor_at("b", kF32, {4}, 32).file();
    out["twice.gguf"] = GgufBuilder().tensor("a", kF32, {4}).tensor("a", kF32, {4}).file();
    out["huge-shape.gguf"] = GgufBuilder().tensor_at("a", kF32, {uint64_t{1} << 40U, uint64_t{1} << 40U}, 0).file();
    out["far-offset.gguf"] = GgufBuilder().tensor_at("a", kF32, {1}, UINT64_MAX - 31).file();
    out["many-claimed.gguf"] = GgufBuilder().claim(UINT64_MAX, UINT64_MAX).file();
    // One tensor of each type, a block each.
    GgufBuilder types;
    for (sluice::model::TypeId type = 0; type < 64; type++) {
        const sluice::model::TypeTraits* traits = sluice::model::type_traits(type);
        if (traits != nullptr) types.tensor(traits->name, type, {traits->block_elements});
    }
    out["types.gguf"] = types.file();
    return out;
}

}  // namespace

// make_gguf_corpus DIRECTORY
int main(int argc, char** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]);
        return 1;
    }
    for (const auto& [name, bytes] : seeds()) {
        std::ofstream out(std::string(argv[1]) + "/" + name, std::ios::binary);
        out << bytes;
        if (!out.flush()) {
            std::fprintf(stderr, "cannot write %s\n", name.c_str());
            return 1;
        }
    }
    return 0;
}
