// Owns: a file system whose calls fail when a test says so.
// Keeps: what is done before the failure is really done, so that the test sees the state that a crash leaves behind.
#pragma once

#include <algorithm>
#include <cerrno>
#include <string>

#include "store/files.h"

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

}  // namespace sluice::store::testing
