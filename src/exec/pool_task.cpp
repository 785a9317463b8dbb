#include "exec/pool_task.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace sluice::exec {
namespace {

// The repacked forms interleave 4, 8 or 16 neighbouring rows and know nothing beyond them, so groups of rows are
// multiples of this.
constexpr int64_t kAlign = 32;
// Few, because ggml reports every conversion to whoever wants its debug messages; more than one for each thread, so
// that one that the system runs late does less.
constexpr int64_t kGroupsPerThread = 2;
// Below this a launch costs more than it saves.
constexpr size_t kWorthSharing = size_t{64} << 10U;

bool converts_by_groups(const ggml_tensor& weight) {
    return std::strcmp(ggml_backend_buft_name(ggml_backend_buffer_get_type(weight.buffer)), "CPU_REPACK") == 0;
}

}  // namespace

void PoolTask::run(ggml_backend_t cpu, const Work& work) {
    if (cpu == nullptr) {
        work(0, 1);
        return;
    }
    if (graph_ == nullptr) {
        context_.reset(ggml_init({4 * ggml_tensor_overhead() + ggml_graph_overhead_custom(4, false), nullptr, true}));
        const auto call = [](ggml_tensor*, int thread, int n_threads, void* self) {
            (*static_cast<PoolTask*>(self)->work_)(thread, n_threads);
        };
        ggml_tensor* node =
            ggml_custom_4d(context_.get(), GGML_TYPE_F32, 1, 1, 1, 1, nullptr, 0, call, GGML_N_TASKS_MAX, this);
        graph_ = ggml_new_graph_custom(context_.get(), 4, false);
        ggml_build_forward_expand(graph_, node);
    }
    work_ = &work;
    // Its only node is computed by every thread before anybody looks at the abort callback, so what this returns says
    // nothing about the work.
    (void)ggml_backend_graph_compute(cpu, graph_);
    work_ = nullptr;
}

void convert_rows(PoolTask& task, ggml_backend_t cpu, const ggml_tensor& weight, const std::byte* raw) {
    const int64_t n_rows = weight.ne[1];
    const size_t row = weight.nb[1];
    if (cpu == nullptr || n_rows <= kAlign || static_cast<size_t>(n_rows) * row < kWorthSharing ||
        !converts_by_groups(weight)) {
        ggml_tensor whole = weight;
        ggml_backend_tensor_set(&whole, raw, 0, ggml_nbytes(&whole));
        return;
    }
    std::atomic<int64_t> next{0};
    const PoolTask::Work work = [&](int, int n_threads) {
        const int64_t n_groups = n_threads == 1 ? 1 : n_threads * kGroupsPerThread;
        const int64_t group = ((n_rows + n_groups - 1) / n_groups + kAlign - 1) / kAlign * kAlign;
        for (int64_t begin = next.fetch_add(group); begin < n_rows; begin = next.fetch_add(group)) {
            ggml_tensor rows = weight;
            rows.ne[1] = std::min(group, n_rows - begin);
            rows.nb[2] = rows.nb[3] = row * static_cast<size_t>(rows.ne[1]);
            rows.data = static_cast<std::byte*>(weight.data) + static_cast<size_t>(begin) * row;
            ggml_backend_tensor_set(&rows, raw + static_cast<size_t>(begin) * row, 0, ggml_nbytes(&rows));
        }
    };
    task.run(cpu, work);
}

}  // namespace sluice::exec
