#include "backend/device.h"

#include <ggml-backend-impl.h>
#include <ggml-cpu.h>

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "backend/claims.h"
#include "backend/cpu_hooks.h"
#include "backend/dense.h"
#include "backend/load_error.h"
#include "backend/mapping.h"
#include "backend/model_state.h"
#include "backend/process_memory.h"
#include "backend/recording.h"
#include "backend/router_tap.h"
#include "base/clock.h"
#include "base/log.h"
#include "exec/moe_executor.h"
#include "exec/node_trace.h"
#include "route/report.h"

namespace sluice::backend {
namespace {

constexpr const char* kName = "SLUICE";

// ---- process-wide state

struct Global {
    std::mutex mutex;
    Config config;
    Status config_error;

    // Models by the identity of their first file and form of slots; a model lives as long as its buffers.
    std::map<std::tuple<uint64_t, uint64_t, bool>, std::weak_ptr<ModelState>> models;
    std::string compute_error;
    std::atomic<bool> has_compute_error{false};  // so that a graph that went well need not take the lock
    std::atomic<bool> stopped{false};
    std::atomic<bool> told_stop{false};  // that something was given up for it
    Stats ended;                         // of models that are freed: their counts, and the cache of the last one
};

struct Context;

// All of the process. Never destroyed: the end of the process looks at it.
struct Contexts {
    std::mutex mutex;
    std::set<Context*> alive;
};

Contexts& contexts() {
    static auto& c = *new Contexts();
    return c;
}

Global& global() {
    static Global g;
    return g;
}

Config current_config() {
    const std::lock_guard<std::mutex> lock(global().mutex);
    return global().config;
}

Status config_error() {
    const std::lock_guard<std::mutex> lock(global().mutex);
    return global().config_error;
}

void keep_counts(ModelState& model);
ggml_status host_compute(ggml_backend_t cpu, ggml_cgraph* graph, exec::GraphCompute compute);

// The model that a file belongs to, or why it has no experts to stream.
struct Found {
    std::shared_ptr<ModelState> model;
    Status no_experts;
};

Result<Found> model_of(const std::string& path, bool repack) {
    Global& g = global();
    const std::lock_guard<std::mutex> lock(g.mutex);
    if (!g.config_error.ok()) return g.config_error;
    auto index = model::GgufIndex::open(path);
    if (!index.ok()) return index.status();
    const model::FileEntry& first = index->files()[0];
    std::weak_ptr<ModelState>& known = g.models[{first.device, first.inode, repack}];
    if (auto model = known.lock()) {
        if (model->config().cache_bytes != g.config.cache_bytes || model->config().ram_bytes != g.config.ram_bytes) {
            log(LogLevel::warn, "{} is loaded already and keeps the cache it has; the new size is for other models",
                path);
        }
        return Found{std::move(model), {}};
    }
    auto geometry = model::derive_geometry(*index);
    if (!geometry.ok()) {
        if (geometry.status().code() != Code::unsupported) return geometry.status();
        return Found{nullptr, geometry.status()};
    }
    auto model = ModelState::open(std::move(*index), std::move(*geometry), g.config, repack);
    if (!model.ok()) return model.status();
    (*model)->on_end = keep_counts;
    (*model)->runtime().number = record_model(**model);
    if (recorder() != nullptr || (*model)->runtime().follows_routers(true)) watch_host_compute(host_compute);
    known = *model;
    return Found{std::move(*model), {}};
}

// A wrong configuration was told when it was set, and llama.cpp asks for buffers and contexts several times.
void say(const Status& why) {
    if (why.message() != config_error().message()) log(LogLevel::error, "{}", why.message());
}

ggml_backend_buffer_t refuse_buffer(const Status& status) {
    say(status);
    return nullptr;
}

// ---- buffer of experts: it lies over the loader's mapping, and nothing ever reads through it

struct ExpertBuffer {
    std::shared_ptr<ModelState> model;
    void* base = nullptr;
    MappedFile mapping;
};

ggml_backend_buffer_type* buffer_type();

bool on_us(const ggml_tensor* t) {
    return t->buffer != nullptr && t->buffer->buft == buffer_type();
}

const exec::WeightRef* weight_of(const ggml_tensor* t) {
    return on_us(t) ? static_cast<const exec::WeightRef*>(t->extra) : nullptr;
}

void expert_free(ggml_backend_buffer_t b) {
    delete static_cast<ExpertBuffer*>(b->context);
}
void* expert_base(ggml_backend_buffer_t b) {
    return static_cast<ExpertBuffer*>(b->context)->base;
}

ggml_status expert_init_tensor(ggml_backend_buffer_t b, ggml_tensor* t) {
    const auto* buffer = static_cast<ExpertBuffer*>(b->context);
    if (t->view_src != nullptr) {
        t->extra = t->view_src->extra;
        return GGML_STATUS_SUCCESS;
    }
    const model::TensorEntry* entry = buffer->model->index().find(t->name);
    const exec::WeightRef* weight = buffer->model->weight(t->name);
    if (entry != nullptr && weight == nullptr) {
        report_load_error(error(Code::invalid_argument,
                                "{} holds no experts, so it cannot be streamed: do not place it on SLUICE", t->name));
        return GGML_STATUS_FAILED;
    }
    // The index and the loader have each read the file: they must agree before one byte is trusted.
    const uint64_t offset = buffer->mapping.offset_of(t->data);
    if (entry == nullptr || weight == nullptr || entry->offset != offset || entry->bytes != ggml_nbytes(t) ||
        entry->type != static_cast<model::TypeId>(t->type)) {
        report_load_error(
            error(Code::internal, "{} does not lie where the model's header says (offset {})", t->name, offset));
        return GGML_STATUS_FAILED;
    }
    t->extra = const_cast<exec::WeightRef*>(weight);
    return GGML_STATUS_SUCCESS;
}

// Somebody wants an expert's bytes as such (none of the stock tools does): the mapping still has them.
void expert_get_tensor(ggml_backend_buffer_t, const ggml_tensor* t, void* data, size_t offset, size_t size) {
    std::memcpy(data, static_cast<const std::byte*>(t->data) + offset, size);
}
// The weights of a model file cannot be written.
void expert_set_tensor(ggml_backend_buffer_t, ggml_tensor* t, const void*, size_t, size_t) {
    log(LogLevel::error, "{} is streamed from its file and cannot be changed", t->name);
}
void expert_memset_tensor(ggml_backend_buffer_t b, ggml_tensor* t, uint8_t, size_t, size_t) {
    expert_set_tensor(b, t, nullptr, 0, 0);
}
void expert_clear(ggml_backend_buffer_t, uint8_t) {}

ggml_backend_buffer_i expert_buffer_interface() {
    ggml_backend_buffer_i i{};
    i.free_buffer = expert_free;
    i.get_base = expert_base;
    i.init_tensor = expert_init_tensor;
    i.memset_tensor = expert_memset_tensor;
    i.set_tensor = expert_set_tensor;
    i.get_tensor = expert_get_tensor;
    i.clear = expert_clear;
    return i;
}

ggml_backend_buffer_t buffer_from_host_ptr(ggml_backend_dev_t, void* pointer, size_t size, size_t) {
    auto mapping = find_mapping(pointer);
    if (!mapping.ok()) return refuse_buffer(mapping.status());
    auto found = model_of(mapping->path, current_load().repack);
    if (!found.ok()) return refuse_buffer(found.status());
    if (found->model == nullptr) return refuse_buffer(found->no_experts);
    return ggml_backend_buffer_init(buffer_type(), expert_buffer_interface(),
                                    new ExpertBuffer{std::move(found->model), pointer, std::move(*mapping)}, size);
}

// A new model: what went wrong with an earlier one, whose context was never asked for, is history.
void begin_load() {
    (void)take_load_error();
}

// llama.cpp's lazy mode gives a table that is read row by row a buffer of its own: that one is to stay in the mapping.
bool is_lazy_table(const ModelState& model, const MappedFile& mapping, const void* pointer, size_t size) {
    const model::TensorEntry* table = model.index().find("per_layer_token_embd.weight");
    return table != nullptr && table->offset == mapping.offset_of(pointer) && table->bytes == size;
}

// Where the CPU backend is given a mapping: dense weights of a MoE model, or a model that is none of our business.
ggml_backend_buffer_t dense_hook(ggml_backend_buffer_t original, void* pointer, size_t size) {
    auto mapping = find_mapping(pointer);
    if (!mapping.ok()) return original;
    auto found = model_of(mapping->path, current_load().repack);
    if (!found.ok()) {
        ggml_backend_buffer_free(original);
        return refuse_buffer(found.status());
    }
    const std::shared_ptr<ModelState>& model = found->model;
    if (model == nullptr) {
        restore_read_ahead(*mapping);
        return original;
    }
    if (is_lazy_table(*model, *mapping, pointer, size)) return original;
    const Config config = current_config();
    advise_dense(*model, *mapping, config.dense_weights);
    if (config.dense_weights == DenseWeights::anon) {
        if (Status s = adopt_dense_buffer(original, model, *mapping, config); !s.ok()) {
            ggml_backend_buffer_free(original);
            return refuse_buffer(s);
        }
    }
    return original;
}

// ---- buffer type

const char* buft_name(ggml_backend_buffer_type_t) {
    return kName;
}
size_t buft_alignment(ggml_backend_buffer_type_t) {
    return 64;
}
bool buft_is_host(ggml_backend_buffer_type_t) {
    return false;
}

ggml_backend_buffer_t buft_alloc(ggml_backend_buffer_type_t type, size_t size) {
    if (!config_error().ok()) return nullptr;
    // Sizes of zero come from passes that only ask what would be needed.
    if (size > 0) {
        return refuse_buffer(
            error(Code::unsupported,
                  "memory for experts was asked for: either the model is being loaded without mmap (use load "
                  "mode mmap, the default, or every expert would be read), or a LoRA adapter changes expert "
                  "weights, which streaming does not support"));
    }
    return ggml_backend_buffer_init(type, expert_buffer_interface(), new ExpertBuffer{}, 0);
}

// ---- backend: one per llama context

struct Context {
    ggml_backend_t cpu = nullptr;
    std::unique_ptr<exec::MoeExecutor> executor;
    int n_threads = 0;
    ggml_threadpool_t own_pool = nullptr;  // only while the context has attached none
    int own_pool_threads = 0;
    ggml_backend_t lent_to = nullptr;
    // What its graphs are counted in: the host's pass where it gave one, else one of its own, of which each graph makes
    // a row.
    std::shared_ptr<trace::Pass> own_pass;
    std::shared_ptr<trace::Pass> pass;
    std::atomic<std::thread::id> thread;  // that began its newest graph
    bool tried = false;                   // it has computed something besides trial runs
    Stop stop;                            // what its llama context was told
};

bool is_stopped(void* context) {
    return global().stopped.load(std::memory_order_relaxed) || static_cast<Context*>(context)->stop();
}

// The pass of the graph that this thread is computing.
thread_local std::shared_ptr<trace::Pass> t_pass;
// The routers of its context.
thread_local std::shared_ptr<exec::RouterBook> t_routers;
// The layer that its traced nodes have reached.
thread_local int32_t t_layer = -1;

using Stage = trace::Pass::Stage;

// What llama.cpp's common library decodes before it hands out a context: BOS and EOS to warm up, and twice token 0 to
// see what its memory can do. Nobody asks for anything else of this kind.
bool is_trial(const trace::Pass& pass) {
    using Pair = std::array<int32_t, 2>;
    if (!pass.pair || pass.tokens != 2) return false;
    if (*pass.pair == Pair{0, 0}) return true;
    const std::lock_guard<std::mutex> lock(global().mutex);
    for (const auto& [key, known] : global().models) {
        const auto model = known.lock();
        if (model == nullptr || model->runtime().number != pass.model) continue;
        const auto id = [&](const char* name) {
            const model::MetaValue* value = model->index().meta(name);
            const auto* number = value != nullptr ? std::get_if<uint64_t>(value) : nullptr;
            return number != nullptr && *number <= INT32_MAX ? static_cast<int32_t>(*number) : -1;
        };
        return *pass.pair == Pair{id("tokenizer.ggml.bos_token_id"), id("tokenizer.ggml.eos_token_id")};
    }
    return false;
}

// Of a pass whose stage the caller has set to `closing`. The row of a graph ends with its last split.
void close_row(Context& c) {
    trace::Pass& pass = *c.own_pass;
    trace::Recorder* r = recorder();
    if (pass.ledger.running()) {
        pass.ledger.stop_at_mark();
        if (!c.tried && pass.model >= 0) {
            pass.warmup = pass.warmup || is_trial(pass);
            c.tried = !pass.warmup;
        }
        if (r != nullptr) r->commit(pass, {.phase = pass.phase, .output_tokens = {}, .text = {}, .last = false});
    }
    pass.stage = Stage::before_last_block;
    pass.stage.notify_all();
}

// By the thread that the context belongs to, of a graph that is over.
void finish_row(Context& c) {
    std::atomic<Stage>& stage = c.own_pass->stage;
    if (stage.exchange(Stage::closing) == Stage::closing) {
        stage.wait(Stage::closing);  // the process is ending, and makes the row
    } else {
        close_row(c);
    }
}

// A graph is about to be computed.
void begin_graph(Context& c) {
    finish_row(c);
    c.executor->begin_graph();
    c.thread = std::this_thread::get_id();
    c.pass = given_pass() != nullptr ? given_pass() : c.own_pass;
    c.pass->stage = Stage::before_last_block;
    t_pass = c.pass;
    t_routers = c.executor->routers();
    t_layer = -1;
    trace::Recorder* r = recorder();
    if (c.pass != c.own_pass || r == nullptr) return;
    r->prepare(*c.own_pass);
    c.own_pass->ledger.start();
}

// The ids of a batch of two tokens are the rows that its first node takes from the table of embeddings.
void note_pair(ggml_cgraph* graph, trace::Pass& pass) {
    constexpr int kNear = 8;  // nodes: it is among the first
    const int n = std::min(ggml_graph_n_nodes(graph), kNear);
    for (int i = 0; i < n; ++i) {
        const ggml_tensor* node = ggml_graph_node(graph, i);
        if (node->op != GGML_OP_GET_ROWS || std::strcmp(node->src[0]->name, "token_embd.weight") != 0) continue;
        const ggml_tensor* ids = node->src[1];
        if (ids->type != GGML_TYPE_I32 || ggml_nelements(ids) != 2 || ids->data == nullptr || ids->buffer == nullptr ||
            !ggml_backend_buffer_is_host(ids->buffer))
            return;
        std::memcpy(pass.pair.emplace().data(), ids->data, sizeof *pass.pair);
        return;
    }
}

// The CPU backend's share of a graph: attention, routers, dense layers, output.
ggml_status host_compute(ggml_backend_t cpu, ggml_cgraph* graph, exec::GraphCompute compute_whole) {
    const auto tapping = [&](ggml_backend_t by, ggml_cgraph* g, auto&& compute_piece) {
        if (t_routers == nullptr || !t_routers->has_taps()) return compute_piece(by, g);
        return compute_with_taps(g, *t_routers, [&](ggml_cgraph* piece) { return compute_piece(by, piece); });
    };
    trace::Pass* pass = t_pass.get();
    if (pass == nullptr || !pass->ledger.running()) return tapping(cpu, graph, compute_whole);
    Stage more_output = Stage::output_computed;
    if (!pass->stage.compare_exchange_strong(more_output, Stage::after_last_block) && more_output == Stage::closing)
        return tapping(cpu, graph, compute_whole);  // the process is ending
    if (pass->stage == Stage::before_last_block && pass->model < 0) note_pair(graph, *pass);
    ggml_status status = GGML_STATUS_SUCCESS;
    {
        const trace::During dense(pass->ledger, trace::Part::dense);
        const bool traced = pass->wants.nodes || pass->wants.node_layers;
        status = tapping(cpu, graph, [&](ggml_backend_t by, ggml_cgraph* g) {
            return traced ? exec::compute_traced(by, compute_whole, g, *pass, false, t_layer) : compute_whole(by, g);
        });
    }
    if (pass->stage == Stage::after_last_block) pass->stage = Stage::output_computed;
    return status;
}

template <typename F>
F cpu_function(const char* name) {
    return reinterpret_cast<F>(cpu_proc(name));
}

const char* backend_name(ggml_backend_t) {
    return kName;
}

void drop_own_pool(Context& c) {
    if (c.own_pool == nullptr) return;
    lend_pool(c.lent_to, nullptr);
    c.lent_to = nullptr;
    if (const auto set = cpu_function<decltype(&ggml_backend_cpu_set_threadpool)>("ggml_backend_cpu_set_threadpool"))
        set(c.cpu, nullptr);
    if (const auto free_pool = cpu_function<decltype(&ggml_threadpool_free)>("ggml_threadpool_free"))
        free_pool(c.own_pool);
    c.own_pool = nullptr;
}

void backend_free(ggml_backend_t b) {
    auto* c = static_cast<Context*>(b->context);
    finish_row(*c);
    {
        const std::lock_guard<std::mutex> lock(contexts().mutex);
        contexts().alive.erase(c);
    }
    if (t_pass == c->pass) t_pass = nullptr;
    if (t_routers == c->executor->routers()) t_routers = nullptr;
    c->executor.reset();
    drop_own_pool(*c);
    ggml_backend_free(c->cpu);
    delete c;
    delete b;
}

ggml_status backend_compute(ggml_backend_t b, ggml_cgraph* graph) {
    auto* c = static_cast<Context*>(b->context);
    ggml_status status = c->executor->compute(graph, *c->pass);
    // To a host that was not asked: it would try an aborted batch again.
    if (status == GGML_STATUS_ABORTED && global().stopped && !c->stop()) {
        status = GGML_STATUS_FAILED;
        // Before the host tells of a compute error.
        if (!global().told_stop.exchange(true))
            log(LogLevel::warn,
                "the program was told to end: what it was computing is given up, and its request fails");
    }
    if (status == GGML_STATUS_FAILED || global().has_compute_error.load()) {
        const std::lock_guard<std::mutex> lock(global().mutex);
        global().compute_error = c->executor->last_error().message();
        global().has_compute_error = !global().compute_error.empty();
    }
    return status;
}

// Called right before every graph, after the context has attached its pool (or none). All of a context's computing
// shares one pool: its own if it has one, else one of ours that its CPU backend borrows. Two pools would spin against
// each other on the same cores.
void backend_set_n_threads(ggml_backend_t b, int n) {
    auto* c = static_cast<Context*>(b->context);
    begin_graph(*c);
    if (n != c->n_threads) {
        c->n_threads = n;
        if (const auto set = cpu_function<ggml_backend_set_n_threads_t>("ggml_backend_set_n_threads")) set(c->cpu, n);
    }
    const auto set_pool = cpu_function<decltype(&ggml_backend_cpu_set_threadpool)>("ggml_backend_cpu_set_threadpool");
    if (set_pool == nullptr) return;
    const AttachedPool attached = attached_pool();
    if (attached.pool != nullptr) {
        drop_own_pool(*c);
        set_pool(c->cpu, attached.pool);
        return;
    }
    if (n > c->own_pool_threads || c->own_pool == nullptr) {
        const auto new_pool = cpu_function<decltype(&ggml_threadpool_new)>("ggml_threadpool_new");
        if (new_pool == nullptr) return;
        drop_own_pool(*c);
        ggml_threadpool_params params = ggml_threadpool_params_default(n);
        c->own_pool = new_pool(&params);
        c->own_pool_threads = n;
        if (c->own_pool == nullptr) return;
        set_pool(c->cpu, c->own_pool);
    }
    c->lent_to = attached.cpu;
    lend_pool(attached.cpu, c->own_pool);
}

// Called after a graph, when somebody wants its results, but also within one: only a graph that has computed its output
// is over. Its row need not wait for the next graph then.
void backend_synchronize(ggml_backend_t b) {
    auto* c = static_cast<Context*>(b->context);
    if (c->own_pass->stage == Stage::output_computed) finish_row(*c);
}

void backend_set_abort_callback(ggml_backend_t b, ggml_abort_callback callback, void* data) {
    auto* c = static_cast<Context*>(b->context);
    c->stop = {callback, data};
    if (const auto set = cpu_function<ggml_backend_set_abort_callback_t>("ggml_backend_set_abort_callback")) {
        set(c->cpu, callback, data);
    }
}

ggml_guid_t backend_guid() {
    static ggml_guid guid = {0x53, 0x6c, 0x75, 0x69, 0x63, 0x65, 0x4d, 0x6f,
                             0x45, 0x21, 0x8a, 0x1f, 0x03, 0x77, 0xc2, 0x5e};
    return &guid;
}

ggml_backend_device* inner_device();

ggml_backend_t init_backend(ggml_backend_dev_t, const char*) {
    Status failed = config_error();
    if (failed.ok()) failed = take_load_error();
    if (!failed.ok()) {
        say(failed);
        return nullptr;
    }
    ggml_backend_t cpu = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
    if (cpu == nullptr) return nullptr;
    auto* context = new Context();
    context->cpu = cpu;
    context->executor = std::make_unique<exec::MoeExecutor>(cpu, weight_of);
    context->executor->set_stop({is_stopped, context});
    context->own_pass = std::make_shared<trace::Pass>(SystemClock::instance(), 0);
    context->pass = context->own_pass;
    {
        const std::lock_guard<std::mutex> lock(contexts().mutex);
        contexts().alive.insert(context);
    }
    ggml_backend_i i{};
    i.get_name = backend_name;
    i.free = backend_free;
    i.graph_compute = backend_compute;
    i.synchronize = backend_synchronize;
    return new ggml_backend{backend_guid(), i, inner_device(), context};
}

// ---- devices. The registered one has our buffer type as default, so that weights come to us; the one behind a backend
// has plain host memory as default, so that what we compute is never copied.

const char* device_name(ggml_backend_dev_t) {
    return kName;
}
const char* device_description(ggml_backend_dev_t) {
    return "experts streamed from disk";
}
void device_memory(ggml_backend_dev_t, size_t* free, size_t* total) {
    *free = *total = 0;
}
enum ggml_backend_dev_type device_type(ggml_backend_dev_t) {
    return GGML_BACKEND_DEVICE_TYPE_ACCEL;
}

void device_props(ggml_backend_dev_t d, ggml_backend_dev_props* props) {
    *props = {};
    props->name = device_name(d);
    props->description = device_description(d);
    props->type = device_type(d);
    props->caps.buffer_from_host_ptr = true;
    props->caps.mmap_support = true;
}

ggml_backend_buffer_type_t outer_buffer_type(ggml_backend_dev_t) {
    return buffer_type();
}
ggml_backend_buffer_type_t inner_buffer_type(ggml_backend_dev_t) {
    return ggml_backend_dev_buffer_type(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
}

// What our CPU backend can read, repacked weights among it.
bool device_supports_buft(ggml_backend_dev_t, ggml_backend_buffer_type_t type) {
    return type == buffer_type() ||
           ggml_backend_dev_supports_buft(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), type);
}

// Asked by the loader, weight by weight, whether it may live in our buffer.
bool outer_supports_op(ggml_backend_dev_t, const ggml_tensor* op) {
    const ggml_tensor* weight = op->src[0];
    if (weight == nullptr || !on_us(weight)) return false;
    int layer = 0;
    model::Component component = model::Component::gate;
    std::string group;
    if (op->op == GGML_OP_MUL_MAT_ID && model::parse_expert_tensor_name(weight->name, layer, component, group)) {
        return op->src[1]->type == GGML_TYPE_F32;
    }
    // Not ours; but if it goes to a repacking buffer, it will be read through the mapping and wants read-ahead.
    if (choosing_with_extra() && (op->op == GGML_OP_MUL_MAT || op->op == GGML_OP_MUL_MAT_ID)) {
        note_weight(weight->name, extra_buffer_type_for(const_cast<ggml_tensor*>(op)) != nullptr);
    }
    return false;
}

// Weights in host memory may be for a GPU to take, batch by batch, as llama.cpp decides.
bool has_gpu() {
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        const auto type = ggml_backend_dev_type(ggml_backend_dev_get(i));
        if (type != GGML_BACKEND_DEVICE_TYPE_CPU && type != GGML_BACKEND_DEVICE_TYPE_ACCEL) return true;
    }
    return false;
}

bool inner_supports_op(ggml_backend_dev_t, const ggml_tensor* op) {
    return is_ours(op, on_us, !has_gpu());
}

ggml_backend_device_i device_interface(bool outer) {
    ggml_backend_device_i i{};
    i.get_name = device_name;
    i.get_description = device_description;
    i.get_memory = device_memory;
    i.get_type = device_type;
    i.get_props = device_props;
    i.init_backend = init_backend;
    i.get_buffer_type = outer ? outer_buffer_type : inner_buffer_type;
    i.buffer_from_host_ptr = outer ? buffer_from_host_ptr : nullptr;
    i.supports_op = outer ? outer_supports_op : inner_supports_op;
    i.supports_buft = device_supports_buft;
    return i;
}

// ---- registry

const char* reg_name(ggml_backend_reg_t) {
    return kName;
}
size_t reg_device_count(ggml_backend_reg_t) {
    return 1;
}
ggml_backend_dev_t reg_device(ggml_backend_reg_t, size_t index);

void* reg_proc(ggml_backend_reg_t, const char* name) {
    if (std::strcmp(name, "ggml_backend_set_n_threads") == 0) return reinterpret_cast<void*>(backend_set_n_threads);
    if (std::strcmp(name, "ggml_backend_set_abort_callback") == 0)
        return reinterpret_cast<void*>(backend_set_abort_callback);
    return nullptr;
}

ggml_backend_reg* registry() {
    static ggml_backend_reg reg{GGML_BACKEND_API_VERSION, {reg_name, reg_device_count, reg_device, reg_proc}, nullptr};
    return &reg;
}

ggml_backend_device* outer_device() {
    static ggml_backend_device device{device_interface(true), registry(), nullptr};
    return &device;
}

ggml_backend_device* inner_device() {
    static ggml_backend_device device{device_interface(false), registry(), nullptr};
    return &device;
}

ggml_backend_dev_t reg_device(ggml_backend_reg_t, size_t) {
    return outer_device();
}

ggml_backend_buffer_type* buffer_type() {
    static ggml_backend_buffer_type type{
        {buft_name, buft_alloc, buft_alignment, nullptr, nullptr, buft_is_host}, outer_device(), nullptr};
    return &type;
}

LogLevel level_of(Verbosity v) {
    switch (v) {
        case Verbosity::error:
            return LogLevel::error;
        case Verbosity::warn:
            return LogLevel::warn;
        case Verbosity::info:
            return LogLevel::info;
        case Verbosity::debug:
            return LogLevel::debug;
    }
    return LogLevel::info;
}

void add(PhaseStats& sum, const trace::PhaseCounters& c) {
    sum.tokens += c.tokens;
    sum.lookups += c.lookups;
    sum.hits += c.hits;
    sum.bytes_read += c.logical_bytes;
    sum.bytes_physical += c.physical_bytes;
    sum.read_wait_ms += static_cast<double>(c.read_wait) / 1e6;
    sum.repack_ms += static_cast<double>(c.convert) / 1e6;
    sum.routed += c.routed;
    sum.dropped += c.dropped;
    sum.substituted += c.substituted;
    sum.ahead_committed += c.route_ahead.committed;
    sum.ahead_passed += c.route_ahead.passed;
    sum.ahead_passed_below += c.route_ahead.below;
    sum.ahead_passed_first += c.route_ahead.first;
    sum.ahead_slots += c.route_ahead.slots;
    sum.ahead_agreed += c.route_ahead.agreed;
}

void add_counts(Stats& sum, exec::ModelRuntime& runtime) {
    const std::lock_guard lock(runtime.mutex);
    add(sum.prefill, runtime.counters.prefill);
    add(sum.decode, runtime.counters.decode);
    if (runtime.fetcher == nullptr) return;
    const cache::SlotCache& slots = runtime.fetcher->cache();
    sum.evictions += slots.counters().evictions - runtime.counters.evictions;
    sum.rereads += slots.counters().rereads - runtime.counters.rereads;
}

void add_cache(Stats& sum, exec::ModelRuntime& runtime) {
    const std::lock_guard lock(runtime.mutex);
    sum.experts += runtime.counters.records;
    if (runtime.fetcher == nullptr) return;
    sum.cache_bytes += runtime.fetcher->limit();
    sum.slots += runtime.fetcher->slots_within_limit();
    sum.experts_resident += runtime.fetcher->cache().n_resident();
}

void show_cache(Stats& stats, const Stats& cache) {
    stats.cache_bytes = cache.cache_bytes;
    stats.slots = cache.slots;
    stats.experts = cache.experts;
    stats.experts_resident = cache.experts_resident;
}

std::vector<int> layers_of(const ModelState& model) {
    std::vector<int> layers;
    for (const model::ExpertSet& set : model.geometry().sets) layers.push_back(set.layer);
    return layers;
}

// The runtime's lock is held.
void record_scores(ModelState& model) {
    const exec::ModelRuntime& runtime = model.runtime();
    trace::Recorder* r = recorder();
    if (r == nullptr || runtime.number < 0 || !runtime.scores) return;
    r->guesses(static_cast<size_t>(runtime.number), route::report_json(*runtime.scores, layers_of(model)));
}

void say_scores(ModelState& model) {
    exec::ModelRuntime& runtime = model.runtime();
    const std::lock_guard lock(runtime.mutex);
    if (!runtime.scores) return;
    const std::vector<int> layers = layers_of(model);
    const auto lines = route::report_lines(*runtime.scores, layers);
    // It was asked for, however quiet the rest is to be.
    if (lines.empty())
        log_line(LogLevel::info, "moe-predict: nothing was generated token by token, so nothing was guessed");
    for (const std::string& line : lines) log_line(LogLevel::info, line);
    record_scores(model);
}

// What --prefetch auto, or --predict-prefetch auto, has found.
void say_trial(exec::ModelRuntime& runtime) {
    const std::lock_guard lock(runtime.mutex);
    if (!runtime.trial) return;
    const route::Trial::Told& told = runtime.trial->told();
    const auto ms = [](double ns) { return ns * 1e-6; };
    const std::string compared =
        told.trials == 0
            ? "too few tokens for a trial"
            : fmt::format(
                  "{} trials, adopted {} times, given up {} times; last compared, a token waited and guessed "
                  "{:.2f} ms with guesses and {:.2f} ms without{}",
                  told.trials, told.won, told.ended, ms(runtime.trial->cost_on()), ms(runtime.trial->cost_off()),
                  told.nothing_to_do ? "; guesses led to nothing" : "");
    log_line(LogLevel::info, fmt::format("moe-prefetch auto: on for {} of {} tokens, {}", runtime.asked.on,
                                         runtime.asked.tokens, compared));
}

// The stock tools free their model before they return; what it did is still asked for then.
void keep_counts(ModelState& model) {
    say_scores(model);
    say_trial(model.runtime());
    Stats cache;
    add_cache(cache, model.runtime());
    Global& g = global();
    const std::lock_guard<std::mutex> lock(g.mutex);
    add_counts(g.ended, model.runtime());
    if (cache.cache_bytes == 0) return;
    show_cache(g.ended, cache);
}

// Every model that is loaded now.
std::vector<std::shared_ptr<ModelState>> live_models() {
    const std::lock_guard<std::mutex> lock(global().mutex);
    std::vector<std::shared_ptr<ModelState>> models;
    for (const auto& [key, weak] : global().models) {
        if (auto model = weak.lock()) models.push_back(std::move(model));
    }
    return models;
}

// Models that compute now follow the budget by themselves, before their next block.
void idle_models_follow() {
    for (const auto& model : live_models()) {
        exec::ModelRuntime& runtime = model->runtime();
        const std::unique_lock lock(runtime.mutex, std::try_to_lock);
        if (lock.owns_lock() && runtime.fetcher != nullptr) runtime.fetcher->follow_share();
    }
}

}  // namespace

