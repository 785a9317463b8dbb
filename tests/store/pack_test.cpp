#include "store/pack.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <filesystem>
#include <vector>

#include "base/crc32c.h"
#include "base/log.h"
#include "store/pack_build.h"
#include "store/sums.h"
#include "tests/store/support.h"

namespace sluice::store {
namespace {

using model::testing::GgufBuilder;
using model::testing::TempDir;
using testing::FaultyFiles;
using testing::flip_byte;
using testing::PowerLoss;
using testing::read_file;
using testing::TestModel;
using testing::write_file;

int g_warnings = 0;
std::string g_warning;

class PackTest : public ::testing::Test {
  protected:
    PackTest() {
        g_warnings = 0;
        set_log_sink([](LogLevel level, const std::string& text) {
            if (level != LogLevel::warn) return;
            ++g_warnings;
            g_warning = text;
        });
        engine_ = std::move(io::make_engine({.kind = io::EngineKind::pread, .lanes = 2})->engine);
    }
    ~PackTest() override { set_log_sink(nullptr); }

    Result<PackDone> pack(const TestModel& m, PackJob job = {}, Files& files = Files::system()) {
        return make_pack(files, m.index, m.geometry, *engine_, job);
    }
    // Every expert of the store, against the model as it was made.
    void expect_experts(const RecordStore& store, const TestModel& m, HolderId holder = 0) {
        for (RecordId r = 0; r < store.n_records(); ++r) {
            const uint32_t set = store.set_of(r);
            for (uint32_t c = 0; c < store.n_components(set); ++c) {
                const Extent x = store.extent(r, c, holder);
                const model::ExpertTensor& t = m.geometry.sets[set].tensors[c];
                const std::string wanted = m.contents[t.file].substr(t.expert_offset(store.expert_of(r)), x.bytes);
                std::string got(x.bytes, '\0');
                ASSERT_EQ(::pread(x.file->fd(), got.data(), got.size(), static_cast<off_t>(x.offset)),
                          static_cast<ssize_t>(got.size()));
                EXPECT_EQ(got, wanted) << "record " << r << " component " << c;
                EXPECT_EQ(store.checksum(r, c), crc32c(std::as_bytes(std::span(wanted.data(), wanted.size()))));
            }
        }
    }
    Result<RecordStore> store(const TestModel& m, OpenOptions options = {}) {
        options.access = io::Access::buffered;
        return RecordStore::open(m.index, m.geometry, options, nullptr);
    }
    uint64_t damaged_parts(const TestModel& m, const std::string& pack, io::Access access = io::Access::direct) {
        auto read = read_manifest(pack);
        EXPECT_TRUE(read.ok()) << read.status().message();
        auto parts = Parts::of(read->manifest.source);
        const auto map = map_pack(*parts, read->manifest.shape);
        const Copy copy = open_pack_copy(pack, read->manifest, *map, access);
        for (const Status& s : copy.trouble) EXPECT_TRUE(s.ok()) << s.message();
        const auto verdict = verify_copy({std::move(*parts), read->manifest.sums, true, read->manifest.done}, copy,
                                         *engine_, Depth::full, {});
        EXPECT_TRUE(verdict.ok());
        (void)m;
        return verdict->damage.size();
    }
    std::string files_of(const std::string& pack, uint32_t n) {
        std::string out;
        for (uint32_t f = 0; f < n; ++f) out += read_file(data_path(pack, f));
        return out;
    }

