// Owns: every change that the store makes to a file system, one call each, so that a test can let any of them fail.
// Keeps: a file that is replaced is the old one or the new one at every moment, and after a crash too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"

namespace sluice::store {

// The calls behind. Each returns 0 or an errno. Replaced by tests.
class Files {
  public:
    Files() = default;
    virtual ~Files() = default;
    Files(const Files&) = delete;
    Files& operator=(const Files&) = delete;

    static Files& system();

    // `flags` as of open(2); O_CLOEXEC is added.
    virtual int open(const std::string& path, int flags, int& fd);
    // All of `bytes`, or an error after any part of them.
    virtual int write(int fd, std::span<const std::byte> bytes, uint64_t offset);
    virtual int resize(int fd, uint64_t size);
    virtual int sync(int fd);
    virtual int rename(const std::string& from, const std::string& to);
    // Makes the names in the directory of `path` durable.
    virtual int sync_directory(const std::string& path);
    virtual int remove(const std::string& path);
    // Room on the drive for [offset, offset + bytes), before it is written. 0 too where the file system has no such
    // call.
    virtual int allocate(int fd, uint64_t offset, uint64_t bytes);
    // Gives the drive's room behind a range back; it reads as zeros then, and the file keeps its size.
    virtual int punch(int fd, uint64_t offset, uint64_t bytes);
    // EWOULDBLOCK while another process, or another descriptor of this one, has it locked. Ends with the descriptor.
    virtual int lock(int fd);
    // What may still be written on the file system that holds the directory of `path`.
    virtual int free_bytes(const std::string& path, uint64_t& bytes);
};

// A file being written. Move-only. Errors name the path.
class OutputFile {
  public:
    static Result<OutputFile> open(Files& files, const std::string& path, int flags);
    OutputFile(OutputFile&& other) noexcept : files_(other.files_), path_(std::move(other.path_)), fd_(other.fd_) {
        other.fd_ = -1;
    }
    OutputFile& operator=(OutputFile&&) = delete;
    OutputFile(const OutputFile&) = delete;
    OutputFile& operator=(const OutputFile&) = delete;
    ~OutputFile();

    Status write(std::span<const std::byte> bytes, uint64_t offset);
    Status resize(uint64_t size);
    Status sync();
    Status allocate(uint64_t offset, uint64_t bytes);
    Status punch(uint64_t offset, uint64_t bytes);
    // Error unsupported, in words, if somebody else has it.
    Status lock();
    [[nodiscard]] int fd() const { return fd_; }
    [[nodiscard]] const std::string& path() const { return path_; }

  private:
    OutputFile(Files& files, std::string path, int fd) : files_(&files), path_(std::move(path)), fd_(fd) {}
    Files* files_;
    std::string path_;
    int fd_ = -1;
};

// The name that replace_file would give a file for `path`: itself, or where it leads to as a symbolic link, even if
// nothing is there yet. Error invalid_argument, in words, if a device, a pipe, a socket or a directory is there: that
// is never replaced. For who wants to know before long work.
Result<std::string> replaceable(const std::string& path);
// Whether replace_file could give `path` bytes now: makes the file that it would write beside it, and removes that. For
// who is going to work for long before there is something to write.
Status check_replaceable(Files& files, const std::string& path);
// `path`, or what it leads to as a symbolic link, has these bytes, durably, or what it had before. Leaves no other file
// behind unless the process dies.
Status replace_file(Files& files, const std::string& path, std::span<const std::byte> bytes);
// Gives a finished file its name, durably.
Status publish_file(Files& files, const std::string& from, const std::string& to);

// Whether there is a file behind this name; whether the name is taken, if only by a link to nothing.
bool exists(const std::string& path);
bool name_is_taken(const std::string& path);

// All bytes of a file that must be no longer than `most`; not_found if there is none.
Result<std::string> read_whole(const std::string& path, uint64_t most);

}  // namespace sluice::store