Result<ggml_backend_reg_t> make_registry() {
    if (std::strcmp(ggml_version(), SLUICE_GGML_VERSION) != 0) {
        return error(Code::unsupported,
                     "this Sluice was built for llama.cpp v{} (ggml {}), but the program runs ggml {}",
                     SLUICE_LLAMA_VERSION, SLUICE_GGML_VERSION, ggml_version());
    }
    if (Status s = install_cpu_hooks(dense_hook, begin_load, {admit_buffer, note_buffer, forget_buffer}); !s.ok())
        return s;
    set_limit_follower(idle_models_follow);
    return static_cast<ggml_backend_reg_t>(registry());
}

void set_config(const Config& config) {
    const std::lock_guard<std::mutex> lock(global().mutex);
    global().config = config;
    global().config_error = Status();
    set_log_level(level_of(config.verbosity));
}

void set_config_error(Status status) {
    log(LogLevel::error, "{}", status.message());
    const std::lock_guard<std::mutex> lock(global().mutex);
    global().config_error = std::move(status);
}

bool models_are_loaded() {
    return !live_models().empty();
}

std::shared_ptr<ModelState> loaded_model() {
    const auto models = live_models();
    return models.size() == 1 ? models[0] : nullptr;
}

Status check_model(const std::string& path, const Config& config) {
    auto index = model::GgufIndex::open(path);
    if (!index.ok()) return index.status();
    auto geometry = model::derive_geometry(*index);
    // Without experts it loads as in stock llama.cpp.
    if (!geometry.ok()) return geometry.status().code() == Code::unsupported ? Status() : geometry.status();
    // What loading only says, it says when it loads.
    const LogLevel level = log_level();
    set_log_level(LogLevel::error);
    const auto model = ModelState::open(std::move(*index), std::move(*geometry), config, false);
    set_log_level(level);
    return model.ok() ? Status() : model.status();
}

