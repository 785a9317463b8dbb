#include "store/record_store.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/model/gguf_builder.h"

namespace sluice::store {
namespace {

using model::testing::TempDir;
using model::testing::tiny_moe;

class RecordStoreTest : public ::testing::Test {
  protected:
    RecordStoreTest() : path_(dir_.write("tiny.gguf", tiny_moe().file())) {
        auto index = model::GgufIndex::open(path_);
        EXPECT_TRUE(index.ok()) << index.status().message();
        index_ = std::move(*index);
        auto geometry = model::derive_geometry(index_);
        EXPECT_TRUE(geometry.ok()) << geometry.status().message();
        geometry_ = std::move(*geometry);
    }
    TempDir dir_;
    std::string path_;
    model::GgufIndex index_;
    model::Geometry geometry_;
};

TEST_F(RecordStoreTest, EveryExpertOfEverySetHasItsOwnNumber) {
    const auto store = RecordStore::open(index_, geometry_, {.access = io::Access::buffered}, nullptr);
    ASSERT_TRUE(store.ok()) << store.status().message();
    ASSERT_EQ(store->n_records(), 8U);
    for (uint32_t set = 0; set < 2; ++set) {
        for (uint32_t e = 0; e < 4; ++e) {
            const RecordId r = store->record(set, e);
            EXPECT_EQ(r, set * 4 + e);
            EXPECT_EQ(store->set_of(r), set);
            EXPECT_EQ(store->expert_of(r), e);
            EXPECT_EQ(store->name(r).layer, static_cast<int>(set) + 1);
        }
    }
    EXPECT_EQ(store->n_components(0), 3U);
    EXPECT_EQ(store->n_components(1), 2U);
}

TEST_F(RecordStoreTest, ExtentsAreTheTensorsSlices) {
    const auto store = RecordStore::open(index_, geometry_, {.access = io::Access::buffered}, nullptr);
    ASSERT_TRUE(store.ok());
    const model::TensorEntry* down = index_.find("blk.2.ffn_down_exps.weight");
    const Extent e = store->extent(store->record(1, 3), 1);
    EXPECT_EQ(e.bytes, down->bytes / 4);
    EXPECT_EQ(e.offset, down->offset + 3 * e.bytes);
    EXPECT_EQ(e.file->path(), path_);
}

TEST_F(RecordStoreTest, AlignedReadsCoverTheExtentAndFitTheCapacity) {
    const io::File file = io::File::simulated("m", 1U << 20U, 512, 512);
    const io::File* files[] = {&file};
    const RecordStore store = RecordStore::over(geometry_, files);
    for (RecordId r = 0; r < store.n_records(); ++r) {
        for (uint32_t c = 0; c < store.n_components(store.set_of(r)); ++c) {
            const Extent e = store.extent(r, c);
            const RecordStore::AlignedRead a = RecordStore::aligned(e);
            EXPECT_EQ(a.offset % 512, 0U);
            EXPECT_EQ(a.length % 512, 0U);
            EXPECT_EQ(a.offset + a.delta, e.offset);
            EXPECT_EQ(a.need, a.delta + e.bytes);
            EXPECT_LE(a.need, a.length);
            EXPECT_LT(a.length - a.need, 512U);
            EXPECT_LE(a.length, store.aligned_capacity(store.set_of(r), c));
        }
    }
}

TEST_F(RecordStoreTest, AFileThatWasReplacedIsNotTakenForTheIndexedOne) {
    // Both exist at once, so that they cannot share an inode.
    const std::string other = dir_.write("other.gguf", tiny_moe().file());
    std::filesystem::rename(other, path_);
    const auto store = RecordStore::open(index_, geometry_, {.access = io::Access::buffered}, nullptr);
    ASSERT_FALSE(store.ok());
    EXPECT_NE(store.status().message().find(path_), std::string::npos);
    EXPECT_NE(store.status().message().find("replaced"), std::string::npos);
}

}  // namespace
}  // namespace sluice::store
