#include "report/page.h"

#include <gtest/gtest.h>

#include "report/assets.h"
#include "report/data.h"
#include "report/text.h"
#include "tests/report/records.h"

namespace sluice::report {
namespace {

using trace::Json;

size_t count(const std::string& text, const std::string& what) {
    size_t n = 0;
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + what.size())) ++n;
    return n;
}

TEST(Page, nothing_from_a_record_ends_a_script) {
    const Json evil = {{"x", "</script><script>alert(1)</script>&\xe2\x80\xa8\xe2\x80\xa9 \"\\ \xff"}};
    const std::string text = json_for_script(evil);
    EXPECT_EQ(text.find('<'), std::string::npos);
    EXPECT_EQ(text.find('>'), std::string::npos);
    EXPECT_EQ(text.find('&'), std::string::npos);
    EXPECT_EQ(text.find("\xe2\x80\xa8"), std::string::npos);
    EXPECT_EQ(text.find("\xe2\x80\xa9"), std::string::npos);
    const Json back = Json::parse(text);
    EXPECT_EQ(back["x"], "</script><script>alert(1)</script>&\xe2\x80\xa8\xe2\x80\xa9 \"\\ \xef\xbf\xbd");
    EXPECT_EQ(escape_html(std::string("<a href=\"'\">&\0", 14)), "&lt;a href=&quot;&#39;&quot;&gt;&amp;");
}

TEST(Page, a_hostile_record_adds_no_markup) {
    const std::string calm = html_page(report_data(records_of({"complete"})));
    const std::string hostile = html_page(report_data(records_of({"hostile"})));
    for (const char* tag :
         {"<script", "</script", "<b>", "<pre", "</pre", "<noscript", "</noscript", "<style", "</style"})
        EXPECT_EQ(count(calm, tag), count(hostile, tag)) << tag;
    EXPECT_EQ(count(hostile, "alert("), count(calm, "alert("));
}

TEST(Page, is_whole_and_asks_for_nothing) {
    const std::string page = html_page(report_data(records_of({"complete"})));
    EXPECT_NE(page.find(echarts_js()), std::string::npos);
    EXPECT_NE(page.find(page_js()), std::string::npos);
    EXPECT_NE(page.find("The Apache Software Foundation"), std::string::npos);
    EXPECT_NE(page.find("Mike Bostock"), std::string::npos) << "the licence of a part of the library";
    EXPECT_NE(page.find("Baidu Inc."), std::string::npos) << "and of another";
    EXPECT_NE(page.find("default-src 'none'"), std::string::npos);
    for (const std::string_view ours : {page_html(), page_css(), page_js()}) {
        for (const char* way : {"http:", "https:", "//cdn", "src=", "href=", "@import", "url(", "fetch(", "innerHTML"})
            EXPECT_EQ(ours.find(way), std::string::npos) << way;
        // Of the frame only the places of page.cpp may be left, and those are filled.
        EXPECT_EQ(page.find("{{css}}"), std::string::npos);
    }
    EXPECT_TRUE(page.ends_with("</html>\n"));
}

TEST(Page, a_file_name_that_is_no_utf8_is_shown) {
    trace::Record record = record_of("complete");
    record.path = "/somewhere/\xff<b>.jsonl";
    const std::vector<trace::Record> records{record};
    const Json data = report_data(records);
    EXPECT_EQ(data["records"][0]["name"], "\xef\xbf\xbd<b>");
    EXPECT_NE(html_page(data).find("<title>Sluice report: \xef\xbf\xbd&lt;b&gt;</title>"), std::string::npos);
}

}  // namespace
}  // namespace sluice::report
