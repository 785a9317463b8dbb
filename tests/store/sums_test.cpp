#include "store/sums.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "base/crc32c.h"
#include "base/log.h"
#include "store/scan.h"
#include "tests/model/gguf_builder.h"
#include "tests/store/support.h"

namespace sluice::store {
namespace {

using model::testing::TempDir;
using model::testing::tiny_moe;
using testing::FaultyFiles;

int g_warnings = 0;

class SumsTest : public ::testing::Test {
  protected:
    SumsTest() : path_(dir_.write("tiny.gguf", tiny_moe().file())) {
        g_warnings = 0;
        set_log_sink([](LogLevel level, const std::string&) { g_warnings += level == LogLevel::warn ? 1 : 0; });
        open();
        engine_ = std::move(io::make_engine({.kind = io::EngineKind::pread, .lanes = 2})->engine);
    }
    ~SumsTest() override { set_log_sink(nullptr); }

    void open() {
        auto index = model::GgufIndex::open(path_);
        ASSERT_TRUE(index.ok()) << index.status().message();
        index_ = std::move(*index);
        auto geometry = model::derive_geometry(index_);
        ASSERT_TRUE(geometry.ok());
        geometry_ = std::move(*geometry);
    }
    RecordStore store() {
        auto store = RecordStore::open(index_, geometry_, {.access = io::Access::buffered}, nullptr);
        EXPECT_TRUE(store.ok()) << store.status().message();
        return std::move(*store);
    }
    Sums sums() {
        auto values = compute_sums(store(), *engine_, {});
        EXPECT_TRUE(values.ok()) << values.status().message();
        return {*describe(index_, geometry_), std::move(*values)};
    }
    void flip(const std::string& path, uint64_t at) {
        std::fstream f(path, std::ios::in | std::ios::out | std::ios::binary);
        f.seekg(static_cast<std::streamoff>(at));
        const char c = static_cast<char>(f.get() ^ 0x10);
        f.seekp(static_cast<std::streamoff>(at));
        f.put(c);
    }

