# What `cmake --install` puts where:
#   bin/sluice                                    the program
#   lib/libsluice.so*, lib/libggml-sluice.so      the library and the plug-in
#   lib/sluice/                                   llama.cpp's shared libraries, the very ones we were built against
#   libexec/sluice/                               its stock tools, to load the plug-in into
#   include/sluice/sluice.h, include/sluice/llama/  our header and llama.cpp's
#   lib/cmake/sluice, lib/pkgconfig               for programs that embed us
#   share/man, share/bash-completion, share/doc/sluice
# Everything finds everything relative to itself, so the prefix can be moved and needs neither this tree nor the cache.

include(CMakePackageConfigHelpers)

set(SLUICE_PRIVATE_LIBDIR ${CMAKE_INSTALL_LIBDIR}/sluice)
set(SLUICE_PRIVATE_BINDIR ${CMAKE_INSTALL_LIBEXECDIR}/sluice)
set(SLUICE_LLAMA_INCLUDEDIR ${CMAKE_INSTALL_INCLUDEDIR}/sluice/llama)

# "$ORIGIN/..." that leads from the directory `from` to the directory `to`, both below the prefix.
function(sluice_origin out from to)
    file(RELATIVE_PATH path /prefix/${from} /prefix/${to})
    string(REGEX REPLACE "/$" "" path "${path}")
    if(path)
        set(${out} "$ORIGIN/${path}" PARENT_SCOPE)
    else()
        set(${out} "$ORIGIN" PARENT_SCOPE)
    endif()
endfunction()
sluice_origin(program_rpath ${CMAKE_INSTALL_BINDIR} ${SLUICE_PRIVATE_LIBDIR})
sluice_origin(library_rpath ${CMAKE_INSTALL_LIBDIR} ${SLUICE_PRIVATE_LIBDIR})
sluice_origin(SLUICE_PRIVATE_LIB_RPATH ${SLUICE_PRIVATE_LIBDIR} ${SLUICE_PRIVATE_LIBDIR})
sluice_origin(SLUICE_PRIVATE_BIN_RPATH ${SLUICE_PRIVATE_BINDIR} ${SLUICE_PRIVATE_LIBDIR})

set_target_properties(sluice-program PROPERTIES INSTALL_RPATH ${program_rpath})
set_target_properties(sluice ggml-sluice PROPERTIES INSTALL_RPATH ${library_rpath})
install(TARGETS sluice-program sluice ggml-sluice
        RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES ${CMAKE_SOURCE_DIR}/include/sluice/sluice.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sluice)
install(FILES ${SLUICE_LLAMA_SRC}/include/llama.h ${SLUICE_LLAMA_SRC}/include/llama-cpp.h
              ${SLUICE_LLAMA_SRC}/ggml/include/ggml.h ${SLUICE_LLAMA_SRC}/ggml/include/ggml-alloc.h
              ${SLUICE_LLAMA_SRC}/ggml/include/ggml-backend.h ${SLUICE_LLAMA_SRC}/ggml/include/ggml-cpp.h
              ${SLUICE_LLAMA_SRC}/ggml/include/ggml-cpu.h ${SLUICE_LLAMA_SRC}/ggml/include/ggml-opt.h
              ${SLUICE_LLAMA_SRC}/ggml/include/gguf.h
        DESTINATION ${SLUICE_LLAMA_INCLUDEDIR})
configure_file(${CMAKE_SOURCE_DIR}/cmake/InstallLlama.cmake.in ${CMAKE_BINARY_DIR}/InstallLlama.cmake @ONLY)
install(SCRIPT ${CMAKE_BINARY_DIR}/InstallLlama.cmake)

# Packages for programs that embed us.
configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/sluiceConfig.cmake.in ${CMAKE_BINARY_DIR}/package/sluiceConfig.cmake
    INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/sluice
    PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR SLUICE_PRIVATE_LIBDIR SLUICE_PRIVATE_BINDIR SLUICE_LLAMA_INCLUDEDIR)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/package/sluiceConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/package/sluiceConfig.cmake ${CMAKE_BINARY_DIR}/package/sluiceConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/sluice)
file(RELATIVE_PATH SLUICE_PC_PREFIX /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" SLUICE_PC_PREFIX "${SLUICE_PC_PREFIX}")
configure_file(${CMAKE_SOURCE_DIR}/cmake/sluice.pc.in ${CMAKE_BINARY_DIR}/package/sluice.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/package/sluice.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# Texts that the program makes itself.
set(SLUICE_GENERATED ${CMAKE_BINARY_DIR}/package/sluice.1 ${CMAKE_BINARY_DIR}/package/sluice.bash)
add_custom_command(OUTPUT ${SLUICE_GENERATED}
    COMMAND sluice-program --man-page > ${CMAKE_BINARY_DIR}/package/sluice.1.new
    COMMAND sluice-program --bash-completion > ${CMAKE_BINARY_DIR}/package/sluice.bash.new
    COMMAND ${CMAKE_COMMAND} -E rename ${CMAKE_BINARY_DIR}/package/sluice.1.new ${CMAKE_BINARY_DIR}/package/sluice.1
    COMMAND ${CMAKE_COMMAND} -E rename ${CMAKE_BINARY_DIR}/package/sluice.bash.new ${CMAKE_BINARY_DIR}/package/sluice.bash
    DEPENDS sluice-program COMMENT "Generating man page and completion" VERBATIM)
add_custom_target(sluice-texts ALL DEPENDS ${SLUICE_GENERATED})
install(FILES ${CMAKE_BINARY_DIR}/package/sluice.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES ${CMAKE_BINARY_DIR}/package/sluice.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME sluice)

install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES ${SLUICE_LLAMA_SRC}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME LICENSE.llama.cpp)
install(FILES ${SLUICE_LLAMA_SRC}/licenses/LICENSE-jsonhpp DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME LICENSE.nlohmann-json)
