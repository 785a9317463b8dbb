#include "report/assets.h"

// In assets.S.
extern "C" {
extern const char sluice_page_html[], sluice_page_html_end[];
extern const char sluice_page_css[], sluice_page_css_end[];
extern const char sluice_page_js[], sluice_page_js_end[];
extern const char sluice_echarts_js[], sluice_echarts_js_end[];
extern const char sluice_echarts_licence[], sluice_echarts_licence_end[];
extern const char sluice_echarts_notice[], sluice_echarts_notice_end[];
extern const char sluice_echarts_licence_d3[], sluice_echarts_licence_d3_end[];
extern const char sluice_echarts_licence_zrender[], sluice_echarts_licence_zrender_end[];
}

namespace sluice::report {

std::string_view page_html() {
    return {sluice_page_html, sluice_page_html_end};
}
std::string_view page_css() {
    return {sluice_page_css, sluice_page_css_end};
}
std::string_view page_js() {
    return {sluice_page_js, sluice_page_js_end};
}
std::string_view echarts_js() {
    return {sluice_echarts_js, sluice_echarts_js_end};
}
std::string_view echarts_licence() {
    return {sluice_echarts_licence, sluice_echarts_licence_end};
}
std::string_view echarts_notice() {
    return {sluice_echarts_notice, sluice_echarts_notice_end};
}
std::string_view echarts_licence_d3() {
    return {sluice_echarts_licence_d3, sluice_echarts_licence_d3_end};
}
std::string_view echarts_licence_zrender() {
    return {sluice_echarts_licence_zrender, sluice_echarts_licence_zrender_end};
}

}  // namespace sluice::report
