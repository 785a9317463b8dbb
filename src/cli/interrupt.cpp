#include "cli/interrupt.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <csignal>
#include <cstring>

#include "cli/commands.h"

namespace sluice::cli {
namespace {

std::atomic<bool> g_stop{false};

void on_interrupt(int) {
    if (g_stop.exchange(true)) _exit(kInterrupted);
}

}  // namespace

void catch_interrupts() {
    struct sigaction action {};
    action.sa_handler = on_interrupt;
    for (const int s : {SIGINT, SIGTERM, SIGHUP}) sigaction(s, &action, nullptr);
}

bool interrupted() {
    return g_stop.load();
}

std::string command_line(const char* command, const std::vector<std::string>& arguments) {
    std::string line = std::string("sluice ") + command;
    for (const std::string& a : arguments) {
        const bool plain = !a.empty() && std::all_of(a.begin(), a.end(), [](unsigned char c) {
            return std::isalnum(c) != 0 || std::strchr("-_./=+:,@%", c) != nullptr;
        });
        line += ' ';
        if (plain) {
            line += a;
            continue;
        }
        line += '\'';
        for (const char c : a) line += c == '\'' ? std::string("'\\''") : std::string(1, c);
        line += '\'';
    }
    return line;
}

}  // namespace sluice::cli
