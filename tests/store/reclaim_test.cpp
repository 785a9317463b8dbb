// Giving back the room of experts that a pack holds, and what then opens and what does not.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <climits>
#include <filesystem>

#include "base/crc32c.h"
#include "base/log.h"
#include "store/pack_build.h"
#include "store/sums.h"
#include "tests/store/support.h"

namespace sluice::store {
namespace {

using model::testing::TempDir;
using testing::allocated_bytes;
using testing::FaultyFiles;
using testing::flip_byte;
using testing::PowerLoss;
using testing::read_file;
using testing::TestModel;

class ReclaimTest : public ::testing::Test {
  protected:
    ReclaimTest() {
        set_log_sink([](LogLevel, const std::string&) {});
        engine_ = std::move(io::make_engine({.kind = io::EngineKind::pread, .lanes = 2})->engine);
    }
    ~ReclaimTest() override { set_log_sink(nullptr); }

    static PackJob reclaiming() { return {.reclaim = true, .access = io::Access::buffered}; }
    Result<PackDone> pack(const TestModel& m, const PackJob& job, Files& files = Files::system()) {
        return make_pack(files, m.index, m.geometry, *engine_, job);
    }
    static Result<RecordStore> store(const TestModel& m, const std::string& which = "auto") {
        return RecordStore::open(m.index, m.geometry, {.access = io::Access::buffered, .store = which}, nullptr);
    }
    // The first byte from here on that the digest of the model's only file does not see.
    static uint64_t unsampled(const TestModel& m, uint64_t from) {
        const model::FileEntry& f = m.index.files()[0];
        const uint64_t step = (f.size - f.data_offset) / 64;
        EXPECT_GT(step, 4500U);
        while ((from - f.data_offset) % step < 4096) ++from;
        return from;
    }
    // Every part of the model is in its own files or in the pack, and the manifest knows the latter's checksum.
    void expect_nothing_lost(const TestModel& m, int at) {
        const std::string out = m.paths[0] + ".sluice";
        auto read = read_manifest(out);
        if (!read.ok()) read = read_manifest(partial_path(out));
        if (!read.ok()) {
            EXPECT_TRUE(m.whole()) << at;
            return;
        }
        const auto parts = Parts::of(read->manifest.source);
        const auto map = map_pack(*parts, read->manifest.shape);
        const Copy copy = open_copy(out, map->map, data_paths(out, *map), io::Access::buffered);
        const Copy own = open_copy(m.paths[0], parts->gguf(), m.paths, io::Access::buffered);
        PartReader reader(*engine_);
        for (PartId p = 0; p < parts->count(); ++p) {
            std::string wanted;
            for (const Piece& piece : parts->pieces(parts->gguf(), p))
                wanted += m.contents[piece.file].substr(piece.offset, piece.bytes);
            const uint32_t sum = crc32c(std::as_bytes(std::span(wanted.data(), wanted.size())));
            const bool there = reader.read_checked(own, *parts, p, sum).ok();
            const bool packed = p < parts->first(read->manifest.done) && read->manifest.sums[p] == sum &&
                                copy.holds(*parts, p) && reader.read_checked(copy, *parts, p, sum).ok();
            EXPECT_TRUE(there || packed) << "call " << at << ": " << parts->name(p);
        }
    }
    void expect_reclaimed(const TestModel& m) {
        const auto s = store(m);
        ASSERT_TRUE(s.ok()) << s.status().message();
        EXPECT_EQ(s->n_holders(), 1U);
        EXPECT_EQ(s->holder(0).name, m.paths[0] + ".sluice");
        const auto verdict = verify(*s, *engine_, Depth::full, {});
        ASSERT_TRUE(verdict.ok());
        EXPECT_TRUE(verdict->damage.empty());
        for (size_t i = 0; i < m.paths.size(); ++i) {
            EXPECT_EQ(std::filesystem::file_size(m.paths[i]), m.contents[i].size());
            EXPECT_NE(read_file(guard_path(m.paths[i])).find("sluice unpack --in-place"), std::string::npos);
        }
        // All that is no expert is as it was.
        const auto parts = Parts::of(*describe(m.index, m.geometry));
        for (const Piece& piece : parts->gguf().dense) {
            EXPECT_EQ(read_file(m.paths[piece.file]).substr(piece.offset, piece.bytes),
                      m.contents[piece.file].substr(piece.offset, piece.bytes));
        }
    }

