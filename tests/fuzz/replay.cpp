// Owns: running a fuzz target over a saved corpus without a fuzzer, so that every build's tests cover it.
// Keeps: fails when it was given nothing to run.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

// replay DIRECTORY...
int main(int argc, char** argv) {
    std::vector<std::filesystem::path> paths;
    for (int i = 1; i < argc; i++) {
        std::error_code failed;
        for (const auto& entry : std::filesystem::directory_iterator(argv[i], failed)) {
            if (entry.is_regular_file()) paths.push_back(entry.path());
        }
        if (failed) {
            std::fprintf(stderr, "%s: %s\n", argv[i], failed.message().c_str());
            return 1;
        }
    }
    std::sort(paths.begin(), paths.end());
    for (const std::filesystem::path& path : paths) {
        std::printf("%s\n", path.filename().c_str());
        std::fflush(stdout);  // the last line is the culprit if this one stops the process
        std::ifstream in(path, std::ios::binary);
        const std::string bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
        // Of exactly this size, so that a sanitizer sees any byte read beyond.
        const std::vector<uint8_t> data(bytes.begin(), bytes.end());
        LLVMFuzzerTestOneInput(data.data(), data.size());
    }
    std::printf("%zu inputs\n", paths.size());
    return paths.empty() ? 1 : 0;
}
