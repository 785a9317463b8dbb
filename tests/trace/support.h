// Owns: what tests of outputs share: the golden record, golden texts, files for a moment.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "trace/record_file.h"

namespace sluice::trace {

inline std::string read_text(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void write_text(const std::string& path, std::string_view text) {
    std::ofstream(path, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
}

inline std::string data_path(const std::string& name) {
    return (std::filesystem::path(SLUICE_SOURCE_DIR) / "tests/trace/data" / name).string();
}

// The text must be that of tests/trace/data/NAME. With SLUICE_UPDATE_GOLDENS set it becomes that; then read the diff.
inline void expect_golden(const std::string& name, const std::string& text) {
    if (std::getenv("SLUICE_UPDATE_GOLDENS") != nullptr) write_text(data_path(name), text);
    EXPECT_EQ(text, read_text(data_path(name))) << name;
}

inline Record golden_record() {
    Result<Record> record = read_record(data_path("golden.jsonl"));
    EXPECT_TRUE(record.ok()) << record.status().message();
    return record.ok() ? std::move(record).value() : Record();
}

// A file in memory with a path, gone at the end. Thousands of them on a disk would take minutes.
class TempFile {
  public:
    TempFile() : fd_(memfd_create("sluice-test", MFD_CLOEXEC)) {
        EXPECT_GE(fd_, 0);
        path_ = "/proc/self/fd/" + std::to_string(fd_);
    }
    ~TempFile() { close(fd_); }
    TempFile(const TempFile&) = delete;
    TempFile& operator=(const TempFile&) = delete;
    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] std::string text() const { return read_text(path_); }
    [[nodiscard]] std::unique_ptr<LineFile> open() const {
        Result<std::unique_ptr<LineFile>> file = LineFile::open(path_);
        EXPECT_TRUE(file.ok());
        return std::move(file).value();
    }

  private:
    int fd_;
    std::string path_;
};

// The same numbers on every machine.
class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed * 2654435761U + 1) {}
    uint64_t next() {
        state_ ^= state_ << 13U;
        state_ ^= state_ >> 7U;
        state_ ^= state_ << 17U;
        return state_;
    }
    uint64_t below(uint64_t n) { return next() % n; }

  private:
    uint64_t state_;
};

}  // namespace sluice::trace
