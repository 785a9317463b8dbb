#include "backend/cpu_hooks.h"

#include <ggml-backend-impl.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>

namespace sluice::backend {
namespace {

using GetProc = void* (*)(ggml_backend_reg_t, const char*);
using FromHostPtr = ggml_backend_buffer_t (*)(ggml_backend_dev_t, void*, size_t, size_t);
using SetPool = void (*)(ggml_backend_t, ggml_threadpool_t);

GetProc g_get_proc = nullptr;
FromHostPtr g_from_host_ptr = nullptr;
SetPool g_set_pool = nullptr;
using Alloc = ggml_backend_buffer_t (*)(ggml_backend_buffer_type_t, size_t);
Alloc g_alloc = nullptr;
std::atomic<void (*)(ggml_backend_buffer_t)> g_free{nullptr};  // of buffers that g_alloc makes
BufferHooks g_buffers;
DenseHook g_dense_hook = nullptr;
LoadHook g_load_hook = nullptr;
ggml_backend_reg_t g_cpu_reg = nullptr;

// The loader's order is fixed: it lists buffer types (and only then asks for the extra ones), chooses one per weight,
// maps the files (asking about NUMA once per file), then makes buffers. So what was seen before the first mapping
// belongs to the model whose buffers come next.
struct Tracker {
    bool asked_for_extra = false;
    bool mapping = false;  // between the first file's mapping and the next load's choosing
    std::set<std::string> to_extra;
    LoadTrack load;
};
thread_local Tracker t_tracker;
thread_local AttachedPool t_attached;

std::mutex g_lent_mutex;
std::map<ggml_backend_t, ggml_threadpool_t> g_lent;

bool is_numa() {
    Tracker& t = t_tracker;
    if (!t.mapping) {
        t.load.repack = t.asked_for_extra;
        t.load.to_extra = std::move(t.to_extra);
        t.to_extra.clear();
        t.asked_for_extra = false;
        t.mapping = true;
        g_load_hook();
    }
    return true;
}

ggml_threadpool_t lent_to(ggml_backend_t cpu) {
    const std::lock_guard<std::mutex> lock(g_lent_mutex);
    const auto it = g_lent.find(cpu);
    return it == g_lent.end() ? nullptr : it->second;
}

// What every CPU backend computes graphs with; all instances share it.
using Compute = ggml_status (*)(ggml_backend_t, ggml_cgraph*);
std::atomic<HostCompute> g_host_compute{nullptr};
std::atomic<Compute> g_compute{nullptr};

ggml_status watched_compute(ggml_backend_t cpu, ggml_cgraph* graph) {
    return g_host_compute.load(std::memory_order_relaxed)(cpu, graph, g_compute.load(std::memory_order_relaxed));
}

void watch(ggml_backend_t cpu) {
    if (g_host_compute.load(std::memory_order_relaxed) == nullptr || cpu->iface.graph_compute == watched_compute)
        return;
    g_compute = cpu->iface.graph_compute;
    cpu->iface.graph_compute = watched_compute;
}

void set_threadpool(ggml_backend_t cpu, ggml_threadpool_t pool) {
    t_attached = {cpu, pool};
    watch(cpu);
    // Taking a lent pool away before every graph would put its threads to sleep each time.
    if (pool == nullptr && lent_to(cpu) != nullptr) return;
    g_set_pool(cpu, pool);
}

void* get_proc(ggml_backend_reg_t reg, const char* name) {
    if (std::strcmp(name, "ggml_backend_cpu_is_numa") == 0) return reinterpret_cast<void*>(is_numa);
    if (std::strcmp(name, "ggml_backend_cpu_set_threadpool") == 0 && g_set_pool != nullptr) {
        return reinterpret_cast<void*>(set_threadpool);
    }
    if (std::strcmp(name, "ggml_backend_dev_get_extra_bufts") == 0) {
        t_tracker.asked_for_extra = true;
        t_tracker.mapping = false;
    }
    return g_get_proc(reg, name);
}

ggml_backend_buffer_t from_host_ptr(ggml_backend_dev_t device, void* pointer, size_t size, size_t max_tensor_size) {
    t_tracker.mapping = false;
    ggml_backend_buffer_t buffer = g_from_host_ptr(device, pointer, size, max_tensor_size);
    return buffer == nullptr ? nullptr : g_dense_hook(buffer, pointer, size);
}

void free_buffer(ggml_backend_buffer_t buffer) {
    g_buffers.freed(buffer->context);
    g_free.load(std::memory_order_relaxed)(buffer);
}

// Small buffers come and go all the time, and matter to nobody.
constexpr size_t kSmallBuffer = 1U << 20U;

ggml_backend_buffer_t alloc_buffer(ggml_backend_buffer_type_t type, size_t size) {
    if (size < kSmallBuffer) return g_alloc(type, size);
    if (!g_buffers.admit(size)) return nullptr;
    ggml_backend_buffer_t buffer = g_alloc(type, size);
    if (buffer == nullptr || buffer->context == nullptr) return buffer;
    // All that this type makes are freed in the same way.
    void (*first)(ggml_backend_buffer_t) = nullptr;
    g_free.compare_exchange_strong(first, buffer->iface.free_buffer);
    if (buffer->iface.free_buffer != g_free.load()) return buffer;
    buffer->iface.free_buffer = free_buffer;
    g_buffers.made(buffer->context, size);
    return buffer;
}

}  // namespace

Status install_cpu_hooks(DenseHook dense_hook, LoadHook load_hook, const BufferHooks& buffers) {
    static std::mutex mutex;
    const std::lock_guard<std::mutex> lock(mutex);
    if (g_get_proc != nullptr) return {};
    ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (device == nullptr) return error(Code::unsupported, "there is no CPU backend in this program to compute with");
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(device);
    if (reg->iface.get_proc_address == nullptr || device->iface.buffer_from_host_ptr == nullptr) {
        return error(Code::unsupported, "this CPU backend lacks what Sluice builds on");
    }
    g_cpu_reg = reg;
    g_dense_hook = dense_hook;
    g_load_hook = load_hook;
    g_set_pool = reinterpret_cast<SetPool>(reg->iface.get_proc_address(reg, "ggml_backend_cpu_set_threadpool"));
    g_from_host_ptr = device->iface.buffer_from_host_ptr;
    device->iface.buffer_from_host_ptr = from_host_ptr;
    g_buffers = buffers;
    ggml_backend_buffer_type_t host = ggml_backend_dev_buffer_type(device);
    g_alloc = host->iface.alloc_buffer;
    host->iface.alloc_buffer = alloc_buffer;
    g_get_proc = reg->iface.get_proc_address;
    reg->iface.get_proc_address = get_proc;
    return {};
}

void* cpu_proc(const char* name) {
    // Who only plans installs no hooks.
    if (g_get_proc == nullptr) {
        ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
        return ggml_backend_reg_get_proc_address(ggml_backend_dev_backend_reg(cpu), name);
    }
    return g_get_proc(g_cpu_reg, name);
}

const LoadTrack& current_load() {
    return t_tracker.load;
}

void note_weight(const std::string& name, bool to_extra) {
    if (to_extra) t_tracker.to_extra.insert(name);
}

bool choosing_with_extra() {
    return t_tracker.asked_for_extra;
}

void watch_host_compute(HostCompute hook) {
    g_host_compute = hook;
}

AttachedPool attached_pool() {
    return t_attached;
}

void lend_pool(ggml_backend_t cpu, ggml_threadpool_t pool) {
    if (cpu == nullptr || g_set_pool == nullptr) return;
    {
        const std::lock_guard<std::mutex> lock(g_lent_mutex);
        const auto it = g_lent.find(cpu);
        const ggml_threadpool_t before = it == g_lent.end() ? nullptr : it->second;
        if (before == pool) return;
        if (pool == nullptr) {
            g_lent.erase(it);
        } else {
            g_lent[cpu] = pool;
        }
    }
    g_set_pool(cpu, pool);
}

}  // namespace sluice::backend
