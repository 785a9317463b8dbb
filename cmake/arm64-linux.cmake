# Cross-compiling for Linux on arm64, with Debian's compiler and with libraries that scripts/setup.sh --arm64 fetched.
# Where the machine cannot run the tests itself, qemu's emulation of one program does.

set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)

execute_process(COMMAND ${CMAKE_CURRENT_LIST_DIR}/../scripts/setup.sh --print-arm64-dir
                OUTPUT_VARIABLE SLUICE_ARM64 OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
if(failed)
    message(FATAL_ERROR "scripts/setup.sh --print-arm64-dir failed")
endif()
if(NOT EXISTS ${SLUICE_ARM64}/.sluice-complete)
    message(FATAL_ERROR "Debian's libraries for arm64 are not there (${SLUICE_ARM64}). Run scripts/setup.sh --arm64.")
endif()
# What is only headers is taken from this machine.
list(PREPEND CMAKE_PREFIX_PATH ${SLUICE_ARM64}/usr)
set(ENV{PKG_CONFIG_LIBDIR} ${SLUICE_ARM64}/usr/lib/aarch64-linux-gnu/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${SLUICE_ARM64})

if(NOT CMAKE_HOST_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64)$")
    set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L /usr/aarch64-linux-gnu)
endif()
