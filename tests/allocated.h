// Owns: how much a test program has allocated now, whatever allocator this build has: for tests that memory is flat.
#pragma once

#include <cstddef>
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// As in <sanitizer/allocator_interface.h>, which not every package of the compiler brings.
extern "C" size_t __sanitizer_get_current_allocated_bytes();  // NOLINT
#else
#include <malloc.h>
#endif

namespace sluice {

// Bytes on the heap of the whole process.
inline size_t allocated() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return __sanitizer_get_current_allocated_bytes();
#else
    return mallinfo2().uordblks + mallinfo2().hblkhd;
#endif
}

}  // namespace sluice
