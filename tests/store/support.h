// Owns: a file system whose calls fail when a test says so, and a model to work on.
// Keeps: what is done before the failure is really done, so that the test sees the state that a crash leaves behind.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "model/geometry.h"
#include "store/files.h"
#include "tests/model/gguf_builder.h"

namespace sluice::store::testing {

// Call number `at` (from 0) fails with `error_number`; a write first writes half of its bytes. After it every other
// call fails as well if `killed`, as if the process were gone.
class FaultyFiles : public Files {
  public:
    FaultyFiles(int at, int error_number, bool killed) : at_(at), error_(error_number), killed_(killed) {}
    [[nodiscard]] int calls() const { return calls_; }

    int open(const std::string& path, int flags, int& fd) override {
        const int e = next();
        return e != 0 ? e : Files::open(path, flags, fd);
    }
    int write(int fd, std::span<const std::byte> bytes, uint64_t offset) override {
        const bool first = calls_ == at_;
        const int e = next();
        if (e != 0 && first) (void)Files::write(fd, bytes.first(bytes.size() / 2), offset);
        return e != 0 ? e : Files::write(fd, bytes, offset);
    }
    int resize(int fd, uint64_t size) override {
        const int e = next();
        return e != 0 ? e : Files::resize(fd, size);
    }
    int sync(int /*fd*/) override { return next(); }
    int rename(const std::string& from, const std::string& to) override {
        const int e = next();
        return e != 0 ? e : Files::rename(from, to);
    }
    int sync_directory(const std::string& /*path*/) override { return next(); }
    int remove(const std::string& path) override {
        const int e = next();
        return e != 0 ? e : Files::remove(path);
    }

    int allocate(int fd, uint64_t offset, uint64_t bytes) override {
        const int e = next();
        return e != 0 ? e : Files::allocate(fd, offset, bytes);
    }
    int punch(int fd, uint64_t offset, uint64_t bytes) override {
        const int e = next();
        return e != 0 ? e : Files::punch(fd, offset, bytes);
    }
    int lock(int fd) override {
        const int e = next();
        return e != 0 ? e : Files::lock(fd);
    }

  protected:
    [[nodiscard]] bool dead() const { return killed_ && calls_ > at_; }

  private:
    int next() {
        const int n = calls_++;
        return n == at_ || (killed_ && n > at_) ? error_ : 0;
    }
    int at_;
    int error_;
    bool killed_;
    int calls_ = 0;
};

inline std::string read_file(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}
inline void write_file(const std::string& path, std::string_view bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
}
// Blocks of zeros become holes.
inline void write_sparse(const std::string& path, const std::string& bytes) {
    constexpr size_t kBlock = 4096;
    std::ofstream(path, std::ios::binary).close();
    ASSERT_EQ(::truncate(path.c_str(), static_cast<off_t>(bytes.size())), 0);
    std::fstream f(path, std::ios::in | std::ios::out | std::ios::binary);
    for (size_t at = 0; at < bytes.size(); at += kBlock) {
        const std::string block = bytes.substr(at, kBlock);
        if (block.find_first_not_of('\0') == std::string::npos) continue;
        f.seekp(static_cast<std::streamoff>(at));
        f << block;
    }
}
inline void flip_byte(const std::string& path, uint64_t at, char mask = 0x10) {
    std::fstream f(path, std::ios::in | std::ios::out | std::ios::binary);
    f.seekg(static_cast<std::streamoff>(at));
    const char c = static_cast<char>(f.get() ^ mask);
    f.seekp(static_cast<std::streamoff>(at));
    f.put(c);
}
// What the drive keeps for a file.
inline uint64_t allocated_bytes(const std::string& path) {
    struct stat st {};
    return ::stat(path.c_str(), &st) == 0 ? static_cast<uint64_t>(st.st_blocks) * 512 : 0;
}

// The machine loses power at call number `at`: lose() takes back all writes that were not synced by then. What was
// punched stays punched.
class PowerLoss : public FaultyFiles {
  public:
    explicit PowerLoss(int at) : FaultyFiles(at, EIO, true) {}

    int open(const std::string& path, int flags, int& fd) override {
        const int e = FaultyFiles::open(path, flags, fd);
        if (e == 0) paths_[fd] = path;
        return e;
    }
    int write(int fd, std::span<const std::byte> bytes, uint64_t offset) override {
        remember(fd);
        return FaultyFiles::write(fd, bytes, offset);
    }
    int resize(int fd, uint64_t size) override {
        remember(fd);
        return FaultyFiles::resize(fd, size);
    }
    int allocate(int fd, uint64_t offset, uint64_t bytes) override {
        remember(fd);
        return FaultyFiles::allocate(fd, offset, bytes);
    }
    int sync(int fd) override {
        const int e = FaultyFiles::sync(fd);
        if (e == 0) before_.erase(paths_[fd]);
        return e;
    }
    int rename(const std::string& from, const std::string& to) override {
        const int e = FaultyFiles::rename(from, to);
        if (e == 0) {
            // Whoever gives a file its name wants it whole.
            early_ += before_.count(from) == 0 ? 0 : 1;
        }
        return e;
    }
    int punch(int fd, uint64_t offset, uint64_t bytes) override {
        if (!dead() && offset < file_size(fd)) early_ += before_.empty() ? 0 : 1;
        return FaultyFiles::punch(fd, offset, bytes);
    }
    // Renames of, and punches beside, what was not durable.
    [[nodiscard]] int early() const { return early_; }
    void lose() {
        for (const auto& [path, bytes] : before_) write_sparse(path, bytes);
    }

