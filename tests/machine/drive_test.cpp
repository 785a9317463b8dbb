#include "machine/drive.h"

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "tests/machine/tree.h"

namespace sluice::machine {
namespace {

class DriveTest : public ::testing::Test {
  protected:
    DriveTest() { plant_healthy(tree_, model_); }
    [[nodiscard]] DriveFacts read() const {
        auto d = read_drive(model_.path(), tree_.root());
        EXPECT_TRUE(d.ok()) << d.status().message();
        return *d;
    }
    Tree tree_;
    Model model_;
};

TEST_F(DriveTest, SeesThroughAPartition) {
    const DriveFacts d = read();
    EXPECT_EQ(d.file_system, "ext4");
    EXPECT_EQ(d.reach, Reach::drive);
    EXPECT_EQ(d.volume, "sda");
    EXPECT_EQ(d.drive, "sda");
    EXPECT_EQ(d.model, "Some SSD 980");
    EXPECT_EQ(d.serial, "S5GX 1");
    EXPECT_EQ(d.drive_bytes, 1000 * 512U);
    EXPECT_EQ(d.mount_point, "/");
    EXPECT_EQ(d.mount_source, "/dev/sda2");
    EXPECT_FALSE(d.virtual_drive);
    EXPECT_EQ(d.rotational, false);
    EXPECT_EQ(d.scheduler, "none");
    EXPECT_EQ(d.read_ahead_kb, 128U);
    EXPECT_TRUE(d.free_bytes.has_value());
    EXPECT_EQ(d.file_bytes, 64 * KiB);
    ASSERT_TRUE(d.direct.has_value());
    EXPECT_TRUE(d.direct->works ? is_power_of_two(d.direct->offset_align) : !d.direct->refusal.empty());
}

TEST(DriveFacts, OnlySomeSchedulersHonourPriorities) {
    DriveFacts d;
    EXPECT_FALSE(d.honours_priorities());
    for (const char* scheduler : {"mq-deadline", "bfq"}) {
        d.scheduler = scheduler;
        EXPECT_TRUE(d.honours_priorities()) << scheduler;
    }
    for (const char* scheduler : {"none", "kyber"}) {
        d.scheduler = scheduler;
        EXPECT_FALSE(d.honours_priorities()) << scheduler;
    }
}

TEST_F(DriveTest, SeesThroughMappings) {
    tree_.write("sys/devices/virtual/block/dm-1/queue/read_ahead_kb", "256\n");
    tree_.link("sys/devices/virtual/block/dm-1/slaves/dm-0", "../../dm-0");
    tree_.link("sys/devices/virtual/block/dm-0/slaves/sda2", "../../../../pci/block/sda/sda2");
    tree_.link("sys/devices/virtual/block/dm-0/slaves/vdb", "../../../../pci/block/vdb");
    tree_.write("sys/devices/pci/block/vdb/queue/rotational", "1\n");
    tree_.write("sys/devices/pci/block/vdb/size", "2000\n");
    tree_.write("sys/devices/pci/block/vdb/serial", "second\n");
    tree_.link("sys/dev/block/" + model_.device(), "../../devices/virtual/block/dm-1");
    const DriveFacts d = read();
    EXPECT_EQ(d.volume, "dm-1");
    EXPECT_EQ(d.drive, "sda, vdb");
    EXPECT_EQ(d.rotational, true);
    EXPECT_EQ(d.serial, "S5GX 1, second");
    EXPECT_EQ(d.drive_bytes, 3000 * 512U);
    EXPECT_TRUE(d.virtual_drive);
    EXPECT_EQ(d.read_ahead_kb, 256U);
    EXPECT_EQ(d.scheduler, "none");
}

TEST_F(DriveTest, AFileSystemThatNumbersItselfNamesItsDevice) {
    tree_.remove("sys/dev/block");
    tree_.write("proc/self/mountinfo", "27 1 0:99 /@home / rw - btrfs /dev/mapper/root rw\n");
    tree_.link("dev/mapper/root", "../dm-3");
    tree_.write("dev/dm-3", "");
    tree_.link("sys/class/block/dm-3", "../../devices/pci/block/sda");
    EXPECT_EQ(read().file_system, "btrfs");
    EXPECT_EQ(read().drive, "sda");
}

TEST_F(DriveTest, MappingsInACircleEnd) {
    tree_.link("sys/devices/virtual/block/dm-1/slaves/dm-0", "../../dm-0");
    tree_.link("sys/devices/virtual/block/dm-0/slaves/dm-1", "../../dm-1");
    tree_.link("sys/dev/block/" + model_.device(), "../../devices/virtual/block/dm-1");
    EXPECT_TRUE(read().drive.has_value());
}

TEST_F(DriveTest, TheDeepestMountCountsAndTheLastOneOnIt) {
    const std::string folder = std::filesystem::path(model_.path()).parent_path().string();
    const std::string root = "1 0 9:9 / / rw - xfs /dev/a rw\n";
    tree_.write("proc/self/mountinfo", "3 1 9:9 / " + folder + " rw - nfs4 host:/b rw\n" + root);
    EXPECT_EQ(read().file_system, "nfs4");
    EXPECT_EQ(read().reach, Reach::network);
    EXPECT_FALSE(read().drive.has_value()) << "a network hides its drives";
    tree_.write("proc/self/mountinfo",
                "3 1 9:9 / " + folder + " rw - nfs4 host:/b rw\n4 1 9:8 / " + folder + " rw - tmpfs t rw\n" + root);
    EXPECT_EQ(read().file_system, "tmpfs");
    tree_.write("proc/self/mountinfo", "3 1 9:9 / " + folder + "x rw - nfs4 host:/b rw\n" + root);
    EXPECT_EQ(read().file_system, "xfs");
}

TEST_F(DriveTest, NamesWithBlanks) {
    const Tree place;
    const std::string folder = place.root() + "/a b";
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/m") << "x";
    const std::string real = std::filesystem::canonical(folder).parent_path().string() + "/a\\040b";
    tree_.write("proc/self/mountinfo", "3 1 9:9 / " + real + " rw - fuse.sshfs host:/b rw\n");
    const auto d = read_drive(folder + "/m", tree_.root());
    ASSERT_TRUE(d.ok());
    EXPECT_EQ(d->file_system, "fuse.sshfs");
}

TEST_F(DriveTest, GarbageIsNoFact) {
    const std::string disk = "sys/devices/pci/block/sda/";
    for (const std::string& text : {std::string(), std::string("\n"), std::string(100, '\0'), std::string("-1 x ] ["),
                                    std::string(3 * MiB, '-'), std::string(3 * MiB, '7')}) {
        for (const char* f : {"queue/rotational", "queue/scheduler", "queue/read_ahead_kb", "device/model",
                              "device/serial", "serial", "wwid", "device/wwid", "size"})
            tree_.write(disk + f, text);
        tree_.write("proc/self/mountinfo", text);
        const DriveFacts d = read();
        EXPECT_FALSE(d.file_system.has_value());
        EXPECT_FALSE(d.rotational.has_value());
        EXPECT_FALSE(d.read_ahead_kb.has_value());
        EXPECT_FALSE(d.drive_bytes.has_value());
        EXPECT_EQ(d.drive, "sda");
    }
    for (const char* f : {"queue/rotational", "queue/scheduler", "queue/read_ahead_kb", "device/model"}) {
        tree_.fifo(disk + f);
    }
    tree_.folder("proc/self/mountinfo");
    EXPECT_FALSE(read().scheduler.has_value());
    EXPECT_FALSE(read().model.has_value());
    tree_.remove(disk + "device/serial");
    tree_.write(disk + "serial", "\x01");
    tree_.write(disk + "wwid", "naa.5\n");
    EXPECT_EQ(read().serial, "naa.5") << "what is no name is passed over";
    tree_.remove("sys");
    EXPECT_FALSE(read().drive.has_value());
}

TEST(Drive, FilesThatCannotBeReadAreErrors) {
    EXPECT_EQ(read_drive("/no/such/file").status().code(), Code::not_found);
    EXPECT_FALSE(read_drive("/").ok());
    EXPECT_FALSE(read_drive("/dev/zero").ok());
}

TEST_F(DriveTest, ADirectoryLiesOnADriveToo) {
    const std::string folder = std::filesystem::path(model_.path()).parent_path().string();
    const auto d = read_drive_of_directory(folder, tree_.root());
    ASSERT_TRUE(d.ok()) << d.status().message();
    EXPECT_EQ(d->drive, "sda");
    EXPECT_EQ(d->file_system, "ext4");
    EXPECT_TRUE(d->free_bytes.has_value());
    EXPECT_FALSE(d->direct.has_value());
    EXPECT_EQ(read_drive_of_directory("/no/such").status().code(), Code::not_found);
    EXPECT_FALSE(read_drive_of_directory(model_.path(), tree_.root()).ok()) << "a file is none";
}

TEST(Drive, AnEmptyFileProvesNothing) {
    const Model empty("");
    const auto d = read_drive(empty.path());
    ASSERT_TRUE(d.ok());
    EXPECT_FALSE(d->direct.has_value());
}

TEST(Drive, FileSystemsByReach) {
    EXPECT_EQ(reach_of("ext4"), Reach::drive);
    EXPECT_EQ(reach_of("nfs4"), Reach::network);
    EXPECT_EQ(reach_of("9p"), Reach::network);
    EXPECT_EQ(reach_of("fuse.sshfs"), Reach::network);
    EXPECT_EQ(reach_of("fuseblk"), Reach::user_space);
    EXPECT_EQ(reach_of("fuse"), Reach::user_space);
    EXPECT_EQ(reach_of("overlay"), Reach::overlay);
    EXPECT_EQ(reach_of("tmpfs"), Reach::memory);
}

}  // namespace
}  // namespace sluice::machine
