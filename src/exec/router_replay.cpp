#include "exec/router_replay.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/bytes.h"
#include "exec/views.h"

namespace sluice::exec {
namespace {

// More than any router has (grouped choice: about 30), far fewer than a layer.
constexpr size_t kMaxNodes = 96;
constexpr size_t kMaxMemory = 16 * MiB;
constexpr size_t kAlign = 64;
// The copy of a router's weight for guesses and early rankings. A smaller one costs its nodes, not its bytes
// (bench/router).
constexpr ggml_type kSmall = GGML_TYPE_Q8_0;
constexpr uint64_t kWorthSmall = 128 * KiB;

bool is_gate(const ggml_tensor* t) {
    const std::string_view name = t->name;
    return t->op == GGML_OP_NONE && name.starts_with("blk.") && name.ends_with(".ffn_gate_inp.weight");
}

bool is_router_product(const ggml_tensor* t) {
    return t->op == GGML_OP_MUL_MAT && is_gate(t->src[0]);
}

// What the model's file brought. Adapters come and go.
bool is_weight(const ggml_tensor* t) {
    return t->op == GGML_OP_NONE && t->view_src == nullptr && t->buffer != nullptr && t->data != nullptr &&
           ggml_backend_buffer_get_usage(t->buffer) == GGML_BACKEND_BUFFER_USAGE_WEIGHTS &&
           std::string_view(t->name).find(".lora_") == std::string_view::npos;
}

// One row picked from a single one, by a number that the graph is given: which rows somebody wants the output of.
bool picks_only_row(const ggml_tensor* t) {
    return t->op == GGML_OP_GET_ROWS && t->src[1]->op == GGML_OP_NONE && !is_weight(t->src[1]) &&
           ggml_nelements(t->src[1]) == 1 && ggml_nrows(t->src[0]) == 1 && t->src[1]->type == GGML_TYPE_I32;
}

// The tensors that `t` cannot be computed without, in the order in which a graph has them. A cast names itself as what
// it writes to.
template <typename F>
bool each_source(const ggml_tensor* t, F&& f) {
    for (const ggml_tensor* src : t->src) {
        if (src != nullptr && src != t && !f(src)) return false;
    }
    return t->view_src == nullptr || f(t->view_src);
}

// Walks up from the block to the router's input.
class Walk {
  public:
    // False: too much is upstream, or what cannot be a router.
    bool up(const ggml_tensor* t) {
        if (t == input_ || seen(t)) return true;
        if (begun_ == nodes_.size()) return refuse("too much", t);
        ++begun_;
        if (t->op == GGML_OP_NONE && t->view_src == nullptr) {
            if (!is_weight(t)) return refuse("an input of the graph", t);
            mix(reinterpret_cast<uintptr_t>(t));
        } else if (is_router_product(t)) {
            if (gate_ != nullptr) return refuse("a second router", t);
            gate_ = t->src[0];
            input_ = t->src[1];
        }
        if (picks_only_row(t)) {
            if (!up(t->src[0])) return false;
        } else if (!each_source(t, [this](const ggml_tensor* src) { return up(src); })) {
            return false;
        }
        nodes_[n_++] = t;
        mix(static_cast<uint64_t>(t->op));
        mix(static_cast<uint64_t>(t->ne[0]));
        for (const int32_t p : t->op_params) mix(static_cast<uint32_t>(p));
        return true;
    }
    // Sources before what is computed from them; without the input.
    [[nodiscard]] std::span<const ggml_tensor* const> nodes() const { return {nodes_.data(), n_}; }
    [[nodiscard]] RouterOrigin origin() const { return {gate_, input_, form_}; }
    [[nodiscard]] Status failure(const ggml_tensor* ids) const {
        return error(Code::unsupported, "{} comes from {} ({}), not from a router's product alone", ids->name, what_,
                     which_ != nullptr ? which_->name : "");
    }

  private:
    [[nodiscard]] bool seen(const ggml_tensor* t) const {
        return std::find(nodes_.begin(), nodes_.begin() + static_cast<ptrdiff_t>(n_), t) !=
               nodes_.begin() + static_cast<ptrdiff_t>(n_);
    }
    bool refuse(const char* what, const ggml_tensor* which) {
        what_ = what;
        which_ = which;
        return false;
    }
    void mix(uint64_t v) { form_ = (form_ ^ v) * 0x100000001b3ULL; }

