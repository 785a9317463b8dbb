#include "machine/compute_load.h"

#include <pthread.h>
#include <signal.h>

#include <system_error>

namespace sluice::machine {
namespace {

// Beyond what a core's own caches hold on most processors.
constexpr size_t kFloats = size_t{1} << 20U;

}  // namespace

Status ComputeLoad::start(unsigned threads) {
    stop();
    stop_ = false;
    // A thread inherits its maker's mask.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    for (const int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS}) sigdelset(&all, s);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    Status status;
    try {
        for (unsigned i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
    } catch (const std::system_error& e) {
        status = error(Code::io_error, "cannot start thread {} of {} that compute: {}", threads_.size() + 1, threads,
                       e.code().message());
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (!status.ok()) stop();
    return status;
}

void ComputeLoad::stop() {
    stop_ = true;
    for (std::thread& t : threads_) t.join();
    threads_.clear();
}

void ComputeLoad::run() {
    std::vector<float> memory(kFloats, 1.0F);
    float factor = 1.0F;
    while (!stop_.load(std::memory_order_relaxed)) {
        for (float& x : memory) x = x * factor + 0.5F;
        factor = memory[kFloats / 2] > 1e6F ? 0.25F : 1.0F;  // known to nobody before it is computed
        rounds_.fetch_add(1, std::memory_order_relaxed);
    }
}

}  // namespace sluice::machine