  private:
    static uint64_t file_size(int fd) {
        struct stat st {};
        return ::fstat(fd, &st) == 0 ? static_cast<uint64_t>(st.st_size) : 0;
    }
    void remember(int fd) {
        if (!dead()) before_.try_emplace(paths_[fd], read_file(paths_[fd]));
    }
    std::map<int, std::string> paths_;
    std::map<std::string, std::string> before_;  // as of the last sync, of what was changed since
    int early_ = 0;
};

// A split model with mixed types: a dense layer, one with gate, up and down, one with gate and up in one tensor, and
// one with two sets of experts. No two bytes of it are related.
struct TestModel {
    explicit TestModel(const model::testing::TempDir& dir, int shards = 1, uint32_t seed = 1) {
        using namespace model::testing;
        struct Tensor {
            const char* name;
            model::TypeId type;
            std::vector<uint64_t> ne;
        };
        const std::vector<Tensor> tensors{{"token_embd.weight", kF32, {32, 1000}},
                                          {"blk.0.ffn_up.weight", kF32, {32, 32}},
                                          {"blk.1.ffn_down_exps.weight", kQ8_0, {96, 64, 5}},
                                          {"blk.1.ffn_gate_exps.weight", kQ4_0, {64, 96, 5}},
                                          {"blk.1.ffn_up_exps.weight", kQ4_0, {64, 96, 5}},
                                          {"blk.2.ffn_gate_up_exps.weight", kQ8_0, {64, 192, 4}},
                                          {"blk.2.ffn_gate_inp.weight", kF32, {32, 4}},
                                          {"blk.2.ffn_down_exps.weight", kF32, {96, 64, 4}},
                                          {"blk.3.ffn_up_exps.weight", kQ4_0, {64, 96, 3}},
                                          {"blk.3.ffn_down_exps.weight", kQ8_0, {96, 64, 3}},
                                          {"blk.3.ffn_up_chexps.weight", kQ8_0, {64, 32, 6}},
                                          {"blk.3.ffn_down_chexps.weight", kQ8_0, {32, 64, 6}}};
        size_t next = 0;
        for (int s = 0; s < shards; ++s) {
            GgufBuilder b;
            if (s == 0) {
                b.meta_string("general.architecture", "tiny").meta<uint32_t>("tiny.block_count", 4);
                b.meta<uint32_t>("tiny.expert_used_count", 2);
            }
            if (shards > 1)
                b.split(static_cast<uint16_t>(s + 1), static_cast<uint16_t>(shards),
                        static_cast<int32_t>(tensors.size()));
            const size_t end = tensors.size() * static_cast<size_t>(s + 1) / static_cast<size_t>(shards);
            for (; next < end; ++next) b.tensor(tensors[next].name, tensors[next].type, tensors[next].ne);
            std::string bytes = b.file();
            uint32_t x = seed * 2654435761U + static_cast<uint32_t>(s) + 1;
            for (size_t i = align_up(b.header().size(), b.alignment); i < bytes.size(); ++i) {
                x = x * 1664525U + 1013904223U;
                bytes[i] = static_cast<char>(x >> 24U);
            }
            const std::string name = shards == 1 ? "m.gguf" : fmt::format("m-{:05}-of-{:05}.gguf", s + 1, shards);
            paths.push_back(dir.write(name, bytes));
            contents.push_back(std::move(bytes));
        }
        open();
    }
    void open() {
        auto i = model::GgufIndex::open(paths[0]);
        ASSERT_TRUE(i.ok()) << i.status().message();
        index = std::move(*i);
        auto g = model::derive_geometry(index);
        ASSERT_TRUE(g.ok()) << g.status().message();
        geometry = std::move(*g);
    }
    [[nodiscard]] bool whole() const {
        for (size_t i = 0; i < paths.size(); ++i) {
            if (read_file(paths[i]) != contents[i]) return false;
        }
        return true;
    }
    // As they were made.
    void restore() const {
        for (size_t i = 0; i < paths.size(); ++i) write_file(paths[i], contents[i]);
    }
    std::vector<std::string> paths;
    std::vector<std::string> contents;
    model::GgufIndex index;
    model::Geometry geometry;
};

}  // namespace sluice::store::testing
