// Owns: faults in the reads of one file, put between a program and the C library: by being linked before it, or by
// LD_PRELOAD, where the functions below are found by dlsym.
// Keeps: reads of other files, and all reads before a plan was made, are left alone. Thread-safe.
#pragma once

#include <cstdint>

extern "C" {

enum ReadFault : int {
    read_fault_none,
    read_fault_io,           // EIO
    read_fault_stale,        // ESTALE
    read_fault_interrupted,  // EINTR
    read_fault_short,        // half of the bytes
    read_fault_end,          // no bytes, as at the end of the file
    read_fault_flip,         // well, with one bit in the middle inverted
    read_fault_stuck,        // it never comes, and says so once on standard error
};

// Without a plan of its own, a program gets one from the environment: STUCK_READ=NUMBER:PATH lets that read of the
// file hang; how many reads there were is written to standard error at the end.

// Looks at pread, pread64, preadv and preadv64 of this file from now on.
__attribute__((visibility("default"))) void read_faults_watch(uint64_t device, uint64_t inode);
// The read with this number, from 0 with the next one, suffers the fault, and so does each later read of the same place
// until that has happened `times` times. Replaces the plan before and starts the counts anew.
__attribute__((visibility("default"))) void read_faults_plan(uint64_t number, ReadFault kind, uint64_t times);
// Reads of the file since the plan was made, and those of them that suffered.
__attribute__((visibility("default"))) uint64_t read_faults_seen();
__attribute__((visibility("default"))) uint64_t read_faults_suffered();
}
