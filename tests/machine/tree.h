// Owns: a folder that plays /proc and /sys, and one that has nothing wrong with it.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>

namespace sluice::machine {

class Tree {
  public:
    Tree() {
        static std::atomic<int> number = 0;
        root_ = std::filesystem::temp_directory_path() /
                ("sluice-machine-" + std::to_string(getpid()) + "-" + std::to_string(number++));
        std::filesystem::create_directories(root_);
    }
    Tree(const Tree&) = delete;
    Tree& operator=(const Tree&) = delete;
    ~Tree() { std::filesystem::remove_all(root_); }

    void write(const std::string& path, const std::string& text) const {
        make_room(path);
        std::ofstream(root_ / path, std::ios::binary) << text;
    }
    void fifo(const std::string& path) const {
        make_room(path);
        ASSERT_EQ(mkfifo((root_ / path).c_str(), 0600), 0);
    }
    void folder(const std::string& path) const {
        remove(path);
        std::filesystem::create_directories(root_ / path);
    }
    void link(const std::string& path, const std::string& to) const {
        make_room(path);
        std::filesystem::create_symlink(to, root_ / path);
    }
    void remove(const std::string& path) const { std::filesystem::remove_all(root_ / path); }
    [[nodiscard]] std::string root() const { return root_.string(); }

  private:
    void make_room(const std::string& path) const {
        remove(path);
        std::filesystem::create_directories((root_ / path).parent_path());
    }
    std::filesystem::path root_;
};

// A file that really exists, and that planted trees can lie about.
class Model {
  public:
    explicit Model(const std::string& text = std::string(1 << 16, 'x')) {
        static std::atomic<int> number = 0;
        path_ = std::filesystem::canonical(std::filesystem::temp_directory_path()) /
                ("sluice-model-" + std::to_string(getpid()) + "-" + std::to_string(number++));
        std::ofstream(path_, std::ios::binary) << text;
    }
    Model(const Model&) = delete;
    Model& operator=(const Model&) = delete;
    ~Model() { std::filesystem::remove(path_); }
    [[nodiscard]] std::string path() const { return path_.string(); }
    // As the kernel writes it: "259:2".
    [[nodiscard]] std::string device() const {
        struct stat st = {};
        EXPECT_EQ(stat(path_.c_str(), &st), 0);
        return std::to_string(major(st.st_dev)) + ":" + std::to_string(minor(st.st_dev));
    }

  private:
    std::filesystem::path path_;
};

// An idle machine with four cores, 32 GiB and an SSD that `model` lies on.
inline void plant_healthy(const Tree& tree, const Model& model) {
    tree.write("proc/cpuinfo",
               "processor\t: 0\nmodel name\t: Some CPU @ 3.00GHz\nvmx flags\t: x\n"
               "flags\t\t: fpu avx2 fma f16c avx512f avx512bw avx512_vnni\n\nprocessor\t: 1\n");
    tree.write("proc/meminfo",
               "MemTotal: 33554432 kB\nMemFree: 1000 kB\nMemAvailable: 25165824 kB\nSwapTotal: 8388608 kB\n"
               "SwapFree: 8388608 kB\n");
    tree.write("proc/self/status", "Name:\tsluice\nCpus_allowed:\tf\nCpus_allowed_list:\t0-3\n");
    tree.write("proc/self/cgroup", "0::/user\n");
    tree.write("proc/self/limits",
               "Limit                     Soft Limit           Hard Limit           Units\n"
               "Max locked memory         8388608              unlimited            bytes\n");
    tree.write("proc/self/mountinfo", "22 1 0:21 / /proc rw - proc proc rw\n27 1 " + model.device() +
                                          " / / rw shared:1 - ext4 /dev/sda2 rw\n");
    tree.write("proc/sys/kernel/osrelease", "6.8.0-45-generic\n");
    tree.write("proc/sys/kernel/io_uring_disabled", "0\n");
    tree.write("proc/loadavg", "0.04 0.10 0.20 1/82 29104\n");
    for (const char* what : {"cpu", "io", "memory"}) {
        tree.write(std::string("proc/pressure/") + what,
                   "some avg10=0.10 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n");
    }
    tree.write("sys/fs/cgroup/user/cpu.max", "max 100000\n");
    tree.write("sys/fs/cgroup/user/memory.max", "max\n");
    tree.write("sys/devices/system/cpu/online", "0-3\n");
    for (const char* i : {"0", "1", "2", "3"}) {
        tree.write(std::string("sys/devices/system/cpu/cpu") + i + "/cpufreq/scaling_governor", "schedutil\n");
    }
    tree.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "acpi-cpufreq\n");
    tree.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
    tree.write("sys/devices/pci/block/sda/sda2/partition", "2\n");
    tree.write("sys/devices/pci/block/sda/device/model", "Some SSD 980   \n");
    tree.write("sys/devices/pci/block/sda/device/serial", "S5GX 1\n");
    tree.write("sys/devices/pci/block/sda/size", "1000\n");
    tree.write("sys/devices/pci/block/sda/queue/rotational", "0\n");
    tree.write("sys/devices/pci/block/sda/queue/scheduler", "[none] mq-deadline bfq\n");
    tree.write("sys/devices/pci/block/sda/queue/read_ahead_kb", "128\n");
    tree.link("sys/dev/block/" + model.device(), "../../devices/pci/block/sda/sda2");
}

}  // namespace sluice::machine
