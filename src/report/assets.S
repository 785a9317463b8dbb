// The files of the page as bytes of the program; assets.cpp gives them names. An array in C++ would do the same, a
// hundred times slower to compile.
#define FILE(symbol, path) \
    .global symbol; .hidden symbol; symbol: .incbin path; \
    .global symbol##_end; .hidden symbol##_end; symbol##_end: .byte 0;

    .section .rodata
FILE(sluice_page_html, "page.html")
FILE(sluice_page_css, "page.css")
FILE(sluice_page_js, "page.js")
FILE(sluice_echarts_js, "dist/echarts.min.js")
FILE(sluice_echarts_licence, "LICENSE")
FILE(sluice_echarts_notice, "NOTICE")
FILE(sluice_echarts_licence_d3, "licenses/LICENSE-d3")
FILE(sluice_echarts_licence_zrender, "licenses/LICENSE-zrender")
    .section .note.GNU-stack, "", %progbits
