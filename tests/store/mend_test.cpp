// verify, repair and unpack over a model, its pack and copies of both.
#include "store/mend.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <climits>
#include <filesystem>

#include "base/log.h"
#include "store/pack_build.h"
#include "store/sums.h"
#include "tests/store/support.h"

namespace sluice::store {
namespace {

using model::testing::TempDir;
using testing::FaultyFiles;
using testing::flip_byte;
using testing::PowerLoss;
using testing::read_file;
using testing::TestModel;
using testing::write_file;

constexpr io::Access kBuffered = io::Access::buffered;

class MendTest : public ::testing::Test {
  protected:
    MendTest() {
        set_log_sink([](LogLevel, const std::string&) {});
        engine_ = std::move(io::make_engine({.kind = io::EngineKind::pread, .lanes = 2})->engine);
    }
    ~MendTest() override { set_log_sink(nullptr); }

    std::string pack(const TestModel& m, bool reclaim = false, uint64_t split = 0) {
        FaultyFiles fast(INT_MAX, 0, false);
        PackJob job{.reclaim = reclaim, .access = kBuffered};
        if (split != 0) job.split = split;
        const auto done = make_pack(fast, m.index, m.geometry, *engine_, job);
        EXPECT_TRUE(done.ok()) << done.status().message();
        return m.paths[0] + ".sluice";
    }
    static Bundle bundle(const std::string& path) {
        auto b = find_bundle(path, "", kBuffered);
        EXPECT_TRUE(b.ok()) << b.status().message();
        return std::move(*b);
    }
    std::vector<PartDamage> damage(const Bundle& b, const Copy& copy) {
        auto v = verify_copy(*b.reference, copy, *engine_, Depth::full, {});
        EXPECT_TRUE(v.ok());
        return std::move(v->damage);
    }
    Result<Repaired> mend(const std::string& path, RepairJob job = {}, Files& files = Files::system()) {
        job.access = kBuffered;
        return repair(files, bundle(path), *engine_, job);
    }

