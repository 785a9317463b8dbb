// Owns: finding the command.
#include <cstdio>
#include <string>
#include <vector>

#include "cli/commands.h"

int main(int argc, char** argv) {
    using namespace sluice;
    std::vector<std::string> arguments(argv + 1, argv + argc);
    if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h" || arguments[0] == "help") {
        std::fputs(cli::main_help().c_str(), arguments.empty() ? stderr : stdout);
        return arguments.empty() ? cli::kUsage : cli::kOk;
    }
    const std::string name = arguments[0];
    if (name == "--version") {
        std::printf("sluice %s for %s\n", version(), llama_version_needed());
        return cli::kOk;
    }
    // What packaging writes to files.
    if (name == "--man-page") return std::fputs(cli::man_page().c_str(), stdout) < 0 ? cli::kFailed : cli::kOk;
    if (name == "--bash-completion")
        return std::fputs(cli::bash_completion().c_str(), stdout) < 0 ? cli::kFailed : cli::kOk;
    if (name == "--options-markdown")
        return std::fputs(cli::options_markdown().c_str(), stdout) < 0 ? cli::kFailed : cli::kOk;
    const cli::Command* command = cli::find_command(name);
    if (command == nullptr) {
        return cli::fail(error(Code::invalid_argument, "there is no command {}; sluice --help lists them", name),
                         cli::kUsage);
    }
    arguments.erase(arguments.begin());
    return command->run(std::move(arguments));
}
