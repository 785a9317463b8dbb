#include "model/geometry.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/model/gguf_builder.h"

namespace sluice::model {
namespace {

using testing::GgufBuilder;
using testing::kF32;
using testing::kQ4_0;
using testing::tiny_moe;

// In memory; the path is "M".
GgufIndex index_of(const GgufBuilder& builder) {
    const std::string bytes = builder.file();
    Result<ParseOutcome> outcome = parse_gguf_header(bytes);
    EXPECT_TRUE(outcome) << outcome.status().message();
    FileEntry file;
    file.path = "M";
    file.size = bytes.size();
    std::vector<ParsedHeader> headers;
    headers.push_back(std::move(outcome->header));
    Result<GgufIndex> index = GgufIndex::assemble({file}, std::move(headers));
    EXPECT_TRUE(index) << index.status().message();
    return std::move(index).value();
}

Geometry derive_ok(const GgufBuilder& builder) {
    Result<Geometry> geometry = derive_geometry(index_of(builder));
    EXPECT_TRUE(geometry) << geometry.status().message();
    return geometry ? std::move(geometry).value() : Geometry();
}

void expect_refused(const GgufBuilder& builder, const std::string& part) {
    const Result<Geometry> geometry = derive_geometry(index_of(builder));
    ASSERT_FALSE(geometry) << "accepted, though: " << part;
    EXPECT_EQ(geometry.status().code(), Code::unsupported);
    EXPECT_NE(geometry.status().message().find(part), std::string::npos) << geometry.status().message();
}

// Metadata of a model with `n_layer` layers of which each token uses `n_used` experts.
GgufBuilder with_metadata(uint32_t n_layer, uint32_t n_used) {
    GgufBuilder b;
    b.meta_string("general.architecture", "t");
    b.meta<uint32_t>("t.block_count", n_layer).meta<uint32_t>("t.expert_used_count", n_used);
    return b;
}

TEST(Geometry, ExpertNames) {
    int layer = 0;
    Component component = Component::down;
    std::string group;
    ASSERT_TRUE(parse_expert_tensor_name("blk.17.ffn_gate_exps.weight", layer, component, group));
    EXPECT_EQ(layer, 17);
    EXPECT_EQ(component, Component::gate);
    EXPECT_EQ(group, "exps");
    ASSERT_TRUE(parse_expert_tensor_name("blk.0.ffn_gate_up_chexps.weight", layer, component, group));
    EXPECT_EQ(layer, 0);
    EXPECT_EQ(component, Component::gate_up);
    EXPECT_EQ(group, "chexps");
    ASSERT_TRUE(parse_expert_tensor_name("blk.2.ffn_up_exps.weight", layer, component, group));
    EXPECT_EQ(component, Component::up);
    ASSERT_TRUE(parse_expert_tensor_name("blk.2.ffn_down_exps.weight", layer, component, group));
    EXPECT_EQ(component, Component::down);
    for (const char* name :
         {"", "blk.", "blk.1", "blk.1.ffn_gate_exps", "blk.1.ffn_gate_exps.bias", "blk.1.ffn_gate_exps.scale",
          "blk.01.ffn_gate_exps.weight", "blk.-1.ffn_gate_exps.weight", "blk.x.ffn_gate_exps.weight",
          "blk.99999999999999999999.ffn_gate_exps.weight", "blk.1.ffn_gate_shexp.weight", "blk.1.ffn_gate.weight",
          "blk.1.ffn_gate.0.weight", "blk.1.ffn_gate_inp.weight", "blk.1.ffn_norm_exps.weight",
          "a.blk.1.ffn_gate_exps.weight", "blk.1.ffn_gate_exps.weight.lora_a", "blk.1.ffn_gate_up_up_exps.weight"}) {
        EXPECT_FALSE(parse_expert_tensor_name(name, layer, component, group)) << name;
    }
    EXPECT_EQ(layer, 2);  // untouched
}

TEST(Geometry, MixedTypesFusedGatesAndDenseLayers) {
    const GgufIndex index = index_of(tiny_moe());
    const Result<Geometry> derived = derive_geometry(index);
    ASSERT_TRUE(derived) << derived.status().message();
    const Geometry& g = *derived;
    EXPECT_EQ(g.architecture, "tiny");
    EXPECT_EQ(g.n_layer, 3U);
    EXPECT_EQ(g.n_expert_used, 2U);
    ASSERT_EQ(g.sets.size(), 2U);
    const ExpertSet& one = g.sets[0];
    EXPECT_EQ(one.layer, 1);
    EXPECT_EQ(one.group, "exps");
    EXPECT_EQ(one.n_expert, 4U);
    EXPECT_EQ(one.n_used, 2U);
    ASSERT_EQ(one.tensors.size(), 3U);
    EXPECT_EQ(one.tensors[0].component, Component::gate);
    EXPECT_EQ(one.tensors[1].component, Component::up);
    EXPECT_EQ(one.tensors[2].component, Component::down);
    EXPECT_EQ(one.tensors[0].bytes_per_expert, 64U * 18);
    EXPECT_EQ(one.tensors[2].bytes_per_expert, 32U * 2 * 34);
    EXPECT_EQ(one.tensors[2].ne0, 64U);
    EXPECT_EQ(one.tensors[2].ne1, 32U);
    const TensorEntry* down = index.find("blk.1.ffn_down_exps.weight");
    EXPECT_EQ(one.tensors[2].expert_offset(3), down->offset + 3 * down->bytes / 4);
    EXPECT_EQ(&index.tensors()[one.tensors[2].tensor], down);
    const ExpertSet& two = g.sets[1];
    ASSERT_EQ(two.tensors.size(), 2U);
    EXPECT_EQ(two.tensors[0].component, Component::gate_up);
    EXPECT_EQ(two.record_bytes(), 128U * 18 + 64 * 32 * 4);

    EXPECT_EQ(g.n_records(), 8U);
    EXPECT_EQ(g.largest_record_bytes, two.record_bytes());
    EXPECT_EQ(g.cycle_bytes, 2 * one.record_bytes() + 2 * two.record_bytes());
    const uint64_t all = std::accumulate(index.tensors().begin(), index.tensors().end(), uint64_t{0},
                                         [](uint64_t sum, const TensorEntry& t) { return sum + t.bytes; });
    EXPECT_EQ(g.expert_bytes + g.dense_bytes, all);
    EXPECT_EQ(g.expert_bytes, 4 * (one.record_bytes() + two.record_bytes()));
}

TEST(Geometry, TwoGroupsPerLayerAndNoGate) {
    GgufBuilder b = with_metadata(2, 4);
    b.tensor("blk.1.ffn_up_exps.weight", kQ4_0, {32, 8, 6}).tensor("blk.1.ffn_down_exps.weight", kF32, {8, 32, 6});
    b.tensor("blk.1.ffn_up_chexps.weight", kQ4_0, {32, 8, 3}).tensor("blk.1.ffn_down_chexps.weight", kF32, {8, 32, 3});
    const Geometry g = derive_ok(b);
    ASSERT_EQ(g.sets.size(), 2U);
    EXPECT_EQ(g.sets[0].group, "chexps");
    EXPECT_EQ(g.sets[0].n_used, 3U);  // fewer than top-k
    EXPECT_EQ(g.sets[1].group, "exps");
    EXPECT_EQ(g.sets[1].n_used, 4U);
    EXPECT_EQ(g.cycle_bytes, 7 * g.sets[0].record_bytes());
    EXPECT_EQ(g.n_records(), 9U);
    EXPECT_LT(g.n_expert_layers(), g.sets.size()) << "both sets are of one layer";
}

TEST(Geometry, TopKPerLayer) {
    GgufBuilder b;
    b.meta_string("general.architecture", "t").meta<uint32_t>("t.block_count", 4);
    b.meta_array<uint32_t>("t.expert_used_count", {0, 1, 3});
    for (const char* layer : {"1", "2", "3"}) {
        b.tensor(fmt::format("blk.{}.ffn_up_exps.weight", layer), kF32, {4, 4, 4});
    }
    const Geometry g = derive_ok(b);
    EXPECT_EQ(g.n_expert_used, 3U);
    ASSERT_EQ(g.sets.size(), 3U);
    EXPECT_EQ(g.sets[0].n_used, 1U);
    EXPECT_EQ(g.sets[1].n_used, 3U);
    EXPECT_EQ(g.sets[2].n_used, 3U);  // beyond the array: the largest
    EXPECT_EQ(g.cycle_bytes, 7U * 64);
}

TEST(Geometry, LayersAreOrderedAsNumbers) {
    GgufBuilder b = with_metadata(12, 1);
    for (const char* layer : {"10", "9", "2"}) {
        b.tensor(fmt::format("blk.{}.ffn_up_exps.weight", layer), kF32, {4, 4, 2});
    }
    const Geometry g = derive_ok(b);
    ASSERT_EQ(g.sets.size(), 3U);
    EXPECT_EQ(g.sets[0].layer, 2);
    EXPECT_EQ(g.sets[1].layer, 9);
    EXPECT_EQ(g.sets[2].layer, 10);
}

TEST(Geometry, ASingleExpertHasNoThirdDimension) {
    const Geometry g = derive_ok(with_metadata(1, 1).tensor("blk.0.ffn_up_exps.weight", kF32, {4, 4}));
    EXPECT_EQ(g.sets[0].n_expert, 1U);
    EXPECT_EQ(g.sets[0].record_bytes(), 64U);
}

TEST(Geometry, BiasesAndSharedExpertsAreDense) {
    GgufBuilder b = with_metadata(1, 1);
    b.tensor("blk.0.ffn_up_exps.weight", kF32, {4, 4, 2}).tensor("blk.0.ffn_up_exps.bias", kF32, {4, 2});
    b.tensor("blk.0.ffn_up_shexp.weight", kF32, {4, 4});
    EXPECT_EQ(derive_ok(b).dense_bytes, 4U * 4 * 2 + 64);
}

TEST(Geometry, RefusesWhatIsNotMoe) {
    expect_refused(with_metadata(1, 1).tensor("blk.0.ffn_up.weight", kF32, {4, 4}),
                   "M is not a Mixture-of-Experts model: none of its 1 tensors");
    expect_refused(with_metadata(1, 1), "M is not a Mixture-of-Experts model: it has no tensors");
    expect_refused(with_metadata(1, 1).tensor("blk.0.ffn_gate.7.weight", kF32, {4, 4}), "convert the original model");
    EXPECT_FALSE(derive_geometry(GgufIndex()));
}

TEST(Geometry, RefusesContradictions) {
    expect_refused(with_metadata(1, 1)
                       .tensor("blk.0.ffn_up_exps.weight", kF32, {4, 4, 2})
                       .tensor("blk.0.ffn_down_exps.weight", kF32, {4, 4, 3}),
                   "'blk.0.ffn_down_exps.weight' has 3 experts, but 'blk.0.ffn_up_exps.weight' has 2");
    expect_refused(with_metadata(1, 3).tensor("blk.0.ffn_up_exps.weight", kF32, {4, 4, 2}), "uses 3 experts");
    expect_refused(with_metadata(1, 0).tensor("blk.0.ffn_up_exps.weight", kF32, {4, 4, 2}), "how many experts");
    expect_refused(with_metadata(1, 1).tensor("blk.1.ffn_up_exps.weight", kF32, {4, 4, 2}), "experts in layer 1");
    expect_refused(with_metadata(100'000, 1).tensor("blk.1.ffn_up_exps.weight", kF32, {4, 4, 2}), "how many layers");
    expect_refused(with_metadata(1, 1).tensor("blk.0.ffn_up_exps.weight", kF32, {4}), "not a stack");
    expect_refused(with_metadata(1, 1).tensor("blk.0.ffn_up_exps.weight", kF32, {4, 4, 2, 2}), "not a stack");
    expect_refused(with_metadata(1, 1).tensor("blk.0.ffn_up_exps.weight", kF32, {4, 4, 0}), "not a stack");
    GgufBuilder nameless;
    nameless.tensor("blk.0.ffn_up_exps.weight", kF32, {4, 4, 2});
    expect_refused(nameless, "general.architecture");
    GgufBuilder bare;
    bare.meta_string("general.architecture", "t").tensor("blk.0.ffn_up_exps.weight", kF32, {4, 4, 2});
    expect_refused(bare, "how many layers");
}

}  // namespace
}  // namespace sluice::model
