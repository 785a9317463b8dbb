#include "model/gguf.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/geometry.h"
#include "tests/model/gguf_builder.h"

namespace sluice::model {
namespace {

using testing::GgufBuilder;
using testing::kF32;
using testing::TempDir;
using testing::tiny_moe;

GgufIndex open_ok(const std::string& path) {
    Result<GgufIndex> index = GgufIndex::open(path);
    EXPECT_TRUE(index) << index.status().message();
    return index ? std::move(index).value() : GgufIndex();
}

// Each of `parts` is in the message.
void expect_refused(const std::string& path, Code code, const std::vector<std::string>& parts) {
    const Result<GgufIndex> index = GgufIndex::open(path);
    ASSERT_FALSE(index);
    EXPECT_EQ(index.status().code(), code) << index.status().message();
    for (const std::string& part : parts) {
        EXPECT_NE(index.status().message().find(part), std::string::npos)
            << "no \"" << part << "\" in: " << index.status().message();
    }
}

TEST(Gguf, OpensASingleFile) {
    const TempDir dir;
    const std::string bytes = tiny_moe().file();
    const std::string path = dir.write("tiny.gguf", bytes);
    const GgufIndex index = open_ok(path);
    ASSERT_EQ(index.files().size(), 1U);
    EXPECT_EQ(index.files()[0].path, path);
    EXPECT_EQ(index.files()[0].size, bytes.size());
    EXPECT_NE(index.files()[0].inode, 0U);
    EXPECT_EQ(index.header_bytes(), index.files()[0].data_offset);
    EXPECT_EQ(index.architecture(), "tiny");
    EXPECT_EQ(index.tensors().size(), 8U);
    const TensorEntry* found = index.find("blk.1.ffn_gate_inp.weight");
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->ne[1], 4U);
    EXPECT_EQ(index.find("nothing"), nullptr);
    EXPECT_EQ(index.meta("nothing"), nullptr);
    for (const TensorEntry& tensor : index.tensors()) EXPECT_LE(tensor.offset + tensor.bytes, bytes.size());
}

TEST(Gguf, ArchNumberTakesScalarsAndTheLargestOfAnArray) {
    const TempDir dir;
    GgufBuilder b;
    b.meta_string("general.architecture", "t").meta<uint16_t>("t.u", 7).meta<int32_t>("t.i", 8);
    b.meta<int32_t>("t.negative", -1).meta<float>("t.float", 1).meta_string("t.text", "1").meta<bool>("t.bool", true);
    b.meta_array<int32_t>("t.array", {3, 9, 0}).meta_array<int32_t>("t.empty", {});
    b.meta_array<int32_t>("t.all_negative", {-3}).meta_array<int32_t>("t.long", std::vector<int32_t>(2000, 1));
    const GgufIndex index = open_ok(dir.write("a.gguf", b.file()));
    EXPECT_EQ(index.arch_number("u"), 7U);
    EXPECT_EQ(index.arch_number("i"), 8U);
    EXPECT_EQ(index.arch_number("array"), 9U);
    for (const char* key : {"negative", "float", "text", "bool", "empty", "all_negative", "long", "absent"}) {
        EXPECT_EQ(index.arch_number(key), std::nullopt) << key;
    }
}

TEST(Gguf, ReadsHeadersLongerThanTheFirstPrefix) {
    const TempDir dir;
    GgufBuilder b;
    b.meta_strings("tokens", std::vector<std::string>(150'000, "a token of some length"));
    b.tensor("a", kF32, {4});
    ASSERT_GT(b.header().size(), 4 * MiB);
    EXPECT_NE(open_ok(dir.write("long.gguf", b.file())).find("a"), nullptr);
}

TEST(Gguf, SaysWhatIsWrongWithThePath) {
    const TempDir dir;
    expect_refused("", Code::invalid_argument, {"no model file was named"});
    expect_refused(dir / "absent.gguf", Code::not_found, {dir / "absent.gguf", "does not exist"});
    expect_refused(dir.write("file", "x") + "/below", Code::not_found, {"does not exist"});
    expect_refused(dir / "", Code::invalid_argument, {"is a directory"});
    expect_refused(dir.write("empty.gguf", ""), Code::corrupt, {dir / "empty.gguf", "is empty"});
    expect_refused(dir.write("text.gguf", "hello, world"), Code::invalid_argument,
                   {(dir / "text.gguf") + " is not a GGUF file"});
    expect_refused(dir.write("short.gguf", "x"), Code::invalid_argument, {"is not a GGUF file"});
    expect_refused(dir.write("lfs.gguf", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
                   Code::invalid_argument, {"Git LFS pointer"});
    expect_refused(dir.write("bad.gguf", GgufBuilder().meta<uint8_t>("", 1).file()), Code::corrupt,
                   {(dir / "bad.gguf") + ": the metadata key"});
    ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
    expect_refused(dir / "pipe", Code::invalid_argument, {"is not a regular file"});
}

TEST(Gguf, SaysThatAFileCannotBeOpened) {
    const TempDir dir;
    const std::string path = dir.write("locked.gguf", tiny_moe().file());
    ASSERT_EQ(::chmod(path.c_str(), 0), 0);
    // Root may read everything: look with the eyes of somebody else.
    const uid_t me = ::geteuid();
    constexpr uid_t kNobody = 65534;
    if (me == 0) {
        ASSERT_EQ(::seteuid(kNobody), 0);
    }
    expect_refused(path, Code::io_error, {path, "cannot be opened", "ermission"});
    ASSERT_EQ(::seteuid(me), 0);
}

TEST(Gguf, TruncationNamesFileSizesAndTensor) {
    const TempDir dir;
    GgufBuilder b;
    // Stored in another order than listed: it is the place in the file that counts.
    b.tensor_at("last", kF32, {8}, 64).tensor_at("first", kF32, {8}, 0).tensor_at("middle", kF32, {8}, 32);
    std::string bytes = b.header();
    bytes.resize(align_up(bytes.size(), 32));
    const size_t data = bytes.size();
    bytes.resize(data + 40);
    expect_refused(dir.write("cut.gguf", bytes), Code::corrupt,
                   {dir / "cut.gguf", std::to_string(data + 40), std::to_string(data + 96), "'middle'"});
    bytes.resize(data + 96);
    EXPECT_EQ(open_ok(dir.write("whole.gguf", bytes)).tensors().size(), 3U);
}

TEST(Gguf, TruncationAtEveryLengthIsNoticed) {
    const TempDir dir;
    const GgufBuilder b = GgufBuilder().meta_string("k", "v").tensor("a", kF32, {3, 3}).tensor("b", kF32, {8});
    const std::string bytes = b.file();
    for (size_t n = 0; n < bytes.size(); n++) {
        const Result<GgufIndex> index = GgufIndex::open(dir.write("cut.gguf", bytes.substr(0, n)));
        ASSERT_FALSE(index) << n;
        EXPECT_NE(index.status().code(), Code::internal);
        if (n >= 4) {
            EXPECT_NE(index.status().message().find("is truncated"), std::string::npos) << index.status().message();
        }
    }
    (void)open_ok(dir.write("whole.gguf", bytes));
}

TEST(Gguf, TensorsNeitherOverlapNorRepeat) {
    const TempDir dir;
    const auto with_room = [&](GgufBuilder b) { return dir.write("a.gguf", b.file() + std::string(4096, '\0')); };
    expect_refused(with_room(GgufBuilder().tensor_at("a", kF32, {9}, 0).tensor_at("b", kF32, {1}, 32)), Code::corrupt,
                   {"'a' and 'b' overlap"});
    expect_refused(with_room(GgufBuilder().tensor_at("a", kF32, {1}, 0).tensor_at("b", kF32, {1}, 0)), Code::corrupt,
                   {"overlap"});
    expect_refused(with_room(GgufBuilder().tensor("a", kF32, {1}).tensor("a", kF32, {1})), Code::corrupt,
                   {"tensor 'a' occurs twice"});
    // Empty ones share no byte with anything.
    (void)open_ok(with_room(GgufBuilder().tensor_at("full", kF32, {1}, 0).tensor_at("empty", kF32, {0}, 0)));
}

TEST(Gguf, NoFlippedByteDoesHarm) {
    std::string bytes = tiny_moe().file();
    const size_t header = tiny_moe().header().size();
    FileEntry file;
    file.path = "flipped";
    file.size = bytes.size();
    size_t accepted = 0;
    for (size_t i = 0; i < header; i++) {
        for (const unsigned flip : {0x01U, 0x10U, 0x80U, 0xffU}) {
            const char original = bytes[i];
            bytes[i] = static_cast<char>(static_cast<unsigned char>(original) ^ flip);
            Result<ParseOutcome> outcome = parse_gguf_header(bytes);
            bytes[i] = original;
            if (!outcome) {
                EXPECT_NE(outcome.status().code(), Code::internal) << outcome.status().message();
                continue;
            }
            if (outcome->needs_more) continue;
            std::vector<ParsedHeader> headers;
            headers.push_back(std::move(outcome->header));
            const Result<GgufIndex> index = GgufIndex::assemble({file}, std::move(headers));
            if (!index) continue;
            accepted++;
            for (const TensorEntry& tensor : index->tensors()) ASSERT_LE(tensor.offset + tensor.bytes, file.size);
            const Result<Geometry> geometry = derive_geometry(*index);
            if (!geometry) {
                EXPECT_EQ(geometry.status().code(), Code::unsupported) << geometry.status().message();
            }
        }
    }
    EXPECT_GT(accepted, 0U);  // letters of names may change freely
}

// Split sets.

std::string shard_name(int number, int count) {
    return fmt::format("m-{:05}-of-{:05}.gguf", number, count);
}

GgufBuilder first_shard(uint16_t count = 3, int32_t n_tensors = 4) {
    GgufBuilder b;
    b.meta_string("general.architecture", "tiny").meta_string("general.name", "M").split(1, count, n_tensors);
    b.tensor("a", kF32, {8}).tensor("b", kF32, {8});
    return b;
}
GgufBuilder later_shard(uint16_t number, const char* tensor, uint16_t count = 3, int32_t n_tensors = 4) {
    GgufBuilder b;
    b.split(number, count, n_tensors).tensor(tensor, kF32, {8});
    return b;
}

class Split : public ::testing::Test {
  protected:
    // Overwrites a shard of the set.
    std::string put_shard(int number, const std::string& bytes) { return dir_.write(shard_name(number, 3), bytes); }
    void SetUp() override {
        first_ = put_shard(1, first_shard().file());
        second_ = put_shard(2, later_shard(2, "c").file());
        third_ = put_shard(3, later_shard(3, "d").file());
    }
    TempDir dir_;
    std::string first_, second_, third_;
};

TEST_F(Split, AnyShardOpensTheSet) {
    for (const std::string& path : {first_, second_, third_}) {
        const GgufIndex index = open_ok(path);
        ASSERT_EQ(index.files().size(), 3U);
        EXPECT_EQ(index.files()[0].path, first_);
        EXPECT_EQ(index.files()[2].path, third_);
        ASSERT_EQ(index.tensors().size(), 4U);
        ASSERT_NE(index.find("d"), nullptr);
        EXPECT_EQ(index.find("d")->file, 2U);
        EXPECT_EQ(index.find("b")->file, 0U);
        EXPECT_EQ(index.architecture(), "tiny");
        EXPECT_EQ(index.header_bytes(),
                  index.files()[0].data_offset + index.files()[1].data_offset + index.files()[2].data_offset);
    }
}

TEST_F(Split, AFirstShardWithoutTensorsIsFine) {
    put_shard(1, GgufBuilder().meta_string("general.architecture", "t").split(1, 3, 2).file());
    put_shard(2, later_shard(2, "c", 3, 2).file());
    put_shard(3, later_shard(3, "d", 3, 2).file());
    EXPECT_EQ(open_ok(third_).tensors().size(), 2U);
}

TEST_F(Split, AMissingShardIsNamed) {
    std::filesystem::remove(second_);
    expect_refused(first_, Code::not_found, {"shard 2 of 3 is missing", second_});
    expect_refused(second_, Code::not_found, {second_});
}

TEST_F(Split, ARenamedShardIsNamed) {
    std::filesystem::rename(second_, dir_ / "elsewhere.gguf");
    std::filesystem::rename(third_, second_);
    std::filesystem::rename(dir_ / "elsewhere.gguf", third_);
    expect_refused(first_, Code::corrupt, {second_, "shard 2 of 3", "renamed"});
    expect_refused(third_, Code::corrupt, {third_, "shard 3 of 3", "renamed"});
}

TEST_F(Split, ADuplicatedShardIsNamed) {
    std::filesystem::remove(third_);
    std::filesystem::copy_file(second_, third_);
    expect_refused(first_, Code::corrupt, {third_, "renamed or overwritten"});
    std::filesystem::remove(third_);
    std::filesystem::create_hard_link(second_, third_);
    expect_refused(first_, Code::corrupt, {second_, third_, "the same file"});
}

TEST_F(Split, AForeignShardIsNamed) {
    put_shard(3, later_shard(3, "d", 3, 5).file());
    expect_refused(first_, Code::corrupt, {third_, "another set", "5 tensors, not 4"});
    put_shard(3, later_shard(3, "d", 4).file());
    expect_refused(first_, Code::corrupt, {third_, "has 4 shards"});
    GgufBuilder other = later_shard(3, "d");
    other.meta_string("general.name", "Other");
    put_shard(3, other.file());
    expect_refused(first_, Code::corrupt, {third_, "another set", "'Other', not 'M'"});
    put_shard(3, GgufBuilder().tensor("d", kF32, {8}).file());
    expect_refused(first_, Code::corrupt, {third_, "do not say that it is a shard"});
    expect_refused(third_, Code::corrupt, {third_, "do not say that it is a shard"});
    put_shard(3, later_shard(3, "a").file());
    expect_refused(first_, Code::corrupt, {"'a' occurs in both", first_, third_});
    GgufBuilder extra = later_shard(3, "d");
    extra.tensor("e", kF32, {8});
    put_shard(3, extra.file());
    expect_refused(first_, Code::corrupt, {first_, "hold 5 tensors together", "promise 4"});
    GgufBuilder no_total;
    no_total.meta<uint16_t>("split.no", 2).meta<uint16_t>("split.count", 3).tensor("d", kF32, {8});
    put_shard(3, no_total.file());
    expect_refused(first_, Code::corrupt, {third_, "split.tensors.count"});
}

TEST_F(Split, ATruncatedOrForeignFormatShardIsNamed) {
    const std::string whole = later_shard(2, "c").file();
    put_shard(2, whole.substr(0, whole.size() - 1));
    expect_refused(first_, Code::corrupt, {second_, "is truncated", "'c'"});
    put_shard(2, whole.substr(0, 30));
    expect_refused(first_, Code::corrupt, {second_, "is truncated"});
    put_shard(2, "nonsense");
    expect_refused(first_, Code::invalid_argument, {second_, "is not a GGUF file"});
    put_shard(2, "");
    expect_refused(first_, Code::corrupt, {second_, "is empty"});
}

TEST_F(Split, AShardKeepsItsName) {
    for (const char* name : {"model.gguf", "m-1-of-3.gguf", "m-00004-of-00003.gguf", "m-00000-of-00003.gguf",
                             "m-00001-of-00003.gguf.part", "m-0000x-of-00003.gguf"}) {
        expect_refused(dir_.write(name, first_shard().file()), Code::invalid_argument,
                       {dir_ / name, "must keep its original name"});
    }
}

TEST_F(Split, AWholeFileMayBeNamedLikeAnOnlyShard) {
    const std::string path = dir_.write("whole-00001-of-00001.gguf", tiny_moe().file());
    EXPECT_EQ(open_ok(path).files().size(), 1U);
    expect_refused(dir_.write("n-00001-of-00001.gguf", first_shard().file()), Code::corrupt, {"has 3 shards"});
    GgufBuilder only;
    only.split(1, 1, 1).tensor("a", kF32, {8});
    EXPECT_EQ(open_ok(dir_.write("only.gguf", only.file())).files().size(), 1U);
}

}  // namespace
}  // namespace sluice::model
