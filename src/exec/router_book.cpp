#include "exec/router_book.h"

#include <algorithm>
#include <string_view>

#include "exec/node_trace.h"

namespace sluice::exec {
namespace {

// What llama.cpp calls the state that a layer's attention is given.
bool is_state(const ggml_tensor* node) {
    return node->type == GGML_TYPE_F32 && ggml_nrows(node) == 1 && node->view_src == nullptr &&
           std::string_view(node->name).starts_with("attn_norm-");
}

}  // namespace

RouterBook::~RouterBook() {
    if (cpu_ != nullptr) ggml_backend_free(cpu_);
}

ggml_backend_t RouterBook::cpu() {
    if (cpu_ != nullptr) return cpu_;
    cpu_ = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
    if (cpu_ == nullptr) return nullptr;
    const ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(cpu_));
    const auto set_threads = reinterpret_cast<ggml_backend_set_n_threads_t>(
        ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads"));
    if (set_threads != nullptr) set_threads(cpu_, 1);
    return cpu_;
}

void RouterBook::begin_graph() {
    for (Known& k : sets_) k.fresh = false;
    for (Tap& t : taps_) t.fresh = false;
    state_fresh_.assign(state_fresh_.size(), false);
}

void RouterBook::reach(uint32_t set, ggml_cgraph* graph, int at) {
    const ggml_tensor* ids = ggml_graph_node(graph, at)->src[2];
    if (set >= sets_.size()) sets_.resize(set + 1);
    Known& known = sets_[set];
    if (known.fresh || ids->ne[1] != 1) return;  // a block may come in pieces
    const ggml_tensor* weights = applied_weights(graph);
    const auto origin = find_router(ids, weights);
    if (!origin.ok()) {
        known.replay.reset();
        known.why = origin.status().message();
        return;
    }
    if (!known.replay || known.replay->origin().form != origin->form) {
        known.replay.reset();
        auto made = RouterReplay::make(ids, weights);
        if (!made.ok()) {
            known.why = made.status().message();
            return;
        }
        known.replay = std::move(*made);
        known.gate = origin->gate;
        known.input.resize(known.replay->n_input());
    }
    known.fresh = take_input(known, origin->input, graph, at);
    if (known.fresh) {
        known.why.clear();
    } else if (known.why.empty()) {
        known.why = std::string("what ") + known.gate->name + " is multiplied with was not kept in this graph";
    }
}

bool RouterBook::take_input(Known& known, const ggml_tensor* input, ggml_cgraph* graph, int at) {
    const auto of_gate = [&](const auto& k) { return k.gate == known.gate && k.fresh; };
    const auto tap = std::find_if(taps_.begin(), taps_.end(), of_gate);
    if (tap != taps_.end()) {
        known.input = tap->input;
        return true;
    }
    if (is_read_by(graph, at, input)) return copy_row(input, 0, known.input);
    // Two blocks of a layer may share a router's product.
    const auto other = std::find_if(sets_.begin(), sets_.end(), of_gate);
    if (other != sets_.end()) {
        known.input = other->input;
        return true;
    }
    const bool wanted = std::any_of(taps_.begin(), taps_.end(), [&](const Tap& t) { return t.gate == known.gate; });
    if (!wanted) taps_.push_back({known.gate, std::vector<float>(known.input.size()), false});
    return false;
}

std::span<const float> RouterBook::input(uint32_t set) const {
    if (set >= sets_.size() || !sets_[set].fresh) return {};
    return sets_[set].input;
}

RouterReplay* RouterBook::replay(uint32_t set) {
    return set < sets_.size() && sets_[set].replay ? &*sets_[set].replay : nullptr;
}

RouterReplay* RouterBook::replay_on(uint32_t of, uint32_t from) {
    RouterReplay* router = replay(of);
    return router != nullptr && cpu() != nullptr && input(from).size() == router->n_input() ? router : nullptr;
}

const std::string& RouterBook::why(uint32_t set) const {
    static const std::string kNotMet = "its block was not reached yet";
    return set < sets_.size() ? sets_[set].why : kNotMet;
}

const RouterBook::State* RouterBook::before_attention(int layer) const {
    if (layer < 0 || static_cast<size_t>(layer) >= states_.size() || !state_fresh_[static_cast<size_t>(layer)])
        return nullptr;
    return &states_[static_cast<size_t>(layer)];
}

bool RouterBook::is_tapped(const ggml_tensor* node) const {
    if (keeps_states_ && is_state(node)) return true;
    return node->op == GGML_OP_MUL_MAT && node->src[1]->ne[1] == 1 &&
           std::any_of(taps_.begin(), taps_.end(), [&](const Tap& t) { return t.gate == node->src[0]; });
}

void RouterBook::tapped(const ggml_tensor* node) {
    if (is_state(node)) {
        const int layer = layer_in_name(node->name);
        if (layer < 0 || layer >= kMaxLayers) return;
        const auto i = static_cast<size_t>(layer);
        if (i >= states_.size()) {
            states_.resize(i + 1);
            state_fresh_.resize(i + 1);
        }
        states_[i].numbers.resize(static_cast<size_t>(node->ne[0]));
        states_[i].at = SystemClock::instance().now();
        state_fresh_[i] = copy_row(node, 0, states_[i].numbers);
        return;
    }
    const auto tap = std::find_if(taps_.begin(), taps_.end(), [&](const Tap& t) { return t.gate == node->src[0]; });
    if (tap != taps_.end()) tap->fresh = copy_row(node->src[1], 0, tap->input);
}

}  // namespace sluice::exec
