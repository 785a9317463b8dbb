#include "plan/work.h"

#include <gtest/gtest.h>

#include "tests/model/gguf_builder.h"

namespace sluice::plan {
namespace {

using model::testing::GgufBuilder;
using model::testing::kF32;
using model::testing::kQ4_0;
using model::testing::kQ8_0;
using model::testing::TempDir;

Work work_in(const GgufBuilder& builder) {
    const TempDir dir;
    const auto index = model::GgufIndex::open(dir.write("m.gguf", builder.file()));
    EXPECT_TRUE(index.ok()) << index.status().message();
    const auto geometry = model::derive_geometry(*index);
    EXPECT_TRUE(geometry.ok()) << geometry.status().message();
    return work_of(*index, *geometry);
}

constexpr model::TypeId kI32 = 26;

// Bytes of `elements` in a type of 32 to a block.
constexpr uint64_t q4(uint64_t elements) {
    return elements / 32 * 18;
}
constexpr uint64_t q8(uint64_t elements) {
    return elements / 32 * 34;
}

TEST(WorkOf, ATokenOfAMixedModel) {
    const Work w = work_in(model::testing::tiny_moe());
    EXPECT_EQ(w.layers, 3U);
    ASSERT_EQ(w.sets.size(), 2U);
    EXPECT_EQ(w.sets[0].n_expert, 4U);
    EXPECT_EQ(w.sets[0].n_used, 2U);
    EXPECT_EQ(w.sets[0].components, 3U);
    EXPECT_EQ(w.sets[0].bytes, 2 * q4(32 * 64) + q8(64 * 32));
    EXPECT_EQ(w.sets[1].components, 2U);
    // Two experts of each layer.
    EXPECT_EQ(w.experts.at("q4_0"), 2 * (2 * q4(32 * 64) + q4(32 * 128)));
    EXPECT_EQ(w.experts.at("q8_0"), 2 * q8(64 * 32));
    EXPECT_EQ(w.experts.at("f32"), 2 * 4U * 64 * 32);
    EXPECT_EQ(w.cycle_bytes, w.experts.at("q4_0") + w.experts.at("q8_0") + w.experts.at("f32"));
    EXPECT_EQ(w.expert_bytes, 2 * w.cycle_bytes);
    // Most bytes come in the matrices of layer 2 that are f32.
    EXPECT_EQ(w.component_bytes, 4U * 64 * 32);
    EXPECT_EQ(w.expert_matrices.at("q4_0").bytes, q4(32 * 128));
    EXPECT_EQ(w.expert_matrices.at("q8_0").ne0, 64U);
    // Without an output matrix the embedding is that, too.
    EXPECT_EQ(w.vocabulary, 3U);
    EXPECT_EQ(w.dense.at("f32"), 4U * (32 * 3 + 32 * 32 + 32 * 4));
    EXPECT_EQ(w.dense_matrices.at("f32").bytes, 4U * 32 * 32);
}

TEST(WorkOf, OfTablesATokenTakesOneRow) {
    GgufBuilder b = model::testing::tiny_moe();
    b.tensor("output.weight", kQ8_0, {32, 5});
    b.tensor("per_layer_token_embd.weight", kF32, {32, 1000});
    b.tensor("blk.0.ffn_gate_tid2eid.weight", kI32, {2, 5});
    const Work w = work_in(b);
    EXPECT_EQ(w.vocabulary, 5U);
    EXPECT_FALSE(w.dense.contains("i32") || w.dense_matrices.contains("i32")) << "nothing is multiplied with it";
    EXPECT_EQ(w.dense.at("f32"), 4U * (32 * 32 + 32 * 4));
    EXPECT_EQ(w.dense.at("q8_0"), q8(32 * 5));
}

TEST(SharesOf, EachSetHasThatOfItsClass) {
    cache::Layout l;
    l.classes = {{.slot_bytes = 1, .n_slots = 1, .first_slot = 0, .offset = 0, .n_records = 4},
                 {.slot_bytes = 2, .n_slots = 8, .first_slot = 1, .offset = 1, .n_records = 8}};
    l.class_of_set = {1, 0, 1};
    EXPECT_EQ(shares_of(l), (std::vector<double>{1, 0.25, 1}));
}

}  // namespace
}  // namespace sluice::plan
