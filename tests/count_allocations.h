// Owns: counting the allocations of a program, by an operator new that replaces the usual one. Included by one file of
// a program. Sanitizers bring their own, so there it must not be.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace {
std::atomic<uint64_t> allocations = 0;
}

// Out of line: a compiler that sees into one of a pair and not into the other takes them for no pair.
__attribute__((noinline)) void* operator new(std::size_t n) {
    allocations.fetch_add(1, std::memory_order_relaxed);
    if (void* p = std::malloc(n > 0 ? n : 1)) return p;
    throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* p) noexcept {
    std::free(p);
}
__attribute__((noinline)) void operator delete(void* p, std::size_t) noexcept {
    std::free(p);
}
