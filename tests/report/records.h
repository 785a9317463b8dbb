// Owns: the records and expected texts of tests/report/data.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "trace/record_file.h"

namespace sluice::report {

inline std::string data_path(const std::string& name) {
    return (std::filesystem::path(SLUICE_SOURCE_DIR) / "tests/report/data" / name).string();
}

inline trace::Record record_of(const std::string& name) {
    auto record = trace::read_record(data_path(name + ".jsonl"));
    EXPECT_TRUE(record.ok()) << record.status().message();
    return record.ok() ? std::move(*record) : trace::Record{};
}

inline std::vector<trace::Record> records_of(std::initializer_list<const char*> names) {
    std::vector<trace::Record> records;
    for (const char* name : names) records.push_back(record_of(name));
    return records;
}

inline std::string file_text(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}

// Against the file `name`, which SLUICE_UPDATE_GOLDENS=1 writes anew.
inline void expect_golden(const std::string& name, const std::string& text) {
    if (std::getenv("SLUICE_UPDATE_GOLDENS") != nullptr) std::ofstream(data_path(name), std::ios::binary) << text;
    EXPECT_EQ(file_text(data_path(name)), text)
        << name << ": if the change is meant, SLUICE_UPDATE_GOLDENS=1 writes it";
}

}  // namespace sluice::report
