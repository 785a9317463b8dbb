#include "machine/drive.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <initializer_list>
#include <sstream>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "io/file.h"
#include "machine/mounts.h"
#include "machine/text.h"

namespace sluice::machine {
namespace {

namespace fs = std::filesystem;

// Mappings on mappings, and drives under one; no real machine comes near.
constexpr int kMostLayers = 8;
constexpr size_t kMostDrives = 64;

// The mount that `path` (absolute, without links) is reached through. One with the file's own device number is better
// than any other; then the deepest, then the last, which lies on top.
std::optional<Mount> find_mount(const std::string& root, const std::string& path, const std::string& device) {
    std::optional<Mount> best;
    bool best_is_device = false;
    for (Mount& m : read_mounts(root)) {
        if (!is_below(path, m.point)) continue;
        const bool is_device = m.device == device;
        if (best && (best_is_device && !is_device)) continue;
        if (best && best_is_device == is_device && m.point.size() < best->point.size()) continue;
        best = std::move(m);
        best_is_device = is_device;
    }
    return best;
}

std::optional<fs::path> resolved(const fs::path& path) {
    std::error_code ec;
    fs::path out = fs::canonical(path, ec);
    if (ec) return std::nullopt;
    return out;
}

// A partition has no queue of its own.
fs::path whole(const fs::path& folder) {
    std::error_code ec;
    return fs::exists(folder / "partition", ec) ? folder.parent_path() : folder;
}

void collect_drives(const fs::path& folder, int layer, std::vector<fs::path>& drives) {
    std::vector<fs::path> below;
    std::error_code ec;
    for (fs::directory_iterator it(folder / "slaves", ec), end; !ec && it != end; it.increment(ec)) {
        if (const auto slave = resolved(it->path())) below.push_back(whole(*slave));
    }
    std::sort(below.begin(), below.end());
    if (below.empty() || layer >= kMostLayers) {
        if (drives.size() < kMostDrives && std::find(drives.begin(), drives.end(), folder) == drives.end())
            drives.push_back(folder);
        return;
    }
    for (const fs::path& slave : below) collect_drives(slave, layer + 1, drives);
}

void describe_drives(DriveFacts& d, const fs::path& device) {
    const fs::path volume = whole(device);
    d.volume = volume.filename().string();
    d.read_ahead_kb = read_number(volume / "queue/read_ahead_kb");
    std::vector<fs::path> drives;
    collect_drives(volume, 0, drives);
    for (const fs::path& drive : drives) {
        const std::string name = drive.filename().string();
        d.drive = d.drive ? *d.drive + ", " + name : name;
        for (const char* prefix : {"vd", "xvd"}) d.virtual_drive = d.virtual_drive || name.starts_with(prefix);
        if (const auto model = read_line(drive / "device/model")) {
            d.model = d.model ? *d.model + ", " + *model : *model;
            for (const char* word : {"QEMU", "VMware", "Virtual", "VBOX", "PersistentDisk", "Elastic Block Store"})
                d.virtual_drive = d.virtual_drive || model->find(word) != std::string::npos;
        }
        // NVMe, SCSI and virtio each keep it somewhere else.
        for (const char* place : {"device/serial", "serial", "wwid", "device/wwid"}) {
            const auto serial = read_line(drive / place);
            if (!serial) continue;
            d.serial = d.serial ? *d.serial + ", " + *serial : *serial;
            break;
        }
        // In units of 512 bytes, whatever the drive's own are.
        if (const auto n = read_number(drive / "size")) {
            if (const auto bytes = checked_mul(*n, 512)) d.drive_bytes = checked_add(d.drive_bytes.value_or(0), *bytes);
        }
        if (const auto n = read_number(drive / "queue/rotational"); n && *n <= 1) {
            d.rotational = d.rotational.value_or(false) || *n == 1;
        }
        if (const auto choice = read_line(drive / "queue/scheduler"); choice && !d.scheduler) {
            // A drive without a choice says only "none".
            d.scheduler =
                choice->find(' ') == std::string::npos && !choice->starts_with('[') ? choice : bracketed(*choice);
        }
    }
}

// The folder in /sys of the device with the file system.
std::optional<fs::path> find_device(const std::string& root, const std::string& number, const std::optional<Mount>& m) {
    if (auto folder = resolved(root + "/sys/dev/block/" + number)) return folder;
    // Some file systems (btrfs) number themselves, and name the device only as what is mounted.
    if (!m || !m->source.starts_with("/dev/")) return std::nullopt;
    const fs::path node = resolved(root + m->source).value_or(m->source);
    return resolved(root + "/sys/class/block/" + node.filename().string());
}

DriveFacts describe(const std::string& path, dev_t device, const std::string& root) {
    DriveFacts d;
    d.path = path;
    struct statvfs space = {};
    if (statvfs(path.c_str(), &space) == 0 && space.f_frsize > 0)
        d.free_bytes = checked_mul(space.f_bavail, space.f_frsize);

    const std::string number = fmt::format("{}:{}", major(device), minor(device));
    const auto real_path = resolved(path);
    const auto mount = find_mount(root, real_path ? real_path->string() : path, number);
    if (mount) {
        d.file_system = mount->file_system;
        d.reach = reach_of(mount->file_system);
        if (is_name(mount->point)) d.mount_point = mount->point;
        if (is_name(mount->source)) d.mount_source = mount->source;
    }
    // What an overlay, a network or a process hides cannot be seen from here.
    if (!d.reach || *d.reach == Reach::drive) {
        if (const auto block = find_device(root, number, mount)) describe_drives(d, *block);
    }
    return d;
}

}  // namespace

Reach reach_of(const std::string& file_system) {
    const auto any = [&](std::initializer_list<std::string_view> names) {
        return std::find(names.begin(), names.end(), file_system) != names.end();
    };
    if (any({"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "glusterfs", "lustre", "afs", "gpfs", "beegfs",
             "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.rclone", "9p", "virtiofs"})) {
        return Reach::network;
    }
    if (any({"tmpfs", "ramfs", "devtmpfs", "hugetlbfs", "rootfs"})) return Reach::memory;
    if (any({"overlay", "aufs", "unionfs", "ecryptfs", "fuse.fuse-overlayfs"})) return Reach::overlay;
    // fuseblk too: ntfs-3g and its like read the drive from a process of their own.
    if (file_system.starts_with("fuse")) return Reach::user_space;
    return Reach::drive;
}

Result<DriveFacts> read_drive(const std::string& path, const std::string& root) {
    const auto file = io::File::open(path, io::Access::direct);
    if (!file.ok()) return file.status();
    DriveFacts d = describe(path, static_cast<dev_t>(file->device()), root);
    d.file_bytes = file->size_at_open();
    if (d.file_bytes > 0) {
        d.direct = DirectIo{.works = file->direct(),
                            .refusal = file->fallback_reason(),
                            .offset_align = file->direct() ? file->offset_align() : 0,
                            .mem_align = file->direct() ? file->mem_align() : 0};
    }
    return d;
}

Result<DriveFacts> read_drive_of_directory(const std::string& path, const std::string& root) {
    struct stat st = {};
    const int e = stat(path.c_str(), &st) != 0 ? errno : S_ISDIR(st.st_mode) ? 0 : ENOTDIR;
    if (e != 0) {
        return error(e == ENOENT ? Code::not_found : Code::invalid_argument, "cannot open {}: {}", path,
                     std::strerror(e));
    }
    return describe(path, st.st_dev, root);
}

}  // namespace sluice::machine
