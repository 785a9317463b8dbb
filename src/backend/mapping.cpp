#include "backend/mapping.h"

#include <dirent.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace sluice::backend {
namespace {

bool is_file(const std::string& path, unsigned major_number, unsigned minor_number, uint64_t inode) {
    struct stat st {};
    return stat(path.c_str(), &st) == 0 && st.st_ino == inode && major(st.st_dev) == major_number &&
           minor(st.st_dev) == minor_number;
}

}  // namespace

Result<MappedFile> find_mapping(const void* pointer) {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> maps(std::fopen("/proc/self/maps", "re"), std::fclose);
    if (maps == nullptr) return error(Code::io_error, "/proc/self/maps cannot be read: {}", std::strerror(errno));
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    char* line = nullptr;
    size_t capacity = 0;
    Result<MappedFile> found = error(Code::not_found, "the address is not in a file mapping");
    while (getline(&line, &capacity, maps.get()) > 0) {
        uintptr_t low = 0;
        uintptr_t high = 0;
        uint64_t offset = 0;
        uint64_t inode = 0;
        unsigned major_number = 0;
        unsigned minor_number = 0;
        int name_at = 0;
        if (std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*s %" SCNx64 " %x:%x %" SCNu64 " %n", &low, &high, &offset,
                        &major_number, &minor_number, &inode, &name_at) < 6) {
            continue;
        }
        if (address < low || address >= high) continue;
        if (inode == 0) break;
        MappedFile file;
        file.path = line + name_at;
        while (!file.path.empty() && file.path.back() == '\n') file.path.pop_back();
        file.offset = offset;
        file.begin = reinterpret_cast<std::byte*>(low);
        file.end = reinterpret_cast<std::byte*>(high);
        if (!is_file(file.path, major_number, minor_number, inode)) {
            // Renamed or deleted meanwhile: while the loader holds it open it is still there by its descriptor.
            const std::unique_ptr<DIR, int (*)(DIR*)> fds(opendir("/proc/self/fd"), closedir);
            std::string by_fd;
            for (const dirent* e = fds ? readdir(fds.get()) : nullptr; e != nullptr; e = readdir(fds.get())) {
                const std::string candidate = std::string("/proc/self/fd/") + e->d_name;
                if (is_file(candidate, major_number, minor_number, inode)) by_fd = candidate;
            }
            if (by_fd.empty()) {
                found = error(Code::not_found, "{} was moved or replaced while it was being loaded", file.path);
                break;
            }
            file.path = by_fd;
        }
        found = std::move(file);
        break;
    }
    std::free(line);
    return found;
}

}  // namespace sluice::backend
