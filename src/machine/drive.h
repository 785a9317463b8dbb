// Owns: what lies under one file or directory: file system, drive, and whether the file can be read directly.
// Keeps: direct reading was tried with this very file; everything else is what the kernel says, absent where it does
// not.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"

namespace sluice::machine {

// How a file system reaches its bytes.
enum class Reach { drive, memory, network, user_space, overlay };

struct DirectIo {
    bool works = false;
    std::string refusal;  // why not
    uint32_t offset_align = 0;
    uint32_t mem_align = 0;
};

struct DriveFacts {
    std::string path;  // of the file asked about
    uint64_t file_bytes = 0;
    std::optional<std::string> file_system;   // "ext4"
    std::optional<Reach> reach;               // absent when the file system is not known
    std::optional<std::string> mount_point;   // "/home"
    std::optional<std::string> mount_source;  // what is mounted there: "/dev/sda2", "host:/share"
    std::optional<std::string> volume;        // the block device with the file system, "dm-0" or "nvme0n1"
    std::optional<std::string> drive;         // what is under partitions and mappings; several: "sda, sdb"
    bool virtual_drive = false;               // of a hypervisor, which answers in the name of an unknown one
    std::optional<std::string> model;
    std::optional<std::string> serial;      // or, where there is none, its world wide name
    std::optional<uint64_t> drive_bytes;    // of all of them
    std::optional<bool> rotational;         // of any of them
    std::optional<std::string> scheduler;   // of the first
    std::optional<uint64_t> read_ahead_kb;  // of the volume
    std::optional<uint64_t> free_bytes;     // on the file system, for users
    std::optional<DirectIo> direct;         // absent for an empty file and a directory: nothing can be tried on these

    // Whether the kernel's scheduler of the drive tells reads apart by their priority. False where nobody knows it.
    [[nodiscard]] bool honours_priorities() const { return scheduler == "mq-deadline" || scheduler == "bfq"; }
};

// Reads the file's /proc and /sys below `root` ("" for the real ones; tests give a folder); the file itself, its size
// and its direct reading are real. An error when the file cannot be opened for reading.
Result<DriveFacts> read_drive(const std::string& path, const std::string& root = "");

// What files in a directory would lie on.
Result<DriveFacts> read_drive_of_directory(const std::string& path, const std::string& root = "");

Reach reach_of(const std::string& file_system);

}  // namespace sluice::machine