    TempDir dir_;
    std::string path_;
    model::GgufIndex index_;
    model::Geometry geometry_;
    std::unique_ptr<io::Engine> engine_;
};

TEST_F(SumsTest, AreThoseOfTheExpertsBytes) {
    ASSERT_FALSE(store().has_checksums());
    EXPECT_EQ(store().checksum(0, 0), std::nullopt);
    ASSERT_TRUE(save_sums(Files::system(), index_, sums()).ok());
    const RecordStore s = store();
    std::ifstream in(path_, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(in)), {});
    for (RecordId r = 0; r < s.n_records(); ++r) {
        for (uint32_t c = 0; c < s.n_components(s.set_of(r)); ++c) {
            const Extent e = s.extent(r, c);
            EXPECT_EQ(s.checksum(r, c), crc32c(std::as_bytes(std::span(bytes).subspan(e.offset, e.bytes))));
        }
    }
    EXPECT_EQ(g_warnings, 0);
}

TEST_F(SumsTest, AFlippedBitInAnyExpertIsFoundAndNamed) {
    ASSERT_TRUE(save_sums(Files::system(), index_, sums()).ok());
    const RecordStore s = store();
    EXPECT_TRUE(verify(s, *engine_, Depth::full, {})->damage.empty());
    EXPECT_EQ(verify(s, *engine_, Depth::full, {})->components, 4U * 3 + 4U * 2);
    EXPECT_EQ(verify(s, *engine_, Depth::quick, {})->components, 2U * 3 + 2U * 2);
    for (RecordId r = 0; r < s.n_records(); ++r) {
        for (uint32_t c = 0; c < s.n_components(s.set_of(r)); ++c) {
            const Extent e = s.extent(r, c);
            const uint64_t at = e.offset + (r * 131) % e.bytes;
            flip(path_, at);
            const auto verdict = verify(s, *engine_, Depth::full, {});
            ASSERT_TRUE(verdict.ok());
            ASSERT_EQ(verdict->damage.size(), 1U);
            EXPECT_EQ(verdict->damage[0].record, r);
            EXPECT_EQ(verdict->damage[0].component, c);
            EXPECT_NE(verdict->damage[0].what.find(path_), std::string::npos);
            flip(path_, at);
        }
    }
}

TEST_F(SumsTest, AFileThatEndsTooEarlyIsDamageAndNoEndOfTheScan) {
    ASSERT_TRUE(save_sums(Files::system(), index_, sums()).ok());
    const RecordStore s = store();
    std::filesystem::resize_file(path_, s.extent(0, 0).offset);
    const auto verdict = verify(s, *engine_, Depth::full, {});
    ASSERT_TRUE(verdict.ok()) << verdict.status().message();
    EXPECT_EQ(verdict->components, 20U);
    EXPECT_EQ(verdict->damage.size(), 16U);  // the four of "down" lie before the cut
    EXPECT_FALSE(compute_sums(s, *engine_, {}).ok());
}

TEST_F(SumsTest, WhoeverWatchesCanStop) {
    const auto r = compute_sums(store(), *engine_, [](uint64_t done, uint64_t total) { return done * 2 < total; });
    ASSERT_FALSE(r.ok());
    EXPECT_EQ(r.status().code(), Code::cancelled);
}

// Stale, or the model is damaged where the digest looks: nobody knows, so nothing is computed.
TEST_F(SumsTest, OfOtherContentsOfTheSameShapeAreAConflict) {
    ASSERT_TRUE(save_sums(Files::system(), index_, sums()).ok());
    flip(path_, index_.files()[0].data_offset);  // sampled
    open();
    const auto store = RecordStore::open(index_, geometry_, {.access = io::Access::buffered}, nullptr);
    ASSERT_FALSE(store.ok());
    EXPECT_EQ(store.status().code(), Code::conflict);
    EXPECT_NE(store.status().message().find("replaced on purpose, remove " + sums_path(index_)), std::string::npos)
        << store.status().message();
    EXPECT_EQ(load_sums(index_, geometry_).status().code(), Code::conflict);
}

TEST_F(SumsTest, AreFoundByARenamedModel) {
    ASSERT_TRUE(save_sums(Files::system(), index_, sums()).ok());
    const std::string other = dir_ / "other.gguf";
    std::filesystem::rename(sums_path(index_), other + ".sluice-sums");
    std::filesystem::rename(path_, other);
    path_ = other;
    open();
    EXPECT_TRUE(store().has_checksums());
}

TEST_F(SumsTest, EveryFlippedByteAndEveryCutIsRefused) {
    const std::string good = encode_sums(sums());
    ASSERT_TRUE(parse_sums(good).ok());
    for (size_t i = 0; i < good.size(); ++i) {
        for (const char bit : {char(1), char(0x80), char(0xFF)}) {
            std::string bad = good;
            bad[i] = static_cast<char>(bad[i] ^ bit);
            EXPECT_FALSE(parse_sums(bad).ok()) << "byte " << i;
        }
        EXPECT_FALSE(parse_sums(std::string_view(good).substr(0, i)).ok());
    }
    EXPECT_FALSE(parse_sums(good + "x").ok());
    std::string damaged = good;
    damaged[good.size() / 2] ^= 1;
    (void)dir_.write("tiny.gguf.sluice-sums", damaged);
    EXPECT_FALSE(store().has_checksums());
    EXPECT_EQ(g_warnings, 1);
}

// Whoever writes such a file on purpose also writes the right checksum.
TEST_F(SumsTest, NonsenseWithARightChecksumIsRefused) {
    const std::string good = encode_sums(sums());
    for (size_t i = 8; i + 4 < good.size(); ++i) {
        std::string bad = good.substr(0, good.size() - 4);
        bad[i] = static_cast<char>(bad[i] ^ 0xFF);
        put_number(bad, crc32c(std::as_bytes(std::span(bad.data(), bad.size()))));
        const auto parsed = parse_sums(bad);  // sound, or refused
        if (!parsed.ok()) continue;
        EXPECT_EQ(parsed->values.size(), parsed->source.n_components());
        for (const model::ExpertSet& set : parsed->source.sets) {
            for (const model::ExpertTensor& t : set.tensors)
                EXPECT_LE(t.expert_offset(set.n_expert), parsed->source.files[t.file].size);
        }
    }
}

// At every call: the old sums or the new ones, never anything else, and never a file left over after an error.
TEST_F(SumsTest, WritingIsAllOrNothingWhateverFails) {
    const Sums now = sums();
    Sums before = now;
    before.values[0] ^= 1;
    for (const bool killed : {false, true}) {
        for (int at = 0;; ++at) {
            ASSERT_TRUE(save_sums(Files::system(), index_, before).ok());
            FaultyFiles files(at, ENOSPC, killed);
            const Status s = save_sums(files, index_, now);
            const auto there = load_sums(index_, geometry_);
            ASSERT_TRUE(there.ok()) << there.status().message();
            if (s.ok()) {
                EXPECT_EQ(*there, now.values);
                EXPECT_GE(at, 5);
                break;
            }
            EXPECT_TRUE(*there == before.values || *there == now.values);
            EXPECT_NE(s.message().find("sluice-sums"), std::string::npos) << s.message();
            EXPECT_TRUE(killed || !std::filesystem::exists(sums_path(index_) + ".tmp")) << at;
        }
    }
}

TEST_F(SumsTest, ADirectoryThatCannotBeWrittenToIsAnError) {
    FaultyFiles files(0, EROFS, true);
    const Status s = save_sums(files, index_, sums());
    ASSERT_FALSE(s.ok());
    EXPECT_NE(s.message().find("Read-only"), std::string::npos) << s.message();
    EXPECT_FALSE(std::filesystem::exists(sums_path(index_)));
}

}  // namespace
}  // namespace sluice::store