    TempDir dir_;
    std::unique_ptr<io::Engine> engine_;
};

TEST_F(ReclaimTest, ExpertsMoveIntoThePackAndTheRestStays) {
    for (const int shards : {1, 2, 5}) {
        const TempDir dir;
        const TestModel m(dir, shards);
        uint64_t before = 0, after = 0;
        for (const std::string& p : m.paths) before += allocated_bytes(p);
        const auto done = pack(m, {.reclaim = true});
        ASSERT_TRUE(done.ok()) << done.status().message();
        EXPECT_FALSE(done->shape.keeps_dense);
        for (const std::string& p : m.paths) after += allocated_bytes(p);
        EXPECT_LE(before - after, done->given_back);  // what is in pieces takes blocks of its own to describe
        EXPECT_GE(before - after + 2 * kPackAlign * m.paths.size(), done->given_back);
        EXPECT_GT(done->given_back, m.geometry.expert_bytes * 2 / 3);
        expect_reclaimed(m);
        // A second time nothing is left to do.
        const auto again = pack(m, reclaiming());
        ASSERT_TRUE(again.ok()) << again.status().message();
        EXPECT_EQ(again->given_back, 0U);
    }
}

TEST_F(ReclaimTest, TheNoteNamesAPackThatLiesElsewhere) {
    const TempDir elsewhere;
    const TestModel m(dir_, 2);
    PackJob job = reclaiming();
    job.out = elsewhere / "p.sluice";
    ASSERT_TRUE(pack(m, job).ok());
    const std::string command = fmt::format("sluice unpack --in-place {} --pack {}", m.paths[0], job.out);
    EXPECT_EQ(way_back(m.index, job.out), command);
    EXPECT_EQ(way_back(m.index, ""), "sluice unpack --in-place " + m.paths[0]);
    EXPECT_EQ(way_back(m.index, m.paths[0] + ".sluice"), way_back(m.index, ""));
    for (const std::string& p : m.paths) EXPECT_NE(read_file(guard_path(p)).find(command), std::string::npos);
}

TEST_F(ReclaimTest, ACompletePackIsComparedBeforeTheModelIsEmptied) {
    const TestModel m(dir_);
    ASSERT_TRUE(pack(m, {}).ok());
    // The model is damaged where its digest does not look; its pack is not.
    const uint64_t at = unsampled(m, m.geometry.sets[1].tensors[0].offset);
    flip_byte(m.paths[0], at);
    const auto refused = pack(m, reclaiming());
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.status().message().find("layer 2, expert 0, gate_up"), std::string::npos)
        << refused.status().message();
    flip_byte(m.paths[0], at);
    // So is its pack.
    const std::string data = m.paths[0] + ".sluice.1";
    const auto parts = Parts::of(*describe(m.index, m.geometry));
    const auto map = map_pack(*parts, {});
    flip_byte(data, map->steps[3].offset + 5);
    EXPECT_NE(pack(m, reclaiming()).status().message().find("read back"), std::string::npos);
    flip_byte(data, map->steps[3].offset + 5);
    ASSERT_TRUE(pack(m, reclaiming()).ok());
    expect_reclaimed(m);
}

// R89: at every moment the drive holds at most one layer more than before, and what rounding to whole blocks costs.
TEST_F(ReclaimTest, OneLayerAtATimeIsAllTheRoomItTakes) {
    const TestModel m(dir_);
    const auto parts = Parts::of(*describe(m.index, m.geometry));
    const auto map = map_pack(*parts, {.keeps_dense = false});
    uint64_t layer = 0, experts = 0, packed = 0;
    for (uint32_t s = 1; s < parts->n_steps(); ++s) {
        layer = std::max(layer, map->steps[s].bytes);
        experts += parts->step_bytes(s);
        packed += map->steps[s].bytes;
    }
    uint64_t edges = 0;  // of each tensor, blocks that it shares with its neighbours
    for (const auto& set : m.geometry.sets) edges += set.tensors.size() * 2 * kPackAlign;
    class Watched : public Files {
      public:
        explicit Watched(std::string directory) : directory_(std::move(directory)) {}
        int write(int fd, std::span<const std::byte> bytes, uint64_t offset) override {
            const int e = Files::write(fd, bytes, offset);
            look();
            return e;
        }
        int allocate(int fd, uint64_t offset, uint64_t bytes) override {
            const int e = Files::allocate(fd, offset, bytes);
            look();
            return e;
        }
        void look() {
            uint64_t sum = 0;
            for (const auto& f : std::filesystem::directory_iterator(directory_))
                sum += allocated_bytes(f.path().string());
            most = std::max(most, sum);
        }
        uint64_t most = 0;

      private:
        std::string directory_;
    } files(std::filesystem::path(m.paths[0]).parent_path().string());
    const uint64_t before = allocated_bytes(m.paths[0]);
    ASSERT_TRUE(pack(m, reclaiming(), files).ok());
    const uint64_t manifest = std::filesystem::file_size(m.paths[0] + ".sluice");
    EXPECT_GT(files.most, before);
    EXPECT_LE(files.most, before + layer + (packed - experts) + edges + manifest + 5 * kPackAlign);
    EXPECT_LT(files.most, before + packed);
}

TEST_F(ReclaimTest, WhateverFailsNothingIsLostAndTheNextCallFinishes) {
    for (const bool packed_before : {false, true}) {
        for (const bool power : {true, false}) {
            for (int at = 0;; ++at) {
                const TempDir dir;
                const TestModel m(dir, 2);
                FaultyFiles fast(INT_MAX, 0, false);
                if (packed_before) {
                    const auto done = pack(m, {.access = io::Access::buffered}, fast);
                    ASSERT_TRUE(done.ok()) << done.status().message();
                }
                FaultyFiles full(at, ENOSPC, false);
                PowerLoss loss(at);
                const auto first = pack(m, reclaiming(), power ? static_cast<Files&>(loss) : full);
                if (power) loss.lose();
                EXPECT_EQ(loss.early(), 0) << at;
                expect_nothing_lost(m, at);
                if (first.ok()) {
                    EXPECT_GT(at, packed_before ? 20 : 60);
                    break;
                }
                // Either whole, or not read from at all, or read from the pack.
                const auto between = store(m);
                EXPECT_TRUE(between.ok() || between.status().message().find("holes") != std::string::npos)
                    << between.status().message();
                const auto second = pack(m, reclaiming(), fast);
                ASSERT_TRUE(second.ok()) << at << ": " << second.status().message();
                expect_reclaimed(m);
            }
        }
    }
}

TEST_F(ReclaimTest, AFileSystemThatCannotGiveBackIsSaidBeforeAnythingIsDone) {
    const TestModel m(dir_);
    class NoPunch : public Files {
      public:
        int punch(int /*fd*/, uint64_t /*offset*/, uint64_t /*bytes*/) override { return EOPNOTSUPP; }
    } files;
    const auto done = pack(m, reclaiming(), files);
    ASSERT_FALSE(done.ok());
    EXPECT_NE(done.status().message().find("cannot give back"), std::string::npos) << done.status().message();
    EXPECT_TRUE(m.whole());
    EXPECT_FALSE(std::filesystem::exists(m.paths[0] + ".sluice.partial"));
    EXPECT_FALSE(std::filesystem::exists(guard_path(m.paths[0])));
}

TEST_F(ReclaimTest, NothingIsReadFromAModelWithoutItsExperts) {
    const TestModel m(dir_);
    ASSERT_TRUE(
        save_sums(Files::system(), m.index, {*describe(m.index, m.geometry), *compute_sums(*store(m), *engine_, {})})
            .ok());
    ASSERT_TRUE(pack(m, reclaiming()).ok());
    const auto gguf = store(m, "gguf");
    ASSERT_FALSE(gguf.ok());
    EXPECT_NE(gguf.status().message().find("taken out"), std::string::npos) << gguf.status().message();
    const std::string pack = m.paths[0] + ".sluice";
    std::filesystem::rename(pack, pack + ".away");
    for (const char* which : {"auto", "gguf"}) {
        const auto s = store(m, which);
        ASSERT_FALSE(s.ok());
        EXPECT_NE(s.status().message().find("holes where its experts should be"), std::string::npos);
    }
    // A pack of that name which cannot be used is named.
    testing::write_file(pack, "mine");
    EXPECT_NE(store(m).status().message().find("cannot be used"), std::string::npos) << store(m).status().message();
    std::filesystem::rename(pack + ".away", pack);
    EXPECT_TRUE(store(m).ok());
    // Nor is it taken for a copy of another's.
    const TempDir other;
    const TestModel copy(other);
    EXPECT_FALSE(RecordStore::open(copy.index, copy.geometry, {.mirrors = {m.paths[0]}}, nullptr).ok());
    // But the reclaimed model may have a whole copy.
    const auto mirrored = RecordStore::open(m.index, m.geometry, {.mirrors = {copy.paths[0]}}, nullptr);
    ASSERT_TRUE(mirrored.ok()) << mirrored.status().message();
    EXPECT_EQ(mirrored->n_holders(), 2U);
}

// Experts may be zeros, and a copy of the model may be sparse there.
TEST_F(ReclaimTest, ZerosThatChecksumsVouchForAreNoTrouble) {
    TestModel m(dir_);
    const auto& t = m.geometry.sets[1].tensors[1];
    ASSERT_EQ(t.bytes_per_expert % kPackAlign, 0U);
    const uint64_t begin = align_up(t.offset, kPackAlign);
    std::string zeros = m.contents[0];
    std::fill_n(zeros.begin() + static_cast<std::ptrdiff_t>(begin), kPackAlign, '\0');
    testing::write_file(m.paths[0], zeros);
    m.open();
    ASSERT_TRUE(
        save_sums(Files::system(), m.index, {*describe(m.index, m.geometry), *compute_sums(*store(m), *engine_, {})})
            .ok());
    auto sparse = OutputFile::open(Files::system(), m.paths[0], O_RDWR);
    ASSERT_TRUE(sparse->punch(begin, kPackAlign).ok());
    EXPECT_TRUE(is_skeleton(m.index, m.geometry));
    EXPECT_TRUE(store(m).ok()) << store(m).status().message();
    // A hole too many is one.
    ASSERT_TRUE(sparse->punch(begin + kPackAlign, kPackAlign).ok());
    EXPECT_FALSE(store(m).ok());
}

// scp, cp --sparse=never and most clouds make zeros of holes.
TEST_F(ReclaimTest, ASkeletonCopiedWithoutItsHolesIsNotComputedFrom) {
    const TestModel m(dir_);
    ASSERT_TRUE(pack(m, {.reclaim = true}).ok());
    for (const bool with_note : {false, true}) {
        const TempDir away;
        const std::string copy = away / "m.gguf";
        testing::write_file(copy, read_file(m.paths[0]));
        if (with_note) testing::write_file(guard_path(copy), "a note");
        const auto index = model::GgufIndex::open(copy);
        const auto geometry = model::derive_geometry(*index);
        ASSERT_FALSE(is_skeleton(*index, *geometry)) << "no holes are left";
        for (const char* which : {"auto", "gguf"}) {
            const auto s =
                RecordStore::open(*index, *geometry, {.access = io::Access::buffered, .store = which}, nullptr);
            ASSERT_FALSE(s.ok()) << which;
            EXPECT_NE(s.status().message().find("nothing is computed from it"), std::string::npos)
                << s.status().message();
        }
    }
}

}  // namespace
}  // namespace sluice::store
