// Owns: the program whose instructions count.py counts.
// Keeps: everything between the beginning and the end of sluice_micro_measured() is the piece, and nothing of it is
// outside; each piece has run once before, so that what only the first run does (symbol binding, first touch) is not
// counted.
//
// Usage: micro_count    describes the build, and each piece in the order in which they ran, in fields between tabs
#include <cstdint>
#include <cstdio>

#include "bench/micro/piece.h"

// What an allocation costs is spent in libc, where nothing is counted, so their number stands for it.
#include "tests/count_allocations.h"

// Known to count.py by name: callgrind collects while this function runs and writes a file when it ends.
extern "C" __attribute__((noinline)) void sluice_micro_measured(const sluice::micro::Run& run) {
    run();
    asm volatile("" ::: "memory");  // a tail call would end the function before the piece begins
}

int main() {
    std::printf("build\t%s\t%s\t%s\n", SLUICE_COMPILER, SLUICE_ARCHITECTURE, SLUICE_FLAGS);
    for (const sluice::micro::Piece& piece : sluice::micro::pieces()) {
        const sluice::micro::Run run = piece.prepare();
        run();
        const uint64_t before = allocations;
        sluice_micro_measured(run);
        std::printf("piece\t%s\t%s\t%llu\t%llu\n", piece.name, piece.operation,
                    static_cast<unsigned long long>(piece.operations),
                    static_cast<unsigned long long>(allocations - before));
    }
    return 0;
}
