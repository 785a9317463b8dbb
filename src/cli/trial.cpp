#include "cli/trial.h"

#include <fcntl.h>
#include <ggml.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace sluice::cli {
namespace {

constexpr int kAborted = 99;
constexpr unsigned kMostSeconds = 30;

[[noreturn]] void in_child(const std::function<void()>& what) {
    // A lock that another thread held when the process was copied stays locked in the copy.
    signal(SIGALRM, SIG_DFL);
    alarm(kMostSeconds);
    const int nowhere = open("/dev/null", O_RDWR);
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nowhere, fd);
    ggml_set_abort_callback([](const char*) { _exit(kAborted); });
    what();
    _exit(0);
}

}  // namespace

bool aborts(const std::function<void()>& what) {
    const pid_t child = fork();
    if (child < 0) return false;
    if (child == 0) in_child(what);
    int status = 0;
    pid_t ended = 0;
    do {
        ended = waitpid(child, &status, 0);
    } while (ended < 0 && errno == EINTR);
    return ended == child && WIFEXITED(status) && WEXITSTATUS(status) == kAborted;
}

}  // namespace sluice::cli
