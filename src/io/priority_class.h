// Owns: the numbers by which the kernel is told how urgent a read is.
// Keeps: the kernel's ABI (ioprio_set(2)). Its header <linux/ioprio.h> is not used: since Linux 6.5, and in the 6.1 of
// Debian 12 by backport, it has a function with a parameter named `class`, which is no C++.
#pragma once

#include <cstdint>

namespace sluice::io {

inline constexpr int kPriorityOfProcess = 1;  // IOPRIO_WHO_PROCESS
// IOPRIO_PRIO_VALUE(IOPRIO_CLASS_IDLE, 0): such a read goes when nobody else wants the drive.
inline constexpr uint16_t kIdlePriority = 3U << 13U;

}  // namespace sluice::io
