// Owns: pages for the browser test, made as `sluice report` makes them, without llama.cpp.
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <vector>

#include "report/data.h"
#include "report/page.h"
#include "report/text.h"

int main(int argc, char** argv) {
    using namespace sluice;
    if (argc < 3) {
        std::fputs("usage: make_page OUTPUT.html|OUTPUT.json|OUTPUT.md RECORD...\n", stderr);
        return 2;
    }
    std::vector<trace::Record> records;
    std::vector<report::RaceResult> races;
    for (int i = 2; i < argc; ++i) {
        auto record = trace::read_record(argv[i]);
        if (record.ok()) {
            records.push_back(std::move(*record));
            continue;
        }
        auto race = report::read_race(argv[i]);
        if (!race.ok()) {
            std::fprintf(stderr, "%s\n", record.status().message().c_str());
            return 1;
        }
        races.push_back(std::move(*race));
    }
    const trace::Json data = report::report_data(records, races);
    const std::string path = argv[1];
    std::ofstream out(path, std::ios::binary);
    if (path.ends_with(".json")) {
        out << data.dump(1) << "\n";
    } else {
        out << (path.ends_with(".md") ? report::text_report(data) : report::html_page(data));
    }
    return out.good() ? 0 : 1;
}