    std::array<const ggml_tensor*, kMaxNodes> nodes_{};
    size_t n_ = 0, begun_ = 0;  // those whose sources are among them; those that were reached
    const ggml_tensor* gate_ = nullptr;
    const ggml_tensor* input_ = nullptr;
    uint64_t form_ = 0xcbf29ce484222325ULL;
    const char* what_ = "nothing";
    const ggml_tensor* which_ = nullptr;
};

Status walk_up(Walk& walk, const ggml_tensor* ids, const ggml_tensor* weights) {
    if (!walk.up(ids) || (weights != nullptr && !walk.up(weights))) return walk.failure(ids);
    if (walk.origin().gate == nullptr) return walk.failure(ids);
    return {};
}

}  // namespace

Result<RouterOrigin> find_router(const ggml_tensor* ids, const ggml_tensor* weights) {
    Walk walk;
    if (Status s = walk_up(walk, ids, weights); !s.ok()) return s;
    return walk.origin();
}

const ggml_tensor* applied_weights(ggml_cgraph* graph) {
    const int n = ggml_graph_n_nodes(graph);
    for (int i = 0; i < n; ++i) {
        const ggml_tensor* node = ggml_graph_node(graph, i);
        if (node->op == GGML_OP_MUL && std::string_view(node->name).starts_with("ffn_moe_weighted"))
            return node->src[1];
    }
    return nullptr;
}

bool is_read_by(ggml_cgraph* graph, int at, const ggml_tensor* t) {
    const ggml_tensor* wanted = root(t);
    const int n = ggml_graph_n_nodes(graph);
    bool read = false;
    for (int i = 0; i < n; ++i) {
        const ggml_tensor* node = ggml_graph_node(graph, i);
        if (is_view(node->op)) continue;  // that may be of a tensor whose time is over
        if (root(node) == wanted) return false;
        for (const ggml_tensor* src : node->src) read = read || (i >= at && src != nullptr && root(src) == wanted);
    }
    return read;
}

uint64_t small_copy_bytes(ggml_type type, uint64_t n_input, uint64_t n_expert) {
    const auto block = static_cast<uint64_t>(ggml_blck_size(kSmall));
    const uint64_t numbers = checked_mul(n_input, n_expert).value_or(0);
    const bool worth = type == GGML_TYPE_F32 && n_input % block == 0 && numbers >= kWorthSmall / sizeof(float);
    return worth ? numbers / block * ggml_type_size(kSmall) : 0;
}

bool copy_row(const ggml_tensor* input, int64_t token, std::span<float> row) {
    if (input->type != GGML_TYPE_F32 || input->data == nullptr || input->nb[0] != sizeof(float) || token < 0 ||
        token >= input->ne[1] || input->ne[2] != 1 || input->ne[3] != 1 ||
        static_cast<size_t>(input->ne[0]) != row.size())
        return false;
    if (input->buffer != nullptr && !ggml_backend_buffer_is_host(input->buffer)) return false;
    std::memcpy(row.data(), static_cast<const std::byte*>(input->data) + static_cast<size_t>(token) * input->nb[1],
                row.size_bytes());
    return true;
}

// ---- making the copy

class RouterCopy {
  public:
    RouterCopy(const ggml_tensor* ids, const ggml_tensor* weights) : ids_(ids), applied_(weights) {}

    Result<RouterReplay> make() {
        if (Status s = walk_up(walk_, ids_, applied_); !s.ok()) return s;
        replay_.origin_ = walk_.origin();
        const ggml_tensor* x = replay_.origin_.input;
        if (ids_->type != GGML_TYPE_I32 || ids_->ne[1] != 1 || ids_->ne[2] != 1 || ids_->ne[3] != 1 ||
            ids_->ne[0] < 1 || x->type != GGML_TYPE_F32 || ggml_nrows(x) != 1)
            return refuse("is not the choice of one token");
        if (applied_ != nullptr && (applied_->type != GGML_TYPE_F32 || ggml_nelements(applied_) != ids_->ne[0]))
            return refuse("has weights of another shape");
        replay_.n_expert_ = static_cast<size_t>(replay_.origin_.gate->ne[1]);
        if (Status s = lay_out(); !s.ok()) return s;
        return std::move(replay_);
    }

  private:
    Status refuse(const char* why) const {
        return error(Code::unsupported, "the router of {} cannot be run again: {} {}", replay_.origin_.gate->name,
                     ids_->name, why);
    }

    // The copy of one of the graph's tensors; itself where it is a weight.
    [[nodiscard]] ggml_tensor* copy_of(const ggml_tensor* t) const {
        if (t == replay_.origin_.input) return input_;
        const auto nodes = walk_.nodes();
        for (size_t i = 0; i < nodes.size(); ++i) {
            if (nodes[i] == t) return copies_[i];
        }
        return nullptr;
    }

