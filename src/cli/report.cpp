// Owns: `sluice report`: records and races as a page, as text and as a picture.
// Keeps: what is read is never written to; what is written is whole or not there.
#include <sys/mman.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/bytes.h"
#include "base/write_all.h"
#include "cli/commands.h"
#include "report/data.h"
#include "report/output.h"
#include "report/page.h"
#include "report/text.h"

namespace sluice::cli {
namespace {

using report::RaceResult;
using trace::Record;

struct Asked {
    std::vector<std::string> inputs;
    std::string page;  // "-": standard output
    std::string png;
    bool text = false;
};

// "--flag VALUE" or "--flag=VALUE", at `i`.
bool takes_value(const std::vector<std::string>& arguments, size_t& i, std::string_view flag, std::string& value) {
    const std::string& a = arguments[i];
    if (a == flag && i + 1 < arguments.size()) {
        value = arguments[++i];
        return true;
    }
    if (!flag.starts_with("--") || !a.starts_with(std::string(flag) + "=")) return false;
    value = a.substr(flag.size() + 1);
    return true;
}

Result<Asked> asked_by(const std::vector<std::string>& arguments) {
    Asked asked;
    for (size_t i = 0; i < arguments.size(); ++i) {
        const std::string& a = arguments[i];
        if (a == "--text") {
            asked.text = true;
        } else if (takes_value(arguments, i, "-o", asked.page) || takes_value(arguments, i, "--output", asked.page) ||
                   takes_value(arguments, i, "--png", asked.png)) {
            continue;
        } else if (a == "-o" || a == "--output" || a == "--png") {
            return error(Code::invalid_argument, "{} needs a file", a);
        } else if (a.starts_with('-')) {
            return error(Code::invalid_argument, "do not understand {}; sluice report --help", a);
        } else {
            asked.inputs.push_back(a);
        }
    }
    if (asked.inputs.empty())
        return error(Code::invalid_argument,
                     "which record? sluice report RECORD (sluice run --record RECORD makes one)");
    if (asked.inputs.size() > report::kMaxRecords)
        return error(Code::invalid_argument, "{} records; at most {} fit into one report", asked.inputs.size(),
                     report::kMaxRecords);
    if ((asked.page == "-" ? 1 : 0) + (asked.png == "-" ? 1 : 0) + (asked.text ? 1 : 0) > 1)
        return error(Code::invalid_argument, "only one of page, picture and text can go to standard output");
    if (asked.page.empty() && asked.png.empty() && !asked.text) asked.page = "report.html";
    std::error_code ignored;
    for (const std::string& output : {asked.page, asked.png}) {
        if (output.empty() || output == "-") continue;
        for (const std::string& input : asked.inputs) {
            if (output == input || std::filesystem::equivalent(output, input, ignored))
                return error(Code::invalid_argument, "{} is a record to be read, not a place to write to", output);
        }
    }
    if (!asked.page.empty() && asked.page != "-" && asked.page == asked.png)
        return error(Code::invalid_argument, "the page and the picture cannot both be {}", asked.page);
    return asked;
}

constexpr uint64_t kMostPiped = 4 * GiB;

// A path that can be read more than once: a pipe's bytes go into memory first.
Result<std::string> readable_twice(const std::string& path) {
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored) || std::filesystem::is_regular_file(path, ignored) ||
        std::filesystem::is_directory(path, ignored))
        return path;
    std::ifstream in(path, std::ios::binary);
    const int fd = memfd_create("record", MFD_CLOEXEC);  // lives as long as the process
    if (fd < 0) return error(Code::io_error, "cannot keep {} in memory: {}", path, std::strerror(errno));
    std::vector<char> piece(size_t{1} << 20U);
    for (uint64_t bytes = 0; in;) {
        in.read(piece.data(), static_cast<std::streamsize>(piece.size()));
        const auto n = static_cast<size_t>(in.gcount());
        bytes += n;
        if (bytes > kMostPiped)
            return error(Code::unsupported, "{} does not end within {}", path, human_bytes(kMostPiped));
        if (const int failed = write_all(fd, {piece.data(), n}); failed != 0)
            return error(Code::io_error, "cannot keep {} in memory: {}", path, std::strerror(failed));
    }
    return fmt::format("/proc/self/fd/{}", fd);
}

// A race says so in its first line. What cannot be told is left to the reader of records, which says what is wrong.
bool is_race(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    std::string line;
    if (!std::getline(in, line)) return false;
    const trace::Json j = trace::Json::parse(line, nullptr, false);
    return j.is_object() && j.contains("kind") && j["kind"].is_string() && j["kind"].get<std::string>() == "race";
}

}  // namespace

int report_command(std::vector<std::string> arguments) {
    if (asks_help(arguments)) return print_help(help_text(*find_command("report")));
    const auto asked = asked_by(arguments);
    if (!asked.ok()) return fail(asked.status(), kUsage);

    std::vector<Record> records;
    std::vector<RaceResult> races;
    for (const std::string& name : asked->inputs) {
        const auto path = readable_twice(name);
        if (!path.ok()) return fail(path.status(), kFailed);
        if (is_race(*path)) {
            auto race = report::read_race(*path, name);
            if (!race.ok()) return fail(race.status(), kFailed);
            races.push_back(std::move(*race));
        } else {
            auto record = trace::read_record(*path, name);
            if (!record.ok()) return fail(record.status(), kFailed);
            records.push_back(std::move(*record));
        }
    }
    // Before any work, and before a file is written that then is only half of what was asked for.
    Result<std::string> browser = std::string();
    if (!asked->png.empty()) browser = report::find_browser();
    if (!browser.ok()) return fail(browser.status(), kFailed);

    const trace::Json data = report::report_data(records, races);
    const std::string html = asked->page.empty() && asked->png.empty() ? "" : report::html_page(data);
    if (!asked->page.empty()) {
        if (Status s = report::write_whole(asked->page, html); !s.ok()) return fail(s, kFailed);
        if (asked->page != "-") std::fprintf(stderr, "sluice: the report is in %s\n", asked->page.c_str());
    }
    if (!asked->png.empty()) {
        if (Status s = report::draw_png(*browser, html, asked->png); !s.ok()) return fail(s, kFailed);
        if (asked->png != "-") std::fprintf(stderr, "sluice: the picture is in %s\n", asked->png.c_str());
    }
    if (asked->text) {
        if (Status s = report::write_whole("-", report::text_report(data)); !s.ok()) return fail(s, kFailed);
    }
    return kOk;
}

}  // namespace sluice::cli
