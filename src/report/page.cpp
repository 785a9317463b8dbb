#include "report/page.h"

#include <string_view>

#include "report/assets.h"
#include "report/text.h"

namespace sluice::report {
namespace {

using trace::Json;

// What stands for "{{name}}" in page.html.
std::string part_of_page(std::string_view name, const Json& data) {
    if (name == "title") {
        std::string title;
        for (const char* list : {"records", "races"}) {
            for (const Json& r : data[list]) title += (title.empty() ? "" : ", ") + r["name"].get<std::string>();
        }
        return escape_html(title);
    }
    if (name == "css") return std::string(page_css());
    if (name == "data") return json_for_script(data);
    if (name == "echarts") return std::string(echarts_js());
    if (name == "js") return std::string(page_js());
    if (name == "text") return escape_html(text_report(data));
    if (name == "licence") {
        std::string texts;
        for (const std::string_view text :
             {echarts_notice(), echarts_licence(), echarts_licence_d3(), echarts_licence_zrender()})
            texts += std::string(text) + "\n\n";
        return escape_html(texts);
    }
    return "";
}

}  // namespace

std::string escape_html(std::string_view text) {
    std::string out;
    for (const char c : text) {
        switch (c) {
            case '&':
                out += "&amp;";
                break;
            case '<':
                out += "&lt;";
                break;
            case '>':
                out += "&gt;";
                break;
            case '"':
                out += "&quot;";
                break;
            case '\'':
                out += "&#39;";
                break;
            case '\0':  // HTML has no way to say it
                break;
            default:
                out += c;
        }
    }
    return out;
}

std::string json_for_script(const Json& data) {
    const std::string text = data.dump(-1, ' ', false, Json::error_handler_t::replace);
    std::string out;
    out.reserve(text.size());
    for (size_t i = 0; i < text.size(); ++i) {
        // These occur in strings only, where JSON lets us spell them otherwise. Without "<" no tag ends the script, and
        // U+2028 and U+2029 are line ends to programs.
        if (text[i] == '<') {
            out += "\\u003c";
        } else if (text[i] == '>') {
            out += "\\u003e";
        } else if (text[i] == '&') {
            out += "\\u0026";
        } else if (text.compare(i, 3, "\xe2\x80\xa8") == 0) {
            out += "\\u2028";
            i += 2;
        } else if (text.compare(i, 3, "\xe2\x80\xa9") == 0) {
            out += "\\u2029";
            i += 2;
        } else {
            out += text[i];
        }
    }
    return out;
}

std::string html_page(const Json& data) {
    // Once through the frame: what is put in is not looked at again.
    const std::string_view frame = page_html();
    std::string out;
    size_t at = 0;
    while (true) {
        const size_t open = frame.find("{{", at);
        const size_t close = open == std::string_view::npos ? open : frame.find("}}", open);
        if (close == std::string_view::npos) break;
        out += frame.substr(at, open - at);
        out += part_of_page(frame.substr(open + 2, close - open - 2), data);
        at = close + 2;
    }
    out += frame.substr(at);
    return out;
}

}  // namespace sluice::report
