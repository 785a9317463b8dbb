// Owns: finding the command.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/memory_watch.h"

namespace {

using namespace sluice;

int dispatch(std::vector<std::string> arguments) {
    // llama.cpp's server, as a router, starts its own program again with bare options.
    if (std::getenv("SLUICE_SERVE_CHILD") != nullptr && !arguments.empty() && arguments[0].starts_with('-')) {
        cli::catch_memory_signals();
        return cli::serve_command(std::move(arguments));
    }
    const bool bare_help = arguments.size() == 1 && arguments[0] == "help";
    if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h" || bare_help) {
        std::fputs(cli::main_help().c_str(), arguments.empty() ? stderr : stdout);
        return arguments.empty() ? cli::kUsage : cli::kOk;
    }
    if (arguments[0] == "help" && arguments.size() > 1) arguments = {arguments[1], "--help"};
    const std::string name = arguments[0];
    if (name == "--version") {
        std::printf("sluice %s for %s\n", version(), llama_version_needed());
        return cli::kOk;
    }
    // What packaging writes to files.
    struct Text {
        const char* flag;
        std::string (*text)();
    };
    for (const Text& t : {Text{"--man-page", cli::man_page}, Text{"--bash-completion", cli::bash_completion},
                          Text{"--options-markdown", cli::options_markdown}}) {
        if (name != t.flag) continue;
        std::fputs(t.text().c_str(), stdout);
        return cli::kOk;
    }
    const cli::Command* command = cli::find_command(name);
    if (command == nullptr) {
        return cli::fail(error(Code::invalid_argument, "there is no command {}; sluice --help lists them", name),
                         cli::kUsage);
    }
    arguments.erase(arguments.begin());
    // It computes, so it will listen to them.
    if (command->stock != nullptr) cli::catch_memory_signals();
    return command->run(std::move(arguments));
}

}  // namespace

int main(int argc, char** argv) {
    const int rc = dispatch({argv + 1, argv + argc});
    // A full disk shows only when the buffer is written.
    if (rc == cli::kOk && (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)) {
        return cli::fail(error(Code::io_error, "standard output is closed or full"), cli::kFailed);
    }
    return rc;
}