    TempDir dir_;
    std::unique_ptr<io::Engine> engine_;
};

TEST_F(PackTest, HoldsEveryExpertAlignedForEveryLayoutAndNumberOfFiles) {
    for (const int shards : {1, 2, 5}) {
        for (const Layout layout : {Layout::layer, Layout::component}) {
            for (const uint64_t split : {uint64_t{0}, uint64_t{300'000}}) {
                const TempDir dir;
                const TestModel m(dir, shards);
                const auto done = pack(m, {.layout = layout, .split = split});
                ASSERT_TRUE(done.ok()) << done.status().message();
                EXPECT_EQ(done->path, m.paths[0] + ".sluice");
                EXPECT_EQ(done->files > 1, split != 0);
                const auto own = store(m);
                ASSERT_TRUE(own.ok()) << own.status().message();
                EXPECT_EQ(own->holder(0).name, m.paths[0]) << "a pack is the reserve of what is whole";
                EXPECT_TRUE(own->holder(0).shares);
                EXPECT_FALSE(own->holder(1).shares);
                const auto s = store(m, {.store = "pack"});
                ASSERT_TRUE(s.ok()) << s.status().message();
                ASSERT_EQ(s->n_holders(), 2U);
                EXPECT_EQ(s->holder(0).name, done->path);
                EXPECT_TRUE(s->holder(0).shares);
                EXPECT_FALSE(s->holder(1).shares);
                expect_experts(*s, m, 0);
                expect_experts(*s, m, 1);
                for (RecordId r = 0; r < s->n_records(); ++r) {
                    for (uint32_t c = 0; c < s->n_components(s->set_of(r)); ++c)
                        EXPECT_EQ(s->extent(r, c).offset % kPackAlign, 0U);
                }
                EXPECT_EQ(damaged_parts(m, done->path), 0U);
                EXPECT_EQ(g_warnings, 0) << g_warning;
                for (uint32_t f = 0; split != 0 && f < done->files; ++f)
                    EXPECT_LE(std::filesystem::file_size(data_path(done->path, f)), split);
                // Once more is nothing to do.
                const auto again = pack(m);
                ASSERT_TRUE(again.ok()) << again.status().message();
                EXPECT_EQ(again->found, again->steps);
            }
        }
    }
}

TEST_F(PackTest, LayoutsOrderTheMatricesAsTheySay) {
    const TestModel m(dir_);
    const auto parts = Parts::of(*describe(m.index, m.geometry));
    const auto by_layer = map_pack(*parts, {.layout = Layout::layer});
    const auto by_component = map_pack(*parts, {.layout = Layout::component});
    ASSERT_TRUE(by_layer.ok() && by_component.ok());
    const auto& l = by_layer->map.experts[0];
    const auto& c = by_component->map.experts[0];  // gate, up, down
    EXPECT_EQ(l[1].offset - l[0].offset, 4096U);
    EXPECT_EQ(l[2].offset - l[1].offset, 4096U);
    EXPECT_EQ(l[0].stride, 4096U * 4);
    EXPECT_EQ(c[0].stride, 4096U * 2);
    EXPECT_EQ(c[2].stride, 4096U * 2);
    EXPECT_EQ(c[2].offset, c[0].offset + 5 * c[0].stride);
    EXPECT_EQ(by_layer->map.file_bytes, by_component->map.file_bytes);
}

TEST_F(PackTest, PartsAreEveryByteOfTheModelOnce) {
    const TestModel m(dir_, 2);
    const auto parts = Parts::of(*describe(m.index, m.geometry));
    std::vector<std::string> seen;
    for (const std::string& c : m.contents) seen.emplace_back(c.size(), '\0');
    for (PartId p = 0; p < parts->count(); ++p) {
        uint64_t bytes = 0;
        for (const Piece& piece : parts->pieces(parts->gguf(), p)) {
            for (uint64_t i = 0; i < piece.bytes; ++i) ++seen[piece.file][piece.offset + i];
            bytes += piece.bytes;
        }
        EXPECT_EQ(bytes, parts->bytes(p));
    }
    for (const std::string& s : seen) EXPECT_EQ(s, std::string(s.size(), 1));
    EXPECT_EQ(parts->name(parts->first(1)), "layer 1, expert 0, gate");
    EXPECT_EQ(parts->name(parts->first(3) + 3), "layer 3 (chexps), expert 1, down");
    EXPECT_EQ(parts->name(0), "dense bytes, block 0");
}

// A flipped byte is refused, or the other slot is used and gives the same.
TEST_F(PackTest, EveryFlippedByteOfTheManifestLeavesTheSameOrNothing) {
    const TestModel m(dir_);
    const auto done = pack(m);
    ASSERT_TRUE(done.ok());
    const std::string good = read_file(done->path);
    const auto wanted = parse_manifest(good);
    ASSERT_TRUE(wanted.ok());
    EXPECT_TRUE(wanted->note.empty());
    for (size_t i = 0; i < good.size(); ++i) {
        for (const char bit : {char(1), char(0x80), char(0xFF)}) {
            std::string bad = good;
            bad[i] = static_cast<char>(bad[i] ^ bit);
            const auto got = parse_manifest(bad);
            ASSERT_TRUE(got.ok()) << i;
            EXPECT_FALSE(got->note.empty());
            EXPECT_EQ(got->manifest.sums, wanted->manifest.sums);
            EXPECT_EQ(got->manifest.done, wanted->manifest.done);
            EXPECT_TRUE(same_model(got->manifest.source, wanted->manifest.source));
            // With one slot only, there is nothing to fall back to.
            const size_t half = good.size() / 2;
            EXPECT_FALSE(parse_slot(std::string_view(bad).substr(i / half * half, half), i < half ? 0 : 1).ok());
        }
    }
    for (size_t n = 0; n < good.size(); ++n) {
        // A quarter that is a whole number of blocks is still no slot.
        EXPECT_FALSE(parse_manifest(std::string_view(good).substr(0, n)).ok()) << n;
    }
    EXPECT_FALSE(parse_manifest(good + good).ok());
    std::string swapped = good.substr(good.size() / 2) + good.substr(0, good.size() / 2);
    EXPECT_FALSE(parse_manifest(swapped).ok());
}

// Whoever writes such a file on purpose also writes the right checksum.
TEST_F(PackTest, NonsenseWithARightChecksumIsRefusedOrSound) {
    const TestModel m(dir_);
    const auto done = pack(m);
    ASSERT_TRUE(done.ok());
    const std::string good = read_file(done->path).substr(0, std::filesystem::file_size(done->path) / 2);
    ASSERT_TRUE(parse_slot(good, 0).ok());
    int refused = 0;
    for (size_t i = 0; i + 4 < good.size(); ++i) {
        std::string bad = good.substr(0, good.size() - 4);
        bad[i] = static_cast<char>(bad[i] ^ 0xFF);
        put_number(bad, crc32c(std::as_bytes(std::span(bad.data(), bad.size()))));
        const auto parsed = parse_slot(bad, 0);
        if (!parsed.ok()) {
            ++refused;
            continue;
        }
        const auto parts = Parts::of(parsed->source);
        ASSERT_TRUE(parts.ok());
        const auto map = map_pack(*parts, parsed->shape);
        ASSERT_TRUE(map.ok());
        EXPECT_EQ(parsed->sums.size(), parts->count());
    }
    EXPECT_GT(refused, static_cast<int>(good.size() / 2));  // also every reserved byte
}

TEST_F(PackTest, ATypeThatDoesNotTileIsRefused) {
    // 640 is no multiple of a Q4_K block.
    constexpr model::TypeId kQ4_K = 12;
    GgufBuilder b = model::testing::tiny_moe();
    b.tensor("blk.2.ffn_up_exps.weight", kQ4_K, {640, 32, 4});
    const std::string path = dir_.write("k.gguf", b.file());
    EXPECT_FALSE(model::GgufIndex::open(path).ok());
    // Nor does a manifest get away with it.
    const TestModel m(dir_);
    ASSERT_TRUE(pack(m).ok());
    Manifest manifest = read_manifest(m.paths[0] + ".sluice")->manifest;
    const uint32_t slot = manifest.generation % 2;
    ASSERT_TRUE(parse_slot(encode_manifest(manifest), slot).ok());
    manifest.source.sets[0].tensors[2].type = kQ4_K;
    EXPECT_FALSE(parse_slot(encode_manifest(manifest), slot).ok());
    manifest.source.sets[0].tensors[2].type = 999;
    EXPECT_FALSE(parse_slot(encode_manifest(manifest), slot).ok());
}

TEST_F(PackTest, WhatCannotBePackedIsRefusedInWords) {
    const TestModel m(dir_);
    const auto says = [&](const PackJob& job, const std::string& words) {
        const auto done = pack(m, job);
        ASSERT_FALSE(done.ok()) << words;
        EXPECT_NE(done.status().message().find(words), std::string::npos) << done.status().message();
        EXPECT_TRUE(m.whole());
    };
    says({.out = m.paths[0]}, "the model itself");
    says({.split = 9000}, "more than a file may have");
    says({.out = dir_ / "none/m.sluice"}, "No such file");
    write_file(m.paths[0] + ".sluice.1", "mine");
    says({}, "m.gguf.sluice.1 exists and is no part of this pack");
    EXPECT_EQ(read_file(m.paths[0] + ".sluice.1"), "mine");
    std::filesystem::remove(m.paths[0] + ".sluice.1");
    write_file(m.paths[0] + ".sluice", "mine");
    says({}, "m.gguf.sluice");
    EXPECT_EQ(read_file(m.paths[0] + ".sluice"), "mine");
    std::filesystem::remove(m.paths[0] + ".sluice");
    EXPECT_FALSE(std::filesystem::exists(m.paths[0] + ".sluice.partial"));

    class Full : public Files {
      public:
        int free_bytes(const std::string& /*path*/, uint64_t& bytes) override {
            bytes = 1000;
            return 0;
        }
    } full;
    const auto done = pack(m, {}, full);
    ASSERT_FALSE(done.ok());
    EXPECT_NE(done.status().message().find("--reclaim"), std::string::npos) << done.status().message();
    EXPECT_FALSE(std::filesystem::exists(m.paths[0] + ".sluice.partial"));
}

// The names of a pack may be anybody's files already, and the model's own by any link.
TEST_F(PackTest, NothingOfOthersUnderThePacksNamesIsTouched) {
    namespace fs = std::filesystem;
    const std::string zeros(2 * kPackAlign, '\0');
    for (const char* suffix : {".partial", ".1", ".2"}) {
        const TempDir dir, other;
        const TestModel m(dir), different(other, 1, 2);
        ASSERT_TRUE(pack(different, {.split = 300'000}).ok());
        const std::string out = dir / "p.sluice", name = out + suffix;
        const auto refused = [&](const std::string& words) {
            const std::string before = read_file(name);
            const auto done = pack(m, {.out = out, .split = 300'000});
            ASSERT_FALSE(done.ok()) << name;
            EXPECT_NE(done.status().message().find(words), std::string::npos) << done.status().message();
            EXPECT_NE(done.status().message().find(name), std::string::npos) << done.status().message();
            EXPECT_TRUE(m.whole());
            EXPECT_EQ(read_file(name), before);
            EXPECT_FALSE(fs::exists(out));
            EXPECT_TRUE(fs::remove(name)) << "it was taken away";
            EXPECT_EQ(fs::exists(out + ".partial"), false);
        };
        if (std::string_view(suffix) != ".2") {
            fs::create_symlink(m.paths[0], name);
            refused("the model itself");
            fs::create_hard_link(m.paths[0], name);
            refused("the model itself");
        }
        for (const std::string& bytes : {std::string("mine"), std::string(70'000, 'x'), zeros + "x", zeros,
                                         read_file(data_path(different.paths[0] + ".sluice", 0))}) {
            write_file(name, bytes);
            refused("exists and is no part of this pack");
        }
        write_file(other / "away", "");
        fs::create_symlink(other / "away", name);
        refused("exists and is no part of this pack");
    }
    // Also when the pack was begun before they came.
    const TestModel m(dir_);
    int n = 0;
    PackJob job{.split = 300'000};
    job.progress = [&](uint64_t, uint64_t) { return ++n != 5; };
    ASSERT_FALSE(pack(m, job).ok());
    const std::string path = m.paths[0] + ".sluice";
    write_file(path + ".2", std::string(70'000, 'x'));
    EXPECT_FALSE(pack(m).ok());
    EXPECT_EQ(read_file(path + ".2"), std::string(70'000, 'x'));
    fs::remove(path + ".2");
    EXPECT_TRUE(fs::exists(path + ".partial"));
    EXPECT_TRUE(pack(m).ok());
}

TEST_F(PackTest, AManifestThatWasTornBeforeAnyDataIsBegunAnew) {
    const TestModel m(dir_);
    ASSERT_TRUE(pack(m).ok());
    const std::string path = m.paths[0] + ".sluice";
    std::string torn = read_file(path);
    std::filesystem::remove(path);
    std::filesystem::remove(path + ".1");
    torn[100] = static_cast<char>(torn[100] ^ 1);
    torn[torn.size() / 2 + 100] = torn[100];
    torn[torn.size() - 5] = 1;
    ASSERT_FALSE(parse_manifest(torn).ok());
    write_file(path + ".partial", torn);
    const auto done = pack(m);
    ASSERT_TRUE(done.ok()) << done.status().message();
    EXPECT_EQ(done->found, 0U);
    EXPECT_EQ(damaged_parts(m, path), 0U);
    // Even before its size was durable.
    std::filesystem::remove(path);
    std::filesystem::remove(path + ".1");
    for (const uint64_t size : {uint64_t{0}, uint64_t{4 * kPackAlign}}) {
        write_file(path + ".partial", "");
        std::filesystem::resize_file(path + ".partial", size);
        ASSERT_TRUE(pack(m).ok()) << size;
        std::filesystem::remove(path);
        std::filesystem::remove(path + ".1");
    }
}

TEST_F(PackTest, TwoAtOnceAreOne) {
    const TestModel m(dir_);
    int locked = 0;
    PackJob job;
    job.progress = [&](uint64_t, uint64_t) {
        const auto second = pack(m);
        EXPECT_FALSE(second.ok());
        EXPECT_NE(second.status().message().find("another process"), std::string::npos) << second.status().message();
        ++locked;
        return true;
    };
    ASSERT_TRUE(pack(m, job).ok());
    EXPECT_GT(locked, 10);
    EXPECT_EQ(damaged_parts(m, m.paths[0] + ".sluice"), 0U);
}

TEST_F(PackTest, GoesOnWhereItStopped) {
    const TestModel m(dir_, 2);
    for (int stop = 1; stop < 40; stop += 6) {
        PackJob job;
        int n = 0;
        job.progress = [&](uint64_t, uint64_t) { return ++n != stop; };
        const auto first = pack(m, job);
        ASSERT_FALSE(first.ok());
        EXPECT_EQ(first.status().code(), Code::cancelled);
        // A pack that is not complete is not there.
        EXPECT_FALSE(std::filesystem::exists(m.paths[0] + ".sluice"));
        EXPECT_EQ(store(m)->n_holders(), 1U);
        const auto second = pack(m);
        ASSERT_TRUE(second.ok()) << second.status().message();
        EXPECT_EQ(damaged_parts(m, second->path), 0U);
        EXPECT_EQ(second->found > 0, stop > 1);
        expect_experts(*store(m), m);
        for (const auto& f : {".sluice", ".sluice.1"}) std::filesystem::remove(m.paths[0] + f);
    }
}

// At every call: power fails, or the drive is full, and the next attempt ends with the same pack.
TEST_F(PackTest, WhateverFailsTheNextCallFinishes) {
    const TestModel m(dir_);
    const PackJob job{.split = 300'000, .access = io::Access::buffered};  // the drive would be waited for
    const auto done = pack(m, job);
    ASSERT_TRUE(done.ok()) << done.status().message();
    const std::string wanted = files_of(done->path, done->files);
    const auto clear = [&] {
        for (const auto& e : std::filesystem::directory_iterator(std::filesystem::path(m.paths[0]).parent_path())) {
            if (e.path().string() != m.paths[0]) std::filesystem::remove(e.path());
        }
    };
    for (const bool power : {true, false}) {
        for (int at = 0;; ++at) {
            clear();
            FaultyFiles full(at, ENOSPC, false);
            PowerLoss loss(at);
            const auto first = pack(m, job, power ? static_cast<Files&>(loss) : full);
            if (power) loss.lose();
            EXPECT_EQ(loss.early(), 0) << at;
            ASSERT_TRUE(m.whole());
            if (first.ok()) {
                EXPECT_GT(at, 60);
                break;
            }
            if (!power) {
                EXPECT_NE(first.status().message().find("No space"), std::string::npos) << first.status().message();
            }
            EXPECT_TRUE(store(m).ok());
            FaultyFiles fast(INT_MAX, 0, false);  // without waiting for the drive
            const auto second = pack(m, job, fast);
            ASSERT_TRUE(second.ok()) << at << ": " << second.status().message();
            EXPECT_EQ(files_of(second->path, second->files), wanted) << at;
            EXPECT_EQ(damaged_parts(m, second->path, io::Access::buffered), 0U) << at;
        }
    }
}

TEST_F(PackTest, AModelThatChangesMeanwhileIsNoticed) {
    using Change = void (*)(const std::string&);
    const std::array<Change, 3> changes{
        [](const std::string& path) {
            std::filesystem::last_write_time(path, std::filesystem::last_write_time(path) + std::chrono::hours(1));
        },
        [](const std::string& path) {
            std::filesystem::copy_file(path, path + ".other");
            std::filesystem::rename(path + ".other", path);
        },
        [](const std::string& path) { std::filesystem::resize_file(path, std::filesystem::file_size(path) + 1); }};
    for (const Change change : changes) {
        const TempDir dir;
        const TestModel m(dir);
        PackJob job;
        int n = 0;
        job.progress = [&](uint64_t, uint64_t) {
            if (++n == 7) change(m.paths[0]);
            return true;
        };
        const auto done = pack(m, job);
        ASSERT_FALSE(done.ok());
        EXPECT_NE(done.status().message().find("changed"), std::string::npos) << done.status().message();
        EXPECT_FALSE(std::filesystem::exists(m.paths[0] + ".sluice"));
    }
}

// What was copied from an older file is copied again.
TEST_F(PackTest, AModelThatChangedBetweenTwoCallsIsBegunAnew) {
    const TestModel m(dir_);
    PackJob job;
    int n = 0;
    job.progress = [&](uint64_t, uint64_t) { return ++n != 30; };
    ASSERT_FALSE(pack(m, job).ok());
    std::filesystem::last_write_time(m.paths[0], std::filesystem::last_write_time(m.paths[0]) + std::chrono::hours(1));
    const auto done = pack(m);
    ASSERT_TRUE(done.ok()) << done.status().message();
    EXPECT_EQ(done->found, 0U);
    EXPECT_EQ(damaged_parts(m, done->path), 0U);
}

TEST_F(PackTest, WhatDiffersFromEarlierChecksumsIsNotPacked) {
    const TestModel m(dir_);
    auto own = store(m);
    auto values = compute_sums(*own, *engine_, {});
    values->at(3) ^= 1;
    ASSERT_TRUE(save_sums(Files::system(), m.index, {*describe(m.index, m.geometry), *values}).ok());
    const auto done = pack(m);
    ASSERT_FALSE(done.ok());
    EXPECT_NE(done.status().message().find("layer 1, expert 1, gate"), std::string::npos) << done.status().message();
    EXPECT_NE(done.status().message().find("repair"), std::string::npos);
}

// --- opening

TEST_F(PackTest, TheStoreIsChosenAsAskedFor) {
    const TestModel m(dir_);
    const std::string elsewhere = dir_ / "elsewhere.sluice";
    EXPECT_EQ(store(m, {.store = elsewhere}).status().code(), Code::not_found);
    ASSERT_TRUE(pack(m, {.out = elsewhere}).ok());
    EXPECT_EQ(store(m)->n_holders(), 1U);
    EXPECT_FALSE(store(m)->has_checksums());
    const auto named = store(m, {.store = elsewhere});
    ASSERT_TRUE(named.ok()) << named.status().message();
    EXPECT_EQ(named->holder(0).name, elsewhere);
    expect_experts(*named, m);
    ASSERT_TRUE(pack(m).ok());
    const auto gguf = store(m, {.store = "gguf"});
    ASSERT_TRUE(gguf.ok());
    ASSERT_EQ(gguf->n_holders(), 2U);
    EXPECT_EQ(gguf->holder(0).name, m.paths[0]);
    EXPECT_TRUE(gguf->holder(0).shares);
    EXPECT_FALSE(gguf->holder(1).shares);
    expect_experts(*gguf, m);
    EXPECT_EQ(g_warnings, 0);
}

TEST_F(PackTest, MirrorsAreCopiesOfTheModelOrOfItsPack) {
    const TestModel m(dir_);
    const TempDir other;
    const TestModel copy(other);
    ASSERT_TRUE(pack(copy).ok());
    const auto s = store(m, {.mirrors = {copy.paths[0], copy.paths[0] + ".sluice"}});
    ASSERT_TRUE(s.ok()) << s.status().message();
    ASSERT_EQ(s->n_holders(), 3U);
    EXPECT_TRUE(s->has_checksums());  // the pack's
    for (HolderId h = 0; h < 3; ++h) {
        EXPECT_TRUE(s->holder(h).shares);
        expect_experts(*s, m, h);
    }
    const TempDir third;
    const TestModel different(third, 1, 2);
    const auto foreign = store(m, {.mirrors = {different.paths[0]}});
    ASSERT_FALSE(foreign.ok());
    EXPECT_NE(foreign.status().message().find("no copy of"), std::string::npos) << foreign.status().message();
    EXPECT_FALSE(store(m, {.mirrors = {dir_ / "none.gguf"}}).ok());
    // Not even under another name.
    const std::string linked = other / "linked.gguf";
    std::filesystem::create_hard_link(m.paths[0], linked);
    for (const std::string& itself : {m.paths[0], linked}) {
        const auto twice = store(m, {.mirrors = {itself}});
        ASSERT_FALSE(twice.ok()) << itself;
        EXPECT_NE(twice.status().message().find("itself"), std::string::npos) << twice.status().message();
    }
    EXPECT_FALSE(store(m, {.mirrors = std::vector<std::string>(8, copy.paths[0])}).ok());
}

TEST_F(PackTest, APackThatCannotBeUsedIsSaidAndTheModelIs) {
    const TestModel m(dir_);
    const auto done = pack(m);
    ASSERT_TRUE(done.ok());
    const std::string manifest = read_file(done->path);
    const std::string data = read_file(data_path(done->path, 0));
    const auto unused = [&](const std::string& words) {
        g_warnings = 0;
        const auto s = store(m);
        ASSERT_TRUE(s.ok()) << s.status().message();
        EXPECT_EQ(s->n_holders(), 1U) << words;
        EXPECT_EQ(g_warnings, 1);
        EXPECT_NE(g_warning.find(words), std::string::npos) << g_warning;
        write_file(done->path, manifest);
        write_file(data_path(done->path, 0), data);
        EXPECT_EQ(store(m)->n_holders(), 2U);
    };
    std::filesystem::remove(data_path(done->path, 0));
    unused("No such file");
    std::filesystem::resize_file(data_path(done->path, 0), data.size() - 1);
    unused("its manifest states");
    flip_byte(data_path(done->path, 0), 20);
    unused("no data file of this pack");
    std::filesystem::resize_file(done->path, 4096);
    unused("size is wrong");
    flip_byte(done->path, 100);
    flip_byte(done->path, manifest.size() / 2 + 100);
    unused("checksum differs");
    Manifest early = read_manifest(done->path)->manifest;
    early.done = 2;
    std::fill(early.sums.begin() + 6, early.sums.end(), 0);
    const auto parts = Parts::of(early.source);
    std::fill(early.sums.begin() + static_cast<std::ptrdiff_t>(parts->first(2)), early.sums.end(), 0);
    const std::string zeros(manifest.size() / 2, '\0');
    write_file(done->path, early.generation % 2 == 0 ? encode_manifest(early) + zeros : zeros + encode_manifest(early));
    unused("not complete");
    // Another model of the same shape.
    const TempDir other;
    const TestModel different(other, 1, 2);
    ASSERT_TRUE(pack(different).ok());
    write_file(done->path, read_file(different.paths[0] + ".sluice"));
    const auto refused = store(m);
    ASSERT_FALSE(refused.ok()) << "stale, or the model is damaged: nobody knows";
    EXPECT_EQ(refused.status().code(), Code::conflict);
    for (const char* words : {"other contents", "replaced on purpose", "sluice repair"})
        EXPECT_NE(refused.status().message().find(words), std::string::npos) << refused.status().message();
    // Checksums that agree with the model say which of the two it is.
    write_file(done->path, manifest);
    auto right = compute_sums(*store(m, {.store = "gguf"}), *engine_, {});
    ASSERT_TRUE(save_sums(Files::system(), m.index, {*describe(m.index, m.geometry), *right}).ok());
    write_file(done->path, read_file(different.paths[0] + ".sluice"));
    unused("other contents");
    std::filesystem::remove(sums_path(m.index));
    // Checksums made of something else.
    auto values = compute_sums(*store(m, {.store = "gguf"}), *engine_, {});
    values->at(0) ^= 1;
    ASSERT_TRUE(save_sums(Files::system(), m.index, {*describe(m.index, m.geometry), *values}).ok());
    g_warnings = 0;
    EXPECT_EQ(store(m)->n_holders(), 1U);
    EXPECT_NE(g_warning.find("differ"), std::string::npos);
    EXPECT_FALSE(store(m, {.store = done->path}).ok());
}

}  // namespace
}  // namespace sluice::store
