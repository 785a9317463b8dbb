# Helpers that every room uses: the same warnings, sanitizers and layout everywhere.

set(SLUICE_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wnon-virtual-dtor -Wold-style-cast -Wcast-align
                    -Woverloaded-virtual -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    list(APPEND SLUICE_WARNINGS -Wno-restrict)  # false alarms on std::string concatenation (GCC bug 105651)
endif()

# Flags of our own targets only: llama.cpp's headers are system headers to us.
function(sluice_flags target)
    target_compile_options(${target} PRIVATE ${SLUICE_WARNINGS})
    if(SLUICE_SANITIZE)
        target_compile_options(${target} PRIVATE -fsanitize=${SLUICE_SANITIZE} -fno-omit-frame-pointer
                                                 -fno-sanitize-recover=all -g)
        # GCC takes the sanitizers' own code for reads of what nobody set (its manual says so of this warning); the
        # release build still asks.
        if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
            target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized)
        endif()
        target_link_options(${target} PRIVATE -fsanitize=${SLUICE_SANITIZE})
    endif()
endfunction()

# sluice_room(NAME LINKS ...): the static library sluice_NAME from src/NAME/*.cpp.
function(sluice_room name)
    cmake_parse_arguments(ROOM "" "" "LINKS" ${ARGN})
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/${name}/*.cpp)
    list(REMOVE_ITEM sources ${CMAKE_SOURCE_DIR}/src/${name}/main.cpp)
    if(NOT sources)  # headers only
        add_library(sluice_${name} INTERFACE)
        target_include_directories(sluice_${name} INTERFACE ${CMAKE_SOURCE_DIR}/src)
        target_link_libraries(sluice_${name} INTERFACE ${ROOM_LINKS})
        return()
    endif()
    add_library(sluice_${name} STATIC ${sources})
    target_include_directories(sluice_${name} PUBLIC ${CMAKE_SOURCE_DIR}/src)
    target_link_libraries(sluice_${name} PUBLIC ${ROOM_LINKS})
    set_target_properties(sluice_${name} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
    sluice_flags(sluice_${name})
endfunction()

# sluice_test(NAME LINKS ...): tests/NAME/*_test.cpp as one GoogleTest program, its cases registered with CTest.
function(sluice_test name)
    cmake_parse_arguments(TEST "" "" "LINKS" ${ARGN})
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*_test.cpp)
    add_executable(${name}_test ${sources})
    target_link_libraries(${name}_test PRIVATE ${TEST_LINKS} GTest::gtest_main)
    target_include_directories(${name}_test PRIVATE ${CMAKE_SOURCE_DIR})
    # Not __FILE__: compiler caches make that relative.
    target_compile_definitions(${name}_test PRIVATE SLUICE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
    sluice_flags(${name}_test)
    gtest_discover_tests(${name}_test TEST_PREFIX ${name}. DISCOVERY_TIMEOUT 60)
endfunction()
