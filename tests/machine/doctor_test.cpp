#include "machine/doctor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <utility>

#include "base/bytes.h"
#include "tests/machine/tree.h"

namespace sluice::machine {
namespace {

ProbeRun run_of(bool direct, unsigned lanes, uint64_t mib_per_second) {
    ProbeRun r;
    r.direct = direct;
    r.lanes = lanes;
    r.reads = 64;
    r.bytes = 64 * MiB;
    r.device_bytes = 64 * MiB;
    r.elapsed = static_cast<Nanos>(64'000'000'000 / mib_per_second);
    r.p50 = 1'000'000;
    r.p95 = 3'000'000;
    return r;
}

// A healthy machine with a healthy model on it; tests spoil a part of it.
struct World {
    World() {
        plant_healthy(tree, model);
        exam.model = ModelSizes{
            .dense_bytes = GiB, .expert_bytes = 40 * GiB, .largest_expert_bytes = 4 * MiB, .cycle_bytes = 2 * GiB};
        exam.build = {.ggml_expected = "1.2.3",
                      .ggml_found = "1.2.3",
                      .kernels = std::vector<std::string>{"AVX2", "FMA", "F16C", "AVX512", "AVX512_VNNI", "REPACK"}};
        exam.probe.engine = "io_uring";
        exam.probe.read_bytes = MiB;
        exam.probe.runs = {run_of(true, 1, 1000), run_of(true, 4, 2000), run_of(true, 8, 2000), run_of(false, 8, 500)};
    }

    // Facts and drive as they are read from the tree, with what depends on the machine that runs the tests replaced.
    std::vector<Finding> findings() {
        exam.facts = read_facts(tree.root());
        exam.facts.io_uring = io_uring;
        const auto drive = read_drive(model.path(), tree.root());
        EXPECT_TRUE(drive.ok());
        exam.drive = *drive;
        exam.drive->direct = direct;
        exam.drive->free_bytes = free_bytes;
        return diagnose(exam);
    }
    Finding finding(std::string_view id) {
        for (const Finding& f : findings()) {
            if (f.id == id) return f;
        }
        ADD_FAILURE() << "no finding " << id;
        return {};
    }
    void mount(const std::string& file_system) const {
        tree.write("proc/self/mountinfo", "27 1 0:99 / / rw - " + file_system + " source rw\n");
    }

    Tree tree;
    Model model;
    Examination exam;
    std::optional<Attempt> io_uring = Attempt{true, ""};
    std::optional<DirectIo> direct = DirectIo{true, "", 512, 512};
    std::optional<uint64_t> free_bytes = 100 * GiB;
};

const std::string kDisk = "sys/devices/pci/block/sda/";
const std::string kCpu0 = "sys/devices/system/cpu/cpu0/cpufreq/";

std::string meminfo(uint64_t available, uint64_t swap_free) {
    return fmt::format("MemTotal: {} kB\nMemAvailable: {} kB\nSwapTotal: {} kB\nSwapFree: {} kB\n", 32 * GiB / KiB,
                       available / KiB, 8 * GiB / KiB, swap_free / KiB);
}
std::string pressure(const char* avg10) {
    return fmt::format("some avg10={} avg60=0.00 avg300=0.00 total=1\n", avg10);
}

struct Planted {
    const char* id;
    Severity severity;
    void (*plant)(World&);
    const char* words;  // in what was found
    const char* change;
    std::vector<std::string> also = {};  // other findings that the same fault brings
};
void PrintTo(const Planted& p, std::ostream* out) {
    *out << p.id;
}

const std::vector<Planted>& planted() {
    using S = Severity;
    static const std::vector<Planted> all{
        {"llama-version", S::problem, [](World& w) { w.exam.build.ggml_found = "9.9.9"; }, "9.9.9", "make build"},
        {"cpu-features", S::warning,
         [](World& w) {
             w.tree.write("proc/cpuinfo", "flags\t: fpu sse2\n");
             w.exam.build.kernels->clear();
         },
         "AVX2", "AVX2"},
        {"cores", S::note, [](World& w) { w.tree.write("proc/self/status", "Cpus_allowed_list:\t1-2\n"); }, "2 of 4",
         "taskset"},
        {"cpu-quota", S::warning, [](World& w) { w.tree.write("sys/fs/cgroup/user/cpu.max", "150000 100000\n"); },
         "1.50 cores", "-t 1"},
        {"threads", S::warning, [](World& w) { w.tree.write("proc/loadavg", "2.10 1.00 1.00 3/82 29104\n"); }, "2.10",
         "-t 2"},
        {"governor", S::warning, [](World& w) { w.tree.write(kCpu0 + "scaling_governor", "powersave\n"); }, "powersave",
         "cpupower frequency-set -g performance"},
        {"memory", S::problem, [](World& w) { w.tree.write("proc/meminfo", meminfo(GiB, 8 * GiB)); }, "1.00 GiB free",
         "smaller quantisation"},
        {"memory-limit", S::note,
         [](World& w) {
             w.tree.write("sys/fs/cgroup/user/memory.max", "8589934592\n");
             w.tree.write("sys/fs/cgroup/user/memory.current", "1048576\n");
         },
         "8.00 GiB", "MemoryMax="},
        {"swap", S::warning, [](World& w) { w.tree.write("proc/meminfo", meminfo(24 * GiB, 4 * GiB)); }, "4.00 GiB",
         "swapoff"},
        {"huge-pages", S::note,
         [](World& w) { w.tree.write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n"); },
         "never", "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"},
        {"memlock",
         S::warning,
         [](World& w) {
             w.tree.write("proc/self/limits", "Max locked memory         65536                65536          bytes\n");
             w.tree.write("proc/sys/kernel/osrelease", "5.10.0-30-amd64\n");
         },
         "64.0 KiB",
         "ulimit -l",
         {"kernel"}},
        {"kernel", S::warning, [](World& w) { w.tree.write("proc/sys/kernel/osrelease", "5.4.0-200-generic\n"); },
         "5.4.0", "5.6"},
        {"io-uring", S::warning,
         [](World& w) {
             w.io_uring = Attempt{false, "the kernel refuses an io_uring: Operation not permitted"};
             w.tree.write("proc/sys/kernel/io_uring_disabled", "2\n");
         },
         "not permitted", "sudo sysctl kernel.io_uring_disabled=0"},
        {"file-system", S::warning, [](World& w) { w.mount("nfs4"); }, "nfs4", "copy it to a drive"},
        {"direct-io", S::warning,
         [](World& w) {
             w.direct = DirectIo{false, "the file system refuses O_DIRECT: Invalid argument", 0, 0};
         },
         "refuses O_DIRECT", "ext4"},
        {"rotational", S::problem, [](World& w) { w.tree.write(kDisk + "queue/rotational", "1\n"); },
         "sda (Some SSD 980) rotates", "SSD"},
        {"scheduler", S::note, [](World& w) { w.tree.write(kDisk + "queue/scheduler", "none mq-deadline [bfq]\n"); },
         "bfq", "echo none | sudo tee /sys/block/sda/queue/scheduler"},
        {"read-ahead", S::note, [](World& w) { w.tree.write(kDisk + "queue/read_ahead_kb", "8192\n"); }, "8192",
         "echo 128 | sudo tee /sys/block/sda/queue/read_ahead_kb"},
        {"free-disk", S::warning, [](World& w) { w.free_bytes = 100 * MiB; }, "100.0 MiB", "delete"},
        {"pressure", S::warning, [](World& w) { w.tree.write("proc/pressure/memory", pressure("12.50")); }, "12.5 %",
         "top"},
        {"drive-speed", S::warning,
         [](World& w) {
             w.exam.probe.runs = {run_of(true, 1, 50), run_of(true, 4, 100), run_of(true, 8, 100),
                                  run_of(false, 8, 50)};
         },
         "100 MiB/s", "NVMe"},
        {"io-threads", S::note,
         [](World& w) {
             w.exam.probe.runs = {run_of(true, 1, 1000), run_of(true, 4, 2000), run_of(true, 8, 1500)};
         },
         "4 reads in flight", "--io-threads 4"},
    };
    return all;
}

class Doctor : public ::testing::TestWithParam<Planted> {};

TEST_P(Doctor, FindsAPlantedProblemOfThisKind) {
    const Planted& p = GetParam();
    World world;
    EXPECT_EQ(world.finding(p.id).severity, Severity::ok) << world.finding(p.id).title;
    EXPECT_EQ(world.finding(p.id).change, "");
    p.plant(world);
    const Finding f = world.finding(p.id);
    EXPECT_EQ(severity_name(f.severity), std::string(severity_name(p.severity))) << f.title;
    EXPECT_NE(f.title.find(p.words), std::string::npos) << f.title;
    EXPECT_NE(f.change.find(p.change), std::string::npos) << f.change;
    EXPECT_NE(f.gain, "");
    // And nothing else is blamed for it.
    for (const Finding& other : world.findings()) {
        if (other.id == p.id || std::find(p.also.begin(), p.also.end(), other.id) != p.also.end()) continue;
        EXPECT_LE(other.severity, Severity::not_checked) << other.id << ": " << other.title;
    }
}

INSTANTIATE_TEST_SUITE_P(Each, Doctor, ::testing::ValuesIn(planted()), [](const auto& test) {
    std::string name = test.param.id;
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
});

TEST(DoctorTable, HasAPlantedProblemForEveryFinding) {
    std::vector<std::string_view> ids;
    for (const Planted& p : planted()) ids.emplace_back(p.id);
    EXPECT_EQ(ids, finding_ids());
    std::sort(ids.begin(), ids.end());
    EXPECT_EQ(std::adjacent_find(ids.begin(), ids.end()), ids.end());
}

TEST(DoctorRules, AHealthyMachineIsFine) {
    World w;
    for (const Finding& f : w.findings()) {
        EXPECT_EQ(f.severity, Severity::ok) << f.id << ": " << f.title;
        EXPECT_EQ(f.change, "") << f.id;
        EXPECT_NE(f.title, "") << f.id;
    }
    EXPECT_EQ(worst(w.findings()), Severity::ok);
    EXPECT_NEAR(*seconds_per_cold_token(w.exam), 1.024, 0.001);
}

TEST(DoctorRules, WhatIsUnknownIsNeverFine) {
    Examination nothing;
    nothing.no_model = "no model was named";
    nothing.probe.not_done = "nothing was measured";
    for (const Finding& f : diagnose(nothing)) {
        EXPECT_EQ(f.severity, Severity::not_checked) << f.id << ": " << f.title;
        EXPECT_NE(f.title, "") << f.id;
        EXPECT_EQ(f.change, "") << f.id;
    }
    // Nor with an empty machine under a real file.
    const Tree empty;
    const Model model;
    nothing.facts = read_facts(empty.root());
    nothing.drive = *read_drive(model.path(), empty.root());
    for (const Finding& f : diagnose(nothing)) {
        if (f.id == "direct-io" || f.id == "free-disk") continue;  // really tried
        EXPECT_EQ(f.severity, Severity::not_checked) << f.id << ": " << f.title;
    }
}

TEST(DoctorRules, BuildAndProcessor) {
    World w;
    w.exam.build.kernels = std::vector<std::string>{"AVX2", "FMA", "F16C"};
    EXPECT_EQ(w.finding("cpu-features").severity, Severity::note);
    EXPECT_NE(w.finding("cpu-features").title.find("AVX512, AVX512_VNNI"), std::string::npos);
    w.exam.build.kernels->emplace_back("AVX512_BF16");
    EXPECT_EQ(w.finding("cpu-features").severity, Severity::problem) << "the processor has none";
    w.exam.build.kernels.reset();
    EXPECT_EQ(w.finding("cpu-features").severity, Severity::not_checked);
    w.tree.write("proc/cpuinfo", "Features\t: fp asimd\n");
    EXPECT_EQ(w.finding("cpu-features").severity, Severity::warning);
    w.exam.build.kernels = std::vector<std::string>{"NEON", "DOTPROD"};
    w.tree.write("proc/cpuinfo", "Features\t: fp asimd asimddp\n");
    EXPECT_EQ(w.finding("cpu-features").severity, Severity::ok);
    w.exam.build.kernels = {{"AVX2"}};
    w.tree.write("proc/cpuinfo", "flags\t: avx2 amx_int8\n");
    EXPECT_NE(w.finding("cpu-features").title.find("except AMX"), std::string::npos);
}

TEST(DoctorRules, ThreadsBesideOthers) {
    World w;
    w.tree.write("proc/self/status", "Cpus_allowed_list:\t0-1\n");
    w.tree.write("sys/devices/system/cpu/online", "0-1\n");
    EXPECT_EQ(w.finding("threads").severity, Severity::ok);
    w.tree.write("proc/loadavg", "0.60 0 0 1/1 1\n");
    EXPECT_EQ(w.finding("threads").severity, Severity::note);
    EXPECT_EQ(w.finding("threads").change, "-t 1 while that lasts");
    w.tree.write("proc/loadavg", "1.20 0 0 1/1 1\n");
    EXPECT_EQ(w.finding("threads").severity, Severity::warning);
    w.tree.write("proc/loadavg", "500 0 0 1/1 1\n");
    EXPECT_EQ(w.finding("threads").change, "-t 1 while that lasts");
    w.tree.write("proc/self/status", "Cpus_allowed_list:\t0\n");
    EXPECT_EQ(w.finding("threads").severity, Severity::ok) << "one thread is all there is";
    w.tree.write("sys/devices/system/cpu/online", "0\n");
    EXPECT_EQ(w.finding("cores").severity, Severity::note);
    w.tree.write("sys/fs/cgroup/user/cpu.max", "400000 100000\n");
    EXPECT_EQ(w.finding("cpu-quota").severity, Severity::ok);
}

TEST(DoctorRules, Governors) {
    World w;
    w.tree.write(kCpu0 + "scaling_governor", "powersave\n");
    w.tree.write(kCpu0 + "scaling_driver", "intel_pstate\n");
    EXPECT_EQ(w.finding("governor").severity, Severity::note);
    w.tree.write(kCpu0 + "scaling_governor", "ondemand\n");
    EXPECT_EQ(w.finding("governor").severity, Severity::note);
    w.tree.remove("sys/devices/system/cpu/cpu0");
    for (const char* i : {"1", "2", "3"}) w.tree.remove(std::string("sys/devices/system/cpu/cpu") + i);
    EXPECT_EQ(w.finding("governor").severity, Severity::not_checked);
}

TEST(DoctorRules, Memory) {
    World w;
    // Less than one token of experts beside the dense weights.
    w.tree.write("proc/meminfo", meminfo(2 * GiB, 8 * GiB));
    EXPECT_EQ(w.finding("memory").severity, Severity::warning);
    EXPECT_NE(w.finding("memory").gain.find("1.024 s"), std::string::npos) << w.finding("memory").gain;
    w.exam.probe = {};
    w.exam.probe.not_done = "--no-probe";
    EXPECT_EQ(w.finding("memory").gain.find(" s "), std::string::npos) << "nothing was measured";
    w.exam.model.reset();
    w.exam.no_model = "no model was named";
    EXPECT_EQ(w.finding("memory").severity, Severity::not_checked);
    // A group too small for the model, one that is no limit at all, and none.
    World limited;
    limited.tree.write("sys/fs/cgroup/user/memory.max", "536870912\n");
    limited.tree.write("sys/fs/cgroup/user/memory.current", "0\n");
    EXPECT_EQ(limited.finding("memory-limit").severity, Severity::problem);
    EXPECT_EQ(limited.finding("memory").severity, Severity::problem);
    limited.tree.write("sys/fs/cgroup/user/memory.max", "99999999999999\n");
    EXPECT_EQ(limited.finding("memory-limit").severity, Severity::ok);
    limited.tree.write("proc/meminfo", meminfo(24 * GiB, 7 * GiB));
    EXPECT_EQ(limited.finding("swap").severity, Severity::note);
}

TEST(DoctorRules, WhatWasMeasuredBeforeCountsWhereNothingIsMeasuredNow) {
    World w;
    const auto now = seconds_per_cold_token(w.exam);
    w.exam.verdict_mib_per_second = 100;
    w.exam.verdict_made = "2025-03-01T12:00:00Z";
    EXPECT_EQ(seconds_per_cold_token(w.exam), now) << "the measurement of now goes first";
    w.exam.probe = {};
    w.exam.probe.not_done = "--no-probe was given";
    ASSERT_TRUE(seconds_per_cold_token(w.exam).has_value());
    EXPECT_DOUBLE_EQ(*seconds_per_cold_token(w.exam), static_cast<double>(w.exam.model->cycle_bytes) / MiB / 100);
    EXPECT_EQ(w.finding("drive-speed").severity, Severity::warning) << "100 MiB/s are few";
    for (const char* words : {"100 MiB/s", "2025-03-01T12:00:00Z", "--no-probe was given"})
        EXPECT_NE(w.finding("drive-speed").title.find(words), std::string::npos) << w.finding("drive-speed").title;
    w.exam.verdict_mib_per_second = 3000;
    EXPECT_EQ(w.finding("drive-speed").severity, Severity::ok);
    w.exam.verdict_mib_per_second.reset();
    EXPECT_EQ(w.finding("drive-speed").severity, Severity::not_checked);
}

TEST(DoctorRules, Kernels) {
    World w;
    w.tree.write("proc/sys/kernel/osrelease", "5.15.0\n");
    EXPECT_EQ(w.finding("kernel").severity, Severity::note);
    EXPECT_EQ(w.finding("memlock").severity, Severity::ok);
    w.tree.write("proc/sys/kernel/osrelease", "unknown\n");
    EXPECT_EQ(w.finding("kernel").severity, Severity::not_checked);
    EXPECT_EQ(w.finding("memlock").severity, Severity::not_checked);
    w.tree.write("proc/sys/kernel/osrelease", "5.4.0\n");
    w.tree.write("proc/self/limits", "Max locked memory         unlimited            unlimited            bytes\n");
    EXPECT_EQ(w.finding("memlock").severity, Severity::ok);
    w.io_uring = Attempt{false, "this kernel's io_uring has no plain reads"};
    EXPECT_EQ(w.finding("io-uring").change, "Linux 5.6 or newer");
    w.tree.write("proc/sys/kernel/osrelease", "6.8.0\n");
    EXPECT_NE(w.finding("io-uring").change.find("seccomp"), std::string::npos);
}

TEST(DoctorRules, FileSystemsAndDrives) {
    World w;
    for (const auto& [name, severity] : {std::pair{"fuse.encfs", Severity::warning},
                                         {"fuseblk", Severity::warning},
                                         {"9p", Severity::warning},
                                         {"overlay", Severity::note},
                                         {"tmpfs", Severity::note},
                                         {"xfs", Severity::ok}}) {
        w.mount(name);
        const Finding f = w.finding("file-system");
        EXPECT_EQ(f.severity, severity) << name;
        EXPECT_EQ(f.change.empty(), severity == Severity::ok) << name;
        if (severity == Severity::ok) continue;
        for (const char* id : {"rotational", "scheduler", "read-ahead"}) {
            EXPECT_EQ(w.finding(id).severity, Severity::not_checked) << name << " " << id;
        }
    }
    World v;
    v.tree.write("sys/devices/pci/block/vda/queue/rotational", "1\n");
    v.tree.write("sys/devices/pci/block/vda/queue/read_ahead_kb", "0\n");
    v.tree.link("sys/dev/block/" + v.model.device(), "../../devices/pci/block/vda");
    EXPECT_EQ(v.finding("rotational").severity, Severity::ok) << "it is too fast for that";
    v.exam.probe.runs[0].p50 = 8'000'000;
    EXPECT_EQ(v.finding("rotational").severity, Severity::note);
    EXPECT_EQ(v.finding("read-ahead").severity, Severity::note);
    EXPECT_EQ(v.finding("scheduler").severity, Severity::not_checked);
    EXPECT_NE(v.finding("rotational").gain.find("8.00 ms"), std::string::npos) << "measured";
    v.exam.probe.runs.clear();
    EXPECT_EQ(v.finding("rotational").gain.find(" ms"), std::string::npos) << "nothing was measured";
    v.direct.reset();
    EXPECT_EQ(v.finding("direct-io").severity, Severity::not_checked);
    v.free_bytes.reset();
    EXPECT_EQ(v.finding("free-disk").severity, Severity::not_checked);
}

TEST(DoctorRules, Pressure) {
    World w;
    w.tree.write("proc/pressure/io", pressure("6.00"));
    EXPECT_EQ(w.finding("pressure").severity, Severity::note);
    w.tree.remove("proc/pressure/io");
    EXPECT_EQ(w.finding("pressure").severity, Severity::not_checked) << "a part is unknown";
    w.tree.write("proc/pressure/cpu", pressure("80.00"));
    EXPECT_EQ(w.finding("pressure").severity, Severity::warning);
}

TEST(DoctorRules, Measurements) {
    World w;
    w.exam.probe.runs[1].error = "Input/output error";
    EXPECT_EQ(w.finding("drive-speed").severity, Severity::problem);
    w.exam.probe.runs = {run_of(true, 8, 100)};
    w.exam.probe.read_bytes = 16 * KiB;
    EXPECT_EQ(w.finding("drive-speed").severity, Severity::ok) << "small reads are slow everywhere";
    w.exam.probe.runs = {run_of(true, 8, 9000)};
    w.exam.probe.runs[0].device_bytes = 0;
    EXPECT_EQ(w.finding("drive-speed").severity, Severity::not_checked) << "memory answered";
    EXPECT_EQ(w.finding("io-threads").severity, Severity::not_checked);
    EXPECT_FALSE(seconds_per_cold_token(w.exam).has_value());
    w.exam.probe.runs = {run_of(false, 8, 900)};
    EXPECT_NE(w.finding("drive-speed").title.find("page cache"), std::string::npos);
    EXPECT_EQ(w.finding("io-threads").severity, Severity::not_checked);
    w.exam.probe.runs = {ProbeRun{}};
    EXPECT_EQ(w.finding("drive-speed").severity, Severity::not_checked);
    w.exam.model.reset();
    w.exam.probe.runs = {run_of(true, 8, 900)};
    EXPECT_EQ(w.finding("drive-speed").severity, Severity::ok);
    EXPECT_EQ(w.finding("drive-speed").title.find("token"), std::string::npos);
}

}  // namespace
}  // namespace sluice::machine
