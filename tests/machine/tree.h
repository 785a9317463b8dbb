// Owns: a folder that plays /proc and /sys.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
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

}  // namespace sluice::machine
