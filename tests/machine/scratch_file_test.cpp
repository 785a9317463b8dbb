#include "machine/scratch_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/bytes.h"
#include "io/file.h"
#include "io/pool_engine.h"
#include "machine/drive.h"
#include "tests/machine/tree.h"

namespace sluice::machine {
namespace {

bool is_empty(const std::string& directory) {
    return std::filesystem::directory_iterator(directory) == std::filesystem::directory_iterator();
}

TEST(ScratchFile, CanBeReadAndHasNoName) {
    const Tree tree;
    uint64_t last = 0;
    int calls = 0;
    const auto scratch = ScratchFile::write(tree.root(), 9 * MiB + 5, [&](uint64_t done) {
        EXPECT_TRUE(is_empty(tree.root())) << "a process that is killed now leaves nothing";
        EXPECT_GE(done, last);
        last = done;
        ++calls;
        return true;
    });
    ASSERT_TRUE(scratch.ok()) << scratch.status().message();
    EXPECT_EQ(calls, 3);
    EXPECT_TRUE(is_empty(tree.root()));
    for (const io::Access access : {io::Access::direct, io::Access::buffered}) {
        const auto file = io::File::open(scratch->path(), access);
        ASSERT_TRUE(file.ok()) << file.status().message();
        EXPECT_EQ(file->size_at_open(), 9 * MiB) << "whole blocks";
        EXPECT_EQ(file->device(), [&] {
            struct stat st = {};
            EXPECT_EQ(stat(tree.root().c_str(), &st), 0);
            return st.st_dev;
        }());
    }
}

TEST(ScratchFile, NoTwoBlocksAreAlike) {
    const Tree tree;
    const auto scratch = ScratchFile::write(tree.root(), 8 * MiB, nullptr);
    ASSERT_TRUE(scratch.ok());
    const auto file = io::File::open(scratch->path(), io::Access::buffered);
    ASSERT_TRUE(file.ok());
    std::string all(8 * MiB, '\0');
    ASSERT_EQ(io::system_pread(*file, std::as_writable_bytes(std::span(all)).data(), all.size(), 0),
              static_cast<int64_t>(all.size()));
    std::set<std::string_view> blocks;
    for (uint64_t at = 0; at < all.size(); at += 4 * KiB) {
        const std::string_view block = std::string_view(all).substr(at, 4 * KiB);
        EXPECT_TRUE(blocks.insert(block).second) << at;
        EXPECT_GT(std::set<char>(block.begin(), block.end()).size(), 200U) << "hardly to be compressed";
    }
}

TEST(ScratchFile, IsRefusedWithoutFreeSpace) {
    const Tree tree;
    const auto facts = read_drive_of_directory(tree.root());
    ASSERT_TRUE(facts.ok() && facts->free_bytes);
    const auto too_much = ScratchFile::write(tree.root(), *facts->free_bytes, nullptr);
    ASSERT_FALSE(too_much.ok());
    EXPECT_EQ(too_much.status().code(), Code::no_memory);
    EXPECT_NE(too_much.status().message().find("are free in " + tree.root()), std::string::npos);
    EXPECT_FALSE(ScratchFile::write(tree.root(), UINT64_MAX, nullptr).ok());
    EXPECT_TRUE(is_empty(tree.root()));
}

TEST(ScratchFile, EndsWhenToldAndWhereItCannotBe) {
    const Tree tree;
    EXPECT_EQ(ScratchFile::write(tree.root(), 64 * MiB, [](uint64_t done) { return done < 8 * MiB; }).status().code(),
              Code::cancelled);
    EXPECT_TRUE(is_empty(tree.root()));
    EXPECT_EQ(ScratchFile::write(tree.root() + "/none", MiB, nullptr).status().code(), Code::not_found);
    EXPECT_FALSE(ScratchFile::write("/proc", MiB, nullptr).ok()) << "no place for files";
}

}  // namespace
}  // namespace sluice::machine