    Status lay_out() {
        const auto nodes = walk_.nodes();
        // Of those that depend on the choice there are two: for the router's own, and for another one.
        size_t bytes =
            align_up(ggml_nbytes(replay_.origin_.input), kAlign) + align_up(ggml_nbytes(ids_), kAlign) + 2 * kAlign;
        for (const ggml_tensor* t : nodes) {
            if (t->view_src == nullptr && !is_weight(t)) bytes += 2 * align_up(ggml_nbytes(t), kAlign);
            if (bytes > kMaxMemory) return refuse("takes too much memory");
        }
        replay_.memory_.resize(bytes);
        replay_.tensors_.reserve(2 * nodes.size() + 4);
        next_ = reinterpret_cast<std::byte*>(
            align_up(reinterpret_cast<uintptr_t>(replay_.memory_.data()), static_cast<uintptr_t>(kAlign)));

        input_ = leaf(*replay_.origin_.input);
        replay_.input_ = {static_cast<float*>(input_->data), static_cast<size_t>(input_->ne[0])};
        only_row_ = leaf(*ids_);
        only_row_->ne[0] = 1;
        std::memset(only_row_->data, 0, sizeof(int32_t));

        const size_t n_graph = 2 * nodes.size() + 1;
        replay_.context_.reset(
            ggml_init({3 * ggml_graph_overhead_custom(n_graph, false) + ggml_tensor_overhead(), nullptr, true}));
        if (replay_.context_ == nullptr) return error(Code::no_memory, "no memory for the copy of a router");
        replay_.choose_ = ggml_new_graph_custom(replay_.context_.get(), n_graph, false);

        copies_.assign(nodes.size(), nullptr);
        for (size_t i = 0; i < nodes.size(); ++i) {
            if (is_weight(nodes[i])) {
                copies_[i] = const_cast<ggml_tensor*>(nodes[i]);
                continue;
            }
            if (Status s = copy(*nodes[i], copies_[i]); !s.ok()) return s;
            ggml_graph_add_node(replay_.choose_, copies_[i]);
            if (is_router_product(nodes[i])) replay_.product_ = copies_[i];
        }
        small_copy();
        replay_.ids_ = copy_of(ids_);
        if (applied_ != nullptr) replay_.weights_ = copy_of(applied_);
        find_ranking();
        return applied_ == nullptr ? Status() : copy_for_other_ids();
    }

    // A tensor of our own, without sources.
    ggml_tensor* leaf(const ggml_tensor& like) {
        ggml_tensor& t = replay_.tensors_.emplace_back(like);
        t.op = GGML_OP_NONE;
        t.buffer = nullptr;
        t.view_src = nullptr;
        t.view_offs = 0;
        t.extra = nullptr;
        std::fill(std::begin(t.src), std::end(t.src), nullptr);
        t.nb[0] = ggml_type_size(t.type);
        for (int d = 1; d < GGML_MAX_DIMS; ++d) t.nb[d] = t.nb[d - 1] * static_cast<size_t>(t.ne[d - 1]);
        t.data = take(ggml_nbytes(&t));
        return &t;
    }
    std::byte* take(size_t bytes) {
        std::byte* p = next_;
        next_ += align_up(bytes, kAlign);
        return p;
    }

    // `t` over the copies that there are of its sources.
    Status copy(const ggml_tensor& t, ggml_tensor*& out) {
        const bool picks = picks_only_row(&t);
        if (t.view_src != nullptr && !is_view(t.op) && t.op != GGML_OP_SET_ROWS) return refuse("writes into a source");
        if (t.op == GGML_OP_CUSTOM || t.op == GGML_OP_MAP_CUSTOM1 || t.op == GGML_OP_MAP_CUSTOM2 ||
            t.op == GGML_OP_MAP_CUSTOM3)
            return refuse("is computed by the host program");
        out = &replay_.tensors_.emplace_back(t);
        out->buffer = nullptr;
        out->extra = nullptr;
        out->flags |= GGML_TENSOR_FLAG_COMPUTE;
        for (size_t s = 0; s < GGML_MAX_SRC; ++s) {
            if (t.src[s] == nullptr) continue;
            out->src[s] = t.src[s] == &t ? out : picks && s == 1 ? only_row_ : copy_of(t.src[s]);
            if (out->src[s] == nullptr) return refuse("has a source that was not copied");
        }
        if (t.view_src == nullptr) {
            out->data = take(ggml_nbytes(out));
        } else if (Status s = place_view(t, *out); !s.ok()) {
            return s;
        }
        const ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
        if (!is_view(out->op) && (cpu == nullptr || !ggml_backend_dev_supports_op(cpu, out)))
            return refuse("needs a device other than the CPU");
        return {};
    }

