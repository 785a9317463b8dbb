#include "backend/dense.h"

#include <ggml-backend-impl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <atomic>
#include <map>
#include <mutex>

#include "backend/cpu_hooks.h"
#include "backend/load_error.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/memory.h"
#include "io/read_all.h"

namespace sluice::backend {
namespace {

// One adopted buffer. Its memory is reserved in one piece and used from the front; pages that no tensor needs are never
// touched and cost nothing.
struct DenseBuffer {
    std::shared_ptr<ModelState> model;
    MappedFile mapping;
    io::File file;
    Region region;
    uint64_t used = 0;
    std::map<uint64_t, std::byte*> placed;  // by file offset: a tied output tensor is the same bytes twice
    void (*free_original)(ggml_backend_buffer_t) = nullptr;
};

std::mutex g_mutex;
std::map<ggml_backend_buffer_t, std::unique_ptr<DenseBuffer>> g_buffers;

std::atomic<uint64_t> g_loaded{0};

Status place(DenseBuffer& d, ggml_tensor* tensor) {
    const uint64_t offset = d.mapping.offset_of(tensor->data);
    const uint64_t bytes = ggml_nbytes(tensor);
    if (const auto it = d.placed.find(offset); it != d.placed.end()) {
        tensor->data = it->second;
        return {};
    }
    const auto room = io::region_bytes(d.file, offset, bytes);
    const uint64_t at = align_up(d.used, kDirectAlign);
    if (!room || at + *room > d.region.size()) {
        return error(Code::internal, "{} does not fit the memory reserved for dense weights", tensor->name);
    }
    auto data = d.model->read(d.file, offset, bytes, {d.region.data() + at, *room});
    if (!data.ok()) return data.status().within(tensor->name);
    d.used = at + *room;
    d.placed[offset] = *data;
    tensor->data = *data;
    g_loaded += bytes;
    return {};
}

ggml_status init_tensor(ggml_backend_buffer_t buffer, ggml_tensor* tensor) {
    const std::lock_guard<std::mutex> lock(g_mutex);
    DenseBuffer& d = *g_buffers.at(buffer);
    // Experts that the user has forced into this buffer stay where they are.
    if (tensor->view_src != nullptr || d.model->weight(tensor->name) != nullptr) return GGML_STATUS_SUCCESS;
    if (Status s = place(d, tensor); !s.ok()) {
        report_load_error(std::move(s));
        return GGML_STATUS_FAILED;
    }
    return GGML_STATUS_SUCCESS;
}

void free_buffer(ggml_backend_buffer_t buffer) {
    std::unique_ptr<DenseBuffer> d;
    {
        const std::lock_guard<std::mutex> lock(g_mutex);
        const auto it = g_buffers.find(buffer);
        d = std::move(it->second);
        g_buffers.erase(it);
    }
    if (d->free_original != nullptr) d->free_original(buffer);
}

// Hints only: the load is as right without them, just slower.
void advise(const MappedFile& mapping, uint64_t offset, uint64_t bytes, int advice) {
    const uint64_t first = mapping.offset;  // of mapping.begin
    const uint64_t page = page_size();
    if (offset + bytes <= first) return;
    const uint64_t begin = align_down(std::max(offset, first) - first, page);
    const auto size = static_cast<uint64_t>(mapping.end - mapping.begin);
    const uint64_t end = std::min(align_up(offset + bytes - first, page), size);
    if (begin < end) (void)madvise(mapping.begin + begin, end - begin, advice);
}

uint32_t file_index_of(const ModelState& model, const std::string& path) {
    struct stat st {};
    if (stat(path.c_str(), &st) != 0) return UINT32_MAX;
    const auto& files = model.index().files();
    for (uint32_t i = 0; i < files.size(); ++i) {
        if (files[i].device == st.st_dev && files[i].inode == st.st_ino) return i;
    }
    return UINT32_MAX;
}

}  // namespace

Status adopt_dense_buffer(ggml_backend_buffer_t buffer, std::shared_ptr<ModelState> model, const MappedFile& mapping,
                          const Config& config) {
    auto d = std::make_unique<DenseBuffer>();
    const uint32_t file_index = file_index_of(*model, mapping.path);
    if (file_index == UINT32_MAX) {
        return error(Code::not_found, "{} was replaced while it was being loaded; load it again", mapping.path);
    }
    auto file = io::File::open(mapping.path, config.direct_io ? io::Access::direct : io::Access::buffered);
    if (!file.ok()) return file.status();
    d->file = std::move(*file);
    d->mapping = mapping;

    uint64_t reserve = kDirectAlign;
    const auto& tensors = model->index().tensors();
    for (const model::TensorEntry& t : tensors) {
        if (t.file != file_index || model->weight(t.name) != nullptr) continue;
        reserve += align_up(io::region_bytes(d->file, t.offset, t.bytes).value_or(0), kDirectAlign);
    }
    auto region = Region::allocate(reserve, true);
    if (!region.ok()) return region.status();
    d->region = std::move(*region);
    d->model = std::move(model);
    d->free_original = buffer->iface.free_buffer;
    buffer->iface.init_tensor = init_tensor;
    buffer->iface.free_buffer = free_buffer;
    log(LogLevel::debug, "dense weights of {}: at most {} into memory of our own, {}", d->file.path(),
        human_bytes(reserve), d->file.direct() ? "read directly" : "read through the page cache");
    const std::lock_guard<std::mutex> lock(g_mutex);
    g_buffers[buffer] = std::move(d);
    return {};
}

void advise_dense(const ModelState& model, const MappedFile& mapping, DenseWeights mode) {
    const uint32_t file = file_index_of(model, mapping.path);
    const LoadTrack& load = current_load();
    for (const model::TensorEntry& t : model.index().tensors()) {
        if (t.file != file || model.weight(t.name) != nullptr) continue;
        if (mode == DenseWeights::mmap) {
            advise(mapping, t.offset, t.bytes, MADV_NORMAL);
        } else if (mode == DenseWeights::warm || load.to_extra.contains(t.name)) {
            advise(mapping, t.offset, t.bytes, MADV_WILLNEED);
        }
    }
}

void restore_read_ahead(const MappedFile& mapping) {
    const auto size = static_cast<size_t>(mapping.end - mapping.begin);
    (void)madvise(mapping.begin, size, MADV_NORMAL);
    (void)madvise(mapping.begin, size, MADV_WILLNEED);
}

uint64_t dense_bytes_loaded() {
    return g_loaded.load();
}

}  // namespace sluice::backend