Stats collect_stats() {
    const std::vector<std::shared_ptr<ModelState>> models = live_models();
    Stats sum;
    {
        const std::lock_guard<std::mutex> lock(global().mutex);
        sum = global().ended;
    }
    Stats cache;
    for (const auto& model : models) {
        add_counts(sum, model->runtime());
        add_cache(cache, model->runtime());
    }
    if (!models.empty()) show_cache(sum, cache);
    sum.dense_bytes = dense_bytes_loaded();
    return sum;
}

namespace {

InFlight look_in_flight(bool wait) {
    InFlight sum;
    for (const auto& model : live_models()) {
        exec::ModelRuntime& runtime = model->runtime();
        const std::lock_guard lock(runtime.mutex);
        if (runtime.fetcher == nullptr) continue;
        runtime.fetcher->look();
        while (wait && runtime.fetcher->scheduler().live() > 0 && runtime.fetcher->wait_for_any()) {
        }
        sum.leases += runtime.fetcher->cache().total_leases();
        sum.reads += runtime.fetcher->scheduler().live();
    }
    return sum;
}

}  // namespace

InFlight in_flight() {
    return look_in_flight(false);
}

InFlight settle() {
    return look_in_flight(true);
}

std::optional<Predictions> predictions() {
    for (const auto& model : live_models()) {
        exec::ModelRuntime& runtime = model->runtime();
        const std::lock_guard lock(runtime.mutex);
        if (!runtime.scores) continue;
        Predictions p{.scores = *runtime.scores, .layers = layers_of(*model), .read = 0, .busy = 0};
        double bytes = 0;
        for (const model::ExpertSet& set : model->geometry().sets) bytes += static_cast<double>(set.record_bytes());
        if (runtime.fetcher != nullptr) {
            const double speed = runtime.fetcher->bandwidth();
            if (speed > 0 && !p.layers.empty()) p.read = bytes / static_cast<double>(p.layers.size()) / speed;
            p.busy = runtime.fetcher->counters().busy;
        }
        return p;
    }
    return std::nullopt;
}

