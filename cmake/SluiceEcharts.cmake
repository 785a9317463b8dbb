# The library that draws the plots of `sluice report`, from where scripts/setup.sh keeps it. It goes into the program,
# with its licences, and not into this repository.

enable_language(ASM)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/scripts/setup.sh)
execute_process(COMMAND ${CMAKE_SOURCE_DIR}/scripts/setup.sh --print-echarts-dir
                OUTPUT_VARIABLE SLUICE_ECHARTS OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
if(failed)
    message(FATAL_ERROR "scripts/setup.sh --print-echarts-dir failed")
endif()
set(SLUICE_ECHARTS_FILES ${SLUICE_ECHARTS}/dist/echarts.min.js ${SLUICE_ECHARTS}/LICENSE ${SLUICE_ECHARTS}/NOTICE
                         ${SLUICE_ECHARTS}/licenses/LICENSE-d3 ${SLUICE_ECHARTS}/licenses/LICENSE-zrender)
foreach(file ${SLUICE_ECHARTS_FILES})
    if(NOT EXISTS ${file})
        message(FATAL_ERROR "Apache ECharts is not there (${file}). Run make setup, or scripts/setup.sh --echarts-only.")
    endif()
endforeach()

# sluice_report_assets: what src/report/assets.S takes in. The compiler does not see those files, so they are named here.
add_library(sluice_report_assets OBJECT ${CMAKE_SOURCE_DIR}/src/report/assets.S)
target_include_directories(sluice_report_assets PRIVATE ${CMAKE_SOURCE_DIR}/src/report ${SLUICE_ECHARTS})
set_property(SOURCE ${CMAKE_SOURCE_DIR}/src/report/assets.S PROPERTY OBJECT_DEPENDS
             "${CMAKE_SOURCE_DIR}/src/report/page.html;${CMAKE_SOURCE_DIR}/src/report/page.css;${CMAKE_SOURCE_DIR}/src/report/page.js;${SLUICE_ECHARTS_FILES}")
