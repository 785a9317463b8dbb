// Owns: the places where Sluice reaches into the CPU backend of the same process, because ggml 0.25.1 has no interface
// for what is needed. All of them are here:
//   1. "ggml_backend_cpu_is_numa" is answered with yes while a model is mapped: the loader then leaves out
//   MAP_POPULATE,
//      which would read the whole file. Nothing else asks this.
//   2. "ggml_backend_dev_get_extra_bufts" is watched: it tells whether a model is loaded with repacking.
//   3. "ggml_backend_cpu_set_threadpool" is watched: Sluice computes on the context's own threads instead of a second
//      pool that would fight it for cores.
//   4. the CPU device's buffer_from_host_ptr is wrapped: it is where dense weights get their memory.
//   5. the CPU's buffer type is watched: what llama.cpp allocates for KV caches and compute buffers counts for the
//      memory of the process, and what cannot fit is refused before it is touched.
//   6. where a run is recorded, a context's CPU backend is watched while it computes: it tells what attention and dense
//      layers cost.
// Keeps: every call is passed on to the original; installing twice changes nothing.
#pragma once

#include <ggml-backend.h>
#include <ggml-cpu.h>

#include <set>
#include <string>

#include "base/status.h"

namespace sluice::backend {

// Called for a buffer over a mapping of dense weights; returns the buffer to use, nullptr to fail the load.
using DenseHook = ggml_backend_buffer_t (*)(ggml_backend_buffer_t original, void* pointer, size_t size);

// Called once when a model's first file is being mapped.
using LoadHook = void (*)();

// Asked before a buffer of the CPU's is made, where false refuses it; told of those that were made, and of their end.
struct BufferHooks {
    bool (*admit)(size_t bytes) = nullptr;
    void (*made)(const void* begin, size_t bytes) = nullptr;
    void (*freed)(const void* begin) = nullptr;
};

Status install_cpu_hooks(DenseHook dense_hook, LoadHook load_hook, const BufferHooks& buffers);

// A CPU backend function by name, past our own watching.
void* cpu_proc(const char* name);

// What is known of the model that this thread is loading.
struct LoadTrack {
    bool repack = false;             // extra buffer types are in use
    std::set<std::string> to_extra;  // weights that go to one of them
};
// The load that the calling thread is in. Valid once its files are mapped.
const LoadTrack& current_load();
// Called for every weight whose buffer type is being chosen.
void note_weight(const std::string& name, bool to_extra);
// True if the load being prepared has asked for extra buffer types.
bool choosing_with_extra();

// The pool that the context on this thread has attached for its next graph, or nullptr, and its CPU backend.
struct AttachedPool {
    ggml_backend_t cpu = nullptr;
    ggml_threadpool_t pool = nullptr;
};
AttachedPool attached_pool();
// Called instead of a context's CPU backend computing a graph of its own; `compute` does it. Set once something is
// recorded; contexts that exist by then are watched from their next graph on.
using HostCompute = ggml_status (*)(ggml_backend_t cpu, ggml_cgraph* graph,
                                    ggml_status (*compute)(ggml_backend_t, ggml_cgraph*));
void watch_host_compute(HostCompute hook);

// Lends a pool to a context's CPU backend that has none of its own; nullptr ends it.
void lend_pool(ggml_backend_t cpu, ggml_threadpool_t pool);

}  // namespace sluice::backend
