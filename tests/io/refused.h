// Owns: which read engines the kernel refuses to everybody, asked without our own engines.
// Keeps: a test is left out only for what the kernel says; an engine that fails by itself fails its tests.
#pragma once

#include <gtest/gtest.h>
#include <linux/io_uring.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <string_view>

namespace sluice::io::testing_support {

// "io_uring: Function not implemented", or empty: it refuses none of what the engine of this name needs.
inline std::string refused_by_kernel(std::string_view engine) {
    if (engine.find("uring") != std::string_view::npos) {
        io_uring_params params = {};
        const long fd = syscall(SYS_io_uring_setup, 2, &params);
        if (fd < 0) return std::string("io_uring: ") + std::strerror(errno);
        close(static_cast<int>(fd));
    }
    if (engine.find("mmap") != std::string_view::npos) {
        char from = 1;
        char to = 0;
        const iovec source = {&from, 1};
        const iovec target = {&to, 1};
        if (process_vm_readv(getpid(), &target, 1, &source, 1, 0) != 1)
            return std::string("process_vm_readv: ") + std::strerror(errno);
    }
    return {};
}

}  // namespace sluice::io::testing_support

// Leaves the test out if the kernel refuses what the engine of this name needs, and says so.
#define SLUICE_SKIP_IF_REFUSED(engine)                                                                          \
    if (const std::string refused = ::sluice::io::testing_support::refused_by_kernel(engine); !refused.empty()) \
    GTEST_SKIP() << "the kernel refuses " << refused