    // Views show memory of the tensor at the end of their chain, which may also be that of the input.
    Status place_view(const ggml_tensor& t, ggml_tensor& out) {
        const ggml_tensor* x = replay_.origin_.input;
        size_t offset = t.view_offs;
        ggml_tensor* shown = copy_of(t.view_src);
        if (shown == nullptr || t.view_src == root(x)) {
            const size_t begin = x->view_src != nullptr ? x->view_offs : 0;
            if (t.view_src != root(x) || offset < begin) return refuse("shows memory of something else");
            shown = input_;
            offset -= begin;
        }
        if (offset + ggml_nbytes(&out) > ggml_nbytes(shown)) return refuse("shows more than there is");
        out.view_src = shown;
        out.view_offs = offset;
        out.data = static_cast<std::byte*>(shown->data) + offset;
        return {};
    }

    // The choice is the head of one ranking of all experts: llama.cpp's argsort and a view of it.
    void find_ranking() {
        const ggml_tensor* sorted = root(replay_.ids_);
        if (sorted->op != GGML_OP_ARGSORT || replay_.ids_->data != sorted->data ||
            ggml_nelements(sorted) != static_cast<int64_t>(replay_.n_expert_) ||
            sorted->src[0]->type != GGML_TYPE_F32 || !ggml_is_contiguous(sorted->src[0]))
            return;
        replay_.ranking_ = sorted;
        replay_.scores_ = sorted->src[0];
    }

    // Its form; the numbers come when they are needed.
    void small_copy() {
        const ggml_tensor& gate = *replay_.origin_.gate;
        if (gate.ne[2] != 1 || gate.ne[3] != 1 || !ggml_is_contiguous(&gate) ||
            !ggml_backend_buffer_is_host(gate.buffer) ||
            small_copy_bytes(gate.type, static_cast<uint64_t>(gate.ne[0]), static_cast<uint64_t>(gate.ne[1])) == 0)
            return;
        ggml_tensor& t = replay_.tensors_.emplace_back(gate);
        t.type = kSmall;
        t.buffer = nullptr;
        t.extra = nullptr;
        t.data = nullptr;
        t.nb[0] = ggml_type_size(kSmall);
        t.nb[1] = ggml_row_size(kSmall, t.ne[0]);
        t.nb[2] = t.nb[3] = t.nb[1] * static_cast<size_t>(t.ne[1]);
        replay_.small_ = &t;
    }

    // The weights' nodes that depend on the choice once more, over ids of our own.
    Status copy_for_other_ids() {
        const auto nodes = walk_.nodes();
        ggml_tensor* given = leaf(*ids_);
        replay_.other_ids_ = {static_cast<int32_t*>(given->data), static_cast<size_t>(given->ne[0])};
        const std::vector<ggml_tensor*> own = copies_;
        std::vector<bool> depends(nodes.size());
        const auto at = [&](const ggml_tensor* t) {
            return static_cast<size_t>(std::find(nodes.begin(), nodes.end(), t) - nodes.begin());
        };
        depends[at(ids_)] = true;
        copies_[at(ids_)] = given;
        replay_.weigh_ = ggml_new_graph_custom(replay_.context_.get(), 2 * nodes.size() + 1, false);
        for (size_t i = at(ids_) + 1; i < nodes.size(); ++i) {
            each_source(nodes[i], [&](const ggml_tensor* src) {
                const size_t s = at(src);
                if (s < nodes.size() && depends[s]) depends[i] = true;
                return true;
            });
            if (!depends[i]) continue;
            if (Status s = copy(*nodes[i], copies_[i]); !s.ok()) return s;
            ggml_graph_add_node(replay_.weigh_, copies_[i]);
        }
        if (!depends[at(applied_)]) return refuse("has weights that do not depend on it");
        replay_.other_weights_ = copy_of(applied_);
        replay_.weigh_all_ = ggml_new_graph_custom(replay_.context_.get(), 2 * nodes.size() + 1, false);
        std::vector<ggml_tensor*> both;
        for (ggml_cgraph* graph : {replay_.choose_, replay_.weigh_}) {
            for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) both.push_back(ggml_graph_node(graph, i));
        }
        std::vector<bool> needed(both.size());
        for (size_t i = both.size(); i-- > 0;) {
            needed[i] = needed[i] || both[i] == replay_.other_weights_;
            if (!needed[i]) continue;
            each_source(both[i], [&](const ggml_tensor* src) {
                const auto s = static_cast<size_t>(std::find(both.begin(), both.end(), src) - both.begin());
                if (s < both.size()) needed[s] = true;
                return true;
            });
        }
        for (size_t i = 0; i < both.size(); ++i) {
            if (needed[i]) ggml_graph_add_node(replay_.weigh_all_, both[i]);
        }
        return {};
    }

