#include "store/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

namespace sluice::store {
namespace {

Status failed(const char* what, const std::string& path, int error_number) {
    const Code code = error_number == ENOENT   ? Code::not_found
                      : error_number == EEXIST ? Code::conflict
                                               : Code::io_error;
    return error(code, "cannot {} {}: {}", what, path, std::strerror(error_number));
}

std::string directory_of(const std::string& path) {
    const std::string parent = std::filesystem::path(path).parent_path().string();
    return parent.empty() ? "." : parent;
}

constexpr int kMostLinks = 40;  // as the kernel's
constexpr int kMostNames = 100;

const char* kind_of(mode_t mode) {
    return S_ISDIR(mode)    ? "a directory"
           : S_ISFIFO(mode) ? "a pipe"
           : S_ISSOCK(mode) ? "a socket"
           : S_ISLNK(mode)  ? "a link to itself"
                            : "a device";
}

// A file beside `path` that nobody had made before, so that no link planted under its name is followed, and nobody
// else's file is overwritten.
Result<OutputFile> open_beside(Files& files, const std::string& path) {
    for (int i = 1; i <= kMostNames; ++i) {
        const std::string name = i == 1 ? path + ".tmp" : fmt::format("{}.tmp{}", path, i);
        // What is taken need not be asked of the file system twice.
        if (name_is_taken(name)) continue;
        auto out = OutputFile::open(files, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
        // Taken a moment ago, even if its maker has given it its own name by now.
        if (out.status().code() != Code::conflict) return out;
    }
    return error(Code::io_error, "cannot write beside {}: {}.tmp and all names like it are taken, remove them", path,
                 path);
}

}  // namespace

Files& Files::system() {
    static Files files;
    return files;
}

int Files::open(const std::string& path, int flags, int& fd) {
    constexpr mode_t kMode = 0666;
    do fd = ::open(path.c_str(), flags | O_CLOEXEC, kMode);
    while (fd < 0 && errno == EINTR);
    return fd < 0 ? errno : 0;
}

int Files::write(int fd, std::span<const std::byte> bytes, uint64_t offset) {
    while (!bytes.empty()) {
        const ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        if (n == 0) return EIO;
        bytes = bytes.subspan(static_cast<size_t>(n));
        offset += static_cast<uint64_t>(n);
    }
    return 0;
}

int Files::resize(int fd, uint64_t size) {
    return ::ftruncate(fd, static_cast<off_t>(size)) == 0 ? 0 : errno;
}

int Files::sync(int fd) {
    return ::fsync(fd) == 0 ? 0 : errno;
}

int Files::rename(const std::string& from, const std::string& to) {
    return ::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

int Files::sync_directory(const std::string& path) {
    int fd = -1;
    if (const int e = Files::open(directory_of(path), O_RDONLY | O_DIRECTORY, fd); e != 0) return e;
    const int e = ::fsync(fd) == 0 ? 0 : errno;
    ::close(fd);
    // Some network file systems have no such thing.
    return e == EINVAL ? 0 : e;
}

int Files::remove(const std::string& path) {
    return ::unlink(path.c_str()) == 0 ? 0 : errno;
}

int Files::allocate(int fd, uint64_t offset, uint64_t bytes) {
    int e = 0;
    do e = ::fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0 ? 0 : errno;
    while (e == EINTR);
    return e == EOPNOTSUPP ? 0 : e;
}

int Files::punch(int fd, uint64_t offset, uint64_t bytes) {
    constexpr int kMode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    int e = 0;
    do e = ::fallocate(fd, kMode, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0 ? 0 : errno;
    while (e == EINTR);
    return e;
}

int Files::lock(int fd) {
    return ::flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
}

int Files::free_bytes(const std::string& path, uint64_t& bytes) {
    struct statvfs st {};
    if (::statvfs(directory_of(path).c_str(), &st) != 0) return errno;
    bytes = uint64_t{st.f_bavail} * st.f_frsize;
    return 0;
}

Result<OutputFile> OutputFile::open(Files& files, const std::string& path, int flags) {
    int fd = -1;
    if (const int e = files.open(path, flags, fd); e != 0) return failed("open", path, e);
    return OutputFile(files, path, fd);
}

OutputFile::~OutputFile() {
    if (fd_ >= 0) ::close(fd_);
}

Status OutputFile::write(std::span<const std::byte> bytes, uint64_t offset) {
    const int e = files_->write(fd_, bytes, offset);
    return e == 0 ? Status() : failed("write", path_, e);
}

Status OutputFile::resize(uint64_t size) {
    const int e = files_->resize(fd_, size);
    return e == 0 ? Status() : failed("resize", path_, e);
}

Status OutputFile::sync() {
    const int e = files_->sync(fd_);
    return e == 0 ? Status() : failed("write", path_, e);
}

Status OutputFile::allocate(uint64_t offset, uint64_t bytes) {
    const int e = files_->allocate(fd_, offset, bytes);
    return e == 0 ? Status() : failed("find room for", path_, e);
}

Status OutputFile::punch(uint64_t offset, uint64_t bytes) {
    const int e = files_->punch(fd_, offset, bytes);
    if (e == EOPNOTSUPP || e == ENOSYS)
        return error(Code::unsupported, "the file system of {} cannot give back a part of a file", path_);
    return e == 0 ? Status() : failed("give back a part of", path_, e);
}

Status OutputFile::lock() {
    const int e = files_->lock(fd_);
    if (e == EWOULDBLOCK) return error(Code::unsupported, "{} is being worked on by another process", path_);
    return e == 0 ? Status() : failed("lock", path_, e);
}

Result<std::string> replaceable(const std::string& path) {
    std::string at = path;
    struct stat st {};
    for (int links = 0; links <= kMostLinks; ++links) {
        if (::lstat(at.c_str(), &st) != 0) {
            if (errno == ENOENT) return at;
            return failed("look at", path, errno);
        }
        if (!S_ISLNK(st.st_mode)) break;
        struct stat behind {};
        const bool leads = ::stat(at.c_str(), &behind) == 0;
        if (leads && !S_ISREG(behind.st_mode)) {
            st = behind;
            break;
        }
        std::error_code ec;
        const std::filesystem::path to = std::filesystem::read_symlink(at, ec);
        if (ec) return failed("look at", path, ec.value());
        at = (std::filesystem::path(at).parent_path() / to).string();
        // What /proc calls a link need not say where it leads.
        struct stat named {};
        if (leads &&
            (::stat(at.c_str(), &named) != 0 || named.st_dev != behind.st_dev || named.st_ino != behind.st_ino))
            return error(Code::invalid_argument, "{} leads to a file without a name: name another place", path);
    }
    if (S_ISREG(st.st_mode)) return at;
    return error(Code::invalid_argument, "{} is {}, no plain file, and is not replaced: name another place", path,
                 kind_of(st.st_mode));
}

Status check_replaceable(Files& files, const std::string& path) {
    const auto target = replaceable(path);
    if (!target.ok()) return target.status();
    std::error_code none;
    if (const std::string folder = directory_of(*target); !std::filesystem::is_directory(folder, none))
        return error(Code::not_found, "{} cannot be written: there is no directory {}", path, folder);
    const auto out = open_beside(files, *target);
    if (!out.ok()) return out.status();
    const int e = files.remove(out->path());
    return e == 0 ? Status() : failed("remove", out->path(), e);
}

Status replace_file(Files& files, const std::string& path, std::span<const std::byte> bytes) {
    const auto target = replaceable(path);
    if (!target.ok()) return target.status();
    std::string temporary;
    Status s;
    {
        auto out = open_beside(files, *target);
        if (!out.ok()) return out.status();
        temporary = out->path();
        s = out->write(bytes, 0);
        if (s.ok()) s = out->sync();
    }
    if (s.ok()) return publish_file(files, temporary, *target);
    (void)files.remove(temporary);
    return s;
}

Status publish_file(Files& files, const std::string& from, const std::string& to) {
    if (const int e = files.rename(from, to); e != 0) {
        (void)files.remove(from);
        return failed("rename to", to, e);
    }
    const int e = files.sync_directory(to);
    return e == 0 ? Status() : failed("make durable", to, e);
}

bool exists(const std::string& path) {
    struct stat st {};
    return ::stat(path.c_str(), &st) == 0;
}

bool name_is_taken(const std::string& path) {
    struct stat st {};
    return ::lstat(path.c_str(), &st) == 0;
}

Result<std::string> read_whole(const std::string& path, uint64_t most) {
    // Without waiting for the other end, should it be a pipe.
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return failed("open", path, errno);
    struct stat st {};
    std::string out;
    Status s;
    if (::fstat(fd, &st) != 0) {
        s = failed("read", path, errno);
    } else if (!S_ISREG(st.st_mode) || static_cast<uint64_t>(st.st_size) > most) {
        s = error(Code::corrupt, "{} is no file of ours: it is larger than any of them, or not a plain file", path);
    } else {
        out.resize(static_cast<size_t>(st.st_size));
        size_t have = 0;
        while (s.ok() && have < out.size()) {
            const ssize_t n = ::pread(fd, out.data() + have, out.size() - have, static_cast<off_t>(have));
            if (n < 0 && errno == EINTR) continue;
            if (n < 0) s = failed("read", path, errno);
            if (n == 0) out.resize(have);
            if (n > 0) have += static_cast<size_t>(n);
        }
    }
    ::close(fd);
    if (!s.ok()) return s;
    return out;
}

}  // namespace sluice::store