    TempDir dir_;
    std::unique_ptr<io::Engine> engine_;
};

// In both holders, every part in turn: found, named with its place, and mended from the other.
TEST_F(MendTest, AFlippedBitInAnyPartIsFoundNamedAndMended) {
    const TestModel m(dir_, 2);
    const std::string path = pack(m, false, 300'000);
    const std::string data = read_file(data_path(path, 0)) + read_file(data_path(path, 1));
    const Bundle whole = bundle(path);
    EXPECT_TRUE(damage(whole, whole.own).empty());
    EXPECT_TRUE(damage(whole, *whole.packed).empty());
    const Parts& parts = whole.reference->parts;
    for (const bool in_pack : {true, false}) {
        for (PartId p = 0; p < parts.count(); ++p) {
            const Copy& copy = in_pack ? *whole.packed : whole.own;
            // Not the model's header: then nobody could ask for it by its name.
            const Piece at = parts.pieces(copy.map, p).back();
            flip_byte(copy.paths[at.file], at.offset + (p * 131) % at.bytes / 2 + at.bytes / 2);
            const auto found = damage(whole, copy);
            ASSERT_EQ(found.size(), 1U) << parts.name(p);
            EXPECT_EQ(found[0].part, p);
            EXPECT_NE(found[0].what.find(parts.name(p)), std::string::npos) << found[0].what;
            EXPECT_NE(found[0].what.find(fmt::format("{} bytes at {} of {}", at.bytes, at.offset, copy.paths[at.file])),
                      std::string::npos)
                << found[0].what;
            FaultyFiles fast(INT_MAX, 0, false);
            const auto done = mend(p % 2 == 0 ? path : m.paths[0], {}, fast);
            ASSERT_TRUE(done.ok()) << done.status().message();
            EXPECT_EQ(done->mended.size(), 1U);
            EXPECT_TRUE(done->lost.empty());
        }
    }
    EXPECT_TRUE(m.whole());
    EXPECT_EQ(read_file(data_path(path, 0)) + read_file(data_path(path, 1)), data);
}

TEST_F(MendTest, WhatIsCutOffOrGoneComesBack) {
    const TestModel m(dir_);
    const std::string path = pack(m, false, 300'000);
    const std::string first = read_file(data_path(path, 0)), second = read_file(data_path(path, 1));
    const std::string manifest = read_file(path);
    std::filesystem::resize_file(data_path(path, 0), 5000);
    std::filesystem::remove(data_path(path, 1));
    flip_byte(path, 77);
    const Bundle harmed = bundle(path);
    EXPECT_EQ(trouble_of(harmed, *harmed.packed).size(), 2U);
    EXPECT_TRUE(trouble_of(harmed, harmed.own).empty());
    const auto done = mend(m.paths[0]);
    ASSERT_TRUE(done.ok()) << done.status().message();
    EXPECT_EQ(read_file(data_path(path, 0)), first);
    EXPECT_EQ(read_file(data_path(path, 1)), second);
    EXPECT_TRUE(bundle(path).note.empty());
    // The end of the model.
    std::filesystem::resize_file(m.paths[0], m.contents[0].size() - 9000);
    ASSERT_TRUE(mend(path).ok());
    EXPECT_TRUE(m.whole());
    // Its header: the pack still knows it.
    flip_byte(m.paths[0], 1);
    EXPECT_FALSE(model::GgufIndex::open(m.paths[0]).ok());
    ASSERT_TRUE(mend(m.paths[0]).ok());
    EXPECT_TRUE(m.whole());
}

TEST_F(MendTest, AModelThatIsNotThereIsSaidToBeMissing) {
    const TestModel m(dir_);
    const std::string path = pack(m);
    EXPECT_TRUE(missing_model(bundle(path)).ok());
    std::filesystem::rename(m.paths[0], m.paths[0] + ".away");
    const std::string wanted = fmt::format("{} is missing; sluice unpack {} writes it", m.paths[0], path);
    EXPECT_EQ(missing_model(bundle(m.paths[0])).message(), wanted);
    // The pack is mended all the same, as far as somebody has it.
    const TempDir other;
    const TestModel copy(other);
    flip_byte(data_path(path, 0), kPackAlign);
    for (const bool damaged : {true, false}) {
        const auto done = mend(m.paths[0], {.from = {copy.paths[0]}});
        ASSERT_TRUE(done.ok()) << done.status().message();
        EXPECT_EQ(done->mended.size(), damaged ? 1U : 0U);
        EXPECT_EQ(done->missing, std::vector<std::string>{wanted});
    }
    EXPECT_FALSE(std::filesystem::exists(m.paths[0]));
    // What the pack alone cannot bring back, it does not promise.
    std::filesystem::rename(m.paths[0] + ".away", m.paths[0]);
    std::filesystem::remove(path);
    std::filesystem::remove(data_path(path, 0));
    pack(m, true);
    std::filesystem::remove(m.paths[0]);
    EXPECT_EQ(missing_model(bundle(m.paths[0])).message(),
              m.paths[0] + " is missing, and its pack has only the experts: put it back");
}

TEST_F(MendTest, ADataFileThatNobodyCanBringBackIsNotMadeAnew) {
    const TestModel m(dir_);
    const std::string path = pack(m, true);
    const std::string data = data_path(path, 0), bytes = read_file(data);
    std::filesystem::remove(data);
    const auto done = mend(m.paths[0]);
    ASSERT_TRUE(done.ok()) << done.status().message();
    EXPECT_FALSE(std::filesystem::exists(data));
    EXPECT_EQ(done->missing, std::vector<std::string>{fmt::format(
                                 "{} is missing: put it back, or sluice repair {} --from COPY", data, m.paths[0])});
    EXPECT_TRUE(done->lost.empty());
    EXPECT_TRUE(done->mended.empty());
    // From a copy it is.
    const TempDir other;
    const TestModel copy(other);
    const auto again = mend(m.paths[0], {.from = {copy.paths[0]}});
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_TRUE(again->missing.empty());
    EXPECT_EQ(read_file(data), bytes);
}

TEST_F(MendTest, WhatIsLostSideBySideIsOneLine) {
    const TestModel m(dir_);
    const std::string path = pack(m, true);
    std::filesystem::resize_file(data_path(path, 0), kPackAlign);
    const auto done = mend(m.paths[0]);
    ASSERT_TRUE(done.ok()) << done.status().message();
    const Bundle b = bundle(path);
    const Parts& parts = b.reference->parts;
    EXPECT_EQ(done->lost_parts, parts.count() - parts.first(1));
    size_t tensors = 0;
    uint64_t first = UINT64_MAX;
    for (const auto& set : m.geometry.sets) {
        tensors += set.tensors.size();
        for (const auto& t : set.tensors) first = std::min(first, t.offset);
    }
    EXPECT_LE(done->lost.size(), tensors);
    EXPECT_NE(done->lost[0].find(fmt::format("to fetch: bytes {}-", first)), std::string::npos) << done->lost[0];
}

TEST_F(MendTest, AManifestThatIsLostIsSaidWithWhatToDo) {
    const TestModel m(dir_);
    const std::string path = pack(m);
    const auto ruin = [&] {
        flip_byte(path, 77);
        flip_byte(path, std::filesystem::file_size(path) / 2 + 77);
    };
    ruin();
    for (const std::string& named : {path, m.paths[0]}) {
        const Status s = find_bundle(named, "", kBuffered).status();
        EXPECT_NE(s.message().find("remove " + path + " and its data files, then sluice pack " + m.paths[0] + " makes"),
                  std::string::npos)
            << s.message();
    }
    // The way to make it is about the model.
    EXPECT_EQ(open_to_pack(path).status().message(),
              fmt::format("{} is a pack; name the model: sluice pack {}", path, m.paths[0]));
    EXPECT_TRUE(open_to_pack(m.paths[0]).ok());
    EXPECT_EQ(open_to_pack(dir_ / "none.sluice").status().code(), Code::not_found);
    // What may be the only place of experts is to be kept.
    ruin();
    pack(m, true);
    ruin();
    for (const std::string& named : {path, m.paths[0]}) {
        const Status s = find_bundle(named, "", kBuffered).status();
        EXPECT_NE(s.message().find("keep the pack's data files"), std::string::npos) << s.message();
        EXPECT_EQ(s.message().find("remove"), std::string::npos) << s.message();
    }
}

TEST_F(MendTest, WhatNobodyHasIsSaidWithTheBytesToFetch) {
    const TestModel m(dir_, 2);
    const TempDir other;
    const TestModel copy(other, 2);
    const std::string path = pack(m, true);
    const Bundle b = bundle(m.paths[0]);
    EXPECT_TRUE(b.own.skeleton);
    const Parts& parts = b.reference->parts;
    const PartId p = parts.first(2) + 1;
    const Piece at = parts.pieces(b.packed->map, p).front();
    flip_byte(b.packed->paths[at.file], at.offset);
    const auto lost = mend(m.paths[0]);
    ASSERT_TRUE(lost.ok()) << lost.status().message();
    ASSERT_EQ(lost->lost.size(), 1U);
    const Piece source = parts.pieces(parts.gguf(), p).front();
    EXPECT_NE(lost->lost[0].find(fmt::format("bytes {}-{} of {}", source.offset, source.offset + source.bytes - 1,
                                             parts.source().files[source.file].name)),
              std::string::npos)
        << lost->lost[0];
    // A copy that is damaged elsewhere, so much that its digest is another, still has it.
    flip_byte(copy.paths[0], copy.index.files()[0].data_offset + 1);
    const auto found = mend(m.paths[0], {.from = {copy.paths[0]}});
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(found->mended.size(), 1U);
    EXPECT_TRUE(damage(b, *bundle(path).packed).empty());
    EXPECT_FALSE(mend(m.paths[0], {.from = {dir_ / "none.gguf"}}).ok());
}

TEST_F(MendTest, ChecksumsAloneAreEnoughToMendAModelFromACopy) {
    const TestModel m(dir_);
    const TempDir other;
    const TestModel copy(other);
    const auto store = RecordStore::open(m.index, m.geometry, {.access = kBuffered}, nullptr);
    ASSERT_TRUE(
        save_sums(Files::system(), m.index, {*describe(m.index, m.geometry), *compute_sums(*store, *engine_, {})})
            .ok());
    const auto& t = m.geometry.sets[0].tensors[1];
    flip_byte(m.paths[0], t.offset + 17);
    EXPECT_EQ(mend(m.paths[0])->lost.size(), 1U);
    const auto done = mend(m.paths[0], {.from = {copy.paths[0]}});
    ASSERT_TRUE(done.ok()) << done.status().message();
    EXPECT_EQ(done->mended.size(), 1U);
    EXPECT_TRUE(m.whole());
}

// A new model under the old name is not turned back into the old one.
TEST_F(MendTest, AnotherModelIsNotMended) {
    const TestModel m(dir_);
    const std::string path = pack(m);
    const TempDir other;
    const TestModel different(other, 1, 2);
    write_file(m.paths[0], different.contents[0]);
    const auto refused = mend(m.paths[0]);
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.status().message().find("another model"), std::string::npos) << refused.status().message();
    EXPECT_EQ(read_file(m.paths[0]), different.contents[0]);
    ASSERT_TRUE(mend(m.paths[0], {.sure = true}).ok());
    EXPECT_TRUE(m.whole());
}

// Perhaps it holds the only experts of a reclaimed model.
TEST_F(MendTest, AnotherPacksDataIsNotOverwritten) {
    const TestModel m(dir_);
    const TempDir other;
    const TestModel different(other, 1, 2);
    const std::string path = pack(m);
    const std::string data = data_path(path, 0), ours = read_file(data);
    const std::string theirs = read_file(data_path(pack(different), 0));
    const std::string longer = ours + std::string(kPackAlign, 'x');
    for (const std::string& bytes : {theirs, theirs.substr(0, 9000), theirs + theirs, longer, m.contents[0]}) {
        write_file(data, bytes);
        flip_byte(m.paths[0], m.index.files()[0].data_offset + 100);
        const auto refused = mend(path);
        ASSERT_FALSE(refused.ok());
        EXPECT_NE(refused.status().message().find(data + " is another file"), std::string::npos)
            << refused.status().message();
        EXPECT_EQ(read_file(data), bytes);
        EXPECT_FALSE(m.whole()) << "nothing else is written either";
        m.restore();
    }
    std::filesystem::remove(data);
    ASSERT_TRUE(mend(path).ok());
    EXPECT_EQ(read_file(data), ours);
}

TEST_F(MendTest, WhateverFailsRepairMakesNothingWorse) {
    const TestModel m(dir_);
    const std::string path = pack(m);
    const std::string data = read_file(data_path(path, 0));
    const Bundle whole = bundle(path);
    const Parts& parts = whole.reference->parts;
    const auto harm = [&] {
        m.restore();
        write_file(data_path(path, 0), data);
        for (PartId p = 0; p < parts.count(); p += 5) {
            const Piece at = parts.pieces(whole.packed->map, p).front();
            flip_byte(data_path(path, 0), at.offset + 1);
        }
        const Piece at = parts.pieces(parts.gguf(), parts.first(2) + 1).front();
        flip_byte(m.paths[0], at.offset + 1);
        flip_byte(data_path(path, 0), 3);
    };
    for (const bool power : {true, false}) {
        for (int at = 0;; ++at) {
            harm();
            FaultyFiles full(at, ENOSPC, false);
            PowerLoss loss(at);
            const auto first = mend(path, {}, power ? static_cast<Files&>(loss) : full);
            if (power) loss.lose();
            FaultyFiles fast(INT_MAX, 0, false);
            const auto second = mend(path, {}, fast);
            ASSERT_TRUE(second.ok()) << at << ": " << second.status().message();
            EXPECT_TRUE(second->lost.empty()) << at;
            ASSERT_TRUE(m.whole()) << at;
            ASSERT_EQ(read_file(data_path(path, 0)), data) << at;
            if (first.ok()) {
                EXPECT_GT(at, 10);
                break;
            }
        }
    }
}

// --- unpack

TEST_F(MendTest, UnpackGivesEveryFileBackByteForByte) {
    for (const int shards : {1, 2, 5}) {
        const TempDir dir, to;
        const TestModel m(dir, shards);
        const std::string path = pack(m, false, 300'000);
        for (const std::string& p : m.paths) std::filesystem::remove(p);
        // From the pack alone.
        const auto done = unpack_into(Files::system(), bundle(path), to / "", *engine_, kBuffered, {});
        ASSERT_TRUE(done.ok()) << done.status().message();
        ASSERT_EQ(done->paths.size(), m.paths.size());
        for (size_t i = 0; i < m.paths.size(); ++i) EXPECT_EQ(read_file(done->paths[i]), m.contents[i]);
        // Once more is only a comparison.
        const auto again = unpack_into(Files::system(), bundle(path), to / "", *engine_, kBuffered, {});
        ASSERT_TRUE(again.ok()) << again.status().message();
        EXPECT_EQ(again->bytes, 0U);
        // What is there is not overwritten.
        flip_byte(done->paths[0], 200);
        const auto refused = unpack_into(Files::system(), bundle(path), to / "", *engine_, kBuffered, {});
        ASSERT_FALSE(refused.ok());
        EXPECT_NE(refused.status().message().find("is there already"), std::string::npos) << refused.status().message();
    }
}

TEST_F(MendTest, APackOfExpertsAloneSaysThatTheModelIsNeeded) {
    const TestModel m(dir_);
    const TempDir away;
    const std::string path = pack(m, true), moved = away / "p.sluice";
    std::filesystem::rename(path, moved);
    std::filesystem::rename(data_path(path, 0), data_path(moved, 0));
    const auto done = unpack_into(Files::system(), bundle(moved), away / "", *engine_, kBuffered, {});
    EXPECT_EQ(done.status().message(),
              "this pack has only the experts; the model is needed too: sluice unpack --pack " + moved + " MODEL");
    EXPECT_FALSE(std::filesystem::exists(away / "m.gguf.partial"));
    EXPECT_FALSE(std::filesystem::exists(away / "p.partial"));
    // With it, the whole comes out.
    auto both = find_bundle(m.paths[0], moved, kBuffered);
    ASSERT_TRUE(both.ok()) << both.status().message();
    const auto whole = unpack_into(Files::system(), *both, away / "", *engine_, kBuffered, {});
    ASSERT_TRUE(whole.ok()) << whole.status().message();
    EXPECT_EQ(read_file(whole->paths[0]), m.contents[0]);
}

// --in-place too.
TEST_F(MendTest, WithoutAPackUnpackSaysWhatToDo) {
    const TestModel m(dir_);
    const auto find = [&](const std::string& pack) { return find_packed(m.paths[0], pack, kBuffered); };
    const std::string none = fmt::format("there is no pack of {} beside it: ", m.paths[0]);
    EXPECT_EQ(find("").status().message(), none + "if there is one elsewhere, name it with --pack PACK");
    // Checksums are none.
    const auto store = RecordStore::open(m.index, m.geometry, {.access = kBuffered}, nullptr);
    ASSERT_TRUE(
        save_sums(Files::system(), m.index, {*describe(m.index, m.geometry), *compute_sums(*store, *engine_, {})})
            .ok());
    EXPECT_EQ(find("").status().message(), none + "if there is one elsewhere, name it with --pack PACK");
    const std::string path = pack(m, true);
    EXPECT_TRUE(find("").ok());
    // What is wrong with one that is there, or named, is said as it is.
    std::filesystem::rename(path, path + ".away");
    EXPECT_TRUE(find(path + ".away").ok());
    EXPECT_NE(find(dir_ / "none").status().message().find("none"), std::string::npos);
    EXPECT_EQ(find("").status().message(), none +
                                               "its experts were taken out; name the pack that has them with --pack "
                                               "PACK, or copy or download the file again");
    write_file(path, "mine");
    EXPECT_EQ(find("").status().message().find(none), std::string::npos) << find("").status().message();
    EXPECT_FALSE(find_packed(dir_ / "none.gguf", "", kBuffered).ok());
    // Nor does anything else tell of options that its command lacks.
    std::filesystem::remove(path);
    const auto s = RecordStore::open(m.index, m.geometry, {.access = kBuffered}, nullptr);
    EXPECT_NE(s.status().message().find("put their pack back beside it, or name it (run: --store PACK; verify, repair "
                                        "and unpack: --pack PACK)"),
              std::string::npos)
        << s.status().message();
}

// A downloader's unfinished file, for instance, or another unpack's.
TEST_F(MendTest, UnpackTouchesNoFileThatItDidNotMake) {
    const TestModel m(dir_);
    const std::string path = pack(m);
    const TempDir to;
    const std::string name = to / "m.gguf";
    write_file(name + ".partial", "mine");
    write_file(unpack_path(name), "theirs");
    const auto unpack = [&] { return unpack_into(Files::system(), bundle(path), to / "", *engine_, kBuffered, {}); };
    const auto refused = unpack();
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.status().message().find(unpack_path(name) + " exists"), std::string::npos)
        << refused.status().message();
    EXPECT_EQ(read_file(unpack_path(name)), "theirs");
    std::filesystem::remove(unpack_path(name));
    std::filesystem::create_symlink(m.paths[0], unpack_path(name));
    EXPECT_FALSE(unpack().ok());
    EXPECT_TRUE(m.whole());
    std::filesystem::remove(unpack_path(name));
    ASSERT_TRUE(unpack().ok());
    EXPECT_EQ(read_file(name), m.contents[0]);
    EXPECT_EQ(read_file(name + ".partial"), "mine");
    EXPECT_FALSE(std::filesystem::exists(unpack_path(name)));
}

TEST_F(MendTest, UnpackInPlaceFillsASkeleton) {
    for (const int shards : {1, 5}) {
        const TempDir dir;
        const TestModel m(dir, shards);
        const std::string path = pack(m, true);
        ASSERT_FALSE(m.whole());
        const auto done = unpack_in_place(Files::system(), bundle(m.paths[0]), *engine_, kBuffered, {});
        ASSERT_TRUE(done.ok()) << done.status().message();
        EXPECT_TRUE(m.whole());
        for (const std::string& p : m.paths) EXPECT_FALSE(std::filesystem::exists(guard_path(p)));
        EXPECT_FALSE(is_skeleton(m.index, m.geometry));
        const auto s = RecordStore::open(m.index, m.geometry, {.access = kBuffered}, nullptr);
        ASSERT_TRUE(s.ok()) << s.status().message();
        EXPECT_EQ(s->n_holders(), 2U);
        // And it can be taken out again.
        pack(m, true);
        EXPECT_TRUE(is_skeleton(m.index, m.geometry));
    }
}

// Such as a model that differs in its experts only: under the old name, and partly in the holes.
TEST_F(MendTest, UnpackInPlaceChangesNothingButZeros) {
    const TestModel m(dir_);
    const std::string path = pack(m, true);
    std::string skeleton = read_file(m.paths[0]);
    std::string other = m.contents[0];
    const auto& t = m.geometry.sets[1].tensors[0];
    for (uint64_t i = t.offset; i < t.offset + t.bytes_per_expert * 4; ++i)
        other[i] = static_cast<char>(other[i] ^ 0x55);
    std::string one = skeleton;
    one[t.offset + t.bytes_per_expert * 2 + 5000] =
        static_cast<char>(other[t.offset + t.bytes_per_expert * 2 + 5000] | 1);
    const uint64_t last = m.geometry.sets.back().tensors[1].offset + 3;
    one[last] = static_cast<char>(m.contents[0][last] ^ 0x55);
    for (const std::string& bytes : {other, one}) {
        write_file(m.paths[0], bytes);
        const auto refused = unpack_in_place(Files::system(), bundle(path), *engine_, kBuffered, {});
        ASSERT_FALSE(refused.ok());
        EXPECT_NE(refused.status().message().find("not a hole"), std::string::npos) << refused.status().message();
        EXPECT_EQ(read_file(m.paths[0]), bytes);
        // Nor is it run from this pack.
        EXPECT_FALSE(RecordStore::open(m.index, m.geometry, {.access = kBuffered, .store = path}, nullptr).ok());
        EXPECT_TRUE(std::filesystem::exists(guard_path(m.paths[0])));
    }
    // Zeros may also have been copied, and some of them filled.
    std::copy_n(m.contents[0].begin() + static_cast<std::ptrdiff_t>(t.offset), 6000,
                skeleton.begin() + static_cast<std::ptrdiff_t>(t.offset));
    write_file(m.paths[0], skeleton);
    const auto done = unpack_in_place(Files::system(), bundle(path), *engine_, kBuffered, {});
    ASSERT_TRUE(done.ok()) << done.status().message();
    EXPECT_TRUE(m.whole());
}

TEST_F(MendTest, AReclaimThatWasInterruptedCanBeUndone) {
    const TestModel m(dir_, 2);
    for (int stop = 20; stop < 150; stop += 25) {
        int n = 0;
        PackJob job{.reclaim = true, .access = kBuffered};
        job.progress = [&](uint64_t, uint64_t) { return ++n != stop; };
        FaultyFiles fast(INT_MAX, 0, false);
        if (make_pack(fast, m.index, m.geometry, *engine_, job).ok()) break;
        // Not complete is not damaged.
        const Bundle begun = bundle(m.paths[0]);
        EXPECT_TRUE(trouble_of(begun, *begun.packed).empty());
        EXPECT_TRUE(damage(begun, *begun.packed).empty());
        const std::string next = "sluice pack --reclaim " + m.paths[0];
        EXPECT_EQ(finishing(begun), next);
        const std::string refused = mend(m.paths[0]).status().message();
        EXPECT_NE(refused.find(next + " goes on"), std::string::npos) << refused;
        EXPECT_EQ(refused.find("remove"), std::string::npos) << refused;  // it may be the only place of experts
        const auto done = unpack_in_place(fast, bundle(m.paths[0]), *engine_, kBuffered, {});
        ASSERT_TRUE(done.ok()) << done.status().message();
        EXPECT_FALSE(done->complete);
        EXPECT_EQ(done->pack, partial_path(m.paths[0] + ".sluice"));
        EXPECT_TRUE(std::filesystem::exists(done->pack));
        EXPECT_TRUE(m.whole());
        EXPECT_TRUE(RecordStore::open(m.index, m.geometry, {.access = kBuffered}, nullptr).ok());
    }
    // Nor is there a way from an incomplete pack to new files.
    const TempDir other;
    const TestModel half(other);
    int n = 0;
    PackJob job{.access = kBuffered};
    job.progress = [&](uint64_t, uint64_t) { return ++n != 20; };
    EXPECT_FALSE(make_pack(Files::system(), half.index, half.geometry, *engine_, job).ok());
    const TempDir to;
    EXPECT_FALSE(unpack_into(Files::system(), bundle(half.paths[0]), to / "", *engine_, kBuffered, {}).ok());
    EXPECT_FALSE(mend(half.paths[0]).ok());
    EXPECT_EQ(finishing(bundle(half.paths[0])), "sluice pack " + half.paths[0]);
}

TEST_F(MendTest, WhateverFailsUnpackFinishesLater) {
    const TestModel m(dir_, 2);
    const std::string path = pack(m);
    const auto unpack = [&](const std::string& to, Files& files) {
        return unpack_into(files, bundle(path), to, *engine_, kBuffered, {});
    };
    for (const bool power : {true, false}) {
        for (int at = 0;; ++at) {
            const TempDir to;
            FaultyFiles full(at, ENOSPC, false);
            PowerLoss loss(at);
            const auto first = unpack(to / "", power ? static_cast<Files&>(loss) : full);
            if (power) loss.lose();
            EXPECT_EQ(loss.early(), 0);
            FaultyFiles fast(INT_MAX, 0, false);
            // Only a crash leaves something.
            for (const std::string& p : m.paths) {
                const std::string left = unpack_path(to / std::filesystem::path(p).filename().string());
                if (!std::filesystem::exists(left)) continue;
                EXPECT_TRUE(power) << at;
                EXPECT_FALSE(unpack(to / "", fast).ok());
                std::filesystem::remove(left);
            }
            const auto second = unpack(to / "", fast);
            ASSERT_TRUE(second.ok()) << at << ": " << second.status().message();
            for (size_t i = 0; i < m.paths.size(); ++i) ASSERT_EQ(read_file(second->paths[i]), m.contents[i]) << at;
            if (first.ok()) break;
        }
    }
    EXPECT_TRUE(m.whole());
}

TEST_F(MendTest, WhateverFailsFillingASkeletonFinishesLater) {
    for (const bool power : {true, false}) {
        for (int at = 0;; ++at) {
            const TempDir dir;
            const TestModel m(dir);
            pack(m, true);
            FaultyFiles full(at, ENOSPC, false);
            PowerLoss loss(at);
            const auto first =
                unpack_in_place(power ? static_cast<Files&>(loss) : full, bundle(m.paths[0]), *engine_, kBuffered, {});
            if (power) loss.lose();
            const auto between = RecordStore::open(m.index, m.geometry, {.access = kBuffered}, nullptr);
            // When all holes are filled but not all bytes are right, only the next call knows what the model is.
            if (!between.ok()) {
                EXPECT_NE(between.status().message().find("unpack --in-place was interrupted"), std::string::npos)
                    << between.status().message();
            }
            FaultyFiles fast(INT_MAX, 0, false);
            const auto second = unpack_in_place(fast, bundle(m.paths[0]), *engine_, kBuffered, {});
            ASSERT_TRUE(second.ok()) << at << ": " << second.status().message();
            ASSERT_TRUE(m.whole()) << at;
            EXPECT_FALSE(std::filesystem::exists(guard_path(m.paths[0])));
            if (first.ok()) break;
        }
    }
}

}  // namespace
}  // namespace sluice::store