    const ggml_tensor* ids_;
    const ggml_tensor* applied_;
    Walk walk_;
    RouterReplay replay_;
    std::vector<ggml_tensor*> copies_;  // of the walk's nodes
    ggml_tensor* input_ = nullptr;
    ggml_tensor* only_row_ = nullptr;
    std::byte* next_ = nullptr;
};

Result<RouterReplay> RouterReplay::make(const ggml_tensor* ids, const ggml_tensor* weights) {
    return RouterCopy(ids, weights).make();
}

// ---- running it

namespace {

template <typename T>
std::span<const T> numbers(const ggml_tensor* t) {
    if (t == nullptr) return {};
    return {static_cast<const T*>(t->data), static_cast<size_t>(ggml_nelements(t))};
}

}  // namespace

Status RouterReplay::take_input(std::span<const float> x) {
    if (x.size() != input_.size())
        return error(Code::invalid_argument, "{} takes {} numbers, not {}", origin_.gate->name, input_.size(),
                     x.size());
    std::copy(x.begin(), x.end(), input_.begin());
    return {};
}

Status RouterReplay::run(ggml_backend_t cpu, std::span<const float> x) {
    if (Status s = take_input(x); !s.ok()) return s;
    if (ggml_backend_graph_compute(cpu, choose_) != GGML_STATUS_SUCCESS)
        return error(Code::cancelled, "the router of {} was not run to its end", origin_.gate->name);
    return {};
}

Status RouterReplay::guess(ggml_backend_t cpu, std::span<const float> x) {
    if (small_ == nullptr) return run(cpu, x);
    if (small_->data == nullptr) {
        small_memory_.resize(ggml_nbytes(small_) + kAlign);
        small_->data = reinterpret_cast<void*>(
            align_up(reinterpret_cast<uintptr_t>(small_memory_.data()), static_cast<uintptr_t>(kAlign)));
        ggml_quantize_chunk(kSmall, static_cast<const float*>(origin_.gate->data), small_->data, 0, small_->ne[1],
                            small_->ne[0], nullptr);
    }
    ggml_tensor* gate = std::exchange(product_->src[0], small_);
    Status s = run(cpu, x);
    product_->src[0] = gate;
    return s;
}

std::span<const int32_t> RouterReplay::ids() const {
    return numbers<int32_t>(ids_);
}

std::span<const float> RouterReplay::weights() const {
    return numbers<float>(weights_);
}

std::span<const int32_t> RouterReplay::ranking() const {
    return numbers<int32_t>(ranking_);
}

std::span<const float> RouterReplay::scores() const {
    return numbers<float>(scores_);
}

Result<std::span<const float>> RouterReplay::weights_of(ggml_backend_t cpu, std::span<const int32_t> ids) {
    return weigh_by(weigh_, cpu, ids);
}

Result<std::span<const float>> RouterReplay::weigh(ggml_backend_t cpu, std::span<const float> x,
                                                   std::span<const int32_t> ids) {
    if (Status s = take_input(x); !s.ok()) return s;
    return weigh_by(weigh_all_, cpu, ids);
}

Result<std::span<const float>> RouterReplay::weigh_by(ggml_cgraph* graph, ggml_backend_t cpu,
                                                      std::span<const int32_t> ids) {
    if (other_weights_ == nullptr)
        return error(Code::unsupported, "the block of {} applies no weights that are known", origin_.gate->name);
    if (ids.size() != other_ids_.size())
        return error(Code::invalid_argument, "{} chooses {} experts, not {}", origin_.gate->name, other_ids_.size(),
                     ids.size());
    for (const int32_t e : ids) {
        if (e < 0 || static_cast<size_t>(e) >= n_expert_)
            return error(Code::invalid_argument, "{} has {} experts, not one with number {}", origin_.gate->name,
                         n_expert_, e);
    }
    std::copy(ids.begin(), ids.end(), other_ids_.begin());
    if (ggml_backend_graph_compute(cpu, graph) != GGML_STATUS_SUCCESS)
        return error(Code::cancelled, "the weights of {} were not computed to their end", origin_.gate->name);
    return numbers<float>(other_weights_);
}

}  // namespace sluice::exec