void stop_all() {
    global().stopped = true;
    abandon_reads();
}

// Of another thread's graphs only those whose output is computed are known to be over.
void finish_rows() {
    const std::lock_guard<std::mutex> lock(contexts().mutex);
    for (Context* c : contexts().alive) {
        std::atomic<Stage>& stage = c->own_pass->stage;
        Stage computed = Stage::output_computed;
        if (stage.compare_exchange_strong(computed, Stage::closing)) {
            close_row(*c);
        } else if (c->thread.load() == std::this_thread::get_id()) {
            finish_row(*c);
        }
    }
}

// A model that computes right now, in another thread, is left out: nobody waits for it when the process ends.
void record_guesses() {
    for (const auto& model : live_models()) {
        const std::unique_lock lock(model->runtime().mutex, std::try_to_lock);
        if (lock.owns_lock()) record_scores(*model);
    }
}

void reset_counters() {
    for (const auto& model : live_models()) {
        exec::ModelRuntime& runtime = model->runtime();
        const std::lock_guard lock(runtime.mutex);
        runtime.counters.prefill = {};
        runtime.counters.decode = {};
        if (runtime.fetcher != nullptr) {
            runtime.counters.evictions = runtime.fetcher->cache().counters().evictions;
            runtime.counters.rereads = runtime.fetcher->cache().counters().rereads;
        }
    }
    const std::lock_guard<std::mutex> lock(global().mutex);
    global().ended = Stats();
}

std::string last_compute_error() {
    const std::lock_guard<std::mutex> lock(global().mutex);
    return global().compute_error;
}

}  // namespace sluice::backend
