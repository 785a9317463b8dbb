# Finds the llama.cpp that scripts/setup.sh built for this user and gives its libraries as imported targets.
# It is used from its own build tree: it is pinned, never patched and never installed into the system.

# Another llama.cpp, compiler option or processor there means another directory here.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/scripts/setup.sh)
if(NOT SLUICE_LLAMA_CPP_BUILD)
    set(ENV{SLUICE_LLAMA_CPP_SOURCE} "${SLUICE_LLAMA_CPP_SOURCE}")
    execute_process(COMMAND ${CMAKE_SOURCE_DIR}/scripts/setup.sh --print-build-dir
                    OUTPUT_VARIABLE SLUICE_LLAMA_CPP_BUILD_FOUND OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
    if(failed)
        message(FATAL_ERROR "scripts/setup.sh --print-build-dir failed")
    endif()
else()
    set(SLUICE_LLAMA_CPP_BUILD_FOUND ${SLUICE_LLAMA_CPP_BUILD})
endif()
if(NOT EXISTS ${SLUICE_LLAMA_CPP_BUILD_FOUND}/.sluice-complete AND NOT SLUICE_LLAMA_CPP_BUILD)
    message(FATAL_ERROR "llama.cpp is not built yet. Run scripts/setup.sh (or make), or configure with -DSLUICE_LLAMA=OFF.")
endif()

set(SLUICE_LLAMA_BIN ${SLUICE_LLAMA_CPP_BUILD_FOUND}/bin)
if(SLUICE_LLAMA_CPP_SOURCE)
    set(SLUICE_LLAMA_SRC ${SLUICE_LLAMA_CPP_SOURCE})
else()
    file(READ_SYMLINK ${SLUICE_LLAMA_CPP_BUILD_FOUND}.source SLUICE_LLAMA_SRC)
endif()
message(STATUS "llama.cpp: ${SLUICE_LLAMA_SRC}, built in ${SLUICE_LLAMA_CPP_BUILD_FOUND}")

function(sluice_import name)
    add_library(llama::${name} SHARED IMPORTED GLOBAL)
    set_target_properties(llama::${name} PROPERTIES
        IMPORTED_LOCATION ${SLUICE_LLAMA_BIN}/lib${name}.so
        INTERFACE_INCLUDE_DIRECTORIES "${SLUICE_LLAMA_SRC}/include;${SLUICE_LLAMA_SRC}/ggml/include"
        INTERFACE_LINK_OPTIONS "-Wl,-rpath-link,${SLUICE_LLAMA_BIN}")
endfunction()

foreach(lib ggml-base ggml ggml-cpu llama llama-common llama-server-impl llama-bench-impl llama-perplexity-impl
            llama-completion-impl llama-cli-impl)
    sluice_import(${lib})
endforeach()
# common/ is not an installed interface; `sluice run` uses its option parser and sampler, as the stock tools do.
set_property(TARGET llama::llama-common APPEND PROPERTY INTERFACE_INCLUDE_DIRECTORIES
             "${SLUICE_LLAMA_SRC}/common;${SLUICE_LLAMA_SRC}/vendor")
# ggml's internal header: only src/backend may link this.
add_library(llama::ggml-internal INTERFACE IMPORTED GLOBAL)
set_target_properties(llama::ggml-internal PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${SLUICE_LLAMA_SRC}/ggml/src")

# The version that the plug-in is bound to, from the source itself.
file(STRINGS ${SLUICE_LLAMA_SRC}/ggml/CMakeLists.txt ggml_version_lines REGEX "^set\\(GGML_VERSION_(MAJOR|MINOR|PATCH)")
string(REGEX MATCHALL "[0-9]+" ggml_version_parts "${ggml_version_lines}")
list(JOIN ggml_version_parts "." SLUICE_GGML_VERSION)
if(NOT SLUICE_GGML_VERSION STREQUAL "0.25.1")
    message(FATAL_ERROR "${SLUICE_LLAMA_SRC} has ggml ${SLUICE_GGML_VERSION}; Sluice ${PROJECT_VERSION} needs llama.cpp v0.5.0 (ggml 0.25.1)")
endif()
