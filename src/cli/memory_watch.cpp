#include "cli/memory_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <thread>

#include "backend/process_memory.h"

namespace sluice::cli {
namespace {

// Between two looks while nothing else happens.
constexpr int kIdleMs = 500;

int g_pipe[2] = {-1, -1};
std::thread g_thread;
std::atomic<bool> g_over{false};

// A signal handler may do little more than write. It may not wait either: what finds the pipe full is lost, and as many
// of its kind are on their way.
void on_signal(int number) {
    const int saved = errno;
    const char what = number == SIGUSR1 ? '1' : '2';
    (void)!write(g_pipe[1], &what, 1);
    errno = saved;
}

void obey(char what) {
    if (what == '1') {
        backend::halve_experts();
    } else {
        backend::set_experts_limit(std::nullopt);
    }
}

void watch() {
    // Signals are for the other threads.
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    for (;;) {
        pollfd p{.fd = g_pipe[0], .events = POLLIN, .revents = 0};
        const int ready = poll(&p, 1, kIdleMs);
        char what = 0;
        if (g_over.load()) return;
        if (ready <= 0) {
            backend::look_at_memory();
        } else if (read(g_pipe[0], &what, 1) <= 0) {
            continue;
        } else if (what == 'q') {
            return;
        } else {
            obey(what);
        }
    }
}

// Before what it looks at is destroyed.
void end_watching() {
    const char quit = 'q';
    g_over.store(true);  // a full pipe wakes the thread too
    (void)!write(g_pipe[1], &quit, 1);
    g_thread.join();
}

}  // namespace

void catch_memory_signals() {
    if (g_pipe[0] >= 0) return;
    struct sigaction action {};
    action.sa_handler = pipe2(g_pipe, O_CLOEXEC | O_NONBLOCK) == 0 ? on_signal : SIG_IGN;
    action.sa_flags = SA_RESTART;
    // One after the other, in the kernel's order: a handler on top of the other would write first.
    sigaddset(&action.sa_mask, SIGUSR1);
    sigaddset(&action.sa_mask, SIGUSR2);
    sigaction(SIGUSR1, &action, nullptr);
    sigaction(SIGUSR2, &action, nullptr);
}

void watch_memory() {
    catch_memory_signals();
    if (g_pipe[0] < 0 || g_thread.joinable()) return;
    // Before any model is there.
    for (char what = 0; read(g_pipe[0], &what, 1) == 1;) obey(what);
    g_thread = std::thread(watch);
    (void)std::atexit(end_watching);
}

}  // namespace sluice::cli
