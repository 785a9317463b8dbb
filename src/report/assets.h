// Owns: the files that are compiled into the program: our page and the library that draws its plots.
// Keeps: byte for byte what the files held when the program was built.
#pragma once

#include <string_view>

namespace sluice::report {

std::string_view page_html();
std::string_view page_css();
std::string_view page_js();
std::string_view echarts_js();
// What the licences of the library want to go with it: its licence, its notice and those of parts of it.
std::string_view echarts_licence();
std::string_view echarts_notice();
std::string_view echarts_licence_d3();
std::string_view echarts_licence_zrender();

}  // namespace sluice::report
