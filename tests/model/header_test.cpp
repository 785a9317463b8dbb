#include <gtest/gtest.h>

#include <functional>

#include "model/gguf.h"
#include "tests/model/gguf_builder.h"

namespace sluice::model {
namespace {

using testing::GgufBuilder;
using testing::kF32;
using testing::kQ4_0;
using testing::put;
using testing::put_string;
using testing::tiny_moe;

ParsedHeader parse(const std::string& bytes) {
    Result<ParseOutcome> outcome = parse_gguf_header(bytes);
    EXPECT_TRUE(outcome) << outcome.status().message();
    if (!outcome) return {};
    EXPECT_FALSE(outcome->needs_more);
    return std::move(outcome->header);
}

void expect_refused(const std::string& bytes, Code code, const std::string& part) {
    const Result<ParseOutcome> outcome = parse_gguf_header(bytes);
    ASSERT_FALSE(outcome) << "accepted, though: " << part;
    EXPECT_EQ(outcome.status().code(), code) << outcome.status().message();
    EXPECT_NE(outcome.status().message().find(part), std::string::npos) << outcome.status().message();
}

TEST(TypeTraits, KnowsSizesOfEveryKind) {
    const auto expect = [](TypeId type, const char* name, uint32_t elements, uint32_t bytes) {
        const TypeTraits* traits = type_traits(type);
        ASSERT_NE(traits, nullptr) << name;
        EXPECT_STREQ(traits->name, name);
        EXPECT_EQ(traits->block_elements, elements) << name;
        EXPECT_EQ(traits->block_bytes, bytes) << name;
    };
    expect(0, "f32", 1, 4);
    expect(2, "q4_0", 32, 18);
    expect(12, "q4_K", 256, 144);
    expect(19, "iq1_s", 256, 50);
    expect(30, "bf16", 1, 2);
    expect(35, "tq2_0", 256, 66);
    expect(39, "mxfp4", 32, 17);
    expect(40, "nvfp4", 64, 36);
    expect(41, "q1_0", 128, 18);
    expect(42, "q2_0", 64, 18);
}

TEST(TypeTraits, RemovedAndFutureTypesAreUnknown) {
    for (const TypeId type : {4U, 5U, 31U, 32U, 33U, 36U, 37U, 38U, 43U, 1000U, UINT32_MAX}) {
        EXPECT_EQ(type_traits(type), nullptr) << type;
    }
}

TEST(Header, ReadsMetadataAndTensors) {
    for (const uint32_t version : {2U, 3U}) {
        GgufBuilder b = tiny_moe();
        b.version = version;
        const std::string bytes = b.file();
        const ParsedHeader header = parse(bytes);
        EXPECT_EQ(std::get<std::string>(header.meta.at("general.name")), "Tiny MoE");
        EXPECT_EQ(std::get<uint64_t>(header.meta.at("tiny.block_count")), 3U);
        ASSERT_EQ(header.tensors.size(), 8U);
        EXPECT_EQ(header.data_offset, align_up(b.header().size(), 32));
        const TensorEntry& second = header.tensors[1];
        EXPECT_EQ(second.name, "blk.0.ffn_up.weight");
        EXPECT_EQ(second.offset, header.data_offset + 32 * 3 * 4);
        EXPECT_EQ(second.bytes, 32U * 32 * 4);
        EXPECT_EQ(second.n_dims, 2U);
        EXPECT_EQ(second.ne, (std::array<uint64_t, 4>{32, 32, 1, 1}));
        EXPECT_EQ(header.tensors[4].bytes, 64U * 4 * 18);
    }
}

TEST(Header, KeepsEveryScalarType) {
    GgufBuilder b;
    b.meta<uint8_t>("u8", 200).meta<int8_t>("i8", -100).meta<uint16_t>("u16", 60000).meta<int16_t>("i16", -30000);
    b.meta<uint32_t>("u32", 4000000000U).meta<int32_t>("i32", -2000000000).meta<uint64_t>("u64", UINT64_MAX);
    b.meta<int64_t>("i64", INT64_MIN).meta<float>("f32", 0.5F).meta<double>("f64", 0.1).meta<bool>("bool", true);
    const ParsedHeader header = parse(b.file());
    EXPECT_EQ(std::get<uint64_t>(header.meta.at("u8")), 200U);
    EXPECT_EQ(std::get<int64_t>(header.meta.at("i8")), -100);
    EXPECT_EQ(std::get<uint64_t>(header.meta.at("u16")), 60000U);
    EXPECT_EQ(std::get<int64_t>(header.meta.at("i16")), -30000);
    EXPECT_EQ(std::get<uint64_t>(header.meta.at("u32")), 4000000000U);
    EXPECT_EQ(std::get<int64_t>(header.meta.at("i32")), -2000000000);
    EXPECT_EQ(std::get<uint64_t>(header.meta.at("u64")), UINT64_MAX);
    EXPECT_EQ(std::get<int64_t>(header.meta.at("i64")), INT64_MIN);
    EXPECT_EQ(std::get<double>(header.meta.at("f32")), 0.5);
    EXPECT_EQ(std::get<double>(header.meta.at("f64")), 0.1);
    EXPECT_TRUE(std::get<bool>(header.meta.at("bool")));
}

TEST(Header, KeepsShortIntegerArraysAndCountsTheRest) {
    GgufBuilder b;
    b.meta_array<int32_t>("per_layer", {1, -2, 3}).meta_array<uint8_t>("flags", {0, 1});
    b.meta_array<uint64_t>("too_large", {1, UINT64_MAX});
    b.meta_array<int32_t>("longest", std::vector<int32_t>(1024, 7));
    b.meta_array<int32_t>("long", std::vector<int32_t>(1025, 7));
    b.meta_array<float>("floats", {1, 2}).meta_strings("strings", {"x", "yy", "z"});
    b.meta_string("huge", std::string(kMaxKeptString + 1, 'x'));
    const ParsedHeader header = parse(b.file());
    EXPECT_EQ(std::get<std::vector<int64_t>>(header.meta.at("per_layer")), (std::vector<int64_t>{1, -2, 3}));
    EXPECT_EQ(std::get<std::vector<int64_t>>(header.meta.at("flags")), (std::vector<int64_t>{0, 1}));
    EXPECT_EQ(std::get<std::vector<int64_t>>(header.meta.at("longest")).size(), 1024U);
    EXPECT_EQ(std::get<Omitted>(header.meta.at("too_large")).length, 2U);
    EXPECT_EQ(std::get<Omitted>(header.meta.at("long")).length, 1025U);
    EXPECT_EQ(std::get<Omitted>(header.meta.at("floats")).length, 2U);
    EXPECT_EQ(std::get<Omitted>(header.meta.at("strings")).length, 3U);
    EXPECT_EQ(std::get<Omitted>(header.meta.at("huge")).length, kMaxKeptString + 1);
}

TEST(Header, EveryProperPrefixNeedsMore) {
    const std::string header = tiny_moe().header();
    for (size_t n = 0; n < header.size(); n++) {
        const Result<ParseOutcome> outcome = parse_gguf_header(std::string_view(header).substr(0, n));
        ASSERT_TRUE(outcome) << n << ": " << outcome.status().message();
        EXPECT_TRUE(outcome->needs_more) << n;
    }
    EXPECT_EQ(parse(header).tensors.size(), 8U);
}

TEST(Header, RefusesOtherFormats) {
    expect_refused("ggjt", Code::invalid_argument, "not a GGUF file: it begins with 'ggjt'");
    expect_refused("GGX", Code::invalid_argument, "not a GGUF file");
    expect_refused(std::string("\x1b[2J", 4), Code::invalid_argument, "'\\x1b[2J'");
    const auto versioned = [](uint32_t version) {
        GgufBuilder b;
        b.version = version;
        return b.file();
    };
    expect_refused(versioned(0x03000000), Code::unsupported, "big-endian");
    expect_refused(versioned(0), Code::unsupported, "version 0");
    expect_refused(versioned(1), Code::unsupported, "version 1 is no longer supported");
    expect_refused(versioned(4), Code::unsupported, "version 4 is unknown");
}

TEST(Header, BoundsEveryCountBeforeUse) {
    expect_refused(GgufBuilder().claim(kMaxTensors + 1, 0).file(), Code::corrupt, "1000001 tensors");
    expect_refused(GgufBuilder().claim(UINT64_MAX, 0).file(), Code::corrupt, "tensors");
    expect_refused(GgufBuilder().claim(0, kMaxMetaPairs + 1).file(), Code::corrupt, "100001 metadata entries");
    std::string key;
    put(key, kMaxKeyLength + 1);
    expect_refused(GgufBuilder().meta_raw(key).file(), Code::corrupt, "claims a length of 65536");
    std::string text;
    put_string(text, "k");
    put(text, uint32_t{8});
    put(text, UINT64_MAX);
    expect_refused(GgufBuilder().meta_raw(text).file(), Code::corrupt, "the metadata value of 'k' claims");
    std::string array;
    put_string(array, "k");
    put(array, uint32_t{9});
    put(array, uint32_t{12});
    put(array, uint64_t{1} << 61U);  // times 8 it would overflow
    expect_refused(GgufBuilder().meta_raw(array).file(), Code::corrupt, "array elements");
    expect_refused(GgufBuilder().tensor(std::string(kMaxNameLength + 1, 'n'), kF32, {1}).file(), Code::corrupt,
                   "the tensor name after 'the start' claims a length of 256");
    EXPECT_EQ(parse(GgufBuilder().tensor(std::string(kMaxNameLength, 'n'), kF32, {1}).file()).tensors.size(), 1U);
}

TEST(Header, RefusesBadMetadata) {
    expect_refused(GgufBuilder().meta<uint8_t>("k", 1).meta<uint8_t>("k", 1).file(), Code::corrupt, "'k' occurs twice");
    expect_refused(GgufBuilder().meta<uint8_t>("", 1).file(), Code::corrupt, "is empty");
    std::string unknown;
    put_string(unknown, "k");
    put(unknown, uint32_t{13});
    expect_refused(GgufBuilder().meta_raw(unknown).file(), Code::corrupt, "unknown type 13");
    std::string unknown_array;
    put_string(unknown_array, "k");
    put(unknown_array, uint32_t{9});
    put(unknown_array, uint32_t{77});
    put(unknown_array, uint64_t{0});
    expect_refused(GgufBuilder().meta_raw(unknown_array).file(), Code::corrupt, "unknown type 77");
    std::string nested;
    put_string(nested, "k");
    put(nested, uint32_t{9});
    put(nested, uint32_t{9});
    put(nested, uint64_t{1});
    expect_refused(GgufBuilder().meta_raw(nested).file(), Code::unsupported, "array of arrays");
}

TEST(Header, AlignmentIsAPowerOfTwo) {
    GgufBuilder b;
    b.alignment = 256;
    b.meta<uint32_t>("general.alignment", 256).tensor("a", kF32, {1}).tensor("b", kF32, {1});
    const ParsedHeader header = parse(b.file());
    EXPECT_EQ(header.data_offset % 256, 0U);
    EXPECT_EQ(header.tensors[1].offset, header.data_offset + 256);
    for (const uint32_t bad : {0U, 3U, 48U, 0x80000000U}) {
        expect_refused(GgufBuilder().meta<uint32_t>("general.alignment", bad).file(), Code::corrupt, "power of two");
    }
    expect_refused(GgufBuilder().meta<int32_t>("general.alignment", 32).file(), Code::corrupt, "not an unsigned");
    expect_refused(GgufBuilder().tensor_at("a", kF32, {1}, 16).file(), Code::corrupt,
                   "not a multiple of the alignment");
}

TEST(Header, RefusesBadTensors) {
    expect_refused(GgufBuilder().tensor_at("", kF32, {1}, 0).file(), Code::corrupt, "is not a name");
    expect_refused(GgufBuilder().tensor_at(std::string_view("a\0b", 3), kF32, {1}, 0).file(), Code::corrupt,
                   "'a\\x00b'");
    expect_refused(GgufBuilder().tensor_at("a", kF32, {1, 1, 1, 1, 1}, 0).file(), Code::corrupt, "5 dimensions");
    expect_refused(GgufBuilder().tensor_at("a", 4, {32}, 0).file(), Code::unsupported, "type 4");
    expect_refused(GgufBuilder().tensor_at("a", 999, {32}, 0).file(), Code::unsupported, "type 999");
    expect_refused(GgufBuilder().tensor_at("a", kQ4_0, {33}, 0).file(), Code::corrupt, "not a multiple of the 32");
}

TEST(Header, ShapeArithmeticDoesNotOverflow) {
    const uint64_t big = uint64_t{1} << 32U;
    const std::vector<std::vector<uint64_t>> shapes{{big, big},      {big, big, 0},        {UINT64_MAX},
                                                    {0, UINT64_MAX}, {uint64_t{1} << 62U}, {2, big, big, big}};
    for (const std::vector<uint64_t>& shape : shapes) {
        expect_refused(GgufBuilder().tensor_at("a", kF32, shape, 0).file(), Code::corrupt, "larger than any file");
    }
    EXPECT_EQ(parse(GgufBuilder().tensor_at("a", kF32, {1, 1, 1, 0}, 0).file()).tensors[0].bytes, 0U);
    const uint64_t last = UINT64_MAX - 31;
    expect_refused(GgufBuilder().tensor_at("a", kF32, {1}, last).file(), Code::corrupt, "beyond the end of any file");
    expect_refused(GgufBuilder().tensor_at("a", kF32, {1}, last / 64 * 32).file(), Code::corrupt,
                   "beyond the end of any");
}

TEST(Header, ScalarsAndTensorlessFilesAreFine) {
    const ParsedHeader scalar = parse(GgufBuilder().tensor("a", kF32, {}).file());
    EXPECT_EQ(scalar.tensors[0].bytes, 4U);
    EXPECT_EQ(scalar.tensors[0].n_dims, 0U);
    const std::string bytes = GgufBuilder().meta<uint8_t>("k", 1).file();
    EXPECT_EQ(parse(bytes).data_offset, bytes.size());
}

}  // namespace
}  // namespace sluice::model
